"""Matrix products: share by share, and with a weight matrix that the server knows.

*Share by share* (attention): E = X - A and F = Y - B are opened, each party computes
E*Y_i + A_i*F + C_i, two products per party: their sum is E*Y + A*F + A*B = X*Y.

*Weight owner knows W* (linear layers): A is the client's mask of X, B the server's mask of W, and
W - B is opened once per pool. Off line the parties get shares C0 + C1 = A*B, so the client knows
Z1 = A(W - B) + C1 before the query. On line the client sends X1 - A and its masked Z1 in one
message; the server computes Z0 = (X0 + X1 - A) W + C0, one product, and with Z1 + r1 learns the
masked product c. It answers with the top bit of each c only: the client needs no more of c to
finish its share of the truncation. Two flights, n(k + m) words up, n*m bits down.

The server's view is X1 - A and Z1 + r1, both uniform; the client's is the top bit of words masked
by r0. Two parties, semi-honest, dealer-hybrid.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import prod
from typing import ClassVar

import numpy as np

from privml.protocols.mpc.arithmetic.truncate import finish, simulate, wrap_dtype
from privml.protocols.mpc.fields import Array, Field, Shares, derived, mask
from privml.protocols.mpc.ops import top_bits, unpack_bits
from privml.protocols.mpc.primitive import HALF, TOP, Context, Cost, Primitive, Words, both
from privml.rings import ring_matmul


@dataclass(frozen=True)
class MatMul(Primitive):
    """Batched product of shared matrices, ``(b, n, k) @ (b, k, m)``."""

    b: int
    n: int
    k: int
    m: int
    dtype: str = "u8"
    name: ClassVar[str] = "matmul"
    SIZES: ClassVar[frozenset[str]] = frozenset({"n", "m"})

    def fields(self) -> tuple[Field, ...]:
        d = self.dtype
        return (
            mask("a", (self.b, self.n, self.k), dtype=d),
            mask("b", (self.b, self.k, self.m), dtype=d),
            derived("c", (self.b, self.n, self.m), dtype=d),
        )

    def derive(self, free: Shares) -> Mapping[str, Array]:
        return {"c": ring_matmul(free["a"], free["b"])}

    def online(self) -> Cost:
        return both(int(self.dtype[1:]) * self.b * self.k * (self.n + self.m))

    def run(self, ctx: Context, corr: Shares, x: Array, y: Array) -> Array:
        """Return a share of ``x @ y``."""
        e, f = ctx.open(x - corr["a"], y - corr["b"])
        out: Array = ring_matmul(e, np.ascontiguousarray(y))
        out += ring_matmul(corr["a"], f)
        out += corr["c"]
        return out

    def simulate(self, masks: Shares, x: Array, y: Array) -> Array:
        """Return the ring product."""
        return ring_matmul(np.ascontiguousarray(x), np.ascontiguousarray(y))


@dataclass(frozen=True)
class Linear(Primitive):
    """``trunc(X @ W + bias)`` with W and bias known to rank 0; ``f = 0`` leaves out the truncation.

    ``weight`` names the once-per-pool mask B of this matrix.
    """

    n: int
    k: int
    m: int
    f: int
    weight: str
    name: ClassVar[str] = "linear"

    def fields(self) -> tuple[Field, ...]:
        out = (self.n, self.m)
        base: tuple[Field, ...] = (
            Field("a", (self.n, self.k), owner=1),
            Field("b", (self.k, self.m), owner=0, setup=self.weight),
            derived("c", out),
        )
        if self.f == 0:
            return base
        return (
            *base, mask("r", out), derived("u", out), derived("v", out, dtype=wrap_dtype(self.f)),
        )  # fmt: skip

    def derive(self, free: Shares) -> Mapping[str, Array]:
        values: dict[str, Array] = {"c": ring_matmul(free["a"], free["b"])}
        if self.f:
            r = free["r"]
            values["u"] = r >> np.uint64(self.f)
            values["v"] = (r >> TOP).astype(wrap_dtype(self.f))
        return values

    def online(self) -> Cost:
        up, out = 8 * self.n * self.k, self.n * self.m
        if self.f == 0:
            return Cost(1, (0, up))
        return Cost(2, (8 * -(-out // 64), up + 8 * out))

    @property
    def prepared(self) -> tuple[int, ...]:
        return (self.n, self.m)

    def prepare(self, corr: Shares, opened: Words) -> Words:
        """Return the client's Z1 = A(W - B) + C1, known before the query."""
        return ring_matmul(corr["a"], opened) + corr["c"]

    def run(self, ctx: Context, corr: Shares, x: Words, known: Words, bias: Words | None) -> Words:
        """Return a share of the product.

        Parameters
        ----------
        known
            At rank 0 the weight ``(k, m)``; at rank 1 the prepared ``Z1`` of shape ``(n, m)``.
        bias
            At rank 0 the bias at the scale of the product, shape ``(m,)``; else ``None``.
        """
        if ctx.rank == 1:
            return self._client(ctx, corr, x, known)
        parts = ctx.recv(*[((self.n, self.k), "u8"), ((self.n, self.m), "u8")][: 1 + bool(self.f)])
        z: Words = ring_matmul(x + parts[0], known) + corr["c"]
        if bias is not None:
            z += bias
        if self.f == 0:
            return z
        c = z + parts[1] + corr["r"] + HALF
        ctx.send(top_bits(c.reshape(-1)))
        return finish(c, corr, self.f, 0)

    def _client(self, ctx: Context, corr: Shares, x: Words, z: Words) -> Words:
        if self.f == 0:
            ctx.send(x - corr["a"])
            return z
        ctx.send(x - corr["a"], z + corr["r"])
        out = (self.n, self.m)
        (tops,) = ctx.recv(((-(-prod(out) // 64),), "u8"))
        c = unpack_bits(tops, prod(out)).reshape(out) << TOP
        return finish(c, corr, self.f, 1)

    def simulate(self, masks: Shares, x: Words, known: Words, bias: Words | None) -> Words:
        """Return the ring product with bias, truncated."""
        z: Words = ring_matmul(np.ascontiguousarray(x), known)
        if bias is not None:
            z += bias
        return simulate(z, masks["r"], self.f) if self.f else z
