"""Audits of a deletion: values equal those without the record, models too, files keep nothing."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import numpy as np
from sklearn.base import clone

from privml.backbones.digests import Json
from privml.rng import ScienceSeed
from privml.storage.files import read_file
from privml.valuation.errors import SettingError
from privml.valuation.links.deletion import Deletion, players_of
from privml.valuation.links.topm_deletion import topm_findings, topm_rescored
from privml.valuation.methods.base import Valuer, checked_utility
from privml.valuation.methods.data_oob import DataOOB
from privml.valuation.methods.semivalues import Semivalue
from privml.valuation.parallel import Workers
from privml.valuation.problem import Ints, PlayerId, Problem
from privml.valuation.result import ValuationResult
from privml.valuation.stopping import MaxUnits
from privml.valuation.topm.estimator import TopM
from privml.valuation.utilities.base import Utility

_LIMIT: Final = 1 << 31
_LEAST_BYTES: Final = 16


@dataclass(frozen=True)
class Audit:
    """Outcome of an audit.

    Attributes
    ----------
    consistent
        Whether nothing was found.
    difference
        Largest difference from the values, or scores, without the records.
    identical
        Whether they agree in every bit.
    findings
        What is wrong, in words; names no deleted record.
    """

    consistent: bool
    difference: float
    identical: bool
    findings: tuple[str, ...] = field(default=())

    def to_json(self) -> dict[str, Json]:
        """Return the outcome as JSON."""
        return {
            "consistent": self.consistent,
            "difference": self.difference,
            "identical": self.identical,
            "findings": list(self.findings),
        }


def audit_deletion(
    method: Valuer,
    problem: Problem,
    ids: Iterable[PlayerId],
    deletion: Deletion,
    *,
    tolerance: float = 1e-10,
    artefacts: Sequence[Path | str] = (),
) -> Audit:
    """Compare values after a deletion with a run that never saw the records, and search files.

    Parameters
    ----------
    method, problem, ids
        As given to :func:`privml.valuation.links.deletion`.
    deletion
        What it returned.
    tolerance
        Largest difference of values that passes, relative to the largest value or 1.
    artefacts
        Files and folders kept after the deletion; see :func:`mentions`.

    Notes
    -----
    A run from scratch has the units of the first run without the deleted players; it costs as much
    as the first run. For a top-m run that includes which records its pulls looked at.
    """
    ids = list(ids)
    players = players_of(problem, ids)
    left = problem.without(players.tolist())
    findings = []
    if deletion.problem.digest() != left.digest() or deletion.result.data_digest != left.digest():
        findings.append("the result names other data than the survivors")
    scratch = _scratch(method, left, deletion)
    difference, identical = _compared(scratch, deletion.result)
    if isinstance(method, TopM) and isinstance(deletion.method, TopM):
        findings += topm_findings(method, players, deletion.method, scratch)
    scale = float(max(1.0, np.nan_to_num(np.abs(scratch.values)).max()))
    if not difference <= tolerance * scale:
        findings.append(f"values differ by {difference:g} from those computed without the records")
    findings += mentions(problem, ids, artefacts)
    return Audit(not findings, difference, identical, tuple(findings))


def audit_unlearning(
    utility: Utility,
    problem: Problem,
    ids: Iterable[PlayerId],
    *,
    coalitions: int = 16,
    tolerance: float = 0.0,
    random_state: int = 0,
) -> Audit:
    """Compare scores of models that unlearned players with models that never saw them.

    The same utility is opened twice. One scores each coalition with the players and then without
    them, so that a utility that unlearns does; the other scores it without them only.

    Parameters
    ----------
    utility
        For example :class:`privml.valuation.ForestUtility`.
    problem, ids
        The problem, and the players to be unlearned.
    coalitions
        Random coalitions of the others, after that of all others.
    tolerance
        Largest difference of scores that passes.
    random_state
        Of the coalitions.
    """
    checked_utility(utility)
    players = players_of(problem, ids)
    others = np.delete(np.arange(problem.players), players)
    if not len(others):
        raise SettingError("no player would be left; leave at least one")
    generator = ScienceSeed(random_state).child("audit").generator()
    sets = [others]
    for _ in range(coalitions):
        size = int(generator.integers(1, len(others) + 1))
        sets.append(np.sort(generator.permutation(others)[:size]))
    with Workers(1):
        unlearned, untouched = utility.open(problem), utility.open(problem)
        after, never = [], []
        for members in sets:
            unlearned.score([np.sort(np.concatenate([members, players]))])
            after.append(float(unlearned.score([members])[0]))
            never.append(float(untouched.score([members])[0]))
    gap = np.abs(np.array(after) - np.array(never))
    found = float(gap.max())
    wrong = int((gap > tolerance).sum())
    text = f"{wrong} of {len(sets)} coalitions score differently after unlearning, by {found:g}"
    return Audit(not wrong, found, after == never, (text,) if wrong else ())


def mentions(
    problem: Problem, ids: Iterable[PlayerId], artefacts: Sequence[Path | str]
) -> list[str]:
    """Return files that still hold something of some players.

    Searched for: the features of their rows as float64 or float32 in the order of columns, their
    names in quotes or as entries of an ``ids`` list, and the digest of the problem with them. Rows
    whose features also belong to a row that stays, or fill fewer than 16 bytes, are left out.
    Compressed files are not opened.

    Parameters
    ----------
    problem
        The problem before the deletion.
    ids
        Names of the deleted players.
    artefacts
        Files, and folders that are searched through.
    """
    players = players_of(problem, ids)
    rows = problem.rows_of_all(players)
    names = {problem.ids[player] for player in players} | {problem.row_ids[row] for row in rows}
    needles = _needles(problem, rows, names)
    found = []
    for path in _files(artefacts):
        data = read_file(path, limit=_LIMIT)
        kinds = sorted({kind for kind, needle in needles if needle in data})
        if not kinds and _lists(data, names):
            kinds = ["name"]
        found += [f"{path} still holds the {kind} of a deleted record" for kind in kinds]
    return found


def _scratch(method: Valuer, left: Problem, deletion: Deletion) -> ValuationResult:
    again: Any = clone(method)
    if isinstance(method, DataOOB):
        bags = deletion.method.__dict__["bags_"]
        return again.fit_bags(left, bags).result_  # type: ignore[no-any-return]
    if isinstance(method, TopM):
        return topm_rescored(deletion.method, left).result_  # type: ignore[arg-type]
    if isinstance(method, Semivalue):
        if deletion.recording is not None and not deletion.recording.used.all():
            nobody = np.empty(0, dtype=np.int64)
            anew = deletion.recording.without(left, nobody, reuse="none", refill=False)
            return anew.result(left)
        if deletion.recording is not None:
            units = deletion.recording.units
            again.set_params(sampler=deletion.recording.sampler)
            again.set_params(stopping=MaxUnits(units), round_units=units)
        else:
            again.set_params(sampler=deletion.method.get_params()["sampler"])  # type: ignore[union-attr]
        again.set_params(checkpoint=None)
    return again.fit_problem(left).result_  # type: ignore[no-any-return]


def _compared(one: ValuationResult, other: ValuationResult) -> tuple[float, bool]:
    """Return the largest difference of values, infinite for another set of known ones."""
    if one.ids != other.ids or (np.isnan(one.values) != np.isnan(other.values)).any():
        return float("inf"), False
    gap = np.nan_to_num(np.abs(one.values - other.values))
    return float(gap.max()), bool(np.array_equal(one.values, other.values, equal_nan=True))


def _needles(problem: Problem, rows: Ints, names: set[PlayerId]) -> list[tuple[str, bytes]]:
    gone = set(rows.tolist())
    out = [("data digest", problem.digest().encode())]
    stays = {problem.X[row].tobytes() for row in range(problem.n) if row not in gone}
    for row in rows:
        wide = problem.X[row]
        if wide.tobytes() in stays:
            continue
        both = wide.tobytes(), wide.astype(np.float32).tobytes()
        out += [("features", text) for text in both if len(text) >= _LEAST_BYTES and any(text)]
    out += [("name", json.dumps(name).encode()) for name in names if isinstance(name, str)]
    return out


def _lists(data: bytes, names: set[PlayerId]) -> bool:
    """Return whether a JSON file has an ``ids`` list with one of the names."""
    try:
        tree = json.loads(data)
    except (ValueError, RecursionError):
        return False
    wanted = {(str(name), isinstance(name, int)) for name in names}
    waiting = [tree]
    while waiting:
        node = waiting.pop()
        if isinstance(node, dict):
            listed = node.get("ids")
            if isinstance(listed, list) and any(_entry(item) in wanted for item in listed):
                return True
            waiting += list(node.values())
        elif isinstance(node, list):
            waiting += node
    return False


def _entry(item: object) -> tuple[str, bool] | None:
    if isinstance(item, list) and len(item) == 2:
        return str(item[0]), item[1] is True
    return (str(item), isinstance(item, int)) if isinstance(item, int | str) else None


def _files(artefacts: Sequence[Path | str]) -> Iterator[Path]:
    for artefact in map(Path, artefacts):
        if artefact.is_dir():
            yield from sorted(path for path in artefact.rglob("*") if path.is_file())
        else:
            yield artefact
