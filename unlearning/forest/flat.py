"""Trees as flat arrays: what answering needs, read off a canonical form."""

from __future__ import annotations

import struct
from dataclasses import dataclass
from functools import cached_property
from typing import Final, TypeAlias

import numpy as np
from numpy.typing import NDArray

from privml.unlearning.forest import _walk
from privml.unlearning.forest import siphash as sh
from privml.unlearning.forest.canonical import EMPTY, LEAF, row_type
from privml.unlearning.forest.keys import ForestKey
from privml.unlearning.forest.params import REGRESSION, ForestParams
from privml.unlearning.forest.reference import MISSING_CODE, Floats
from privml.unlearning.forest.vector import Words, child_keys, draw_bases, node_draws

LEAF_ATTRIBUTE: Final = -1
_MISSING: Final = _walk.MISSING
_MOST_NODES: Final = 1 << 32
_Packed: TypeAlias = tuple[NDArray[np.void], NDArray[np.uint32], NDArray[np.float64]]
_SPLIT: Final = struct.Struct("<III")


@dataclass(frozen=True)
class FlatTrees:
    """Non-empty trees; children stand behind their parents.

    Attributes
    ----------
    roots
        (T,) int64 first node of each tree.
    attribute
        (nodes,) int32 column, -1 at a leaf.
    threshold
        (nodes,) float32: not larger goes left; of categorical nodes 0.
    left, right
        (nodes,) int64 children; at a leaf ``left`` is its row in ``values``.
    missing_left
        (nodes,) bool: side of a missing value.
    kappa
        (nodes,) uint64 key of a categorical node, 0 elsewhere.
    draw
        (nodes,) int32 candidate index of a categorical node, -1 elsewhere.
    values
        (leaves, classes) or (leaves, 1) float64 answers.
    """

    roots: NDArray[np.int64]
    attribute: NDArray[np.int32]
    threshold: Floats
    left: NDArray[np.int64]
    right: NDArray[np.int64]
    missing_left: NDArray[np.bool_]
    kappa: NDArray[np.uint64]
    draw: NDArray[np.int32]
    values: NDArray[np.float64]

    def predict(self, X: Floats) -> NDArray[np.float64]:
        """Return (n, classes or 1): the mean over trees, added in tree order."""
        if _walk.function() is None or self._packed is None:
            return self.ref_predict(X)
        return _walk.walk(*self._packed, X, codes=self._codes)

    @cached_property
    def _codes(self) -> bool:
        return bool((self.draw >= 0).any())

    @cached_property
    def _packed(self) -> _Packed | None:
        """Nodes as the native walk wants them, roots and values; None if there are too many."""
        count = len(self.attribute)
        if count >= _MOST_NODES:
            return None
        place = np.arange(count, dtype=np.uint32)
        leaf, by_code = self.attribute == LEAF_ATTRIBUTE, self.draw >= 0
        column = np.where(leaf, 0, self.attribute).astype(np.uint32)
        draw = np.where(by_code, self.draw, 0).astype(np.uint64)
        base = draw_bases(self.kappa, sh.CATEGORY, column.astype(np.uint64), draw)
        nodes = np.zeros(count, dtype=_walk.PACKED)
        nodes["threshold"] = self.threshold
        for flag, bit in ((leaf, _walk.LEAF), (by_code, _walk.CODE), (self.missing_left, _MISSING)):
            column |= np.where(flag, np.uint32(bit), np.uint32(0))
        nodes["column"] = column
        nodes["left"] = np.where(leaf, place, self.left)
        nodes["right"] = np.where(leaf, place, self.right)
        nodes["base"] = np.where(leaf, self.left.astype(np.uint64), base)
        roots = self.roots.astype(np.uint32)
        return nodes, roots, np.ascontiguousarray(self.values, dtype=np.float64)

    def ref_predict(self, X: Floats) -> NDArray[np.float64]:
        """Return what :meth:`predict` does, in plain numpy and slowly."""
        out = np.zeros((len(X), self.values.shape[1]))
        rows = np.arange(len(X))
        for root in self.roots:
            at = np.full(len(X), root, dtype=np.int64)
            moving = rows
            while len(moving):
                moving = moving[self.attribute[at[moving]] != LEAF_ATTRIBUTE]
                here = at[moving]
                left = self._goes_left(here, X[moving, self.attribute[here]])
                at[moving] = np.where(left, self.left[here], self.right[here])
            out += self.values[self.left[at]]
        return out / float(len(self.roots))

    def _goes_left(self, node: NDArray[np.int64], x: Floats) -> NDArray[np.bool_]:
        side = np.where(np.isnan(x), self.missing_left[node], x <= self.threshold[node])
        by_code = self.draw[node] >= 0
        if by_code.any():
            node, x = node[by_code], x[by_code]
            attribute = self.attribute[node].astype(np.uint64)
            draw = self.draw[node].astype(np.uint64)
            codes = np.where(np.isnan(x), MISSING_CODE, x.astype(np.float64)).astype(np.uint64)
            drawn = node_draws(self.kappa[node], sh.CATEGORY, attribute, draw, codes)
            side[by_code] = drawn >> np.uint64(63) == 0
        return side


def flatten(body: bytes | bytearray, params: ForestParams, key: ForestKey) -> FlatTrees:
    """Return the trees of a canonical form that our own core wrote.

    Parameters
    ----------
    body
        The canonical form.
    params
        Its parameters; ``n_classes`` counts the living or declared classes.
    key
        The key of the forest; the result holds no part of it but keys of categorical nodes.
    """
    nodes = _Nodes(body, params)
    at = 92 + params.n_features + len(key.master)
    n = int.from_bytes(body[at : at + 8], "little")
    at += 8 + n * row_type(params.n_features).itemsize
    roots, kappas = [], []
    for tree in range(params.n_trees):
        at += 4
        if body[at] == EMPTY:
            at += 1
            continue
        roots.append(len(nodes.attribute))
        kappas.append(sh.keyed_hash(key.tree, sh.ROOT, tree))
        at = nodes.read(at)
    return nodes.flat(roots, _keys(nodes, roots, kappas, key))


class _Nodes:
    """Columns of nodes, filled by walking one tree after the other in pre-order."""

    def __init__(self, body: bytes | bytearray, params: ForestParams) -> None:
        self.body, self.params = body, params
        regression = params.task == REGRESSION
        self.head = struct.Struct("<BQ" + ("q" if regression else f"{params.n_classes}Q"))
        self.attribute: list[int] = []
        self.draw: list[int] = []
        self.bits: list[int] = []
        self.left: list[int] = []
        self.right: list[int] = []
        self.parent: list[int] = []
        self.depth: list[int] = []
        self.values: list[list[float]] = []

    def read(self, at: int) -> int:
        """Append the nodes of the tree at a position; return where it ends."""
        waiting = [(-1, 0)]  # parent and depth of subtrees still to come
        while waiting:
            parent, depth = waiting.pop()
            here = len(self.attribute)
            if parent >= 0 and here > self.left[parent]:
                self.right[parent] = here
            kind, n, *counts = self.head.unpack_from(self.body, at)
            at += self.head.size
            attribute, draw, bits, left = LEAF_ATTRIBUTE, 0, 0, len(self.values)
            if kind == LEAF:
                at += 8 * n
                scale = 2.0**self.params.target_bits
                self.values.append([float(c) / float(n) / scale for c in counts])
            else:
                attribute, draw, bits = _SPLIT.unpack_from(self.body, at)
                at += _SPLIT.size
                left = here + 1
                waiting += [(here, depth + 1), (here, depth + 1)]
            columns = (self.attribute, self.draw, self.bits, self.left, self.right,
                       self.parent, self.depth)  # fmt: skip
            for column, value in zip(
                columns, (attribute, draw, bits, left, 0, parent, depth), strict=True
            ):
                column.append(value)
        return at

    def flat(self, roots: list[int], kappa: Words) -> FlatTrees:
        """Return the arrays; of the node keys only those of categorical nodes stay."""
        attribute = np.array(self.attribute, dtype=np.int32)
        draw = np.array(self.draw, dtype=np.uint64)
        split = attribute != LEAF_ATTRIBUTE
        by_code = split & np.array((*self.params.categorical, False))[attribute]
        where = np.where(split, attribute, 0).astype(np.uint64)
        sides = node_draws(kappa, sh.MISSING_SIDE, where, draw, np.zeros_like(kappa))
        numeric = split & ~by_code & (draw != self.params.n_thresholds)
        width = 1 if self.params.task == REGRESSION else self.params.n_classes
        return FlatTrees(
            roots=np.array(roots, dtype=np.int64),
            attribute=attribute,
            threshold=np.array(self.bits, dtype=np.uint32).view(np.float32),
            left=np.array(self.left, dtype=np.int64),
            right=np.array(self.right, dtype=np.int64),
            missing_left=numeric & (sides >> np.uint64(63) == 0),
            kappa=np.where(by_code, kappa, np.uint64(0)),
            draw=np.where(by_code, draw.astype(np.int32), np.int32(-1)),
            values=np.array(self.values, dtype=np.float64).reshape(len(self.values), width),
        )


def _keys(nodes: _Nodes, roots: list[int], kappas: list[int], key: ForestKey) -> Words:
    """Return the key of every node, level by level."""
    kappa = np.zeros(len(nodes.depth), dtype=np.uint64)
    kappa[roots] = np.array(kappas, dtype=np.uint64)
    depth, parent = np.array(nodes.depth), np.array(nodes.parent)
    right = np.array(nodes.right)
    for level in range(1, int(depth.max(initial=0)) + 1):
        here = np.flatnonzero(depth == level)
        above = parent[here]
        side = (right[above] == here).astype(np.uint64)
        kappa[here] = child_keys(key.tree, kappa[above], side)
    return kappa
