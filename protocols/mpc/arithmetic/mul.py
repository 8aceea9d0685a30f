"""Products of shared values: element by element, and a row scaled by a shared factor.

Functionality: ring product, no truncation. Masked openings only (Beaver, CRYPTO 1991), so the view
is uniform words. Two parties, semi-honest, dealer-hybrid. One flight each.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import prod
from typing import ClassVar

from privml.protocols.mpc.fields import Array, Field, Shares, derived, mask
from privml.protocols.mpc.primitive import Context, Cost, Primitive, Words, both


@dataclass(frozen=True)
class Mul(Primitive):
    """Element product of two arrays of one shape; 16 bytes per element each way."""

    shape: tuple[int, ...]
    dtype: str = "u8"
    name: ClassVar[str] = "mul"

    def fields(self) -> tuple[Field, ...]:
        s, d = self.shape, self.dtype
        return (mask("a", s, dtype=d), mask("b", s, dtype=d), derived("ab", s, dtype=d))

    def derive(self, free: Shares) -> Mapping[str, Array]:
        return {"ab": free["a"] * free["b"]}

    def online(self) -> Cost:
        return both(2 * int(self.dtype[1:]) * prod(self.shape))

    def run(self, ctx: Context, corr: Shares, x: Array, y: Array) -> Array:
        """Return a share of ``x * y``."""
        e, g = ctx.open(x - corr["a"], y - corr["b"])
        z: Array = e * corr["b"] + corr["a"] * g + corr["ab"]
        return z + e * g if ctx.rank == 0 else z

    def simulate(self, masks: Shares, x: Array, y: Array) -> Array:
        """Return the ring product."""
        return x * y


@dataclass(frozen=True)
class Square(Primitive):
    """Element square; 8 bytes per element each way."""

    shape: tuple[int, ...]
    name: ClassVar[str] = "square"

    def fields(self) -> tuple[Field, ...]:
        return (mask("a", self.shape), derived("aa", self.shape))

    def derive(self, free: Shares) -> Mapping[str, Array]:
        return {"aa": free["a"] * free["a"]}

    def online(self) -> Cost:
        return both(8 * prod(self.shape))

    def run(self, ctx: Context, corr: Shares, x: Words) -> Words:
        """Return a share of ``x * x``."""
        (e,) = ctx.open(x - corr["a"])
        z = (e + e) * corr["a"] + corr["aa"]
        return z + e * e if ctx.rank == 0 else z

    def simulate(self, masks: Shares, x: Words) -> Words:
        """Return the ring square."""
        return x * x


@dataclass(frozen=True)
class ScaleRows(Primitive):
    """Multiply each row of ``x`` ``(rows, cols)`` by a shared factor ``y`` ``(rows, 1)``.

    8 bytes per element and 8 per row each way, 8 per element off line.
    """

    rows: int
    cols: int
    name: ClassVar[str] = "scale_rows"
    SIZES: ClassVar[frozenset[str]] = frozenset({"rows", "cols"})

    def fields(self) -> tuple[Field, ...]:
        full, row = (self.rows, self.cols), (self.rows, 1)
        return (mask("x", full), mask("y", row), derived("xy", full))

    def derive(self, free: Shares) -> Mapping[str, Array]:
        return {"xy": free["x"] * free["y"]}

    def online(self) -> Cost:
        return both(8 * self.rows * (self.cols + 1))

    def run(self, ctx: Context, corr: Shares, x: Words, y: Words) -> Words:
        """Return a share of ``x * y``."""
        cx, cy = ctx.open(x - corr["x"], y - corr["y"])
        z: Words = cx * (corr["y"] + cy if ctx.rank == 0 else corr["y"])
        z += cy * corr["x"]
        z += corr["xy"]
        return z

    def simulate(self, masks: Shares, x: Words, y: Words) -> Words:
        """Return the ring product."""
        return x * y
