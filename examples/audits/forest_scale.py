"""A million rows of 28 columns, 100 trees: training, deletions, a stream, batches, memory."""

from __future__ import annotations

import gc
import os
import time
from types import SimpleNamespace

import forest_data as data
import forest_modes as modes
import numpy as np
from forest_accuracy import metrics
from forest_clock import Latency, NativeCalls
from forest_memory import resident_bytes, warm_up
from forest_peers import retrained
from forest_settings import Settings, estimator
from forest_speed import Figures
from frame import Options, Report, at_most, reported

ROWS, COLUMNS, TEST = 1_000_000, 28, 20_000
SETTINGS = Settings(100, 20, 20, 10)
LIMIT_S = 180
OPERATIONS = 2000
KINDS = ("delete", "delete_then", "query_after", *(f"stream_{kind}" for kind in modes.KINDS))
NAMES = (
    "scale.train", "scale.bytes_per_pair",
    *(f"scale.{kind}_{q}" for kind in KINDS for q in ("p50", "p99")),
    *(f"scale.batch_{size}" for size in modes.BATCHES),
)  # fmt: skip
RETRAINED = "retrain.scale.lightgbm"


def scale_section(report: Report, options: Options) -> None:
    """Add ``scale.*``; takes minutes and gigabytes, so not with ``--quick``."""
    if options.quick:
        return
    title = f"scale: {ROWS} x {COLUMNS} rows, {SETTINGS.trees} trees"
    with report.section(title, *NAMES, RETRAINED):
        ours = scale(report, ROWS)
        table = data.large(ROWS + TEST, COLUMNS)
        train, test = (table.take(np.arange(*cut)) for cut in ((0, ROWS), (ROWS, ROWS + TEST)))
        case = SimpleNamespace(name="scale", settings=SETTINGS, train=train, test=test, doomed=[])
        report.add(retrained(report, options, case, "lightgbm", ours))


def scale(report: Report, rows: int, *, operations: int = OPERATIONS) -> Figures:
    """Measure on so many made-up rows; return the mean of a deletion, accuracy and AUC."""
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
    scored = metrics(model.predict_proba(test.X), test.y, regression=False)
    report.progress(f"  trained in {seconds:.1f} s")
    against = f"{rows} x {COLUMNS} made-up rows, {SETTINGS.words()}"
    report.add(
        at_most("scale.train", seconds, LIMIT_S, unit="s", against=f"{against}, two threads",
                detail={"cpu_s": cpu, **scored, "load": os.getloadavg()[0]}),
        reported("scale.bytes_per_pair", grown / pairs, unit="B",
                 against="resident growth per row and tree that holds it",
                 detail={"rss_mb": grown / 1e6, "per_row_and_tree_of_all": grown / rows / 100,
                         "parts": dict(model.memory_usage())}),
    )  # fmt: skip
    calls = NativeCalls(model, test.X, model._model.labels.encode(test.y)[1])
    draw = data.SEED.child("scale").generator()
    order = draw.permutation(rows)
    first, second, third, rest = np.split(order, [operations, 2 * operations, 3 * operations])
    delete = Latency.of(calls.delete(first))
    _add(report, "delete", delete, against)
    asked = draw.integers(0, TEST, (operations, 2))
    turn: list[tuple[str, int, int]] = []
    for i, row in enumerate(asked[:, 0].tolist()):
        turn += [("delete", 0, i), ("query", row, 0)]
    ns = calls.run(turn, second)
    _add(report, "delete_then", Latency.of(ns[::2]), against)
    _add(report, "query_after", Latency.of(ns[1::2]), against)
    kinds = modes.stream(calls, doomed=third, first_id=rows, asked=asked)
    for kind, latency in kinds.items():
        _add(report, f"stream_{kind}", latency, f"{against}, add : delete : query 1 : 1 : 2")
    model.resolve()
    value, detail = modes.batches(lambda: (model, calls), rest)
    for name, us in value.items():
        report.add(
            reported(f"scale.{name}", us, unit="us", against=f"{against}, time per row",
                     detail=detail[name])
        )  # fmt: skip
    return Figures({"delete_us": delete.mean_us, **scored})


def _add(report: Report, kind: str, latency: Latency, against: str) -> None:
    for label, share in (("p50", 0.5), ("p99", 0.99)):
        report.add(
            reported(f"scale.{kind}_{label}", latency.quantile_us(share), unit="us",
                     against=against, detail=latency.as_dict())
        )  # fmt: skip
