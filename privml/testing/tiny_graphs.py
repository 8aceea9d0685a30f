"""Integer graphs with few tables, for tests that compile and encrypt."""

from __future__ import annotations

import numpy as np

from privml.protocols.fhe.graph import (
    AddScaled,
    Conv,
    Graph,
    Input,
    Linear,
    Node,
    Output,
    SumPool,
    Table,
)
from privml.rng import ScienceSeed


def residual_graph(*, exact: bool) -> Graph:
    """Return a graph with every kind of node and 16 tables; its image is (2, 4, 4), signed."""
    rng = ScienceSeed(21).generator()
    weights = [rng.integers(-1, 2, shape) for shape in ((2, 2, 3, 3), (2, 1, 3, 3), (3, 2))]
    first = Table(
        "t1", "c1", np.array([0.3, -0.4]), np.array([1.0, 2.0]), 0, 3, round_to=4, exact=exact
    )
    second = Table(
        "t2", "a", np.array([0.3, 0.25]), np.array([0.5, -1.0]), -2, 1, round_to=4, exact=exact
    )
    nodes: tuple[Node, ...] = (
        Input("x", (2, 4, 4), -2, 1),
        Conv("c1", "x", weights[0], stride=2, pad=1),
        first,
        Conv("c2", "t1", weights[1], pad=1, groups=2),
        AddScaled("a", "c2", "t1", np.array([3, -2])),
        second,
        SumPool("p", "t2"),
        Linear("fc", "p", weights[2]),
        Output("y", "fc", np.array([0.5, 0.25, 1.0]), np.array([0.0, 1.0, -1.0])),
    )
    return Graph(nodes)


def vector_graph(size: int, bits: int) -> Graph:
    """Return a graph of ``size`` identity tables over ``bits`` bits and nothing else."""
    top = (1 << bits) - 1
    one, zero = np.ones(size), np.zeros(size)
    return Graph(
        (
            Input("x", (size,), 0, top),
            Table("t", "x", one, zero, 0, top, round_to=None),
            Output("y", "t", one, zero),
        )
    )


def conv_graph(side: int, *, stride: int, pad: int, kernel: int = 3) -> Graph:
    """Return one convolution of a (2, side, side) image and no table."""
    weight = ScienceSeed(22).generator().integers(-4, 5, (3, 2, kernel, kernel))
    out = (side + 2 * pad - kernel) // stride + 1
    one = np.ones(3 * out * out)
    return Graph(
        (
            Input("x", (2, side, side), 0, 7),
            Conv("c", "x", weight, stride=stride, pad=pad),
            Output("y", "c", one, 0 * one),
        )
    )
