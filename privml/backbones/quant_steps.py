"""What a quantised network computes, as plain arrays: the input of lowering. No torch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

Ints: TypeAlias = NDArray[np.int64]
Floats: TypeAlias = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class InputStep:
    """Integers of ``shape`` in [low, high]; one unit is ``scale``."""

    name: str
    shape: tuple[int, int, int]
    scale: float
    low: int
    high: int


@dataclass(frozen=True, eq=False)
class ConvStep:
    """Convolution; the result stands for ``gain*z + offset``, (O,) each, gain >= 0."""

    name: str
    x: str
    weight: Ints
    stride: int
    pad: int
    groups: int
    gain: Floats
    offset: Floats


@dataclass(frozen=True, eq=False)
class JoinStep:
    """Sum ``multiple*x + factor*skip``, (C,) each; stands for ``gain*z + offset``."""

    name: str
    x: str
    skip: str
    multiple: Ints
    factor: Ints
    gain: Floats
    offset: Floats


@dataclass(frozen=True, eq=False)
class PoolStep:
    """Mean over windows, or over the whole map if ``kernel`` is none."""

    name: str
    x: str
    kernel: int | None


@dataclass(frozen=True, eq=False)
class ActStep:
    """Table to [low, high], one unit of the output is ``scale``.

    ``keep`` is the number of bits a table sees, ``drop`` how many low bits were dropped in
    training for that.
    """

    name: str
    x: str
    scale: float
    low: int
    high: int
    keep: int | None
    drop: int


@dataclass(frozen=True, eq=False)
class LinearStep:
    """Last layer; class scores are ``gain*z + offset``, (classes,) each."""

    name: str
    x: str
    weight: Ints
    gain: Floats
    offset: Floats


Step: TypeAlias = InputStep | ConvStep | JoinStep | PoolStep | ActStep | LinearStep
