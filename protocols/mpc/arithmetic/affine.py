r"""Truncation followed by a column-wise affine map with the server's secret vectors.

Functionality: x ``(n, d)``, :math:`y = trunc(trunc(x, g) w + bias, f)`, w and bias known to rank 0.

x is opened under a mask q, so trunc(x, g) = p - u + k v with p and k public and u, v bits of q. The
server multiplies p by w. For the rest, B is the server's mask of w, w - B was opened once per pool,
and the dealer shares u, v and their products with B: a party's share of u w is u_i (w - B) +
(u B)_i, and likewise for v, so both are known before the query. The product is truncated by a
second opening.

Security: both openings are uniform words under masks of their own; w - B is uniform and opened
once. Two parties, semi-honest, dealer-hybrid. 2 flights, 16 B per element and direction; off line
at least 34 B. Failure probability 0 for |x| and |trunc(x) w + bias| below 2^62. Source: ours.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from privml.protocols.mpc.arithmetic.truncate import finish, shifted, simulate, wrap_dtype
from privml.protocols.mpc.fields import Array, Field, Shares, derived, mask
from privml.protocols.mpc.primitive import HALF, ONE, TOP, Context, Cost, Primitive, Words, both

#: Fractional bits of gamma.
WEIGHT_SCALE = 14


@dataclass(frozen=True)
class Affine(Primitive):
    """``trunc(trunc(x, g) * w + bias, f)`` for x ``(n, d)`` and the server's w, bias ``(d,)``."""

    n: int
    d: int
    g: int
    f: int
    weight: str
    name: ClassVar[str] = "affine"
    SPENT: ClassVar[frozenset[str]] = frozenset({"qu", "qv", "ub", "vb"})

    def fields(self) -> tuple[Field, ...]:
        full = (self.n, self.d)
        return (
            mask("q", full), Field("b", (self.d,), owner=0, setup=self.weight),
            *(derived(name, full) for name in ("qu", "qv", "ub", "vb")),
            mask("r", full), derived("u", full), derived("v", full, dtype=wrap_dtype(self.f)),
        )  # fmt: skip

    def derive(self, free: Shares) -> Mapping[str, Array]:
        q, r, b = free["q"], free["r"], free["b"]
        u, v = q >> np.uint64(self.g), q >> TOP
        return {
            "qu": u, "qv": v, "ub": u * b, "vb": v * b,
            "u": r >> np.uint64(self.f), "v": (r >> TOP).astype(wrap_dtype(self.f)),
        }  # fmt: skip

    def online(self) -> Cost:
        return both(16 * self.n * self.d, 2)

    @property
    def prepared(self) -> tuple[int, ...]:
        return (2, self.n, self.d)

    def prepare(self, corr: Shares, opened: Words) -> Words:
        """Return shares of u w and v w 2^(64-g), ``(2, n, d)``; ``opened`` is w - B."""
        out = np.empty(self.prepared, np.uint64)
        for row, plain, product in zip(out, ("qu", "qv"), ("ub", "vb"), strict=True):
            np.multiply(corr[plain], opened, out=row)
            row += corr[product]
        out[1] <<= np.uint64(64 - self.g)
        return out

    def run(
        self, ctx: Context, corr: Shares, x: Words, known: Words | None, bias: Words | None
    ) -> Words:
        """Return a share of the result.

        Parameters
        ----------
        corr
            This party's shares, and what :meth:`prepare` gave as ``z1``.
        known, bias
            At rank 0 w and the bias at the scale of the product, ``(d,)``.
        """
        masked = x + corr["q"]
        if ctx.rank == 0:
            masked += HALF
        (opened,) = ctx.open(masked)
        z = ONE - (opened >> TOP)
        z *= corr["z1"][1]
        z -= corr["z1"][0]
        z += corr["r"]
        if ctx.rank == 0:
            opened >>= np.uint64(self.g)
            opened -= shifted(self.g)
            opened *= known
            z += opened
            z += HALF if bias is None else bias + HALF
        (c,) = ctx.open(z)
        return finish(c, corr, self.f, ctx.rank)

    def simulate(self, masks: Shares, x: Words, known: Words, bias: Words | None) -> Words:
        """Return the ring value with both masks' rounding."""
        z = simulate(x, masks["q"], self.g) * known
        if bias is not None:
            z += bias
        return simulate(z, masks["r"], self.f)
