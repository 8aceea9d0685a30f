"""Rewrites of an integer graph that change no result: merged linear nodes, no dead channels.

A rewrite may narrow an accumulator. Tables keep the number of low bits they drop, so that they
round as before and may see fewer bits; a rewrite that cannot keep it is not made.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Final

import numpy as np

from privml.protocols.fhe.graph import (
    AddScaled,
    Conv,
    Graph,
    Linear,
    Node,
    Output,
    SumPool,
    Table,
    dropped_bits,
    index_range,
    sources,
)
from privml.protocols.fhe.nodes import MAX_TABLE_BITS, WEIGHT_LIMIT, Input, Ints

_MAX_MERGED: Final = 1 << 16

Nodes = dict[str, Node]


def simplify(graph: Graph) -> Graph:
    """Return an equal graph after all rewrites, repeated until nothing changes.

    Integer results are equal for every input in range.
    """
    while True:
        digest = graph.digest()
        for rewrite in (merge_linear, drop_dead_channels):
            graph = rewrite(graph)
        if graph.digest() == digest:
            return graph


def merge_linear(graph: Graph) -> Graph:
    """Return the graph with neighbouring linear nodes merged where one reads only the other.

    Merged are two matrices, two convolutions of which one is 1x1 and unpadded, and a sum over
    windows with the matrix after it while that stays below 65,536 weights.
    """
    nodes = {node.name: node for node in graph.nodes}
    for node in graph.nodes:
        before = nodes.get(node.x) if isinstance(node, Conv | Linear) else None
        if before is None or len(_readers(nodes, before.name)) != 1:
            continue
        merged = _merged(before, nodes[node.name], graph)
        if merged is not None:
            trial = {n: v for n, v in nodes.items() if n != before.name} | {node.name: merged}
            if _refitted(graph, trial) is not None:
                nodes = trial
    return _refitted(graph, nodes) or graph


def drop_dead_channels(graph: Graph) -> Graph:
    """Return the graph without channels whose table gives zero for every input.

    A channel stays where a skip, a grouped convolution or the input holds it.
    """
    for table in (n for n in graph.nodes if isinstance(n, Table)):
        dead = _dead(graph, table)
        nodes = {node.name: node for node in graph.nodes}
        if dead.any() and _free_before(nodes, table.name) and _free_after(nodes, table.name):
            if dead.all():
                dead[0] = False  # a value has at least one channel
            if dead.any():
                graph = _refitted(graph, _without(graph, nodes, table.name, ~dead)) or graph
    return graph


def _readers(nodes: Nodes, name: str) -> list[Node]:
    return [node for node in nodes.values() if name in sources(node)]


def _merged(before: Node, node: Node, graph: Graph) -> Node | None:
    """Return the one node that does the work of two, if there is one."""
    if isinstance(node, Linear):
        weight = _matrix(before, node.weight, graph)
    elif isinstance(node, Conv) and isinstance(before, Conv):
        weight = _kernels(before, node)
    else:
        return None
    if weight is None or np.abs(weight).max() > WEIGHT_LIMIT:
        return None
    if isinstance(node, Linear) and isinstance(before, Linear | SumPool):
        return replace(node, x=before.x, weight=weight)
    if isinstance(node, Conv) and isinstance(before, Conv):
        return Conv(node.name, before.x, weight, before.stride * node.stride, before.pad + node.pad)
    return None


def _matrix(before: Node, weight: Ints, graph: Graph) -> Ints | None:
    if isinstance(before, Linear) and _fits(weight, before.weight):
        product: Ints = weight @ before.weight
        return product
    if not isinstance(before, SumPool):
        return None
    channels, rows, columns = graph.bounds[before.x].shape
    if len(weight) * channels * rows * columns > _MAX_MERGED:
        return None
    _, high, wide = graph.bounds[before.name].shape
    grid = weight.reshape(len(weight), channels, high, wide)
    repeated: Ints = grid.repeat(rows // high, axis=2).repeat(columns // wide, axis=3)
    return repeated.reshape(len(weight), -1)


def _kernels(before: Conv, node: Conv) -> Ints | None:
    if before.groups != 1 or node.groups != 1:
        return None
    one = before.weight.shape[2:] == (1, 1) and before.stride == 1 and before.pad == 0
    other = node.weight.shape[2:] == (1, 1) and node.pad == 0
    if not (one or other) or not _fits(node.weight, before.weight):
        return None
    product: Ints = np.einsum("omhw,mijk->oihwjk", node.weight, before.weight)
    shape = product.shape
    return product.reshape(shape[0], shape[1], shape[2] * shape[4], shape[3] * shape[5])


def _fits(a: Ints, b: Ints) -> bool:
    """Return whether products of the weights cannot overflow."""
    inner = float(len(b))
    return float(np.abs(a).max()) * float(np.abs(b).max()) * inner <= WEIGHT_LIMIT


def _dead(graph: Graph, table: Table) -> np.ndarray[tuple[int], np.dtype[np.bool_]]:
    """Return which channels give zero for every accumulator that can occur."""
    lookup, bounds = graph.lookups[table.name], graph.bounds[table.x]
    dead = np.zeros(len(table.gain), np.bool_)
    for channel, ends in enumerate(zip(bounds.low, bounds.high, strict=True)):
        first, last = index_range(int(ends[0]), int(ends[1]), lookup.dropped)
        row = lookup.values[channel, first - lookup.first : last - lookup.first + 1]
        dead[channel] = not row.any()
    return dead


def _free_before(nodes: Nodes, name: str) -> bool:
    """Return whether channels of a value can be left out where it is made."""
    node = nodes[name]
    if isinstance(node, Conv):
        return node.groups == 1
    if isinstance(node, Input | Linear | Output):
        return False
    return all(
        len(_readers(nodes, source)) == 1 and _free_before(nodes, source)
        for source in sources(node)
    )


def _free_after(nodes: Nodes, name: str) -> bool:
    """Return whether zero channels of a value can be left out where it is read."""
    return all(
        (isinstance(node, Conv) and node.groups == 1)
        or isinstance(node, Linear)
        or (isinstance(node, SumPool) and _free_after(nodes, node.name))
        for node in _readers(nodes, name)
    )


def _without(
    graph: Graph, nodes: Nodes, name: str, kept: np.ndarray[tuple[int], np.dtype[np.bool_]]
) -> Nodes:
    changed = dict(nodes)

    def make(at: str) -> None:
        node = changed[at]
        if isinstance(node, Conv):
            changed[at] = replace(node, weight=node.weight[kept])
            return
        if isinstance(node, AddScaled):
            changed[at] = replace(node, factor=node.factor[kept])
        elif isinstance(node, Table):
            changed[at] = replace(node, gain=node.gain[kept], offset=node.offset[kept])
        for source in sources(node):
            make(source)

    def read(at: str) -> None:
        for node in _readers(nodes, at):
            if isinstance(node, Conv):
                changed[node.name] = replace(node, weight=node.weight[:, kept])
            elif isinstance(node, Linear):
                channels = len(graph.bounds[at].low)
                columns = node.weight.reshape(len(node.weight), channels, -1)[:, kept]
                changed[node.name] = replace(node, weight=columns.reshape(len(node.weight), -1))
            else:
                read(node.name)

    make(name)
    read(name)
    return changed


def _refitted(old: Graph, nodes: Nodes) -> Graph | None:
    """Return a graph of ``nodes`` whose tables drop as many low bits as in ``old``, if it can."""
    graph = Graph(tuple(nodes.values()))
    fitted = [_fitted(old, graph, node) for node in graph.nodes]
    if any(node is None for node in fitted):
        return None
    return Graph(tuple(node for node in fitted if node is not None))


def _fitted(old: Graph, graph: Graph, node: Node) -> Node | None:
    if not isinstance(node, Table) or node.round_to is None:
        return node
    before = old.edges()[_source(old, node.name)]
    drop = dropped_bits(before.low, before.high, _round_to(old, node.name))
    edge = graph.edges()[node.x]
    wanted: Callable[[int], bool] = lambda t: dropped_bits(edge.low, edge.high, t) == drop  # noqa: E731
    choices = [node.round_to, *range(node.round_to - 1, 0, -1), *range(1, MAX_TABLE_BITS + 1)]
    return next((replace(node, round_to=t) for t in choices if wanted(t)), None)


def _source(graph: Graph, name: str) -> str:
    return sources(graph.node(name))[0]


def _round_to(graph: Graph, name: str) -> int | None:
    node = graph.node(name)
    return node.round_to if isinstance(node, Table) else None
