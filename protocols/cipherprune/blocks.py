"""Products of shared matrices whose contraction length is known only when the program runs.

Functionality: ring product ``(b, n, k) @ (b, k, m)``, no truncation. As in the plain product of
the engine, E = X - A and F = Y - B are opened and each party adds up E Y_i + A_i F + C_i. The
dealer shares not only C = A B but the product of every first ``j`` blocks of A's columns with B's
rows, so a run may use the first k' columns for any k' that is a multiple of ``block``, and takes
the product of just these.

Security: E and F are uniform, each word under a mask used once; a run reads one of the products C,
and the others are uniform shares that nobody opens. Two parties, semi-honest, dealer-hybrid.
1 flight, 8 b k (n + m) bytes each way; off line 8 b n m (k / block) bytes. Source: Beaver (CRYPTO
1991); the running sums are ours.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from privml.errors import ParameterError
from privml.protocols.mpc.fields import Array, Field, Shares, derived, mask
from privml.protocols.mpc.primitive import Context, Cost, Primitive, Words, both
from privml.rings import ring_matmul


@dataclass(frozen=True)
class BlockMatMul(Primitive):
    """Batched product ``(b, n, k) @ (b, k, m)``; ``k`` is a multiple of ``block``."""

    b: int
    n: int
    k: int
    m: int
    block: int = 8
    name: ClassVar[str] = "block_matmul"
    SIZES: ClassVar[frozenset[str]] = frozenset({"n", "k"})

    def __post_init__(self) -> None:
        if self.block < 1 or self.k < 1 or self.k % self.block:
            raise ParameterError(
                f"a contraction over {self.k} columns is no multiple of {self.block}; pad it "
                "with zeros"
            )

    def fields(self) -> tuple[Field, ...]:
        return (
            mask("a", (self.b, self.n, self.k)),
            mask("b", (self.b, self.k, self.m)),
            derived("c", (self.k // self.block, self.b, self.n, self.m)),
        )

    def derive(self, free: Shares) -> Mapping[str, Array]:
        a, b = free["a"], free["b"]
        out = np.empty((self.k // self.block, self.b, self.n, self.m), np.uint64)
        for j in range(len(out)):
            cut = slice(j * self.block, (j + 1) * self.block)
            out[j] = ring_matmul(a[:, :, cut], b[:, cut])
            if j:
                out[j] += out[j - 1]
        return {"c": out}

    def online(self) -> Cost:
        return both(8 * self.b * self.k * (self.n + self.m))

    def run(self, ctx: Context, corr: Shares, x: Words, y: Words) -> Words:
        """Return a share of ``x @ y``."""
        e, f = ctx.open(x - corr["a"], y - corr["b"])
        out: Words = ring_matmul(e, y)
        out += ring_matmul(corr["a"], f)
        out += corr["c"][-1]
        return out

    def simulate(self, masks: Shares, x: Words, y: Words) -> Words:
        """Return the ring product."""
        return ring_matmul(x, y)
