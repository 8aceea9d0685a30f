"""Two threads that ask while a third deletes, against the same two on an idle forest."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from statistics import median
from threading import Event
from typing import Any

import forest_data as data
import numpy as np
from forest_clock import NativeCalls
from forest_speed import Case
from frame import Bar, Options, Report, absent, reported
from machine import usable_cores
from numpy.typing import NDArray

TABLE = "cardio"
READERS = 2
CHUNK = 20  # queries between two looks at the clock
MOST = 4000  # deletions in one stretch, so that the forest stays about as large
PAUSE_S = {"deleting": 1e-3, "deleting_flat_out": 0.0}
"""Pause after each deletion: below a thousand a second, and as many as go."""
LOADS = ("idle", *PAUSE_S)
FIGURES = {"p50": "us", "p99": "us", "throughput": "queries/s"}
NAMES = [f"readers.{load}.{figure}" for load in LOADS for figure in FIGURES]


@dataclass(frozen=True)
class Stretch:
    """What the readers saw in one stretch, all of them together.

    Attributes
    ----------
    ns
        Wall time of each query.
    seconds
        Length of the stretch.
    deletions
        Rows deleted meanwhile.
    """

    ns: NDArray[np.int64]
    seconds: float
    deletions: int

    def figures(self) -> dict[str, float]:
        """Return p50 and p99 of a query, us of wall time, and queries per second."""
        p50, p99 = (float(np.quantile(self.ns, share)) / 1e3 for share in (0.5, 0.99))
        return {"p50": p50, "p99": p99, "throughput": len(self.ns) / self.seconds}


def readers_section(report: Report, options: Options) -> None:
    """Add ``readers.*``."""
    with report.section(f"readers on {TABLE}", *NAMES):
        try:
            case = Case(TABLE, 1000)
        except data.DataMissing as error:
            report.add(*(absent(b, "", against="", reason=str(error)) for b in NAMES))
            return
        seconds = 0.3 if options.quick else 1.0
        report.add(*measure(case, options.repeats(5, 1), seconds=seconds))


def measure(case: Case, turns: int, *, seconds: float) -> list[Bar]:
    """Return the bars: a fresh forest each turn, idle and busy stretches one after the other."""
    found: dict[str, list[Stretch]] = {load: [] for load in LOADS}
    for turn in range(turns):
        model, _ = case.fitted(turn)
        order = data.SEED.child("readers", turn).generator().permutation(len(case.train.y))
        share = min(MOST, len(order) // 4)
        for place, load in enumerate(LOADS):
            model.resolve()
            doomed = order[place * share : (place + 1) * share].tolist()
            found[load].append(stretch(model, case, doomed, load, seconds))
    return [bar for load, runs in found.items() for bar in _bars(load, runs, case)]


def stretch(
    model: Any,  # noqa: ANN401 - either estimator
    case: Case,
    doomed: list[int],
    load: str,
    seconds: float,
) -> Stretch:
    """Let the readers ask for so many seconds, and delete meanwhile unless `load` is idle.

    It ends early when all of `doomed` are deleted.
    """
    codes, over = model._model.labels.encode(case.test.y)[1], Event()
    start = time.perf_counter()
    with ThreadPoolExecutor(READERS + 1) as pool:
        readers = [
            pool.submit(_read, NativeCalls(model, case.test.X, codes), case.asked, over)
            for _ in range(READERS)
        ]
        try:
            if load in PAUSE_S:
                deletions = _delete(model, doomed, PAUSE_S[load], start + seconds)
            else:
                deletions = 0
                time.sleep(seconds)
        finally:
            over.set()
        took = time.perf_counter() - start
        ns = np.concatenate([reader.result() for reader in readers])
    return Stretch(ns, took, deletions)


def _read(calls: NativeCalls, rows: list[int], over: Event) -> NDArray[np.int64]:
    taken: list[int] = []
    at = 0
    while not over.is_set():
        taken += calls.query_wall(rows[at : at + CHUNK])
        at = (at + CHUNK) % len(rows)
    return np.array(taken, dtype=np.int64)


def _delete(model: Any, doomed: list[int], pause_s: float, end: float) -> int:  # noqa: ANN401
    for deletions, row in enumerate(doomed):
        if time.perf_counter() >= end:
            return deletions
        model.unlearn([row])
        if pause_s:
            time.sleep(pause_s)
    return len(doomed)


def _bars(load: str, runs: list[Stretch], case: Case) -> list[Bar]:
    each = [run.figures() for run in runs]
    per_s = median(run.deletions / run.seconds for run in runs)
    against = (
        f"{READERS} reading threads on {usable_cores()} cores, wall time, "
        f"{per_s:.0f} deletions a second by a third, {case.settings.words()}"
    )
    return [
        reported(f"readers.{load}.{figure}", median(one[figure] for one in each), unit=unit,
                 against=against,
                 detail={"each": each, "deletions": [run.deletions for run in runs]})
        for figure, unit in FIGURES.items()
    ]  # fmt: skip
