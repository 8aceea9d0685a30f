"""Our forest measured as the reference measurements were taken: one thread, thread CPU time."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path

import forest_data as data
import numpy as np
from forest_clock import Latency, NativeCalls, cpu_seconds, each
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
        ``accuracy``, ``auc``; ours also stream, batch and Python figures.
    detail
        Quantiles by kind of operation.
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

    def fitted(self, seed: int) -> tuple[object, float]:
        """Return a fitted forest and the CPU seconds of fitting."""
        model = estimator(self.train, self.settings, random_state=seed)
        return model, cpu_seconds(lambda: model.fit(self.train.X, self.train.y))


def measure(case: Case, seed: int, *, whole: bool = True) -> Figures:
    """Return our figures: a fresh forest for each mode.

    Parameters
    ----------
    case
        What to measure on.
    seed
        Key of the forests.
    whole
        Also measure streams, batches and calls through Python, which no peer is compared on.
    """
    fits: list[float] = []

    def fresh() -> tuple[object, NativeCalls]:
        model, seconds = case.fitted(seed)
        fits.append(seconds)
        return model, NativeCalls(model, case.test.X, _codes(model, case))

    value, detail = _delete_only(case, fresh)
    for part in (_alternate, _stream, _batch, _python)[: 4 if whole else 1]:
        more, kinds = part(case, fresh)
        value |= more
        detail |= kinds
    value["train_s"] = float(np.median(fits))
    return Figures(value, detail | {"train_cpu_s": [round(s, 4) for s in fits]})


def memory(name: str) -> dict[str, object]:
    """Return resident growth of a fresh process that fits the table, and the forest's own count."""
    done = subprocess.run(
        [sys.executable, str(MEMORY), name], capture_output=True, text=True, check=True
    )
    return dict(json.loads(done.stdout))


def _codes(model: object, case: Case) -> np.ndarray:
    return model._model.labels.encode(case.test.y)[1]  # type: ignore[attr-defined]


def _delete_only(case: Case, fresh) -> tuple[dict[str, float], dict[str, object]]:  # noqa: ANN001
    model, calls = fresh()
    proba = model.predict_proba(case.test.X)[:, 1]
    query = Latency.of(calls.query(case.asked))
    delete = Latency.of(calls.delete(case.doomed))
    value = {
        "query_us": query.mean_us,
        "delete_us": delete.mean_us,
        "accuracy": float(accuracy_score(case.test.y, proba > 0.5)),
        "auc": float(roc_auc_score(case.test.y, proba)),
    }
    return value, {"query": query.as_dict(), "delete": delete.as_dict()}


def _alternate(case: Case, fresh) -> tuple[dict[str, float], dict[str, object]]:  # noqa: ANN001
    _, calls = fresh()
    deletes: list[int] = []
    queries: list[int] = []
    for i, row in zip(case.doomed, case.asked, strict=True):
        deletes += calls.delete(np.array([i]))
        queries += calls.query([row])
    first, then = Latency.of(deletes), Latency.of(queries)
    value = {"delete_then_us": first.mean_us, "query_after_us": then.mean_us}
    return value, {"delete_before_query": first.as_dict(), "query_after_delete": then.as_dict()}


def _stream(case: Case, fresh) -> tuple[dict[str, float], dict[str, object]]:  # noqa: ANN001
    """Add, delete and ask 1 : 1 : 2; the rows added are test rows under new ids."""
    _, calls = fresh()
    taken: dict[str, list[int]] = {"add": [], "delete": [], "query": []}
    start, count = len(case.train.y), min(case.operations, len(case.test.y))
    for i in range(count):
        taken["add"] += calls.add([i], np.array([start + i]))
        taken["delete"] += calls.delete(case.doomed[i : i + 1])
        taken["query"] += calls.query([case.asked[i], case.asked[-1 - i]])
    kinds = {kind: Latency.of(ns) for kind, ns in taken.items()}
    value = {f"stream_{kind}_us": latency.mean_us for kind, latency in kinds.items()}
    return value, {f"stream_{kind}": latency.as_dict() for kind, latency in kinds.items()}


def _batch(case: Case, fresh) -> tuple[dict[str, float], dict[str, object]]:  # noqa: ANN001
    model, calls = fresh()
    ns = calls.delete_batch(case.doomed)
    resolve_s = cpu_seconds(model.resolve)
    rows = len(case.doomed)
    return {"batch_us": ns / 1e3 / rows}, {"batch": {"rows": rows, "resolve_cpu_s": resolve_s}}


def _python(case: Case, fresh) -> tuple[dict[str, float], dict[str, object]]:  # noqa: ANN001
    model, _ = fresh()
    rows = [case.test.X[i : i + 1] for i in case.asked]
    query = Latency.of(each(model.predict_proba, rows))
    delete = Latency.of(each(model.unlearn, [[i] for i in case.doomed.tolist()]))
    value = {"python_delete_us": delete.mean_us, "python_query_us": query.mean_us}
    return value, {"python_delete": delete.as_dict(), "python_query": query.as_dict()}


def seed_number(seed: ScienceSeed) -> int:
    """Return an integer for ``random_state``."""
    return seed.value >> 97
