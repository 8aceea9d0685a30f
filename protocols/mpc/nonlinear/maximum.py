r"""Largest of four shared values, up to a chosen resolution; row maxima are tournaments of these.

Functionality: with units :math:`2^{start}` each value x_i is rounded down or up to a whole number
q_i of units, and the x_i of the largest q_i comes out, of equal ones the first. It is less than two
units below the largest x_i. Right where differences stay below 2^(bits-1) - 1 units.

All x_i are opened at once under masks r_i. Since q_i - q_j = (c_i >> start) - (c_j >> start) -
((r_i >> start) - (r_j >> start)), the six comparisons are those of public words with dealt one-hot
chunks, in one level. Their bits are opened under masks; x_i wins if its three bits say so, that is
if the three masks have a pattern which the opened bits name. The dealer shares, for each of the
eight patterns, whether the masks have it, and that times r_i - r_0: the selection is a look-up.

Security: every opened word and bit has a uniform mask of its own. Two parties, semi-honest,
dealer-hybrid. 3 flights, 32 B + 66 bit per group of four and direction (24 bits). Source: ours.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from privml import _native
from privml.protocols.mpc.boolean.compare import low_bits, packed, window_top
from privml.protocols.mpc.boolean.tree import Tree
from privml.protocols.mpc.fields import Array, Field, Shares, derived, mask
from privml.protocols.mpc.fields import bits as planes
from privml.protocols.mpc.ops import chunk_compare, chunk_onehot, unpack_bits
from privml.protocols.mpc.primitive import ONE, Context, Cost, Primitive, Words, both

#: Values of a group, and bits of a comparison.
GROUP, BITS = 4, 24
_FIRST, _SECOND = (0, 0, 0, 1, 1, 2), (1, 2, 3, 2, 3, 3)
_PAIRS = len(_FIRST)
_PATTERNS = 1 << (GROUP - 1)
#: For values 1 to 3, the pairs they are in, and whether as the first.
_MEMBERS = tuple(
    tuple((p, _FIRST[p] == i) for p in range(_PAIRS) if i in (_FIRST[p], _SECOND[p]))
    for i in range(1, GROUP)
)


@dataclass(frozen=True)
class Maximum(Primitive):
    """Largest of each group of an array ``(4, n)``, as ``(n,)``.

    Parameters
    ----------
    n
        Number of groups.
    start, bits
        Units are 2^start; the comparisons look at ``bits`` bits from there on.
    """

    n: int
    start: int
    bits: int = BITS
    name: ClassVar[str] = "maximum"

    @property
    def tree(self) -> Tree:
        """The six comparisons of each group."""
        return Tree("t", _PAIRS, self.bits // 4, packed(self.n))

    def fields(self) -> tuple[Field, ...]:
        n, words = self.n, packed(self.n)
        hits = (GROUP - 1, n, _PATTERNS)
        return (
            mask("r", (n, GROUP)), planes("b", (_PAIRS, words)),
            derived("hit", hits), derived("hit_r", hits),
            derived("w", (_PAIRS, self.bits // 4, 64 * words), dtype="u2", group="xor"),
            derived("s", (_PAIRS, words), group="xor"), *self.tree.fields(),
        )  # fmt: skip

    def derive(self, free: Shares) -> Mapping[str, Array]:
        r = np.ascontiguousarray(free["r"].T)
        moved = self._differences(r)
        low = low_bits(moved, self.bits)
        pattern = _patterns(unpack_bits(free["b"], self.n), wanted=False)
        hit = (pattern[:, :, None] == np.arange(_PATTERNS)).astype(np.uint64)
        return {
            "hit": hit, "hit_r": hit * (r[1:] - r[0])[:, :, None],
            "w": np.stack([chunk_onehot(row)[: self.bits // 4] for row in low]),
            "s": window_top(moved, self.bits), **self.tree.derive(free),
        }  # fmt: skip

    def _differences(self, x: Words) -> Words:
        """Differences of pairs in units, ``(6, n)``."""
        units = x >> np.uint64(self.start)
        out = np.empty((_PAIRS, self.n), np.uint64)
        np.subtract(units[0], units[1:], out=out[:3])
        np.subtract(units[1], units[2:], out=out[3:5])
        np.subtract(units[2], units[3], out=out[5])
        return out

    def online(self) -> Cost:
        level = both(self.tree.opened_bytes(), self.tree.depth())
        return both(8 * GROUP * self.n).then(level).then(both(8 * _PAIRS * packed(self.n)))

    def run(self, ctx: Context, corr: Shares, x: Words) -> Words:
        """Return a share of the largest values."""
        (c,) = ctx.open(x + corr["r"].T)
        moved, tree = self._differences(c), self.tree
        lt, eq = chunk_compare(low_bits(moved, self.bits), np.ascontiguousarray(corr["w"]))
        for level in range(tree.depth()):
            (opened,) = ctx.open_bits(tree.masked(level, lt, eq, corr))
            lt, eq = tree.combine(level, opened, lt, eq, corr, ctx.rank)
        bit = lt[:, 0] ^ corr["s"]
        if ctx.rank == 0:
            bit ^= ~window_top(moved, self.bits)
        (z,) = ctx.open_bits(bit ^ corr["b"])
        return self.chosen(x[0], c, z, corr)

    def chosen(self, first: Words, c: Words, z: Words, corr: Shares) -> Words:
        """Share of the winners.

        Parameters
        ----------
        first
            Share of value 0 of each group, ``(n,)``.
        c
            Opened ``x + r``, ``(4, n)``.
        z
            Packed opened bits of the six pairs under masks, ``(6, packed(n))``.
        corr
            This party's shares.
        """
        library = _native.load()
        if library is None:
            return self.ref_chosen(first, c, z, corr)
        out = np.empty(self.n, np.uint64)
        arrays = [np.ascontiguousarray(a) for a in (first, c, z, corr["hit"], corr["hit_r"])]
        level = _native.isa_level()
        code = library.privml_maximum(level, self.n, *map(_native.address, [*arrays, out]))
        _native.check(code, "maximum")
        return out

    def ref_chosen(self, first: Words, c: Words, z: Words, corr: Shares) -> Words:
        """Twin of :meth:`chosen`."""
        won = _patterns(unpack_bits(np.ascontiguousarray(z), self.n), wanted=True)[:, :, None]
        hit, hit_r = (np.take_along_axis(corr[k], won, 2)[:, :, 0] for k in ("hit", "hit_r"))
        out: Words = first + ((c[1:] - c[0]) * hit - hit_r).sum(axis=0)
        return out

    def reach(self, x: Words) -> float:
        """Return the largest difference in a group, as a share of what ``bits`` hold."""
        if not x.size:
            return 0.0
        signed = x.view(np.int64)
        widest = float((signed.max(axis=0) - signed.min(axis=0)).view(np.uint64).max())
        return widest / 2.0**self.start / (2.0 ** (self.bits - 1) - 1)

    def simulate(self, masks: Shares, x: Words) -> Words:
        """Return the largest values by the masks' rounding."""
        r = masks["r"].T
        value = self._differences(x + r) - self._differences(r)
        bit = ONE - ((value >> np.uint64(self.bits - 1)) & ONE)
        won = _patterns(bit, wanted=True) == 0
        out: Words = x[0] + ((x[1:] - x[0]) * won).sum(axis=0)
        return out


def _patterns(bits: Words, *, wanted: bool) -> NDArray[np.intp]:
    """Bits of the pairs of values 1 to 3 as one number each, if asked XOR what a winner has."""
    out = np.zeros((GROUP - 1, bits.shape[-1]), np.uint64)
    for row, pairs in zip(out, _MEMBERS, strict=True):
        for place, (pair, first) in enumerate(pairs):
            flip = np.uint64(wanted and first)
            row |= (bits[pair] ^ flip) << np.uint64(place)
    return out.view(np.intp)
