r"""Comparing a public word with a secret mask: one-hot chunks, a tree of masked multi-input ANDs.

For public c and secret r the bit 1{c < r} is wanted, XOR-shared. Both are cut into 4-bit chunks.
The dealer XOR-shares each chunk of r as a one-hot 16-bit word, so lt_j = 1{c_j < r_j} and
eq_j = 1{c_j = r_j} are XORs of known positions: local. Groups of up to four chunks are combined by

.. math:: LT = lt_3 \oplus eq_3 lt_2 \oplus eq_3 eq_2 lt_1 \oplus eq_3 eq_2 eq_1 lt_0,
          \qquad EQ = eq_3 eq_2 eq_1 eq_0 .

A node opens its inputs under one-time XOR masks (lt of the top chunk enters linearly and stays
closed) and gets every product from dealt products of the masks: one flight a level. 16 chunks
(63 bits) cost 27 + 6 = 33 opened bits, 8 chunks (31 bits) 13 + 2 = 15.

Security: each opened bit has its own uniform mask, used once. Several thresholds on one opened
value share the one-hot words, never the node masks.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from itertools import combinations

import numpy as np

from privml.protocols.mpc.fields import Array, Field, Shares, bits, derived
from privml.protocols.mpc.primitive import Words

RADIX = 4


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
    """Nodes of each level, least significant group first; a one-chunk group passes through."""
    out: list[tuple[Node, ...]] = []
    while chunks > 1:
        groups = -(-chunks // RADIX)
        first = chunks - RADIX * (groups - 1)
        sizes = [first] + [RADIX] * (groups - 1)
        out.append(tuple(Node(size, want_eq=g > 0) for g, size in enumerate(sizes)))
        chunks = groups
    return tuple(out)


def level_inputs(nodes: tuple[Node, ...]) -> int:
    """Bits that one level opens per element."""
    return sum(len(n.inputs) for n in nodes if n.m > 1)


def opened_bits(chunks: int) -> int:
    """Bits per element and threshold that one comparison opens in all."""
    return sum(level_inputs(nodes) for nodes in levels(chunks))


def _products(nodes: tuple[Node, ...]) -> int:
    return sum(len(n.monomials()) for n in nodes if n.m > 1)


@dataclass(frozen=True)
class Tree:
    """Comparison of ``count`` public words per element, ``words`` = packed words per plane.

    The names of its fields start with ``tag``, so that several trees fit in one primitive.
    """

    tag: str
    count: int
    chunks: int
    words: int

    def fields(self) -> tuple[Field, ...]:
        """Node masks of each level (free) and their products (derived)."""
        out: list[Field] = []
        for i, nodes in enumerate(levels(self.chunks)):
            out.append(bits(f"{self.tag}m{i}", (self.count, level_inputs(nodes), self.words)))
        for i, nodes in enumerate(levels(self.chunks)):
            shape = (self.count, _products(nodes), self.words)
            out.append(derived(f"{self.tag}p{i}", shape, group="xor"))
        return tuple(out)

    def derive(self, free: Shares) -> Mapping[str, Array]:
        """Products of the node masks."""
        out: dict[str, Array] = {}
        for i, nodes in enumerate(levels(self.chunks)):
            masks, at, products = free[f"{self.tag}m{i}"], 0, []
            for node in nodes:
                if node.m == 1:
                    continue
                products += [
                    np.bitwise_and.reduce([masks[:, at + k] for k in mono])
                    for mono in node.monomials()
                ]
                at += len(node.inputs)
            out[f"{self.tag}p{i}"] = np.stack(products, axis=1)
        return out

    def opened_bytes(self) -> int:
        """Payload bytes each way over all levels."""
        return 8 * self.words * self.count * opened_bits(self.chunks)

    def depth(self) -> int:
        """Flights of one comparison."""
        return len(levels(self.chunks))

    def masked(self, level: int, lt: Words, eq: Words, corr: Shares) -> Words:
        """Masked inputs of one level to open; ``lt`` and ``eq`` are ``(count, chunks, words)``."""
        rows: list[Array] = []
        base = 0
        for node in levels(self.chunks)[level]:
            if node.m > 1:
                rows += [(lt if kind == "lt" else eq)[:, base + j] for kind, j in node.inputs]
            base += node.m
        stacked: Words = np.stack(rows, axis=1)
        return stacked ^ corr[f"{self.tag}m{level}"]

    def combine(
        self, level: int, opened: Words, lt: Words, eq: Words, corr: Shares, rank: int
    ) -> tuple[Words, Words]:
        """Shares of the (lt, eq) planes of the next level from this level's opened inputs."""
        masks, products = corr[f"{self.tag}m{level}"], corr[f"{self.tag}p{level}"]
        new_lt, new_eq, base, at, pat = [], [], 0, 0, 0
        for node in levels(self.chunks)[level]:
            top = lt[:, base + node.m - 1]
            if node.m == 1:
                new_lt.append(top)
                new_eq.append(eq[:, base])
            else:
                index = {m: pat + i for i, m in enumerate(node.monomials())}
                share = _Products(opened[:, at:], masks[:, at:], products, index, rank)
                bit = top.copy()
                for term in node.terms():
                    bit ^= share.of(term)
                new_lt.append(bit)
                new_eq.append(share.of(node.eq_term()) if node.want_eq else bit)
                at, pat = at + len(node.inputs), pat + len(index)
            base += node.m
        return np.stack(new_lt, axis=1), np.stack(new_eq, axis=1)


@dataclass(frozen=True)
class _Products:
    """Shares of products of a node's inputs: opened ^ mask for each input."""

    opened: Words
    masks: Words
    products: Words
    index: Mapping[tuple[int, ...], int]
    rank: int

    def of(self, term: tuple[int, ...]) -> Words:
        term = tuple(sorted(term))
        total = np.zeros_like(self.opened[:, 0])
        for size in range(len(term) + 1):
            for sub in combinations(term, size):
                rest = [self.opened[:, k] for k in term if k not in sub]
                if size == 0:
                    if self.rank == 0:
                        total ^= np.bitwise_and.reduce(rest)
                    continue
                value = self.masks[:, sub[0]] if size == 1 else self.products[:, self.index[sub]]
                total ^= np.bitwise_and.reduce([value, *rest])
        return total
