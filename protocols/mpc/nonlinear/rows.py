r"""Functions of one value per row (1/s, 1/sqrt(v)) over a huge dynamic range in few flights.

*Normalise*: one opening of v, a bank of comparisons with public thresholds t_i spaced by sqrt(2),
and public multipliers chosen by the bits: v^ = m_i v / 2^s lies in [1, sqrt(2)) and
g = g(m_i) undoes the factor exactly, because it is computed from the rounded m_i. Values below the
first threshold keep m_0 (the caller's range rule covers them).

*PolyTruncate*: truncation followed by a cubic, from the opening of the truncation alone: with
R = (r >> f) - k msb(r) 2^(64-f) and k public, R^2 and R^3 expand in dealt products, so the
truncated value need not be opened again.

Both are per row, so their bytes vanish; what counts is flights: 4 and 1.
Two parties, semi-honest, dealer-hybrid. Source: ours, after the usual normalise-then-approximate.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from itertools import pairwise
from typing import ClassVar

import numpy as np

from privml.protocols.mpc.arithmetic.truncate import shifted, simulate
from privml.protocols.mpc.boolean.compare import Signs, packed, ring_column, shift
from privml.protocols.mpc.fields import Array, Field, Shares, bits, derived, mask
from privml.protocols.mpc.ops import unpack_bits
from privml.protocols.mpc.primitive import HALF, ONE, TOP, Context, Cost, Primitive, Words, both

_WRAP = 1 << 64


@dataclass(frozen=True)
class Normalise(Primitive):
    """Scale each of ``n`` positive values by its public multiplier; also return the factor g.

    Parameters
    ----------
    thresholds
        Increasing ring integers t_1 < t_2 < ...; the multiplier of index i holds from t_i on.
    multipliers, factors
        One more than thresholds each; ring integers.
    """

    n: int
    thresholds: tuple[int, ...]
    multipliers: tuple[int, ...]
    factors: tuple[int, ...]
    name: ClassVar[str] = "normalise"

    @property
    def count(self) -> int:
        """Number of thresholds."""
        return len(self.thresholds)

    @property
    def signs(self) -> Signs:
        """The bank of comparisons."""
        return Signs(self.n, self.count)

    def fields(self) -> tuple[Field, ...]:
        return (
            mask("r", (self.n,)),
            bits("b", (self.count, packed(self.n))),
            derived("rho", (self.count, self.n)),
            derived("rho_r", (self.count, self.n)),
            *self.signs.fields(),
        )

    def derive(self, free: Shares) -> Mapping[str, Array]:
        rho = unpack_bits(free["b"], self.n)
        return {"rho": rho, "rho_r": rho * free["r"], **self.signs.derive(free["r"], free)}

    def online(self) -> Cost:
        bits_each = 8 * packed(self.n) * self.count
        return both(8 * self.n).then(self.signs.cost()).then(both(bits_each))

    def _steps(self) -> tuple[Words, Words]:
        """Increments of multiplier and factor at each threshold, as columns."""
        return _increments(self.multipliers), _increments(self.factors)

    def run(self, ctx: Context, corr: Shares, v: Words) -> tuple[Words, Words]:
        """Return shares of the scaled values and of the factors, both ``(n,)``."""
        (c,) = ctx.open(v + corr["r"])
        ge = self.signs.run(ctx, corr, shift(c, self.thresholds))
        (opened,) = ctx.open_bits(ge ^ corr["b"])
        z = unpack_bits(opened, self.n)
        sign = ONE - (z + z)
        times_v = z * v + sign * (c * corr["rho"] - corr["rho_r"])
        ring = sign * corr["rho"]
        if ctx.rank == 0:
            ring = ring + z
        dm, dg = self._steps()
        scaled: Words = (dm * times_v).sum(axis=0) + np.uint64(self.multipliers[0]) * v
        factor: Words = (dg * ring).sum(axis=0)
        return scaled, factor + np.uint64(self.factors[0] if ctx.rank == 0 else 0)

    def simulate(self, masks: Shares, v: Words) -> tuple[Words, Words]:
        """Return clear scaled values and factors."""
        ge = ONE - (shift(v, self.thresholds) >> TOP)
        dm, dg = self._steps()
        m: Words = (dm * ge).sum(axis=0) + np.uint64(self.multipliers[0])
        g: Words = (dg * ge).sum(axis=0) + np.uint64(self.factors[0])
        return m * v, g


@cache
def _increments(values: tuple[int, ...]) -> Words:
    return ring_column(tuple(b - a for a, b in pairwise(values)))


@dataclass(frozen=True)
class PolyTruncate(Primitive):
    """Truncate ``n`` values by ``f`` bits, then apply a public integer cubic (ascending order)."""

    n: int
    f: int
    coefficients: tuple[int, int, int, int]
    name: ClassVar[str] = "poly_truncate"

    def fields(self) -> tuple[Field, ...]:
        s = (self.n,)
        return (mask("r", s), *(derived(k, s) for k in ("u", "u2", "u3", "m", "mu", "mu2")))

    def derive(self, free: Shares) -> Mapping[str, Array]:
        r = free["r"]
        u, m = r >> np.uint64(self.f), r >> TOP
        u2 = u * u
        return {"u": u, "u2": u2, "u3": u2 * u, "m": m, "mu": m * u, "mu2": m * u2}

    def online(self) -> Cost:
        return both(8 * self.n)

    def _constants(self) -> list[Words]:
        return [np.array([a % _WRAP], np.uint64) for a in self.coefficients]

    def run(self, ctx: Context, corr: Shares, x: Words) -> Words:
        """Return a share of the cubic of the truncated value."""
        masked = x + corr["r"]
        if ctx.rank == 0:
            masked += HALF
        (c,) = ctx.open(masked)
        p = (c >> np.uint64(self.f)) - shifted(self.f)
        k = (ONE - (c >> TOP)) << np.uint64(64 - self.f)
        two, three = np.uint64(2), np.uint64(3)
        # R = u - k m with m a bit, so m^2 = m.
        r1 = corr["u"] - k * corr["m"]
        r2 = corr["u2"] - two * k * corr["mu"] + k * k * corr["m"]
        r3 = corr["u3"] - three * k * corr["mu2"] + three * k * k * corr["mu"]
        r3 = r3 - k * k * k * corr["m"]
        a0, a1, a2, a3 = self._constants()
        # P(p - R) expanded in R.
        out: Words = a3 * (three * p * r2 - three * p * p * r1 - r3)
        out = out + a2 * (r2 - two * p * r1) - a1 * r1
        if ctx.rank == 0:
            out = out + a0 + p * (a1 + p * (a2 + p * a3))
        return out

    def simulate(self, masks: Shares, x: Words) -> Words:
        """Return the cubic of the truncated ring words."""
        y = simulate(x, masks["r"], self.f)
        a0, a1, a2, a3 = self._constants()
        out: Words = a0 + y * (a1 + y * (a2 + y * a3))
        return out
