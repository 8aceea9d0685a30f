"""Comparison with public thresholds: XOR-shared bits 1{x >= t} from one masked opening.

Functionality: exact for |x - t| < 2^(l-1); nothing is opened but masked words and masked bits.
msb(x - t) = msb(c - t) ^ msb(r) ^ 1{(c - t) mod 2^(l-1) < r mod 2^(l-1)} with c = x + r.
Any number of thresholds on one opening: they share the one-hot words of r, not the node masks.

A comparison needs only as many bits as the values have: where |x - t| < 2^(l-1) is known for a
small l, the same equation holds modulo 2^l, and up to 32 bits take one level of the tree. A
*window* leaves out low bits as well: it compares (c >> start) - (r >> start), which is the value
rounded down or up to a multiple of 2^start.

Two parties, semi-honest, dealer-hybrid. 3 flights, 2 for l <= 32; per element and direction
8 B + 33 bit for the first threshold and 33 bit for each further one (l = 32: 4 B + 14 bit).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from math import prod
from typing import ClassVar

import numpy as np
from numpy.typing import DTypeLike

from privml.protocols.mpc.boolean.tree import Tree
from privml.protocols.mpc.fields import Array, Field, Shares, derived, mask
from privml.protocols.mpc.ops import chunk_compare, chunk_onehot, top_bits
from privml.protocols.mpc.primitive import ONE, Context, Cost, Primitive, Words, both


def packed(n: int) -> int:
    """64-bit words that hold ``n`` bits."""
    return -(-n // 64)


@dataclass(frozen=True)
class Signs:
    """Building block: packed bits 1{x >= t} for ``count`` thresholds on an opened ``c = x + r``.

    Owns the fields ``w`` (one-hot chunks of r), ``s`` (its top bit) and the node masks of a tree.
    ``bits`` and ``start`` are the window of c and r that is looked at; bits is a multiple of 4.
    """

    n: int
    count: int
    bits: int = 64
    start: int = 0

    @property
    def chunks(self) -> int:
        """4-bit chunks of the window, its top bit included."""
        return self.bits // 4

    @property
    def tree(self) -> Tree:
        """The comparison tree over all thresholds."""
        return Tree("t", self.count, self.chunks, packed(self.n))

    def fields(self) -> tuple[Field, ...]:
        """One-hot chunks, top bits, node masks and their products."""
        words = packed(self.n)
        return (
            derived("w", (self.chunks, 64 * words), dtype="u2", group="xor"),
            derived("s", (words,), group="xor"),
            *self.tree.fields(),
        )

    def derive(self, r: Array, free: Shares) -> dict[str, Array]:
        """Clear values of the derived fields; ``r`` is the mask of the opening."""
        flat = r.reshape(-1)
        out: dict[str, Array] = {
            "w": chunk_onehot(low_bits(flat, self.bits, self.start))[: self.chunks],
            "s": window_top(flat, self.bits, self.start),
        }
        out.update(self.tree.derive(free))
        return out

    def planes(self, c: Array, corr: Shares) -> tuple[Words, Words]:
        """Local (lt, eq) planes ``(count, chunks, words)`` of public words ``c`` ``(count, n)``."""
        w = np.ascontiguousarray(corr["w"])
        return chunk_compare(low_bits(c, self.bits, self.start), w)

    def finish(self, c: Array, lt: Words, corr: Shares, rank: int) -> Words:
        """XOR shares of 1{x >= t}, ``(count, words)``, from the root's lt plane."""
        share: Words = lt ^ corr["s"]
        if rank == 0:
            share = share ^ ~window_top(c, self.bits, self.start)
        return share

    def run(self, ctx: Context, corr: Shares, c: Array) -> Words:
        """Compare opened words ``c`` of shape ``(count, n)``, thresholds already subtracted."""
        lt, eq = self.planes(c, corr)
        for level in range(self.tree.depth()):
            (opened,) = ctx.open_bits(self.tree.masked(level, lt, eq, corr))
            lt, eq = self.tree.combine(level, opened, lt, eq, corr, ctx.rank)
        return self.finish(c, lt[:, 0], corr, ctx.rank)

    def cost(self) -> Cost:
        """Flights and payload after the opening of c."""
        return both(self.tree.opened_bytes(), self.tree.depth())


def low_bits(x: Array, bits: int, start: int = 0) -> Words:
    """Bits of a window but its top one; of 64 bits the kernels leave the top out themselves."""
    if bits == 64:
        return x
    kind = x.dtype.type
    moved = x >> kind(start) if start else x
    low: Words = (moved & kind((1 << (bits - 1)) - 1)).astype(np.uint64, copy=False)
    return low


def window_top(x: Array, bits: int, start: int = 0) -> Words:
    """Packed top bit of a window of ring words."""
    spare = 8 * x.itemsize - bits - start
    return top_bits(x << x.dtype.type(spare) if spare else x)


@dataclass(frozen=True)
class Compare(Primitive):
    """Packed XOR shares of 1{x >= t} for each public threshold (ring integers at x's scale).

    With fewer than 64 ``bits`` the inputs are taken modulo 2^bits, the opening has 32-bit words.
    """

    shape: tuple[int, ...]
    thresholds: tuple[int, ...] = (0,)
    bits: int = 64
    name: ClassVar[str] = "compare"

    @property
    def signs(self) -> Signs:
        """The comparison block."""
        return Signs(prod(self.shape), len(self.thresholds), self.bits)

    @property
    def dtype(self) -> str:
        """Word type of the opening."""
        return "u8" if self.bits > 32 else "u4"

    def fields(self) -> tuple[Field, ...]:
        return (mask("r", self.shape, dtype=self.dtype), *self.signs.fields())

    def derive(self, free: Shares) -> Mapping[str, Array]:
        return self.signs.derive(free["r"], free)

    def online(self) -> Cost:
        return both(int(self.dtype[1:]) * prod(self.shape)).then(self.signs.cost())

    def run(self, ctx: Context, corr: Shares, x: Array) -> Words:
        """Return packed bits ``(thresholds, words)``."""
        (c,) = ctx.open(x.astype(self.dtype, copy=False) + corr["r"])
        return self.signs.run(ctx, corr, shift(c.reshape(-1), self.thresholds))

    def reach(self, x: Array) -> float:
        """Return the largest difference from a threshold, as a share of what ``bits`` hold."""
        return farthest(x, self.thresholds) / 2.0 ** (self.bits - 1)

    def simulate(self, masks: Shares, x: Array) -> Words:
        """Return packed clear bits ``(thresholds, words)``."""
        moved = shift(x.reshape(-1).astype(self.dtype, copy=False), self.thresholds)
        return ~window_top(moved, self.bits)


def at_least(x: Words, thresholds: Sequence[int], bits: int) -> Words:
    """Clear 1{x >= t} as 0/1 ring words ``(count, *x.shape)``, by the sign in ``bits`` bits."""
    moved = shift(x.reshape(-1), thresholds).reshape(len(thresholds), *x.shape)
    out: Words = ONE - ((moved >> np.uint64(bits - 1)) & ONE)
    return out


def farthest(x: Array, thresholds: Sequence[int]) -> float:
    """Largest difference of clear signed words from a public threshold."""
    if not x.size:
        return 0.0
    signed = x.view(f"i{x.itemsize}")
    ends = int(signed.min()), int(signed.max())
    return float(max(abs(end - t) for end in ends for t in thresholds))


def shift(c: Array, thresholds: Sequence[int]) -> Array:
    """Public words ``c - t`` for each threshold, ``(count, n)``."""
    moved: Array = c[None, :] - ring_column(tuple(thresholds), c.dtype)
    return moved


@cache
def ring_column(values: tuple[int, ...], dtype: DTypeLike = np.uint64) -> Array:
    """Public integers as ring words, ``(count, 1)``; one array for all calls, not to be written."""
    column = np.array([v % (1 << (8 * np.dtype(dtype).itemsize)) for v in values], dtype)[:, None]
    column.flags.writeable = False
    return column
