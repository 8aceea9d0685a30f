"""Two comparisons on one opening c = x + r: did its low digits wrap, and is x below a clip.

Functionality: of the chunks of c and r from bit ``start`` on, the bit 1{c' < r'} over the lowest
``wrap`` chunks, and the sign bit 1{x >= t} over the window of 24 bits that begins ``skip`` chunks
higher: x - t rounded down or up to a multiple of 2^(start + 4 skip), exact for |x - t| below 2^23
of these units. Both share the dealt one-hot chunks, and their trees of one level share a flight.

Security: each opened bit has a uniform mask of its own, used once. Two parties, semi-honest,
dealer-hybrid. 1 flight, 2 (wrap - 1) + 10 bits per element and direction.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from privml.protocols.mpc.boolean.compare import low_bits, packed, shift, window_top
from privml.protocols.mpc.boolean.tree import Tree
from privml.protocols.mpc.fields import Array, Field, Shares, derived
from privml.protocols.mpc.ops import chunk_compare, chunk_onehot
from privml.protocols.mpc.primitive import ONE, Context, Cost, Words, both

#: Chunks of the clip's window.
CLIP_CHUNKS = 6


@dataclass(frozen=True)
class Digits:
    """Building block for ``n`` elements; ``threshold`` is the clip t in ring units.

    Owns the fields ``w`` (one-hot chunks of r), ``s`` (its top bit in the window) and the node
    masks of both trees.
    """

    n: int
    start: int
    wrap: int
    skip: int
    threshold: int

    @property
    def bits(self) -> int:
        """Bits of c and r that are looked at."""
        return 4 * (self.skip + CLIP_CHUNKS)

    @property
    def trees(self) -> tuple[Tree, Tree]:
        """Trees of the clip and of the wrap."""
        words = packed(self.n)
        return Tree("t", 1, CLIP_CHUNKS, words), Tree("w", 1, self.wrap, words)

    def fields(self) -> tuple[Field, ...]:
        """One-hot chunks, top bits, node masks and their products."""
        words, (clip, wrap) = packed(self.n), self.trees
        return (
            derived("w", (self.bits // 4, 64 * words), dtype="u2", group="xor"),
            derived("s", (words,), group="xor"),
            *clip.fields(), *wrap.fields(),
        )  # fmt: skip

    def derive(self, r: Words, free: Shares) -> Mapping[str, Array]:
        """Clear values of the derived fields; ``r`` is the mask of the opening."""
        flat, (clip, wrap) = r.reshape(-1), self.trees
        return {
            "w": chunk_onehot(low_bits(flat, self.bits, self.start))[: self.bits // 4],
            "s": window_top(flat, self.bits, self.start),
            **clip.derive(free), **wrap.derive(free),
        }  # fmt: skip

    def cost(self) -> Cost:
        """Flights and payload after the opening of c."""
        return both(sum(tree.opened_bytes() for tree in self.trees))

    def run(self, ctx: Context, corr: Shares, c: Words) -> tuple[Words, Words]:
        """XOR shares of the clip bits and of the wrap bits, packed, from opened words ``(n,)``."""
        clip, wrap = self.trees
        rows = shift(c, (self.threshold, 0))
        w = np.ascontiguousarray(corr["w"])
        lt, eq = chunk_compare(low_bits(rows, self.bits, self.start), w)
        high, low = slice(self.skip, None), slice(0, self.wrap)
        over = np.ascontiguousarray(lt[:1, high]), np.ascontiguousarray(eq[:1, high])
        under = np.ascontiguousarray(lt[1:, low]), np.ascontiguousarray(eq[1:, low])
        a, b = ctx.open_bits(clip.masked(0, *over, corr), wrap.masked(0, *under, corr))
        less, _ = clip.combine(0, a, *over, corr, ctx.rank)
        wrapped, _ = wrap.combine(0, b, *under, corr, ctx.rank)
        kept = less[0, 0] ^ corr["s"]
        if ctx.rank == 0:
            kept = kept ^ ~window_top(rows[0], self.bits, self.start)
        return kept, wrapped[0, 0]

    def kept(self, x: Words, r: Words) -> Words:
        """Clear clip bits as 0/1 ring words, under mask ``r``."""
        unit = np.uint64(self.start + 4 * self.skip)
        moved = x + r - np.uint64(self.threshold % (1 << 64))
        value = ((moved >> unit) - (r >> unit)) >> np.uint64(4 * CLIP_CHUNKS - 1)
        out: Words = ONE - (value & ONE)
        return out
