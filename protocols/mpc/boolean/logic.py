"""Boolean sharing: AND of bits, bit to ring conversion, and select.

All from opened one-time-masked bits. Two parties, semi-honest, dealer-hybrid, one flight each;
per element and direction 2 bit (AND), 1 bit (convert), 8 B + 1 bit (select).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import prod
from typing import ClassVar

import numpy as np

from privml.protocols.mpc.boolean.compare import packed
from privml.protocols.mpc.fields import Array, Field, Shares, bits, derived, mask
from privml.protocols.mpc.ops import unpack_bits
from privml.protocols.mpc.primitive import ONE, Context, Cost, Primitive, Words, both


def unpack(words: Words, shape: tuple[int, ...]) -> Words:
    """0/1 ring words of ``shape`` from packed bits."""
    return unpack_bits(words, prod(shape)).reshape(shape)


@dataclass(frozen=True)
class And(Primitive):
    """AND of two packed bit vectors of ``n`` bits."""

    n: int
    name: ClassVar[str] = "and"

    def fields(self) -> tuple[Field, ...]:
        w = (packed(self.n),)
        return (bits("a", w), bits("b", w), derived("ab", w, group="xor"))

    def derive(self, free: Shares) -> Mapping[str, Array]:
        return {"ab": free["a"] & free["b"]}

    def online(self) -> Cost:
        return both(16 * packed(self.n))

    def run(self, ctx: Context, corr: Shares, x: Words, y: Words) -> Words:
        """Return an XOR share of ``x & y``."""
        d, e = ctx.open_bits(x ^ corr["a"], y ^ corr["b"])
        z: Array = np.bitwise_and(d, corr["b"]) ^ np.bitwise_and(e, corr["a"]) ^ corr["ab"]
        if ctx.rank == 0:
            z ^= np.bitwise_and(d, e)
        return z

    def simulate(self, masks: Shares, x: Words, y: Words) -> Words:
        """Return the clear AND."""
        return x & y


@dataclass(frozen=True)
class BitToRing(Primitive):
    """Convert packed XOR-shared bits to additive shares of 0/1, shape ``shape``."""

    shape: tuple[int, ...]
    name: ClassVar[str] = "bit_to_ring"

    def fields(self) -> tuple[Field, ...]:
        return (bits("b", (packed(prod(self.shape)),)), derived("rho", self.shape))

    def derive(self, free: Shares) -> Mapping[str, Array]:
        return {"rho": unpack(free["b"], self.shape)}

    def online(self) -> Cost:
        return both(8 * packed(prod(self.shape)))

    def run(self, ctx: Context, corr: Shares, b: Words) -> Words:
        """Return an additive share of the bits."""
        (z,) = ctx.open_bits(b ^ corr["b"])
        opened = unpack(z, self.shape)
        out = (ONE - (opened + opened)) * corr["rho"]
        return out + opened if ctx.rank == 0 else out

    def simulate(self, masks: Shares, b: Words) -> Words:
        """Return the clear bits as ring words."""
        return unpack(b, self.shape)


@dataclass(frozen=True)
class Select(Primitive):
    """``b * x`` for packed XOR-shared bits b and a shared array x of ``shape``."""

    shape: tuple[int, ...]
    name: ClassVar[str] = "select"

    def fields(self) -> tuple[Field, ...]:
        return (
            bits("b", (packed(prod(self.shape)),)),
            mask("r", self.shape),
            derived("rho", self.shape),
            derived("rho_r", self.shape),
        )

    def derive(self, free: Shares) -> Mapping[str, Array]:
        rho = unpack(free["b"], self.shape)
        return {"rho": rho, "rho_r": rho * free["r"]}

    def online(self) -> Cost:
        n = prod(self.shape)
        return both(8 * n + 8 * packed(n))

    def run(self, ctx: Context, corr: Shares, b: Words, x: Words) -> Words:
        """Return a share of ``b * x``."""
        (c,), (z,) = ctx.open_mixed([x + corr["r"]], [b ^ corr["b"]])
        return selected(c, unpack(z, self.shape), x, corr)

    def simulate(self, masks: Shares, b: Words, x: Words) -> Words:
        """Return the clear product."""
        return unpack(b, self.shape) * x


def selected(c: Words, z: Words, x: Words, corr: Shares) -> Words:
    """Share of b*x from opened ``c = x + r`` and opened ``z = b ^ rho`` (as 0/1 words)."""
    return z * x + (ONE - (z + z)) * (c * corr["rho"] - corr["rho_r"])
