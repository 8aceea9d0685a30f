r"""Comparing a public word with a secret mask: one-hot chunks, a tree of masked multi-input ANDs.

For public c and secret r the bit 1{c < r} is wanted, XOR-shared. Both are cut into 4-bit chunks.
The dealer XOR-shares each chunk of r as a one-hot 16-bit word, so lt_j = 1{c_j < r_j} and
eq_j = 1{c_j = r_j} are XORs of known positions: local. Groups of chunks, four in a group, are
combined by

.. math:: LT = lt_3 \oplus eq_3 lt_2 \oplus eq_3 eq_2 lt_1 \oplus eq_3 eq_2 eq_1 lt_0,
          \qquad EQ = eq_3 eq_2 eq_1 eq_0 .

A node opens its inputs under one-time XOR masks (lt of the top chunk enters linearly and stays
closed) and gets every product from dealt products of the masks: one flight a level. 16 chunks
(63 bits) cost 27 + 6 = 33 opened bits. Up to 8 chunks are one group, hence one level: m chunks
cost 2 (m - 1) opened bits and about 1.4 * 2^m dealt ones.

Security: each opened bit has its own uniform mask, used once. Several thresholds on one opened
value share the one-hot words, never the node masks.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from privml.protocols.mpc.boolean.level import combine, masked, recipe
from privml.protocols.mpc.boolean.nodes import Node, levels
from privml.protocols.mpc.fields import Array, Field, Shares, bits, derived
from privml.protocols.mpc.primitive import Words


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
        masks = corr[f"{self.tag}m{level}"]
        return masked(recipe(self.chunks, level), masks, lt=lt, eq=eq)

    def combine(
        self, level: int, opened: Words, lt: Words, eq: Words, corr: Shares, rank: int
    ) -> tuple[Words, Words]:
        """Shares of the (lt, eq) planes of the next level from this level's opened inputs."""
        masks, products = corr[f"{self.tag}m{level}"], corr[f"{self.tag}p{level}"]
        return combine(recipe(self.chunks, level), opened, masks, products, lt=lt, eq=eq, rank=rank)
