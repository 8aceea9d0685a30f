"""Nodes of the integer graph: frozen data, never a callable.

Every value is an int64 array of shape (channels, height, width) or (channels,) per image. Zero
points are zero everywhere, so a padded zero is an exact zero. All rounding is ``floor(x + 1/2)``.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final, TypeAlias

import numpy as np
from numpy.typing import ArrayLike, NDArray

from privml.errors import ParameterError

Ints: TypeAlias = NDArray[np.int64]
Floats: TypeAlias = NDArray[np.float64]

VALUE_LIMIT: Final = 1 << 40
"""No value of a graph may leave [-2^40, 2^40]: int64 and float64 arithmetic stay exact."""

WEIGHT_LIMIT: Final = 1 << 31
MAX_SIDE: Final = 1 << 12
MAX_CHANNELS: Final = 1 << 16
MAX_KERNEL: Final = 64
MAX_TABLE_BITS: Final = 16
_COEFFICIENT_LIMIT: Final = 2.0**60
_NAME: Final = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.\-]{0,63}", re.ASCII)


@dataclass(frozen=True, eq=False)
class Input:
    """The encrypted image: integers of ``shape`` in [low, high]."""

    name: str
    shape: tuple[int, ...]
    low: int
    high: int

    def __post_init__(self) -> None:
        _check_name(self.name)
        _set(self, "shape", tuple(self.shape))
        shape = self.shape
        if len(shape) not in (1, 3):
            raise ParameterError(f"{self.name}: the shape must be (C, H, W) or (C,), not {shape!r}")
        _check_int(self.name, "channels", shape[0], 1, MAX_CHANNELS)
        for side in shape[1:]:
            _check_int(self.name, "side", side, 1, MAX_SIDE)
        _check_range(self.name, self.low, self.high)


@dataclass(frozen=True, eq=False)
class Conv:
    """Convolution by clear weights, without bias.

    Attributes
    ----------
    weight
        Shape (O, I / groups, kh, kw), int64, |w| <= 2^31.
    stride, pad
        Same in both directions; ``pad`` zeros on each side, fewer than the kernel has.
    groups
        Divides the input and output channels.
    """

    name: str
    x: str
    weight: Ints
    stride: int = 1
    pad: int = 0
    groups: int = 1

    def __post_init__(self) -> None:
        _check_name(self.name, self.x)
        _set(self, "weight", _integers(self.name, "weight", self.weight, ndim=4))
        out, _, kh, kw = self.weight.shape
        _check_int(self.name, "kernel", max(kh, kw), 1, MAX_KERNEL)
        _check_int(self.name, "stride", self.stride, 1, MAX_KERNEL)
        _check_int(self.name, "pad", self.pad, 0, min(kh, kw) - 1)
        _check_int(self.name, "groups", self.groups, 1, out)
        if out % self.groups:
            raise ParameterError(f"{self.name}: {self.groups} groups do not divide {out} channels")


@dataclass(frozen=True, eq=False)
class Linear:
    """Matrix product by clear weights of shape (O, I) with the flattened input, without bias."""

    name: str
    x: str
    weight: Ints

    def __post_init__(self) -> None:
        _check_name(self.name, self.x)
        _set(self, "weight", _integers(self.name, "weight", self.weight, ndim=2))


@dataclass(frozen=True, eq=False)
class AddScaled:
    """Fused residual ``x + factor[c] * skip``; costs no table. ``factor``: shape (C,), int64."""

    name: str
    x: str
    skip: str
    factor: Ints

    def __post_init__(self) -> None:
        _check_name(self.name, self.x, self.skip)
        _set(self, "factor", _integers(self.name, "factor", self.factor, ndim=1))


@dataclass(frozen=True, eq=False)
class SumPool:
    """Sum over windows of ``kernel`` x ``kernel``, stride ``kernel``; None sums the whole map."""

    name: str
    x: str
    kernel: int | None = None

    def __post_init__(self) -> None:
        _check_name(self.name, self.x)
        if self.kernel is not None:
            _check_int(self.name, "kernel", self.kernel, 1, MAX_SIDE)


@dataclass(frozen=True, eq=False)
class Table:
    """One table per element: ``y = clip(floor(gain[c] * r + offset[c] + 1/2), low, high)``.

    ``r`` is the accumulator after rounding to ``round_to`` bits, see
    :func:`privml.protocols.fhe.lookup.dropped_bits`.

    Attributes
    ----------
    gain, offset
        Shape (C,), float64, finite, at most 2^60 in absolute value.
    low, high
        Range of the output.
    round_to
        Bits that the table sees at most, 1 to 16; None looks up the whole accumulator.
    exact
        Exact rounding; otherwise approximate, which may be off by one near a boundary.
    """

    name: str
    x: str
    gain: Floats
    offset: Floats
    low: int
    high: int
    round_to: int | None = 6
    exact: bool = False

    def __post_init__(self) -> None:
        _check_name(self.name, self.x)
        _set(self, "gain", _reals(self.name, "gain", self.gain))
        _set(self, "offset", _reals(self.name, "offset", self.offset))
        if self.gain.shape != self.offset.shape:
            raise ParameterError(f"{self.name}: gain and offset must have the same length")
        _check_range(self.name, self.low, self.high)
        if self.round_to is not None:
            _check_int(self.name, "round_to", self.round_to, 1, MAX_TABLE_BITS)
        if not isinstance(self.exact, bool):
            raise ParameterError(f"{self.name}: exact must be true or false")


@dataclass(frozen=True, eq=False)
class Output:
    """Class scores: ``scale[k] * x[k] + offset[k]`` computed by the client after decryption."""

    name: str
    x: str
    scale: Floats
    offset: Floats

    def __post_init__(self) -> None:
        _check_name(self.name, self.x)
        _set(self, "scale", _reals(self.name, "scale", self.scale))
        _set(self, "offset", _reals(self.name, "offset", self.offset))
        if self.scale.shape != self.offset.shape:
            raise ParameterError(f"{self.name}: scale and offset must have the same length")


Node: TypeAlias = Input | Conv | Linear | AddScaled | SumPool | Table | Output


def sources(node: Node) -> tuple[str, ...]:
    """Return the names of the values a node reads."""
    if isinstance(node, Input):
        return ()
    return (node.x, node.skip) if isinstance(node, AddScaled) else (node.x,)


def arrays(node: Node) -> dict[str, NDArray[np.generic]]:
    """Return the arrays of a node by field name, in order of declaration."""
    return {name: value for name, value in vars(node).items() if isinstance(value, np.ndarray)}


def _set(node: object, field: str, value: object) -> None:
    object.__setattr__(node, field, value)


def _check_name(*names: str) -> None:
    for name in names:
        if type(name) is not str or _NAME.fullmatch(name) is None:
            raise ParameterError(
                f"{name!r} is no node name; use 1 to 64 letters, digits, '_', '.' and '-'"
            )


def _check_int(name: str, what: str, value: int, low: int, high: int) -> None:
    if type(value) is not int or not low <= value <= high:
        raise ParameterError(f"{name}: {what} must be an integer in [{low}, {high}], not {value!r}")


def _check_range(name: str, low: int, high: int) -> None:
    _check_int(name, "low", low, -VALUE_LIMIT, VALUE_LIMIT)
    _check_int(name, "high", high, low, VALUE_LIMIT)


def _integers(name: str, what: str, value: ArrayLike, *, ndim: int) -> Ints:
    array = np.asarray(value)
    if array.dtype.kind not in "iu" or array.ndim != ndim or 0 in array.shape:
        raise ParameterError(
            f"{name}: {what} must be integers with {ndim} axes, none empty, "
            f"not {array.dtype} of shape {array.shape}"
        )
    if int(array.max()) > WEIGHT_LIMIT or int(array.min()) < -WEIGHT_LIMIT:
        raise ParameterError(f"{name}: {what} must lie in [-2^31, 2^31]")
    result: Ints = np.array(array, np.int64, order="C")
    result.setflags(write=False)
    return result


def _reals(name: str, what: str, value: ArrayLike) -> Floats:
    array = np.asarray(value)
    if array.dtype.kind not in "fiu" or array.ndim != 1 or not array.size:
        raise ParameterError(f"{name}: {what} must be a vector of numbers, one per channel")
    result: Floats = np.array(array, np.float64, order="C")
    if not (np.abs(result) <= _COEFFICIENT_LIMIT).all():
        raise ParameterError(f"{name}: {what} must be finite and at most 2^60 in absolute value")
    result.setflags(write=False)
    return result
