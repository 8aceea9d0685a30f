"""Random integer graphs, and what they compute, by explicit loops over Python integers."""

from __future__ import annotations

import math
from collections.abc import Callable
from itertools import product

import numpy as np
from numpy.typing import NDArray

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

Values = dict[tuple[int, ...], int]
"""One value of a graph: element by index."""


class _Maker:
    """Draws one graph node by node; ``shape`` is that of the last value."""

    def __init__(self, seed: int) -> None:
        self.rng = ScienceSeed(seed).child("integer graph").generator()
        self.nodes: list[Node] = []
        self.shape: tuple[int, ...] = ()

    def draw(self, low: int, high: int) -> int:
        return int(self.rng.integers(low, high + 1))

    def add(self, node: Node, *shape: int) -> str:
        self.nodes.append(node)
        self.shape = shape
        return node.name

    def weights(self, *shape: int) -> NDArray[np.int64]:
        bits = self.draw(2, 8)
        top = (1 << (bits - 1)) - 1
        return self.rng.integers(-top, top + 1, shape)

    def input(self) -> str:
        low = self.draw(-8, 2)
        shape = (2 * self.draw(1, 3), self.draw(3, 6), self.draw(3, 6))
        return self.add(Input("x", shape, low, low + self.draw(0, 31)), *shape)

    def conv(self, name: str, x: str, *, same: bool = False) -> str:
        channels, height, width = self.shape
        groups = 1 if self.draw(0, 3) else 2
        out = channels if same else 2 * self.draw(1, 3)
        kernel = 3 if same else self.draw(1, 3)
        stride, pad = (1, 1) if same else (self.draw(1, 2), self.draw(0, kernel - 1))
        weight = self.weights(out, channels // groups, kernel, kernel)
        sides = ((side + 2 * pad - kernel) // stride + 1 for side in (height, width))
        node = Conv(name, x, weight, stride=stride, pad=pad, groups=groups)
        return self.add(node, out, *sides)

    def table(self, name: str, x: str) -> str:
        channels = self.shape[0]
        gain = self.rng.normal(0, 10.0 ** -self.draw(0, 3), channels)
        offset = self.rng.normal(0, 3, channels)
        low = -8 * self.draw(0, 1)
        round_to = None if self.draw(0, 3) == 0 else self.draw(1, 6)
        exact = bool(self.draw(0, 1))
        node = Table(name, x, gain, offset, low, low + 15, round_to=round_to, exact=exact)
        return self.add(node, *self.shape)

    def residual(self, name: str, x: str) -> str:
        shape = self.shape
        inner = self.conv(f"{name}.conv", x, same=True)
        factor = self.rng.integers(-20, 21, shape[0])
        return self.table(name, self.add(AddScaled(f"{name}.add", inner, x, factor), *shape))

    def pool(self, name: str, x: str) -> str:
        channels, height, width = self.shape
        if self.draw(0, 1):
            return self.add(SumPool(name, x), channels, 1, 1)
        kernel = self.draw(1, math.gcd(height, width))
        if height % kernel or width % kernel:
            kernel = 1
        node = SumPool(name, x, kernel)
        return self.add(node, channels, height // kernel, width // kernel)


def random_graph(seed: int) -> Graph:
    """Return a small random graph: strides, pads, groups, residuals, pools, negative gains."""
    make = _Maker(seed)
    x = make.table("t0", make.conv("c0", make.input()))
    for k in range(make.draw(0, 2)):
        x = make.residual(f"r{k}", x) if make.draw(0, 1) else make.table(f"t{k + 1}", x)
    x = make.pool("pool", x)
    classes = make.draw(1, 5)
    x = make.add(Linear("fc", x, make.weights(classes, math.prod(make.shape))), classes)
    scale, offset = make.rng.uniform(0.1, 1, classes), make.rng.normal(0, 1, classes)
    make.add(Output("out", x, scale, offset), classes)
    return Graph(tuple(make.nodes))


def random_images(graph: Graph, n: int, *, seed: int) -> NDArray[np.int64]:
    """Return ``n`` images within the input's bounds, the first all low and the second all high."""
    node = graph.input
    rng = ScienceSeed(seed).child("images").generator()
    images = rng.integers(node.low, node.high + 1, (n, *node.shape))
    images[:1], images[1:2] = node.low, node.high
    return images


def loop_values(graph: Graph, image: NDArray[np.int64]) -> dict[str, Values]:
    """Return every value of one image by loops; slow and obvious."""
    values: dict[str, Values] = {}
    for node in graph.nodes:
        if isinstance(node, Input):
            values[node.name] = {i: int(v) for i, v in np.ndenumerate(image)}
        else:
            values[node.name] = _RULES[type(node)](graph, node, values)
    return values


def loop_round(acc: int, low: int, high: int, round_to: int | None) -> int:
    """Return the rounded accumulator, by trying how many low bits must go."""
    if round_to is None:
        return acc

    def fits(first: int, last: int, bits: int) -> bool:
        if low < 0:
            return -(1 << (bits - 1)) <= first and last < 1 << (bits - 1)
        return last < 1 << bits

    bits = next(b for b in range(1, 64) if fits(low, high, b))
    n = max(bits - round_to, 0)
    while not fits(_nearest(low, n), _nearest(high, n), round_to):
        n += 1
    return _nearest(acc, n) * (1 << n)


def _nearest(value: int, n: int) -> int:
    """Return value / 2^n rounded to an integer, halves up."""
    return (2 * value + (1 << n)) // (2 << n)


def _conv(graph: Graph, node: Conv, values: dict[str, Values]) -> Values:
    x = values[node.x]
    out, per_group, kh, kw = node.weight.shape
    result: Values = {}
    for o, i, j in np.ndindex(*graph.edges()[node.name].shape):
        start = (o // (out // node.groups)) * per_group
        total = 0
        for c, a, b in product(range(per_group), range(kh), range(kw)):
            place = start + c, i * node.stride + a - node.pad, j * node.stride + b - node.pad
            total += int(node.weight[o, c, a, b]) * x.get(place, 0)
        result[o, i, j] = total
    return result


def _linear(_: Graph, node: Linear, values: dict[str, Values]) -> Values:
    flat = [v for _, v in sorted(values[node.x].items())]
    rows = enumerate(node.weight.tolist())
    return {(o,): sum(w * v for w, v in zip(row, flat, strict=True)) for o, row in rows}


def _add(_: Graph, node: AddScaled, values: dict[str, Values]) -> Values:
    skip = values[node.skip]
    return {i: v + int(node.factor[i[0]]) * skip[i] for i, v in values[node.x].items()}


def _pool(graph: Graph, node: SumPool, values: dict[str, Values]) -> Values:
    _, height, width = graph.edges()[node.x].shape
    kh, kw = (height, width) if node.kernel is None else (node.kernel, node.kernel)
    result: Values = {}
    for (c, i, j), v in values[node.x].items():
        place = c, i // kh, j // kw
        result[place] = result.get(place, 0) + v
    return result


def _table(graph: Graph, node: Table, values: dict[str, Values]) -> Values:
    edge = graph.edges()[node.x]
    result = {}
    for i, v in values[node.x].items():
        r = loop_round(v, edge.low, edge.high, node.round_to)
        y = math.floor(float(node.gain[i[0]]) * r + float(node.offset[i[0]]) + 0.5)
        result[i] = min(max(y, node.low), node.high)
    return result


def _output(_: Graph, node: Output, values: dict[str, Values]) -> Values:
    return {(k,): v for k, (_, v) in enumerate(sorted(values[node.x].items()))}


_RULES: dict[type, Callable[..., Values]] = {
    Conv: _conv,
    Linear: _linear,
    AddScaled: _add,
    SumPool: _pool,
    Table: _table,
    Output: _output,
}
