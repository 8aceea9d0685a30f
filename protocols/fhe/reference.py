"""The numpy executor: what a graph means, exactly, and what faulty tables do to it.

Every other executor must agree with :func:`run` bit for bit where nothing random happens. Products
run in float32 or float64 BLAS where that is exact (:mod:`privml.protocols.fhe.exact`), everything
else in int64. Bounds of every value are checked on the way.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Final

import numpy as np

from privml.errors import ParameterError, internal
from privml.protocols.fhe import exact
from privml.protocols.fhe.bounds import Edge
from privml.protocols.fhe.faults import Fault
from privml.protocols.fhe.graph import Graph
from privml.protocols.fhe.lookup import Lookup, table_index
from privml.protocols.fhe.nodes import (
    AddScaled,
    Conv,
    Input,
    Ints,
    Linear,
    Node,
    Output,
    SumPool,
    Table,
    sources,
)

__all__ = ["Fault", "check_input", "run"]

_CHUNK_BYTES: Final = 1 << 23


def run(graph: Graph, x: Ints, *, fault: Fault | None = None, first: int = 0) -> Ints:
    """Return the integer scores of images.

    Parameters
    ----------
    graph
        Graph to run.
    x
        Images, shape (n, *graph.input.shape), any integer dtype and memory layout, within the
        bounds of the input.
    fault
        Faults to inject into the tables; None runs exactly.
    first
        Number of the first image, on which its faults depend.

    Returns
    -------
    ndarray
        Shape (n, classes), int64; ``graph.scores`` scales it. Deterministic, independent of n.

    Raises
    ------
    ParameterError
        ``x`` has a wrong type, shape or range.

    Notes
    -----
    Images run in chunks whose patches take about 8 MiB; memory beside the input is a few times
    that.
    """
    x = check_input(graph, x)
    classes = graph.edges()[graph.output.name].size
    result = np.empty((len(x), classes), np.int64)
    step = _chunk(graph)
    for start in range(0, len(x), step):
        part = slice(start, start + step)
        result[part] = _run_chunk(graph, x[part], fault, first + start)
    return result


def check_input(graph: Graph, x: Ints) -> Ints:
    """Return ``x`` as C-contiguous int64 after checking type, shape and range.

    Raises
    ------
    ParameterError
        It does not fit the graph's input.
    """
    node = graph.input
    array = np.asarray(x)
    if array.dtype.kind not in "iu" or array.shape[1:] != node.shape or array.ndim < 2:
        raise ParameterError(
            f"the input must be integers of shape (n, {', '.join(map(str, node.shape))}), "
            f"not {array.dtype} of shape {array.shape}"
        )
    if array.size and not (node.low <= int(array.min()) and int(array.max()) <= node.high):
        raise ParameterError(
            f"the input must lie in [{node.low}, {node.high}]; quantise it with the model's front "
            "end"
        )
    return np.ascontiguousarray(array, np.int64)


def _run_chunk(graph: Graph, x: Ints, fault: Fault | None, first: int) -> Ints:
    edges = graph.edges()
    values: dict[str, Ints] = {}
    for node, dead in _schedule(graph):
        if isinstance(node, Input):
            value = x
        elif isinstance(node, Table):
            lookup = graph.lookups[node.name]
            value = _apply_table(node, values[node.x], lookup, fault, first)
        else:
            value = _apply(node, values, edges)
        _check(node, value, edges[node.name])
        values[node.name] = value
        for name in dead:
            del values[name]
    return values[graph.output.name]


def _apply(
    node: Conv | Linear | AddScaled | SumPool | Output,
    values: Mapping[str, Ints],
    edges: Mapping[str, Edge],
) -> Ints:
    if isinstance(node, Conv):
        return exact.conv(values[node.x], node, edges[node.x])
    if isinstance(node, Linear):
        return exact.linear(values[node.x], node.weight, edges[node.x])
    if isinstance(node, AddScaled):
        skip = values[node.skip]
        return values[node.x] + node.factor.reshape(-1, *[1] * (skip.ndim - 2)) * skip
    if isinstance(node, SumPool):
        return _sum_pool(values[node.x], node.kernel)
    return values[node.x].reshape(len(values[node.x]), -1)


def _sum_pool(x: Ints, kernel: int | None) -> Ints:
    n, channels, height, width = x.shape
    kh, kw = (height, width) if kernel is None else (kernel, kernel)
    windows = x.reshape(n, channels, height // kh, kh, width // kw, kw)
    total: Ints = windows.sum(axis=(3, 5))
    return total


def _apply_table(node: Table, acc: Ints, lookup: Lookup, fault: Fault | None, first: int) -> Ints:
    if fault is None:
        index = table_index(acc, lookup.dropped)
    else:
        index = fault.indices(acc, lookup, table=node.name, exact=node.exact, first=first)
    channels, entries = lookup.values.shape
    place = np.arange(channels, dtype=np.int64) * entries - lookup.first
    index = index + place.reshape(-1, *[1] * (acc.ndim - 2))
    result: Ints = lookup.values.reshape(-1)[index]
    return result


def _check(node: Node, value: Ints, edge: Edge) -> None:
    internal(
        value.shape[1:] == edge.shape
        and (not value.size or (edge.low <= value.min() and value.max() <= edge.high)),
        f"{node.name} left its bounds",
    )


def _schedule(graph: Graph) -> Iterator[tuple[Node, tuple[str, ...]]]:
    """Yield each node with the values that nothing after it reads."""
    last = {name: node.name for node in graph.nodes for name in sources(node)}
    for node in graph.nodes:
        yield node, tuple({name for name in sources(node) if last[name] == node.name})


def _chunk(graph: Graph) -> int:
    """Return how many images to run at once: as many as fit their largest patches."""
    largest = max(edge.size for edge in graph.edges().values())
    for node in graph.nodes:
        if isinstance(node, Conv):
            _, per_group, kh, kw = node.weight.shape
            sides = graph.edges()[node.name].shape[1:]
            largest = max(largest, per_group * node.groups * kh * kw * math.prod(sides))
    return max(1, _CHUNK_BYTES // (8 * largest))
