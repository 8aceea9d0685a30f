"""Measures what tables cost on this machine: small networks of each width, compiled and run.

A table between convolutions, with rounding, costs up to twice what one on its own costs: its result
is multiplied and added up before the next one, which takes larger parameters. So a network of two
layers is measured. The median of a few runs counts; keys are expanded in a first run that does not.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Final

import numpy as np

from privml.errors import ParameterError
from privml.protocols.fhe import toolkit
from privml.protocols.fhe.calibration import Calibration, MachineKey, Point
from privml.protocols.fhe.circuits import Circuit
from privml.protocols.fhe.graph import Conv, Graph, Input, Linear, Output, SumPool, Table
from privml.protocols.fhe.work import reference_ms
from privml.rng import ScienceSeed

BITS: Final = (6, 5)
"""Widths that networks use; other ones are scaled by these."""

BUDGET_S: Final = 10.0
_CHANNELS, _SIDE, _CLASSES = 16, 2, 10
_ROUNDED_FROM: Final = 4  # narrower tables are measured on accumulators of their own width
_RUNS: Final = 3


def measure(
    *,
    p_error: float = 1e-2,
    bits: Sequence[int] = BITS,
    budget_s: float | None = None,
    progress: Callable[[str, float], None] | None = None,
) -> Calibration:
    """Return costs of tables of these widths on this machine.

    Cost: 2 to 5 seconds a width on a quiet machine.

    Parameters
    ----------
    p_error
        Failure probability per table.
    bits
        Widths, 1 to 8 each, the most important first.
    budget_s
        Begin no further width after that many seconds; the first one is always measured.
    progress
        Called with the stage and the fraction done.

    Raises
    ------
    UnsupportedError
        concrete-python is missing.
    ParameterError
        No width.
    """
    if not bits:
        raise ParameterError("give at least one width of tables to measure")
    start, points = time.monotonic(), list[Point]()
    for done, width in enumerate(bits):
        spent = time.monotonic() - start
        if points and budget_s is not None and spent * (done + 1) / done > budget_s:
            break
        if progress is not None:
            progress("measuring tables", done / len(bits))
        points.append(_point(width, p_error))
    if progress is not None:
        progress("measuring tables", 1.0)
    return Calibration(MachineKey.here(version=toolkit.VERSION), tuple(points))


def probe_graph(bits: int) -> Graph:
    """Return a network of two layers whose 32 tables see ``bits`` bits of wide accumulators.

    Below 4 bits nothing is rounded: the accumulator itself is that narrow.
    """
    rounded = bits >= _ROUNDED_FROM
    draw = ScienceSeed(31).child("probe", bits).generator()
    weights = [draw.integers(-7, 8, (_CHANNELS, _CHANNELS, 3, 3)) for _ in range(2)]
    low, high = -7, 7
    if not rounded:
        single = np.zeros_like(weights[0])
        single[np.arange(_CHANNELS), np.arange(_CHANNELS), 1, 1] = 1
        weights = [single, single]
        low, high = 0, (1 << bits) - 1
    top = 15 if rounded else high
    keep = bits if rounded else None
    gain, zero = np.full(_CHANNELS, 0.1 if rounded else 1.0), np.zeros(_CHANNELS)
    one = np.ones(_CLASSES)
    return Graph(
        (
            Input("x", (_CHANNELS, _SIDE, _SIDE), low, high),
            Conv("c1", "x", weights[0], stride=2, pad=1),
            Table("t1", "c1", gain, zero, 0, top, round_to=keep),
            Conv("c2", "t1", weights[1], pad=1),
            Table("t2", "c2", gain, zero, 0, top, round_to=keep),
            SumPool("p", "t2"),
            Linear("fc", "p", draw.integers(-7, 8, (_CLASSES, _CHANNELS))),
            Output("y", "fc", one, 0 * one),
        )
    )


def _point(bits: int, p_error: float) -> Point:
    graph = probe_graph(bits)
    draw = ScienceSeed(32).generator()
    image = draw.integers(graph.input.low, graph.input.high + 1, (1, *graph.input.shape))
    with Circuit(graph, p_error=p_error) as circuit, circuit.server() as server:
        client = circuit.client()
        keys = server.load_keys(client.keygen())
        (query,) = client.encrypt(image)
        server.run(query, keys)
        times = sorted(_cpu_ms(lambda: server.run(query, keys)) for _ in range(_RUNS))
        report = circuit.report
    tables = sum(graph.tables().values())
    low, median, high = (times[i] / tables for i in (0, _RUNS // 2, -1))
    return Point(
        bits, p_error, median, low, high, keys_bytes=report.key_bytes,
        keys_loaded_bytes=report.loaded_key_bytes, model_ms=reference_ms(report.work) / tables,
    )  # fmt: skip


def _cpu_ms(call: Callable[[], object]) -> float:
    """Return processor milliseconds of all threads of this process, at least a microsecond."""
    before = time.process_time()
    call()
    return max(1e3 * (time.process_time() - before), 1e-3)
