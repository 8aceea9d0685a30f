r"""Compaction: kept rows move to the front by a secret shuffle, so that the others can be left out.

Functionality: rows ``x`` with secret keys, a permutation of 0..n-1, and secret counts. Output:
fresh shares of the rows with the smallest keys, in key order, and the counts in the clear. How many
rows come out is fixed (``keep``) or is the first opened count (``keep = 0``).

The dealer shares a permutation matrix :math:`\Pi` of ``slots`` rows that neither party knows, with
:math:`\Pi m` and :math:`\Pi M` for the masks m of the keys and M of the rows. One flight opens
k - m and x - M. Shares of :math:`\Pi k = \Pi (k - m) + \Pi m` are local; the second flight opens
them, which tells both parties where in the shuffled order each kept row stands. Its shares are
:math:`\Pi (x - M) + \Pi M`, computed for kept rows only. Rows n..slots-1 are virtual: their key is
their own index and their x is never sent.

Security: x - M and k - m are uniform. The opened keys are a permutation of 0..slots-1 moved by a
uniformly random secret permutation, hence themselves uniformly random whatever the input was:
simulatable without any input. Nothing is learned but the counts. :math:`\Pi` is the stable argsort
of ``slots`` free words; its distance from uniform is at most slots^2 / 2^65.

Two parties, semi-honest, dealer-hybrid. 2 flights, 8 (n width + 2 slots + opened) bytes each way.
Source: shuffle-and-open as in Chase, Ghosh, Poburinnaya (Asiacrypt 2020); the dealt permutation
matrix, which makes it one shuffle instead of two, is ours.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from privml.errors import ParameterError, ProtocolError
from privml.protocols.mpc.fields import Array, Field, Shares, derived, mask
from privml.protocols.mpc.primitive import Context, Cost, Primitive, Words, both
from privml.rings import ring_matmul

Index = NDArray[np.intp]


@dataclass(frozen=True)
class Compact(Primitive):
    """Keep the rows of ``x`` ``(n, width)`` with the smallest keys, in key order.

    Parameters
    ----------
    n
        Rows that come in.
    slots
        Size of the dealt permutation, at least ``n``; correlations of any larger ``n`` with the
        same ``slots`` serve, cut to their prefixes.
    width
        Words of one row: everything that must move together.
    keep
        Rows that come out, or 0 for as many as the first opened count says.
    opened
        Number of secret counts that are opened.
    """

    n: int
    slots: int
    width: int
    keep: int
    opened: int
    name: ClassVar[str] = "compact"
    SIZES: ClassVar[frozenset[str]] = frozenset({"n", "keep"})

    def __post_init__(self) -> None:
        if not 1 <= self.n <= self.slots:
            raise ParameterError(f"{self.n} rows do not fit {self.slots} slots; give at least n")
        if not 0 <= self.keep <= self.n:
            raise ParameterError(f"cannot keep {self.keep} of {self.n} rows; give 0 to {self.n}")
        if self.keep == 0 and self.opened < 1:
            raise ParameterError("without a fixed number of rows to keep a count must be opened")

    def fields(self) -> tuple[Field, ...]:
        s = self.slots
        return (
            mask("mx", (self.n, self.width)), mask("mk", (s,)), mask("order", (s,)),
            derived("pi", (s, s)), derived("pk", (s,)), derived("px", (s, self.width)),
        )  # fmt: skip

    def permutation(self, free: Shares) -> Index:
        """Place ``i`` of the shuffled order holds row ``permutation[i]``."""
        return np.argsort(free["order"], kind="stable")

    def derive(self, free: Shares) -> Mapping[str, Array]:
        at = self.permutation(free)
        pi = np.zeros((self.slots, self.slots), np.uint64)
        pi[np.arange(self.slots), at] = 1
        px = np.zeros((self.slots, self.width), np.uint64)
        real = at < self.n
        px[real] = free["mx"][at[real]]
        return {"pi": pi, "pk": free["mk"][at], "px": px}

    def online(self) -> Cost:
        return both(8 * (self.n * self.width + 2 * self.slots + self.opened), 2)

    def run(
        self, ctx: Context, corr: Shares, x: Words, keys: Words, counts: Words | None = None
    ) -> tuple[Words, Words]:
        """Return shares of the kept rows and the opened counts (the same at both parties).

        Raises
        ------
        ProtocolError
            The opened keys or counts are impossible: a message was altered, or the correlations
            of the parties do not belong together.
        """
        moved, hidden = ctx.open(x - corr["mx"], self._all_keys(ctx, keys) - corr["mk"])
        shuffled: Words = corr["pi"] @ hidden + corr["pk"]
        found, told = ctx.open(shuffled, _counts(counts))
        at = places(found)[: self.kept(told)]
        rows: Words = ring_matmul(corr["pi"][at, : self.n], moved)
        rows += corr["px"][at]
        return rows, told

    def _all_keys(self, ctx: Context, keys: Words) -> Words:
        """Shares of the keys with those of virtual rows, which are public."""
        out = np.zeros(self.slots, np.uint64)
        out[: self.n] = keys
        if ctx.rank == 0:
            out[self.n :] = np.arange(self.n, self.slots, dtype=np.uint64)
        return out

    def kept(self, counts: Words) -> int:
        """Rows that come out, from the opened counts."""
        if counts.shape != (self.opened,):
            raise ParameterError(f"{counts.size} counts are given, {self.opened} are declared")
        if counts.size and counts.max() > self.n:
            raise ProtocolError(
                f"an opened count of rows is not within 0..{self.n}; a message was altered, or "
                "the two pools do not belong together: deal new pools and run again"
            )
        return self.keep or int(counts[0])

    def simulate(
        self, masks: Shares, x: Words, keys: Words, counts: Words | None = None
    ) -> tuple[Words, Words]:
        """Return the kept rows and the counts."""
        told = _counts(counts)
        return np.ascontiguousarray(x[places(keys)[: self.kept(told)]]), told


def _counts(counts: Words | None) -> Words:
    return np.zeros(0, np.uint64) if counts is None else counts


def places(keys: Words) -> Index:
    """Invert the permutation ``keys``: place of key 0, 1, 2 and so on.

    Raises
    ------
    ProtocolError
        ``keys`` is no permutation of 0..n-1.
    """
    at: Index = np.argsort(keys, kind="stable")
    if not np.array_equal(keys[at], np.arange(keys.size, dtype=np.uint64)):
        raise ProtocolError(
            "the opened row keys are no permutation; a message was altered, or the two pools do "
            "not belong together: deal new pools and run again"
        )
    return at
