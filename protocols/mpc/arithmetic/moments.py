r"""Mean of each row and the sum of squares about it, from one opening.

Functionality: :math:`\mu = trunc(K \sum_j x_j, 30)` with K = 2^30 / cols rounded, and
:math:`s = \sum_j (x_j - \mu)^2` in the ring, with exactly this :math:`\mu`.

x is opened under a mask a, and beside it K times the row's sum under a mask of the truncation.
Then :math:`\mu = P - U + k M` with P and k public, and U, M bits of that mask, and

.. math:: s = \sum_j x_j^2 - 2 \mu \sum_j x_j + cols \, \mu^2

is local with dealt products of U, M and the sum of a.

Security: uniform words under masks of their own. Two parties, semi-honest, dealer-hybrid. 1 flight,
8 B per element and per row and direction; off line 56 B per row. The truncation is right for
|K sum| < 2^62. Source: ours.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from privml.protocols.mpc.arithmetic.truncate import shifted, simulate
from privml.protocols.mpc.fields import Array, Field, Shares, derived, mask
from privml.protocols.mpc.primitive import HALF, ONE, TOP, Context, Cost, Primitive, Words, both

#: Fractional bits of 1 / cols.
MEAN_BITS = 30
_F = np.uint64(MEAN_BITS)
_TWO = np.uint64(2)


@dataclass(frozen=True)
class Moments(Primitive):
    """Mean and centred sum of squares of the rows of an array ``(rows, cols)``."""

    rows: int
    cols: int
    name: ClassVar[str] = "moments"

    @property
    def inverse(self) -> np.uint64:
        """The constant K."""
        return np.uint64(round(2.0**MEAN_BITS / self.cols))

    def fields(self) -> tuple[Field, ...]:
        row = (self.rows,)
        names = ("aa", "u", "m", "u2", "mu", "ua", "ma")
        return (mask("a", (self.rows, self.cols)), mask("q", row),
                *(derived(name, row) for name in names))  # fmt: skip

    def derive(self, free: Shares) -> Mapping[str, Array]:
        a, q = free["a"], free["q"]
        total, u, m = a.sum(axis=1), q >> _F, q >> TOP
        return {
            "aa": (a * a).sum(axis=1), "u": u, "m": m, "u2": u * u, "mu": m * u,
            "ua": u * total, "ma": m * total,
        }  # fmt: skip

    def online(self) -> Cost:
        return both(8 * self.rows * (self.cols + 1))

    def run(self, ctx: Context, corr: Shares, x: Words) -> tuple[Words, Words]:
        """Return shares of the means and of the sums, both ``(rows,)``."""
        total = x.sum(axis=1)
        masked = total * self.inverse + corr["q"]
        if ctx.rank == 0:
            masked += HALF
        e, opened = ctx.open(x - corr["a"], masked)
        p = (opened >> _F) - shifted(MEAN_BITS)
        k = (ONE - (opened >> TOP)) << np.uint64(64 - MEAN_BITS)
        rest = k * corr["m"] - corr["u"]
        squares: Words = _TWO * (e * corr["a"]).sum(axis=1) + corr["aa"]
        crossed = p * total + e.sum(axis=1) * rest + k * corr["ma"] - corr["ua"]
        mean2 = _TWO * p * rest + corr["u2"] + k * (k * corr["m"] - _TWO * corr["mu"])
        if ctx.rank == 0:
            squares += (e * e).sum(axis=1)
            mean2 += p * p
            rest = rest + p
        squares += np.uint64(self.cols) * mean2 - _TWO * crossed
        return rest, squares

    def simulate(self, masks: Shares, x: Words) -> tuple[Words, Words]:
        """Return the clear means with the mask's rounding, and the sums."""
        mean = simulate(x.sum(axis=1) * self.inverse, masks["q"], MEAN_BITS)
        centred = x - mean[:, None]
        return mean, (centred * centred).sum(axis=1)
