r"""Masked truncation: divide a shared fixed-point value by 2^f, unbiased, off by less than 1.

Functionality: on input x with :math:`|x| < 2^{62}`, output floor(x/2^f) or floor(x/2^f) + 1, the
upper value with probability (x mod 2^f)/2^f over the dealer's mask, so the mean error is exactly
zero. Leakage as stated by the functionality: the adversary sees a uniform word c, and the rounding
bit is 1{c mod 2^f < r mod 2^f}, a function of c and of the low bits of x; it is *not* claimed to be
an independent coin.

Why it is right: with x' = x + 2^62 in (0, 2^63) and c = x' + r mod 2^64, the sum wraps exactly when
msb(r) = 1 and msb(c) = 0, because x' has a zero top bit. Hence
(c >> f) - (r >> f) + msb(r)(1 - msb(c)) 2^(64-f) is floor(x'/2^f) plus the borrow of the low bits.

Two parties, static semi-honest, dealer-hybrid model. One flight, 8 bytes per element each way.
Failure probability 0 under the range rule.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import prod
from typing import ClassVar

import numpy as np

from privml.protocols.mpc.fields import Array, Field, Shares, derived, mask
from privml.protocols.mpc.primitive import HALF, ONE, TOP, Context, Cost, Primitive, Words, both


def wrap_dtype(f: int) -> str:
    """Narrowest width that holds the f bits of the wrap correction."""
    return "u2" if f <= 16 else "u4" if f <= 32 else "u8"


def shifted(f: int) -> np.uint64:
    """Public constant that undoes the 2^62 offset after the shift."""
    return np.uint64(1 << (62 - f))


def wrap_share(v: Array, f: int) -> Words:
    """Turn a share of msb(r) modulo 2^f into a share of msb(r) * 2^(64-f)."""
    wide: Words = v.astype(np.uint64)
    wide <<= np.uint64(64 - f)
    return wide


@dataclass(frozen=True)
class Truncate(Primitive):
    """Truncate an array of ``shape`` by ``f`` bits, 1 <= f <= 61."""

    shape: tuple[int, ...]
    f: int
    name: ClassVar[str] = "truncate"

    def fields(self) -> tuple[Field, ...]:
        return (
            mask("r", self.shape),
            derived("u", self.shape),
            derived("v", self.shape, dtype=wrap_dtype(self.f)),
        )

    def derive(self, free: Shares) -> Mapping[str, Array]:
        r = free["r"]
        return {"u": r >> np.uint64(self.f), "v": (r >> TOP).astype(wrap_dtype(self.f))}

    def online(self) -> Cost:
        return both(8 * prod(self.shape))

    def run(self, ctx: Context, corr: Shares, x: Words) -> Words:
        """Return this party's share of the truncated value."""
        masked = x + corr["r"]
        if ctx.rank == 0:
            masked += HALF
        (c,) = ctx.open(masked)
        return finish(c, corr, self.f, ctx.rank)

    def simulate(self, masks: Shares, x: Words) -> Words:
        """Return the truncated ring words, rounding bits included."""
        return simulate(x, masks["r"], self.f)


def finish(c: Words, corr: Shares, f: int, rank: int) -> Words:
    """Share of the truncation from the opened word ``c`` (or, at rank 1, from its top bit)."""
    y: Words = c >> TOP
    np.subtract(ONE, y, out=y)
    y *= wrap_share(corr["v"], f)
    y -= corr["u"]
    if rank == 0:
        high = c >> np.uint64(f)
        high -= shifted(f)
        y += high
    return y


def simulate(x: Words, r: Words, f: int) -> Words:
    """Ring-exact value of the masked truncation of ``x`` under mask ``r``."""
    c = x + HALF + r
    wrap = ((r >> TOP) * (ONE - (c >> TOP))) << np.uint64(64 - f)
    y: Words = (c >> np.uint64(f)) - (r >> np.uint64(f)) + wrap - shifted(f)
    return y
