"""Shapes and interval bounds of every value of a graph, from the actual weights.

Bounds are kept per channel: ``high[o] = sum of w * (high of its input channel if w > 0 else low)``
over the taps of output channel o. They hold for every input in range, so an accumulator never needs
calibration. Where a convolution pads, the input interval is widened to hold the zero.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

import numpy as np

from privml.errors import ParameterError, UnsupportedError
from privml.protocols.fhe.lookup import bit_width
from privml.protocols.fhe.nodes import (
    VALUE_LIMIT,
    AddScaled,
    Conv,
    Floats,
    Input,
    Ints,
    Linear,
    Node,
    Output,
    SumPool,
    Table,
)

MAX_ELEMENTS: Final = 1 << 26
"""Elements of one value, and entries of all tables of a graph, at most."""


@dataclass(frozen=True)
class Edge:
    """What is known of one value before any input is seen: every element lies in [low, high]."""

    shape: tuple[int, ...]
    low: int
    high: int

    @property
    def bits(self) -> int:
        """Bits of the integers, with sign if any is negative."""
        return bit_width(self.low, self.high)

    @property
    def signed(self) -> bool:
        """Whether a value can be negative."""
        return self.low < 0

    @property
    def size(self) -> int:
        """Elements of one image."""
        return math.prod(self.shape)


@dataclass(frozen=True, eq=False)
class Bounds:
    """Shape and per-channel interval; ``low`` and ``high`` have shape (C,), int64."""

    shape: tuple[int, ...]
    low: Ints
    high: Ints

    def edge(self) -> Edge:
        """Return the bounds of the whole tensor."""
        return Edge(self.shape, int(self.low.min()), int(self.high.max()))


def propagate(node: Node, known: Mapping[str, Bounds]) -> Bounds:
    """Return the bounds of a node's value from those of the values before it.

    Raises
    ------
    ParameterError
        The shapes do not fit, or a value could leave [-2^40, 2^40].
    UnsupportedError
        A pooling window does not divide the map.
    """
    if isinstance(node, Input):
        channels = np.ones(node.shape[0], np.int64)
        return _checked(node, Bounds(node.shape, node.low * channels, node.high * channels))
    x = known[node.x]
    if isinstance(node, Conv):
        result = _conv(node, x)
    elif isinstance(node, Linear):
        result = _linear(node, x)
    elif isinstance(node, AddScaled):
        result = _add(node, x, known[node.skip])
    elif isinstance(node, SumPool):
        result = _pool(node, x)
    elif isinstance(node, Table):
        result = _table(node, x)
    else:
        result = _output(node, x)
    return _checked(node, result)


def _conv(node: Conv, x: Bounds) -> Bounds:
    out, per_group, kh, kw = node.weight.shape
    _require(
        node,
        len(x.shape) == 3 and x.shape[0] == per_group * node.groups,
        f"weights for {per_group * node.groups} channels got a value of shape {x.shape}",
    )
    sides = tuple(
        (side + 2 * node.pad - k) // node.stride + 1
        for side, k in zip(x.shape[1:], (kh, kw), strict=True)
    )
    _require(node, min(sides) >= 1, f"the kernel {kh}x{kw} is larger than the map {x.shape[1:]}")
    low, high = x.low, x.high
    if node.pad:
        low, high = np.minimum(low, 0), np.maximum(high, 0)
    weight = node.weight.reshape(node.groups, out // node.groups, per_group, kh * kw)
    low, high = (b.reshape(node.groups, 1, per_group, 1) for b in (low, high))
    _require_small(node, np.abs(weight).astype(np.float64), low, high)
    up, down = np.maximum(weight, 0), np.minimum(weight, 0)
    least = (up * low + down * high).sum(axis=(2, 3)).reshape(out)
    most = (up * high + down * low).sum(axis=(2, 3)).reshape(out)
    return Bounds((out, *sides), least, most)


def _linear(node: Linear, x: Bounds) -> Bounds:
    out, features = node.weight.shape
    _require(
        node,
        math.prod(x.shape) == features,
        f"weights for {features} features got a value of shape {x.shape}",
    )
    weight = node.weight.reshape(out, x.shape[0], -1)
    low, high = x.low[None, :, None], x.high[None, :, None]
    _require_small(node, np.abs(weight).astype(np.float64), low, high)
    up, down = np.maximum(weight, 0), np.minimum(weight, 0)
    least = (up * low + down * high).sum(axis=(1, 2))
    most = (up * high + down * low).sum(axis=(1, 2))
    return Bounds((out,), least, most)


def _add(node: AddScaled, x: Bounds, skip: Bounds) -> Bounds:
    _require(
        node,
        x.shape == skip.shape and node.factor.shape == x.shape[:1],
        f"{len(node.factor)} factors and values of shapes {x.shape} and {skip.shape} do not fit",
    )
    _require_small(node, np.abs(node.factor).astype(np.float64), skip.low, skip.high)
    ends = np.stack([node.factor * skip.low, node.factor * skip.high])
    return Bounds(x.shape, x.low + ends.min(axis=0), x.high + ends.max(axis=0))


def _pool(node: SumPool, x: Bounds) -> Bounds:
    _require(node, len(x.shape) == 3, f"pooling needs a map, not a value of shape {x.shape}")
    channels, height, width = x.shape
    kh, kw = (height, width) if node.kernel is None else (node.kernel, node.kernel)
    if height % kh or width % kw:
        raise UnsupportedError(
            f"{node.name}: pooling windows of {kh}x{kw} do not divide the {height}x{width} map, "
            "rows would be dropped; choose a kernel that divides it"
        )
    _require_small(node, np.array(float(kh * kw)), x.low, x.high)
    return Bounds((channels, height // kh, width // kw), x.low * (kh * kw), x.high * (kh * kw))


def _table(node: Table, x: Bounds) -> Bounds:
    channels = x.shape[0]
    _require(
        node,
        node.gain.shape == (channels,),
        f"{len(node.gain)} gains got a value of {channels} channels",
    )
    ones = np.ones(channels, np.int64)
    return Bounds(x.shape, node.low * ones, node.high * ones)


def _output(node: Output, x: Bounds) -> Bounds:
    _require(
        node,
        node.scale.shape == (math.prod(x.shape),),
        f"{len(node.scale)} scales got a value of shape {x.shape}",
    )
    repeat = math.prod(x.shape) // x.shape[0]
    return Bounds(node.scale.shape, np.repeat(x.low, repeat), np.repeat(x.high, repeat))


def _require(node: Node, condition: bool, what: str) -> None:
    if not condition:
        raise ParameterError(f"{node.name}: {what}")


def _require_small(node: Node, magnitude: Floats, low: Ints, high: Ints) -> None:
    """Refuse products whose sum of magnitudes could pass the limit; float64 cannot overflow."""
    largest = np.maximum(np.abs(low), np.abs(high)).astype(np.float64)
    total = (magnitude * largest).sum(axis=tuple(range(1, magnitude.ndim))[-2:])
    if total.size and float(total.max()) > VALUE_LIMIT:
        raise ParameterError(f"{node.name}: its values could pass 2^40; use smaller weights")


def _checked(node: Node, bounds: Bounds) -> Bounds:
    if math.prod(bounds.shape) > MAX_ELEMENTS:
        raise ParameterError(f"{node.name}: a value of shape {bounds.shape} is too large")
    if int(bounds.high.max()) > VALUE_LIMIT or int(bounds.low.min()) < -VALUE_LIMIT:
        raise ParameterError(f"{node.name}: its values could pass 2^40; use smaller weights")
    return bounds
