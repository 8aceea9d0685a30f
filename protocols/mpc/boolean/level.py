"""One level of a comparison tree on shares: every product of opened inputs, added up by node.

A product of k opened inputs o_i, each hidden under a mask m_i, is the XOR over all sets S of its
inputs of (the product of the m_i in S) times (the product of the o_i outside S). The dealer shares
every product of masks, so this is local. A :class:`Recipe` lists where the shares of each product
lie; the native kernel reads it, and :func:`ref_combine` is the same sum term by term.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from itertools import combinations
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from privml import _native
from privml.protocols.mpc.boolean.nodes import Node, levels
from privml.rings import Words

_NONE = -1
_Set: TypeAlias = tuple[int, ...]  # inputs of a node, by number


@dataclass(frozen=True, eq=False)
class Recipe:
    """What one level opens and adds up.

    Attributes
    ----------
    nodes
        Nodes of the level.
    inputs
        Position of each opened input among the planes lt_0, lt_1, ..., eq_0, eq_1, ...; int32.
    products
        Dealt products of masks, over all nodes.
    program
        For LT and then EQ of each node: the plane to start from (-1: zeros), the number of
        products; and for each product the number k of its inputs, those inputs, and the 2^k - 1
        shares of mask products (masks first, then dealt ones), in binary order of the sets.
    """

    nodes: tuple[Node, ...]
    inputs: NDArray[np.int32]
    products: int
    program: NDArray[np.int32]


@cache
def recipe(chunks: int, level: int) -> Recipe:
    """Return the recipe of one level of the tree over ``chunks`` chunks."""
    nodes = levels(chunks)[level]
    width = sum(n.m for n in nodes)
    opened = sum(len(n.inputs) for n in nodes if n.m > 1)
    inputs, program, base, at, dealt = [], [], 0, 0, 0
    for node in nodes:
        if node.m == 1:
            program += [base, 0, base, 0]
        else:
            inputs += [base + j + (width if kind == "eq" else 0) for kind, j in node.inputs]
            share: dict[_Set, int] = {(k,): at + k for k in range(len(node.inputs))}
            share |= {m: opened + dealt + i for i, m in enumerate(node.monomials())}
            program += [base + node.m - 1, len(node.terms())]
            for term in node.terms():
                program += _product(term, at, share)
            program += [_NONE, int(node.want_eq)]
            if node.want_eq:
                program += _product(node.eq_term(), at, share)
            at, dealt = at + len(node.inputs), dealt + len(node.monomials())
        base += node.m
    return Recipe(nodes, np.array(inputs, np.int32), dealt, np.array(program, np.int32))


def _product(term: _Set, at: int, share: dict[_Set, int]) -> list[int]:
    term = tuple(sorted(term))
    sets = [tuple(k for i, k in enumerate(term) if s >> i & 1) for s in range(1, 1 << len(term))]
    return [len(term), *(at + k for k in term), *(share[s] for s in sets)]


def masked(recipe: Recipe, masks: Words, *, lt: Words, eq: Words) -> Words:
    """Return the inputs that the level opens, under their masks; operands as in :func:`combine`."""
    library = _native.load()
    if library is None:
        return ref_masked(recipe, masks, lt=lt, eq=eq)
    count, inputs, words = masks.shape
    arrays = [np.ascontiguousarray(a, np.uint64) for a in (lt, eq, masks)]
    arrays.append(np.empty_like(arrays[2]))
    code = library.privml_tree_masked(
        _native.isa_level(), _native.address(recipe.inputs), count, words, lt.shape[1], inputs,
        *map(_native.address, arrays),
    )  # fmt: skip
    _native.check(code, "tree_masked")
    return arrays[3]


def ref_masked(recipe: Recipe, masks: Words, *, lt: Words, eq: Words) -> Words:
    """Twin of :func:`masked`."""
    planes: Words = np.concatenate((lt, eq), axis=1)
    return planes[:, recipe.inputs] ^ masks


def combine(
    recipe: Recipe, opened: Words, masks: Words, products: Words, *,
    lt: Words, eq: Words, rank: int,
) -> tuple[Words, Words]:  # fmt: skip
    """Return shares of the (lt, eq) planes of the next level.

    Parameters
    ----------
    recipe
        The level.
    opened, masks
        (count, inputs, words) uint64: opened inputs, and this party's shares of their masks.
    products
        (count, products, words) uint64: its shares of the products of masks.
    lt, eq
        (count, chunks, words) uint64: its shares of this level's planes.
    rank
        0 or 1.

    Returns
    -------
    lt, eq : ndarray
        (count, nodes, words) uint64 each; eq of the least significant node is not wanted and
        stays without meaning.
    """
    library = _native.load()
    if library is None:
        return ref_combine(recipe, opened, masks, products, lt=lt, eq=eq, rank=rank)
    count, inputs, words = opened.shape
    arrays = [np.ascontiguousarray(a, np.uint64) for a in (lt, eq, opened, masks, products)]
    new = np.empty((2, count, len(recipe.nodes), words), np.uint64)
    arrays += [new[0], new[1]]
    code = library.privml_tree_level(
        _native.isa_level(), _native.address(recipe.program), count, words, lt.shape[1], inputs,
        recipe.products, len(recipe.nodes), rank, *map(_native.address, arrays),
    )  # fmt: skip
    _native.check(code, "tree_level")
    return new[0], new[1]


def ref_combine(
    recipe: Recipe, opened: Words, masks: Words, products: Words, *,
    lt: Words, eq: Words, rank: int,
) -> tuple[Words, Words]:  # fmt: skip
    """Twin of :func:`combine`."""
    new_lt, new_eq, base, at, dealt = [], [], 0, 0, 0
    for node in recipe.nodes:
        bit, same = lt[:, base + node.m - 1], eq[:, base]
        if node.m > 1:
            share: dict[_Set, Words] = {(k,): masks[:, at + k] for k in range(len(node.inputs))}
            share |= {m: products[:, dealt + i] for i, m in enumerate(node.monomials())}
            inputs = opened[:, at : at + len(node.inputs)]
            for term in node.terms():
                bit = bit ^ _ref_product(term, inputs, share, rank)
            same = np.zeros_like(bit)
            if node.want_eq:
                same = _ref_product(node.eq_term(), inputs, share, rank)
            at, dealt = at + len(node.inputs), dealt + len(node.monomials())
        new_lt.append(bit)
        new_eq.append(same)
        base += node.m
    return np.stack(new_lt, axis=1), np.stack(new_eq, axis=1)


def _ref_product(term: _Set, opened: Words, share: dict[_Set, Words], rank: int) -> Words:
    """Share of the product of inputs ``term``: the sum over all sets of masks."""
    total = np.zeros_like(opened[:, 0])
    for masked in _subsets(tuple(sorted(term))):
        rest = [opened[:, k] for k in term if k not in masked]
        if masked:
            total ^= np.bitwise_and.reduce([share[masked], *rest])
        elif rank == 0:
            total ^= np.bitwise_and.reduce(rest)
    return total


def _subsets(term: _Set) -> Iterator[_Set]:
    for size in range(len(term) + 1):
        yield from combinations(term, size)
