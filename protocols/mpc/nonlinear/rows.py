r"""1/s and 1/sqrt(s) of one value per row over a huge dynamic range in few flights.

One opening of v, a bank of comparisons with public thresholds t_i spaced by sqrt(2) or less, and
public multipliers M_i with M_i t_i just above 2^61: in the i-th interval M_i v lies in
[2^61, sqrt(2) 2^61). From the opening alone every M_i v can be truncated and put into a public
cubic P: with R = (r M_i >> f) - k msb(r M_i) 2^(64-f) and k public, R^2 and R^3 expand in dealt
products. So each interval's P(M_i v) is a share after one flight; it is truncated by a second
opening, beside the comparisons. Only the right one is a sensible number; the comparison's bits,
opened under masks, choose it and its factor g_i, which undoes M_i exactly, with dealt products of
their masks. Values below t_1 are taken as if they lay in the first interval (the caller's range
rule covers them).

Security: v, each truncation and each bit are opened under uniform masks of their own; the masks
r M_i are never opened but through v. Two parties, semi-honest, dealer-hybrid. 4 flights, 3 where 32
bits hold v; per row and direction 16 B, and 8 B + 34 bit for each threshold (15 bit more or less
for short v). Source: ours, after the usual normalise-then-approximate.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import ClassVar

import numpy as np

from privml.protocols.mpc.arithmetic.truncate import shifted, simulate
from privml.protocols.mpc.boolean.compare import (
    Signs,
    at_least,
    farthest,
    packed,
    ring_column,
    shift,
)
from privml.protocols.mpc.fields import Array, Field, Shares, derived, mask
from privml.protocols.mpc.fields import bits as planes
from privml.protocols.mpc.ops import unpack_bits
from privml.protocols.mpc.primitive import (
    HALF,
    ONE,
    TOP,
    Context,
    Cost,
    Primitive,
    Words,
    both,
    peak,
)

#: Bits of a multiple M_i v in its interval, and of the cubic's argument.
SPREAD, ARGUMENT = 61, 14
_F = SPREAD - ARGUMENT
_TWO, _THREE = np.uint64(2), np.uint64(3)


@dataclass(frozen=True)
class RowPower(Primitive):
    """``g_i trunc(P(trunc(M_i v)), f)`` for ``n`` positive values v, i the interval of v.

    Parameters
    ----------
    thresholds
        Increasing ring integers t_1 < t_2 < ...; interval i begins at t_i.
    multipliers, factors
        M_i and g_i, one more than thresholds each; ring integers.
    coefficients
        Of the cubic P, ascending, for an argument with 14 fractional bits.
    f
        Bits that the truncation of P drops.
    bits
        Bits that hold v and its differences from the thresholds.
    """

    n: int
    thresholds: tuple[int, ...]
    multipliers: tuple[int, ...]
    factors: tuple[int, ...]
    coefficients: tuple[int, int, int, int]
    f: int
    bits: int = 64
    name: ClassVar[str] = "row_power"

    @property
    def count(self) -> int:
        """Number of thresholds."""
        return len(self.thresholds)

    @property
    def signs(self) -> Signs:
        """The bank of comparisons."""
        return Signs(self.n, self.count, self.bits)

    def fields(self) -> tuple[Field, ...]:
        each, chosen = (self.count + 1, self.n), (self.count, self.n)
        powers = ("u", "u2", "u3", "m", "mu", "mu2")
        return (
            mask("r", (self.n,)), mask("q", each[::-1]), planes("b", (self.count, packed(self.n))),
            *(derived(k, each) for k in (*powers, "qu", "qm")),
            *(derived(k, chosen) for k in ("rho", "above_u", "above_m", "below_u", "below_m")),
            *self.signs.fields(),
        )  # fmt: skip

    def derive(self, free: Shares) -> Mapping[str, Array]:
        multiple = free["r"] * ring_column(self.multipliers)
        u, m = multiple >> np.uint64(_F), multiple >> TOP
        u2, rho = u * u, unpack_bits(free["b"], self.n)
        q = np.ascontiguousarray(free["q"].T)
        qu, qm = q >> np.uint64(self.f), q >> TOP
        return {
            "u": u, "u2": u2, "u3": u2 * u, "m": m, "mu": m * u, "mu2": m * u2,
            "qu": qu, "qm": qm, "rho": rho, "above_u": rho * qu[1:], "above_m": rho * qm[1:],
            "below_u": rho * qu[:-1], "below_m": rho * qm[:-1],
            **self.signs.derive(free["r"], free),
        }  # fmt: skip

    def online(self) -> Cost:
        cost = both(8 * self.n).then(self.signs.cost())
        return cost.then(both(8 * self.n * (self.count + 1), 0)).then(
            both(8 * packed(self.n) * self.count)
        )

    def run(self, ctx: Context, corr: Shares, v: Words) -> Words:
        """Return a share of the results, ``(n,)``."""
        (c,) = ctx.open(v + corr["r"])
        masked = self._cubics(c, corr, ctx.rank) + corr["q"].T
        if ctx.rank == 0:
            masked += HALF
        moved, tree = shift(c, self.thresholds), self.signs.tree
        lt, eq = self.signs.planes(moved, corr)
        sums, opened = ctx.open_mixed([masked], [tree.masked(0, lt, eq, corr)])
        lt, eq = tree.combine(0, opened[0], lt, eq, corr, ctx.rank)
        for level in range(1, tree.depth()):
            (bits,) = ctx.open_bits(tree.masked(level, lt, eq, corr))
            lt, eq = tree.combine(level, bits, lt, eq, corr, ctx.rank)
        passed = self.signs.finish(moved, lt[:, 0], corr, ctx.rank)
        (z,) = ctx.open_bits(passed ^ corr["b"])
        return self._chosen(sums[0], unpack_bits(z, self.n), corr, ctx.rank)

    def _constants(self) -> list[Words]:
        return [np.array([a % (1 << 64)], np.uint64) for a in self.coefficients]

    def _cubics(self, c: Words, corr: Shares, rank: int) -> Words:
        """Shares of P for each interval, ``(count + 1, n)``, from opened v + r."""
        multiple = c * ring_column(self.multipliers) + HALF
        p = (multiple >> np.uint64(_F)) - shifted(_F)
        k = (ONE - (multiple >> TOP)) << np.uint64(64 - _F)
        a0, a1, a2, a3 = self._constants()
        # R = u - k m with m a bit; P(p - R) = a0 + ... expanded in R.
        km = k * corr["m"]
        r1 = corr["u"] - km
        r2 = corr["u2"] + k * (km - _TWO * corr["mu"])
        r3 = corr["u3"] - k * (_THREE * corr["mu2"] + k * (km - _THREE * corr["mu"]))
        slope: Array = a3 * p
        bend = a2 + _THREE * slope
        out: Words = bend * r2 - a3 * r3 - (a1 + p * (a2 + bend)) * r1
        if rank == 0:
            out += a0 + p * (a1 + p * (a2 + slope))
        return out

    def _chosen(self, opened: Words, z: Words, corr: Shares, rank: int) -> Words:
        """Share of the sum over thresholds passed of how the result changes there."""
        g = ring_column(self.factors)
        part = g * ((opened >> np.uint64(self.f)) - shifted(self.f))
        k = g * ((ONE - (opened >> TOP)) << np.uint64(64 - self.f))
        own = k * corr["qm"] - g * corr["qu"]
        if rank == 0:
            own += part
        hidden = (part[1:] - part[:-1]) * corr["rho"]
        hidden += g[:-1] * corr["below_u"] - g[1:] * corr["above_u"]
        hidden += k[1:] * corr["above_m"] - k[:-1] * corr["below_m"]
        steps = z * (own[1:] - own[:-1]) + (ONE - (z + z)) * hidden
        out: Words = own[0] + steps.sum(axis=0)
        return out

    def reach(self, v: Words) -> float:
        """Return the share of what ``bits`` and the last interval hold; 1 or more if v < 0."""
        if v.size and v.view(np.int64).min() < 0:
            return 1.0
        share = farthest(v, self.thresholds) / 2.0 ** (self.bits - 1)
        return max(share, peak(v) * self.multipliers[-1] / 2.0**62)

    def simulate(self, masks: Shares, v: Words) -> Words:
        """Return the clear results with the masks' rounding."""
        multiple = ring_column(self.multipliers)
        y = simulate(v * multiple, masks["r"] * multiple, _F)
        a0, a1, a2, a3 = self._constants()
        cubic = a0 + y * (a1 + y * (a2 + y * a3))
        each = ring_column(self.factors) * simulate(cubic, masks["q"].T, self.f)
        passed = at_least(v, self.thresholds, self.bits)
        out: Words = each[0] + (passed * (each[1:] - each[:-1])).sum(axis=0)
        return out


@cache
def intervals(low: int, high: int) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Thresholds (one or more) and multipliers for ring integers from ``low`` to ``high`` <= 2^57.

    Multiplier M begins at ceil(2^61 / M), so that multiples are at least 2^61; the next one is at
    least M / sqrt(2), so that they stay below sqrt(2) 2^61.
    """
    multipliers = [max(1, (1 << SPREAD) // max(low, 1))]
    thresholds: list[int] = []
    while True:
        nxt = -(-multipliers[-1] * 46341 // 65536)  # 46341 / 65536 is just above 1 / sqrt(2)
        begin = -(-(1 << SPREAD) // nxt)
        if (thresholds and begin > high) or nxt == multipliers[-1]:
            return tuple(thresholds), tuple(multipliers)
        multipliers.append(nxt)
        thresholds.append(begin)
