"""Modes of use beside bare deletions: streams, decisions made at once, batches, calls in Python."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from forest_clock import Latency, NativeCalls, clock_cost_ns, each
from forest_data import Rows

from privml.rng import ScienceSeed

STREAMS = {"1_1_2": 2, "1_1_18": 18}
"""Name, add : delete : query, and queries per change of each kind."""
KINDS = ("add", "delete", "query")
BATCHES = {"10": 20, "100": 5, "one_percent": 1}
"""Rows per batch, and batches."""
NATIVE = {"timed": "in a native loop"}
Measured = tuple[dict[str, float], dict[str, Any]]
Fresh = Callable[[], tuple[Any, NativeCalls]]


def figure_names() -> list[str]:
    """Return the names of all figures of this module, without their unit, us."""
    streams = [f"stream_{s}.{k}_{q}" for s in STREAMS for k in KINDS for q in ("p50", "p99")]
    batches = [f"batch_{size}" for size in BATCHES]
    return [*streams, "eager_delete", *batches, "python_delete", "python_query", "python_overhead"]


def stream(calls: NativeCalls, *, doomed: Rows, first_id: int, asked: Rows) -> dict[str, Latency]:
    """Add a row, delete one, ask, and so on; return the latency of each kind.

    Parameters
    ----------
    calls
        The forest.
    doomed
        (n,) ids to delete.
    first_id
        Rows 0..n-1 of the calls' table are added under the ids from here on.
    asked
        (n, m) rows to ask about after each deletion.
    """
    operations: list[tuple[str, int, int]] = []
    for i, rows in enumerate(asked.tolist()):
        operations += [("add", i, len(doomed) + i), ("delete", 0, i)]
        operations += [("query", row, 0) for row in rows]
    ids = np.concatenate([doomed, np.arange(first_id, first_id + len(doomed))])
    ns, names = calls.run(operations, ids), np.array([name for name, _, _ in operations])
    return {kind: Latency.of(ns[names == kind]) for kind in KINDS}


def quantiles(name: str, kinds: dict[str, Latency]) -> Measured:
    """Return p50 and p99 of each kind, us, and all figures of them."""
    value = {}
    for kind, latency in kinds.items():
        value[f"{name}.{kind}_p50"] = latency.quantile_us(0.5)
        value[f"{name}.{kind}_p99"] = latency.quantile_us(0.99)
    return value, {key: kinds[key[len(name) + 1 : -4]].as_dict() | NATIVE for key in value}


def streams(fresh: Fresh, doomed: Rows, rows: int, tests: int, seed: ScienceSeed) -> Measured:
    """Run every stream, each on a forest of its own with `rows` rows; asks about `tests` rows."""
    value: dict[str, float] = {}
    detail: dict[str, Any] = {}
    count = min(len(doomed), tests)
    for name, queries in STREAMS.items():
        asked = seed.child(name).generator().integers(0, tests, (count, queries))
        kinds = stream(fresh()[1], doomed=doomed[:count], first_id=rows, asked=asked)
        more, figures = quantiles(f"stream_{name}", kinds)
        value |= more
        detail |= figures
    return value, detail


def eager(fresh: Fresh, doomed: Rows) -> Measured:
    """Delete, then make all decisions that were put off, before the next deletion."""
    latency = Latency.of(fresh()[1].delete_eagerly(doomed))
    timed = {"timed": "two native calls from Python", "clock_ns_included": clock_cost_ns()}
    return {"eager_delete": latency.mean_us}, {"eager_delete": latency.as_dict() | timed}


def batches(fresh: Fresh, order: Rows) -> Measured:
    """Delete in batches of several sizes, all decisions made in between; time per row.

    Parameters
    ----------
    fresh
        Gives a fitted forest.
    order
        All its ids in random order.
    """
    model, calls = fresh()
    value: dict[str, float] = {}
    detail: dict[str, Any] = {}
    at = 0
    for name, repeats in BATCHES.items():
        size = int(name) if name.isdigit() else max(1, len(order) // 100)
        repeats = max(1, min(repeats, (len(order) - at) // (4 * size)))
        taken = []
        for _ in range(repeats):
            taken.append(calls.delete_batch(order[at : at + size]) / 1e3 / size)
            at += size
            model.resolve()
        value[f"batch_{name}"] = float(np.median(taken))
        detail[f"batch_{name}"] = {"rows": size, "batches": repeats, "each_us_per_row": taken}
    return value, detail


def python(fresh: Fresh, doomed: Rows, rows: list[Any]) -> Measured:
    """Ask and delete through the estimator; the overhead is taken deletion by deletion."""
    model, _ = fresh()
    query = Latency.of(each(model.predict_proba, rows))
    delete = each(model.unlearn, [[i] for i in doomed.tolist()])
    through, bare = Latency.of(delete), Latency.of(fresh()[1].delete(doomed))
    value = {
        "python_delete": through.mean_us,
        "python_query": query.mean_us,
        "python_overhead": float(np.median(through.ns - bare.ns)) / 1e3,
    }
    timed = {"timed": "from Python", "clock_ns_included": clock_cost_ns()}
    detail = {"python_delete": through.as_dict(), "python_query": query.as_dict(),
              "python_overhead": {"native": bare.as_dict()}}  # fmt: skip
    return value, {key: figures | timed for key, figures in detail.items()}
