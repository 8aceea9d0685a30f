"""KNN-Shapley against pyDVL and OpenDataVal at the sizes of the reference, and one large run."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from frame import Bar, Options, Report, absent, at_least, at_most, reported
from machine import usable_cores
from peers.environments import PeerUnavailable
from peers.valuation_peers import OPENDATAVAL, PYDVL, Worker
from valuation_clock import Cost, costed, duel, pinned, told
from valuation_data import SEED

from privml.valuation.methods.knn import KNNShapley

SIZES = ((1000, 200), (10_000, 200), (10_000, 1000), (50_000, 200))
TURNS = {1000: 5, 10_000: 2, 50_000: 1}
COLUMNS, K = 20, 5
TIMES, EXACT, LIMIT_S = 14.0, 1e-12, 60.0
LARGE = (100_000, 200)
OPENDATAVAL_SIZES = SIZES[:2]
FLOAT32 = 1e-4


def table(rows: int, scored: int) -> dict[str, Any]:
    """Return made-up rows of two classes that follow the first columns, with noise."""
    draw = SEED.child("knn", rows, scored).generator()
    X = draw.standard_normal((rows + scored, COLUMNS))
    y = (X[:, :3].sum(axis=1) + draw.standard_normal(len(X)) > 0).astype(np.int64)
    return {"X": X[:rows], "y": y[:rows], "X_val": X[rows:], "y_val": y[rows:]}


def fitted(rows: dict[str, Any], jobs: int = 1) -> KNNShapley:
    """Return our method fitted on a table."""
    return KNNShapley(K, n_jobs=jobs).fit(rows["X"], rows["y"], rows["X_val"], rows["y_val"])


def knn_section(report: Report, options: Options) -> None:
    """Add ``knn.*``."""
    with pinned():
        _pydvl(report, options)
        _opendataval(report, options)
    with report.section("KNN-Shapley of 100 000 rows", "knn.large"):
        if options.quick:
            target = f"<= {LIMIT_S:g} s"
            report.add(absent("knn.large", target, against="", reason="not in --quick"))
            return
        rows, cores = table(*LARGE), usable_cores()
        _, cost = costed(lambda: fitted(rows, jobs=cores))
        report.add(
            at_most("knn.large", cost.wall_s, LIMIT_S, unit="s",
                    against=f"{LARGE[0]:,} x {LARGE[1]}, {COLUMNS} columns, k = {K}, float64, "
                    f"{cores} threads, wall time", detail={"cpu_s": cost.cpu_s})
        )  # fmt: skip


def _name(size: tuple[int, int]) -> str:
    return f"{size[0]}x{size[1]}"


def _absent(sizes: Sequence[tuple[int, int]], reason: str) -> list[Bar]:
    bars = []
    for size in sizes:
        name, against = f"knn.{_name(size)}", "pyDVL 0.10.0"
        bars.append(absent(f"{name}.pydvl", f">= {TIMES:g} x", against=against, reason=reason))
        bars.append(absent(f"{name}.equal", f"<= {EXACT:g}", against=against, reason=reason))
    return bars


def _pydvl(report: Report, options: Options) -> None:
    sizes = SIZES[:1] if options.quick else SIZES
    names = [f"knn.{_name(size)}.{part}" for size in SIZES for part in ("pydvl", "equal")]
    with report.section("KNN-Shapley against pyDVL 0.10.0", *names):
        report.add(*_absent([size for size in SIZES if size not in sizes], "not in --quick"))
        try:
            with Worker(PYDVL, options.peer_dir, create=options.peers,
                        progress=report.progress) as worker:  # fmt: skip
                for size in sizes:
                    report.progress(f"  {_name(size)}")
                    report.add(*_size(worker, size, 2 if options.quick else TURNS[size[0]]))
        except PeerUnavailable as error:
            missing = [size for size in sizes if not report.has(f"knn.{_name(size)}.pydvl")]
            report.add(*_absent(missing, str(error)))


def _size(worker: Worker, size: tuple[int, int], turns: int) -> list[Bar]:
    rows = table(*size)
    path, found = worker.give(_name(size), rows), {}

    def ours(turn: int) -> Cost:
        method, cost = costed(lambda: fitted(rows))
        found["ours"] = method.values_
        return cost

    def theirs(turn: int) -> Cost:
        answer = worker.ask("knn", rows=path, k=K)
        found["theirs"] = np.array(answer["values"])
        return told(answer)

    both = duel(ours, theirs, turns)
    gap = float(np.abs(found["ours"] - found["theirs"]).max())
    name, what = f"knn.{_name(size)}", f"{COLUMNS} columns, k = {K}, float64, one thread"
    return [
        at_least(f"{name}.pydvl", both.ratio, TIMES, unit="x", detail=both.as_dict(),
                 against=f"pyDVL 0.10.0, CPU time; {what}"),
        at_most(f"{name}.equal", gap, EXACT, against=f"largest difference of values; {what}"),
    ]  # fmt: skip


def _opendataval(report: Report, options: Options) -> None:
    sizes, parts = OPENDATAVAL_SIZES, ("opendataval", "opendataval_equal")
    names = [f"knn.{_name(size)}.{part}" for size in sizes for part in parts]
    with report.section("KNN-Shapley against OpenDataVal 1.3.0", *names):
        if options.quick:
            report.add(*_no_opendataval(names, "not in --quick"))
            return
        try:
            with Worker(OPENDATAVAL, options.peer_dir, create=options.peers,
                        progress=report.progress) as worker:  # fmt: skip
                for size in sizes:
                    bars = _size(worker, size, 2)
                    fast, equal = bars[0].value, bars[1].value
                    report.add(
                        reported(f"knn.{_name(size)}.opendataval", fast or 0.0, unit="x",
                                 against="OpenDataVal 1.3.0, CPU time, one thread",
                                 detail=bars[0].detail),
                        at_most(f"knn.{_name(size)}.opendataval_equal", equal or 0.0, FLOAT32,
                                against="largest difference of values; it takes float32 only, "
                                "which orders nearly equal distances otherwise"),
                    )  # fmt: skip
        except PeerUnavailable as error:
            report.add(*_no_opendataval(names, str(error)))


def _no_opendataval(names: Sequence[str], reason: str) -> list[Bar]:
    return [
        absent(name, f"<= {FLOAT32:g}" if name.endswith("_equal") else "", reason=reason,
               against="OpenDataVal 1.3.0")
        for name in names
    ]  # fmt: skip
