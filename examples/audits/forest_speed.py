"""Our forest measured as the reference measurements were taken: one thread, thread CPU time."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import forest_data as data
import forest_modes as modes
import numpy as np
from forest_clock import Latency, NativeCalls, cpu_seconds
from forest_settings import SPEED, estimator
from sklearn.metrics import accuracy_score, roc_auc_score

from privml.rng import ScienceSeed

MEMORY = Path(__file__).with_name("forest_memory.py")


@dataclass(frozen=True)
class Figures:
    """Numbers of one system on one table.

    Attributes
    ----------
    value
        By name: ``train_s`` CPU s, ``memory_mb`` resident growth, ``query_us`` clean one-row query,
        ``delete_us`` without queries between, ``delete_then_us`` and ``query_after_us`` in turn,
        ``accuracy``, ``auc``; ours also ``resolve_ms``, the CPU time of all decisions that the
        deletions put off, and the figures of :mod:`forest_modes`, us.
    detail
        Quantiles by figure.
    """

    value: dict[str, float]
    detail: dict[str, object] = field(default_factory=dict)


class Case:
    """One table with its split, the rows to delete and the rows to ask about.

    Parameters
    ----------
    name
        Key of :data:`forest_settings.SPEED`.
    operations
        Deletions of each mode.
    """

    def __init__(self, name: str, operations: int) -> None:
        table = data.load(name)
        train, test = data.split(len(table.y), data.SEED)
        self.name, self.settings = name, SPEED[name]
        self.train, self.test = table.take(train), table.take(test)
        self.operations = operations
        draw = data.SEED.child(name, "requests").generator()
        self.doomed = draw.permutation(len(train))[:operations]
        self.asked = draw.integers(0, len(test), operations).tolist()

    def fitted(self, seed: int) -> tuple[Any, float]:
        """Return a fitted forest and the CPU seconds of fitting."""
        model = estimator(self.train, self.settings, random_state=seed)
        return model, cpu_seconds(lambda: model.fit(self.train.X, self.train.y))


def measure(case: Case, seed: int) -> Figures:
    """Return our figures: a fresh forest under the key of `seed` for each mode."""
    fits: list[float] = []

    def fresh() -> tuple[Any, NativeCalls]:
        model, seconds = case.fitted(seed)
        fits.append(seconds)
        return model, NativeCalls(model, case.test.X, _codes(model, case))

    draw = data.SEED.child(case.name, "modes")
    order = draw.generator().permutation(len(case.train.y))
    questions = [case.test.X[i : i + 1] for i in case.asked]
    parts = (
        _delete_only(case, fresh),
        _alternate(case, fresh),
        modes.streams(fresh, case.doomed, len(order), len(case.test.y), draw),
        modes.eager(fresh, case.doomed),
        modes.batches(fresh, order),
        modes.python(fresh, case.doomed, questions),
    )
    value: dict[str, float] = {}
    detail: dict[str, object] = {"train_cpu_s": [round(s, 4) for s in fits]}
    for more, figures in parts:
        value |= more
        detail |= figures
    return Figures(value | {"train_s": float(np.median(fits))}, detail)


def memory(name: str) -> dict[str, object]:
    """Return resident growth of a fresh process that fits the table, and the forest's own count."""
    done = subprocess.run(
        [sys.executable, str(MEMORY), name], capture_output=True, text=True, check=True
    )
    return dict(json.loads(done.stdout))


def _codes(model: Any, case: Case) -> np.ndarray:  # noqa: ANN401
    return model._model.labels.encode(case.test.y)[1]


def _delete_only(case: Case, fresh: modes.Fresh) -> modes.Measured:
    model, calls = fresh()
    proba = model.predict_proba(case.test.X)[:, 1]
    query = Latency.of(calls.query(case.asked))
    delete = Latency.of(calls.delete(case.doomed))
    value = {
        "query_us": query.mean_us,
        "delete_us": delete.mean_us,
        "deletions": len(case.doomed),
        "resolve_ms": cpu_seconds(model.resolve) * 1e3,
        "accuracy": float(accuracy_score(case.test.y, proba > 0.5)),
        "auc": float(roc_auc_score(case.test.y, proba)),
    }
    detail = {"query_us": query.as_dict(), "delete_us": delete.as_dict()}
    return value, {key: figures | modes.NATIVE for key, figures in detail.items()}


def _alternate(case: Case, fresh: modes.Fresh) -> modes.Measured:
    operations: list[tuple[str, int, int]] = []
    for place, row in enumerate(case.asked):
        operations += [("delete", 0, place), ("query", row, 0)]
    ns = fresh()[1].run(operations, case.doomed)
    first, then = Latency.of(ns[::2]), Latency.of(ns[1::2])
    value = {"delete_then_us": first.mean_us, "query_after_us": then.mean_us}
    detail = {"delete_then_us": first.as_dict(), "query_after_us": then.as_dict()}
    return value, {key: figures | modes.NATIVE for key, figures in detail.items()}


def seed_number(seed: ScienceSeed) -> int:
    """Return an integer for ``random_state``."""
    return seed.value >> 97
