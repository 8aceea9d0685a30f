"""Checks of a forest against its definition, from quick to independent."""

from __future__ import annotations

from dataclasses import dataclass, replace
from os import PathLike
from typing import Literal, TypeAlias, get_args

import numpy as np

from privml.errors import ParameterError
from privml.unlearning.forest import reference
from privml.unlearning.forest.canonical import canonical_bytes, digest
from privml.unlearning.forest.model import ForestModel, open_core
from privml.unlearning.forest.params import REGRESSION, ForestParams
from privml.unlearning.forest.persistence import DEFAULT_LIMITS, Limits, load_model, read_model_file
from privml.unlearning.forest.reference import Rows
from privml.unlearning.forest.scrub import wipe, wipe_rows

Level: TypeAlias = Literal["structure", "retrain", "twin"]
"""``"structure"`` recomputes the invariants of the living structure and compares the label table
with the rows; ``"retrain"`` fits a fresh native forest on the living rows and compares it;
``"twin"`` does so with the slow pure-Python twin (minutes from some ten thousand rows on). Each
includes those before it."""

_STRUCTURE = 2


@dataclass(frozen=True)
class AuditReport:
    """Outcome of an audit.

    Attributes
    ----------
    level
        What was checked.
    rows, trees
        Size of the forest.
    state_digest
        Digest of the audited forest, 64 hex digits; empty if its label table is wrong.
    findings
        What is wrong, one line each; empty if nothing is.
    """

    level: Level
    rows: int
    trees: int
    state_digest: str
    findings: tuple[str, ...]

    @property
    def ok(self) -> bool:
        """Whether nothing is wrong."""
        return not self.findings


def audit_model(model: ForestModel, level: Level) -> AuditReport:
    """Return the outcome of checking ``model``; the model answers as before and after.

    Raises
    ------
    ParameterError
        There is no such level.
    """
    if level not in get_args(Level):
        raise ParameterError(f"audit level {level!r} must be one of {', '.join(get_args(Level))}")
    with model.frozen():
        findings = list(model.core.audit(_STRUCTURE))
        contradictions = model.contradictions()
        if contradictions:  # such a model has no canonical form that could be compared
            findings += contradictions
            return AuditReport(level, model.n_rows, model.params.n_trees, "", tuple(findings))
        body = model.canonical()
        params, rows = canonical_rows(model)
    if level != "structure":
        fresh = open_core(params, model.key)
        fresh.fit(rows.X, rows.y, rows.ids)
        other = fresh.canonical(range(params.n_classes))
        if other != body:
            findings.append("a fresh fit on the living rows gives another forest")
        wipe(other)
    if level == "twin" and twin_bytes(model, params, rows) != body:
        findings.append("the reference twin gives another forest for the living rows")
    n, state = len(rows.y), digest(body).hex()
    wipe_rows(rows)
    wipe(body)
    return AuditReport(level, n, params.n_trees, state, tuple(findings))


def verify_file(path: str | PathLike[str], *, limits: Limits = DEFAULT_LIMITS) -> AuditReport:
    """Load a saved forest and rebuild it with the twin, independently of the native core.

    Raises
    ------
    CorruptModelError
        The file is damaged or its trees do not follow from its rows and key.
    """
    data = read_model_file(path, limits)
    try:
        model, _ = load_model(data, limits=limits)
    finally:
        wipe(data)
    return audit_model(model, "twin")


def canonical_rows(model: ForestModel) -> tuple[ForestParams, Rows]:
    """Return parameters and living rows as the canonical form has them."""
    rows = model.core.rows()
    if model.params.task == REGRESSION:
        return model.params, rows
    order = model.labels.order()
    place = np.zeros(max(model.labels.size, 1), dtype=np.int64)
    place[list(order)] = np.arange(len(order))
    params = replace(model.params, n_classes=len(order))
    return params, Rows(rows.ids, rows.X, place[rows.y])


def twin_bytes(model: ForestModel, params: ForestParams, rows: Rows) -> bytes:
    """Return the canonical form that the twin gives for ``rows``."""
    return canonical_bytes(reference.build_forest(rows, model.key, params))
