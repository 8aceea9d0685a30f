"""A million rows of 28 columns, 100 trees: training, deletions, a mixed stream, memory."""

from __future__ import annotations

import gc
import os
import time

import forest_data as data
import numpy as np
from forest_clock import Latency, NativeCalls
from forest_memory import resident_bytes, warm_up
from forest_settings import Settings, estimator
from frame import Options, Report, at_most, reported

ROWS, COLUMNS, TEST = 1_000_000, 28, 20_000
SETTINGS = Settings(100, 20, 20, 10)
LIMIT_S = 180
OPERATIONS = 2000
NAMES = (
    "scale.train", "scale.delete_p50", "scale.delete_p99", "scale.stream_add_p50",
    "scale.stream_add_p99", "scale.stream_delete_p50", "scale.stream_delete_p99",
    "scale.stream_query_p50", "scale.stream_query_p99", "scale.bytes_per_pair",
)  # fmt: skip


def scale_section(report: Report, options: Options) -> None:
    """Add ``scale.*``; takes minutes and gigabytes, so not with ``--quick``."""
    if not options.quick:
        with report.section(f"scale: {ROWS} x {COLUMNS} rows, {SETTINGS.trees} trees", *NAMES):
            scale(report, ROWS)


def scale(report: Report, rows: int, *, operations: int = OPERATIONS) -> None:
    """Measure on so many made-up rows."""
    table = data.large(rows + TEST, COLUMNS)
    X, y, test = table.X[:rows], table.y[:rows], table.take(np.arange(rows, rows + TEST))
    model = estimator(table, SETTINGS, random_state=1, n_jobs=2)
    warm_up()
    gc.collect()
    before, cpu, start = resident_bytes(), time.process_time(), time.perf_counter()
    model.fit(X, y)
    seconds, cpu = time.perf_counter() - start, time.process_time() - cpu
    gc.collect()
    grown, pairs = resident_bytes() - before, rows * SETTINGS.per_row
    accuracy = float((model.predict(test.X) == test.y).mean())
    report.progress(f"  trained in {seconds:.1f} s")
    against = f"{rows} x {COLUMNS} made-up rows, {SETTINGS.words()}"
    report.add(
        at_most("scale.train", seconds, LIMIT_S, unit="s", against=f"{against}, two threads",
                detail={"cpu_s": cpu, "accuracy": accuracy, "load": os.getloadavg()[0]}),
        reported("scale.bytes_per_pair", grown / pairs, unit="B",
                 against="resident growth per row and tree that holds it",
                 detail={"rss_mb": grown / 1e6, "per_row_and_tree_of_all": grown / rows / 100,
                         "parts": dict(model.memory_usage())}),
    )  # fmt: skip
    codes = model._model.labels.encode(test.y)[1]
    calls = NativeCalls(model, test.X, codes)
    draw = data.SEED.child("scale").generator()
    doomed = draw.permutation(rows)[: 2 * operations]
    _add(report, "delete", Latency.of(calls.delete(doomed[:operations])), against)
    taken: dict[str, list[int]] = {"add": [], "delete": [], "query": []}
    for i in range(operations):
        taken["add"] += calls.add([i], np.array([rows + i]))
        taken["delete"] += calls.delete(doomed[operations + i : operations + i + 1])
        taken["query"] += calls.query(draw.integers(0, TEST, 2).tolist())
    for kind, ns in taken.items():
        _add(report, f"stream_{kind}", Latency.of(ns), against)


def _add(report: Report, kind: str, latency: Latency, against: str) -> None:
    for label, share in (("p50", 0.5), ("p99", 0.99)):
        report.add(
            reported(f"scale.{kind}_{label}", latency.quantile_us(share), unit="us",
                     against=against, detail=latency.as_dict())
        )  # fmt: skip
