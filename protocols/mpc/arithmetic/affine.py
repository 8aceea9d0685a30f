"""Column-wise affine map with the server's secret vectors: the elementwise weight-owner product.

Same shape as the linear layer: the client sends X1 - A and its masked Z1 = A * (w - B) + C1, where
C0 + C1 = A * B (elementwise, rows share w); the server multiplies, adds its bias, learns the masked
product and answers with its top bits. 2 flights, 16 B per element up, 1 bit down.
Two parties, semi-honest, dealer-hybrid.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from privml.protocols.mpc.arithmetic.truncate import finish, simulate, wrap_dtype
from privml.protocols.mpc.fields import Array, Field, Shares, derived, mask
from privml.protocols.mpc.ops import top_bits, unpack_bits
from privml.protocols.mpc.primitive import HALF, TOP, Context, Cost, Primitive, Words

#: Fractional bits of gamma.
WEIGHT_SCALE = 14


@dataclass(frozen=True)
class Affine(Primitive):
    """``trunc(x * w + bias, f)`` for x ``(n, d)`` and the server's w, bias ``(d,)``."""

    n: int
    d: int
    f: int
    weight: str
    name: ClassVar[str] = "affine"

    def fields(self) -> tuple[Field, ...]:
        full = (self.n, self.d)
        return (
            Field("a", full, owner=1),
            Field("b", (self.d,), owner=0, setup=self.weight),
            derived("c", full),
            mask("r", full),
            derived("u", full),
            derived("v", full, dtype=wrap_dtype(self.f)),
        )

    def derive(self, free: Shares) -> Mapping[str, Array]:
        r = free["r"]
        return {
            "c": free["a"] * free["b"],
            "u": r >> np.uint64(self.f),
            "v": (r >> TOP).astype(wrap_dtype(self.f)),
        }

    def online(self) -> Cost:
        n = self.n * self.d
        return Cost(2, (8 * -(-n // 64), 16 * n))

    def prepare(self, corr: Shares, opened: Words) -> Words:
        """Return the client's Z1, known before the query."""
        out: Words = corr["a"] * opened + corr["c"]
        return out

    def run(self, ctx: Context, corr: Shares, x: Words, known: Words, bias: Words | None) -> Words:
        """Return a share of the result; operands as in :class:`matmul.Linear`."""
        full = (self.n, self.d)
        if ctx.rank == 1:
            ctx.send(x - corr["a"], known + corr["r"])
            (tops,) = ctx.recv((((self.n * self.d + 63) // 64,), "u8"))
            c: Words = unpack_bits(tops, self.n * self.d).reshape(full) << TOP
            return finish(c, corr, self.f, 1)
        moved, z1 = ctx.recv((full, "u8"), (full, "u8"))
        c = (x + moved) * known + corr["c"] + z1 + corr["r"] + HALF
        if bias is not None:
            c += bias
        ctx.send(top_bits(c.reshape(-1)))
        return finish(c, corr, self.f, 0)

    def simulate(self, masks: Shares, x: Words, known: Words, bias: Words | None) -> Words:
        """Return the ring value with the mask's rounding."""
        z = x * known
        if bias is not None:
            z += bias
        return simulate(z, masks["r"], self.f)
