"""An integer graph written as the function that concrete-python traces.

All values that a table sees, makes or that leave the circuit are shifted to be unsigned; adding a
clear constant costs nothing. So signs and widths follow from the interval bounds of the graph, not
from the sample inputs that the compiler measures:

* before a table: ``acc + shift`` with ``shift = -((low >> n) << n)``, a multiple of the rounding
  step 2^n, which therefore commutes with the rounding, and at least ``-low``;
* after a table: the table holds ``y - low`` and ``low`` is added behind it;
* the image is encrypted as ``x - low``; scores leave as ``acc - low``.

Widths are pinned by hints on both sides of the rounding. A convolution is padded by assigning its
input into an encrypted tensor of zeros, because the compiler rejects padding.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from types import ModuleType
from typing import Final, cast

import numpy as np

from privml.errors import BitsExceeded
from privml.protocols.fhe.bounds import Edge
from privml.protocols.fhe.graph import Graph
from privml.protocols.fhe.lookup import Lookup
from privml.protocols.fhe.nodes import (
    MAX_TABLE_BITS,
    AddScaled,
    Conv,
    Input,
    Ints,
    Linear,
    Node,
    Output,
    SumPool,
    Table,
)
from privml.rng import ScienceSeed

TABLE = "look_up"
"""Name of the traced function that is one table."""

MAX_INDEX_BITS: Final = 8
"""Most bits that one bootstrap looks up; for more, the compiler changes to another scheme."""

_SAMPLES = 8
_SAMPLE_SEED = 5  # public: sample inputs choose nothing but the order of compiler passes


@dataclass(frozen=True)
class Shifted:
    """How one table reads its accumulator.

    Attributes
    ----------
    dropped
        Low bits that rounding drops.
    bits
        Bits of the table's input after rounding.
    shift
        Added to the accumulator before rounding; a multiple of 2^dropped.
    """

    dropped: int
    bits: int
    shift: int

    @property
    def width(self) -> int:
        """Bits of the shifted accumulator."""
        return self.bits + self.dropped


def shifted(edge: Edge, lookup: Lookup) -> Shifted:
    """Return the shift and the widths of a table over accumulators of ``edge``.

    >>> shifted(Edge((1,), -100, 155), Lookup(3, 6, -32, np.zeros((1, 64), np.int64), (-12, 19)))
    Shifted(dropped=3, bits=6, shift=104)
    """
    n = lookup.dropped
    shift = -((edge.low >> n) << n)
    last = (edge.high + shift + ((1 << n) >> 1)) >> n
    return Shifted(dropped=n, bits=max(last.bit_length(), 1), shift=shift)


def unsigned_bits(low: int, high: int) -> int:
    """Return the bits of ``x - low`` for x in [low, high]."""
    return max((high - low).bit_length(), 1)


def tag(position: int) -> str:
    """Return the tag under which the compiler counts the operations of one node."""
    return f"n{position}"


def required_bits(graph: Graph) -> dict[str, int]:
    """Return, by tag, the least bits the compiler must give each table input and the output.

    Raises
    ------
    BitsExceeded
        One is wider than 16 bits, or a table sees more than 8.
    """
    found = {}
    edges = graph.edges()
    for position, node in enumerate(graph.nodes):
        if isinstance(node, Table):
            spec = shifted(edges[node.x], graph.lookups[node.name])
            if spec.bits > MAX_INDEX_BITS:
                raise BitsExceeded(
                    f"{node.name}: its tables see {spec.bits} bits, one bootstrap takes "
                    f"{MAX_INDEX_BITS}; round to {MAX_INDEX_BITS} bits or less (6 is a good value)",
                    layer=node.name,
                    value=spec.bits,
                    limit=MAX_INDEX_BITS,
                )
            bits = spec.width
        elif isinstance(node, Output):
            bits = unsigned_bits(edges[node.x].low, edges[node.x].high)
        else:
            continue
        if bits > MAX_TABLE_BITS:
            raise BitsExceeded(
                f"{node.name}: its accumulator needs {bits} bits, concrete-python holds "
                f"{MAX_TABLE_BITS}; use fewer weight or activation bits or fewer input channels",
                layer=node.name,
                value=bits,
                limit=MAX_TABLE_BITS,
            )
        found[tag(position)] = bits
    return found


def samples(graph: Graph) -> list[Ints]:
    """Return sample inputs, unsigned, shape (1, *shape): both ends, checkerboard, random."""
    node = graph.input
    shape, top = (1, *node.shape), node.high - node.low
    board = np.indices(shape).sum(axis=0) & 1
    corners = [np.zeros(shape, np.int64), np.full(shape, top), board * top, (1 - board) * top]
    generator = ScienceSeed(_SAMPLE_SEED).generator()
    drawn = [generator.integers(0, top, shape, np.int64, endpoint=True) for _ in range(_SAMPLES)]
    return [*corners, *drawn]


def function(graph: Graph, fhe: ModuleType) -> Callable[[Ints], Ints]:
    """Return the circuit as a function of one unsigned image of shape (1, *shape).

    Arrays inside are the tracers of ``fhe``, which behave like int64 arrays.
    """
    edges = graph.edges()

    def circuit(x: Ints) -> Ints:
        values: dict[str, Ints] = {}
        for position, node in enumerate(graph.nodes):
            scope: AbstractContextManager[None] = fhe.tag(tag(position))
            with scope:
                if isinstance(node, Input):
                    value = x + node.low if node.low else x
                elif isinstance(node, Table):
                    value = _table(node, values[node.x], edges[node.x], graph, fhe)
                else:
                    value = _linear(node, values, edges, fhe)
            values[node.name] = value
        return values[graph.output.name]

    return circuit


def _linear(
    node: Conv | Linear | AddScaled | SumPool | Output,
    values: dict[str, Ints],
    edges: dict[str, Edge],
    fhe: ModuleType,
) -> Ints:
    x, edge = values[node.x], edges[node.x]
    if isinstance(node, Conv):
        return _conv(node, x, edge, fhe)
    if isinstance(node, Linear):
        return x.reshape((1, edge.size)) @ node.weight.T.copy()
    if isinstance(node, AddScaled):
        factor = node.factor.reshape(1, -1, *([1] * (len(edge.shape) - 1)))
        return x + values[node.skip] * factor
    if isinstance(node, SumPool):
        return _pool(node, x, edges)
    flat = x.reshape((1, edge.size)) - edge.low
    return cast("Ints", fhe.hint(flat, bit_width=unsigned_bits(edge.low, edge.high)))


def _conv(node: Conv, x: Ints, edge: Edge, fhe: ModuleType) -> Ints:
    if node.pad:
        channels, height, width = edge.shape
        p = node.pad
        padded = fhe.zeros((1, channels, height + 2 * p, width + 2 * p))
        padded[:, :, p : p + height, p : p + width] = x
        x = padded
    strides = (node.stride, node.stride)
    weight = node.weight.copy()  # the tracer keeps what it is given
    return cast("Ints", fhe.conv(x, weight, strides=strides, group=node.groups))


def _pool(node: SumPool, x: Ints, edges: dict[str, Edge]) -> Ints:
    channels, height, width = edges[node.x].shape
    rows, columns = edges[node.name].shape[1:]
    split = x.reshape((1, channels, rows, height // rows, columns, width // columns))
    total: Ints = np.sum(split, axis=(3, 5))
    return total


def _table(node: Table, x: Ints, edge: Edge, graph: Graph, fhe: ModuleType) -> Ints:
    lookup = graph.lookups[node.name]
    spec = shifted(edge, lookup)
    acc = fhe.hint(x + spec.shift, bit_width=spec.width)
    if spec.dropped:
        exactness = fhe.Exactness.EXACT if node.exact else fhe.Exactness.APPROXIMATE
        # Shifted accumulators cannot round past their width, so no protection bit is needed.
        acc = fhe.round_bit_pattern(
            acc, spec.dropped, overflow_protection=False, exactness=exactness
        )
        acc = fhe.hint(acc, bit_width=spec.width)
    y = fhe.univariate(_look_up(node, lookup, spec))(acc)
    y = fhe.hint(y, bit_width=unsigned_bits(node.low, node.high))
    return cast("Ints", y + node.low if node.low else y)


def _look_up(node: Table, lookup: Lookup, spec: Shifted) -> Callable[[Ints], Ints]:
    """Return what the table does to shifted, rounded accumulators of shape (1, C, ...)."""
    values = (lookup.values - node.low)[None]  # (1, C, 2^bits)
    first = lookup.first + (spec.shift >> spec.dropped)

    def look_up(acc: Ints) -> Ints:
        index = np.clip((acc >> spec.dropped) - first, 0, values.shape[2] - 1)
        flat = index.reshape(1, values.shape[1], -1)
        result: Ints = np.take_along_axis(values, flat, axis=2).reshape(acc.shape)
        return result

    return look_up


def node_of(graph: Graph, tagged: str) -> Node:
    """Return the node that :func:`tag` names."""
    return graph.nodes[int(tagged[1:])]
