r"""Sort keys of rows from secret class bits: the place of each row in the stable partition.

Functionality: packed XOR-shared bits M (kept) and, with two classes, R (high; R implies M). Output:
additive shares of ``keys``, a permutation of 0..n-1 that puts high rows first, then low ones, then
dropped ones, in the old order inside each class; and additive shares of the bits.

With inclusive prefix counts :math:`PM_i, PR_i` and totals :math:`N, N_R`

.. math:: key_i = R_i (2 PR_i - PM_i - N_R) + M_i (N_R + 2 PM_i - PR_i - 1 - N - i) + N + i - PM_i,

and without R :math:`key_i = M_i (2 PM_i - 1 - N - i) + N + i - PM_i`: a quadratic form in the bits
with public weights. Opening z = bits ^ b makes each bit :math:`z + (1 - 2z) \rho` with a dealt
:math:`\rho`, and each product of two bits local with dealt :math:`\rho_a \rho_b`.

Security: z is masked by fresh uniform bits, padding included; nothing else is sent. Two parties,
semi-honest, dealer-hybrid. 1 flight, 8 ceil(classes n / 64) bytes each way; off line
8 (classes n)^2 bytes. Source: ours.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import ClassVar

import numpy as np

from privml.errors import ParameterError
from privml.protocols.mpc.boolean.compare import packed
from privml.protocols.mpc.fields import Array, Field, Shares, bits, derived
from privml.protocols.mpc.ops import unpack_bits
from privml.protocols.mpc.primitive import ONE, Context, Cost, Primitive, Words, both


@dataclass(frozen=True)
class StableKeys(Primitive):
    """Keys and ring bits of ``n`` rows from ``classes`` planes of bits, one after the other.

    ``classes`` is 1 (kept or not) or 2 (kept, then high). The bits are flat and class-major:
    bit ``i`` is M_i, bit ``n + i`` is R_i, without padding between the planes.
    """

    n: int
    classes: int
    name: ClassVar[str] = "stable_keys"

    def __post_init__(self) -> None:
        if self.classes not in (1, 2):
            raise ParameterError(f"rows have 1 or 2 class bits, not {self.classes}")

    @property
    def size(self) -> int:
        """Bits that come in."""
        return self.n * self.classes

    def fields(self) -> tuple[Field, ...]:
        return (
            bits("b", (packed(self.size),)),
            derived("rho", (self.size,)),
            derived("rr", (self.size, self.size)),
        )

    def derive(self, free: Shares) -> Mapping[str, Array]:
        rho = unpack_bits(free["b"], self.size)
        return {"rho": rho, "rr": rho[:, None] * rho[None, :]}

    def online(self) -> Cost:
        return both(8 * packed(self.size))

    def run(self, ctx: Context, corr: Shares, planes: Words) -> tuple[Words, Words]:
        """Return shares of the keys ``(n,)`` and of the bits ``(classes * n,)``."""
        (opened,) = ctx.open_bits(planes ^ corr["b"])
        z, rho = unpack_bits(opened, self.size), corr["rho"]
        sign = ONE - (z + z)
        own: Words = sign * rho
        public = z if ctx.rank == 0 else np.zeros_like(z)
        own += public
        weights = _weights(self.n, self.classes)
        # bit_a bit_b = s_a s_b rho_a rho_b + z_b s_a rho_a + z_a (s_b rho_b + z_b)
        inner = np.einsum("ab,ab,b->a", weights, corr["rr"], sign)
        inner += rho * (weights @ z)
        inner *= sign
        inner += z * (weights @ own)
        return self._keys(inner, own, rank=ctx.rank), own

    def _keys(self, products: Words, own: Words, *, rank: int) -> Words:
        """Add up the quadratic, linear and constant parts of each key."""
        kept, place = own[: self.n], np.arange(self.n, dtype=np.uint64)
        keys: Words = products.reshape(self.classes, self.n).sum(axis=0)
        keys += kept.sum() - np.cumsum(kept) - (place + ONE) * kept
        if rank == 0:
            keys += place
        return keys

    def simulate(self, masks: Shares, planes: Words) -> tuple[Words, Words]:
        """Return the clear keys and bits."""
        clear = unpack_bits(planes, self.size)
        products = clear * (_weights(self.n, self.classes) @ clear)
        return self._keys(products, clear, rank=0), clear


@cache
def _weights(n: int, classes: int) -> Words:
    """Weights of ``bit_a * bit_b`` in the key of row ``a mod n``, as ring words."""
    upto, all_ = np.tri(n, dtype=np.int64), np.ones((n, n), np.int64)
    same = 2 * upto - all_
    if classes == 1:
        weights = same.view(np.uint64)
    else:
        weights = np.block([[same, all_ - upto], [-upto, same]]).view(np.uint64)
    weights.setflags(write=False)
    return weights
