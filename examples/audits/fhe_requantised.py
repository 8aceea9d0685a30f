"""An integer graph with residuals as the paper-style pipeline has them: four tables an element.

Each summand of a residual passes a table of its own to signed integers of a common scale, the sum
another one. Only for comparison: it costs more and is a little less precise than the fused sum.
"""

from __future__ import annotations

import numpy as np
from fhe_digits import P_ERROR

from privml.protocols.fhe.graph import AddScaled, Graph, Linear, Output, Table
from privml.protocols.fhe.nodes import Ints, Node, sources
from privml.protocols.fhe.plan import plan
from privml.protocols.fhe.planned import Plan, Rounding
from privml.protocols.fhe.reference import run

BITS = 5
"""Of a requantised summand, signed."""
ROUND = 6


def requantised(graph: Graph, images: Ints) -> Graph:
    """Return the graph with every fused residual split.

    Parameters
    ----------
    graph
        A lowered network.
    images
        Integers (n, *shape) that set the scales of the summands.
    """
    nodes: list[Node] = []
    steps: dict[str, np.ndarray] = {}
    for node in graph.nodes:
        if isinstance(node, AddScaled):
            nodes += _split(graph, node, images, steps)
        elif isinstance(node, Table) and node.x in steps:
            nodes.append(
                Table(node.name, node.x, node.gain * steps[node.x], node.offset, node.low,
                      node.high, node.round_to, node.exact)
            )  # fmt: skip
        else:
            nodes.append(node)
    return Graph(tuple(nodes))


def exact_plan(graph: Graph) -> Plan:
    """Return the plan of a graph with exact rounding."""
    return plan(graph, rounding=Rounding(ROUND, "exact"), p_error=P_ERROR)


def _split(
    graph: Graph, node: AddScaled, images: Ints, steps: dict[str, np.ndarray]
) -> tuple[Node, ...]:
    """Return tables for both summands and their plain sum; note the value of its unit."""
    factor = node.factor.astype(np.float64)
    main = values(graph, node.x, images)
    skip = values(graph, node.skip, images) * node.factor[None, :, None, None]
    high = (1 << (BITS - 1)) - 1
    largest = np.maximum(np.abs(main), np.abs(skip)).max(axis=(0, 2, 3))  # (C,)
    step = np.maximum(largest, 1) / high
    zero = np.zeros(len(step))
    steps[node.name] = step
    first, second = f"{node.name}-main", f"{node.name}-skipped"
    return (
        Table(first, node.x, 1 / step, zero, -high - 1, high),
        Table(second, node.skip, factor / step, zero, -high - 1, high),
        AddScaled(node.name, first, second, np.ones(len(step), np.int64)),
    )


def values(graph: Graph, name: str, images: Ints) -> Ints:
    """Return the values of one node: (n, channels, rows, columns)."""
    shape = graph.edges()[name].shape
    size = int(np.prod(shape))
    kept: list[Node] = []
    for node in graph.nodes:
        kept.append(node)
        if node.name == name:
            break
    needed = _needed(kept, name)
    tail = (
        Linear("probe", name, np.eye(size, dtype=np.int64)),
        Output("probe.out", "probe", np.ones(size), np.zeros(size)),
    )
    found = run(Graph((*[n for n in kept if n.name in needed], *tail)), images)
    return found.reshape(len(images), *shape)


def _needed(nodes: list[Node], name: str) -> set[str]:
    found, waiting = set(), [name]
    known = {node.name: node for node in nodes}
    while waiting:
        one = waiting.pop()
        if one not in found:
            found.add(one)
            waiting += sources(known[one])
    return found
