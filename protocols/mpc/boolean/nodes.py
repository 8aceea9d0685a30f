"""Shape of a comparison tree: which nodes each level has, and which products they add up.

Of public sizes only; every result is the same for all runs and computed once.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from itertools import combinations

RADIX = 4
#: Largest number of chunks that one node compares: a tree of one level.
FLAT = 8


@dataclass(frozen=True)
class Node:
    """One multi-input AND node over ``m`` chunks, most significant first."""

    m: int
    want_eq: bool

    @property
    def inputs(self) -> tuple[tuple[str, int], ...]:
        """Opened inputs: (kind, chunk) with chunk 0 the least significant."""
        eqs = [("eq", j) for j in range(self.m - 1, -1 if self.want_eq else 0, -1)]
        return (*eqs, *(("lt", j) for j in range(self.m - 2, -1, -1)))

    def terms(self) -> tuple[tuple[int, ...], ...]:
        """Input indices of each product of LT (one per lower chunk)."""
        at = {name: i for i, name in enumerate(self.inputs)}
        return tuple(
            (*(at["eq", i] for i in range(self.m - 1, j, -1)), at["lt", j])
            for j in range(self.m - 2, -1, -1)
        )

    def eq_term(self) -> tuple[int, ...]:
        """Input indices of the product that makes EQ, or empty."""
        return tuple(range(self.m)) if self.want_eq else ()

    def monomials(self) -> tuple[tuple[int, ...], ...]:
        """Mask products (two factors or more) that the dealer shares, in a fixed order."""
        found = {
            sub
            for term in (*self.terms(), self.eq_term())
            for size in range(2, len(term) + 1)
            for sub in combinations(sorted(term), size)
        }
        return tuple(sorted(found, key=lambda s: (len(s), s)))


@cache
def levels(chunks: int) -> tuple[tuple[Node, ...], ...]:
    """Nodes of each level, least significant group first; a one-chunk group passes through.

    Up to :data:`FLAT` chunks are one node: a flight less for more dealt products (83 bits for 6
    chunks, 368 for 8).
    """
    if 1 < chunks <= FLAT:
        return ((Node(chunks, want_eq=False),),)
    out: list[tuple[Node, ...]] = []
    while chunks > 1:
        groups = -(-chunks // RADIX)
        first = chunks - RADIX * (groups - 1)
        sizes = [first] + [RADIX] * (groups - 1)
        out.append(tuple(Node(size, want_eq=g > 0) for g, size in enumerate(sizes)))
        chunks = groups
    return tuple(out)
