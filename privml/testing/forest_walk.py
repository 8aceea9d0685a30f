"""A forest that learns and forgets step by step in plain Python, and the ways to get it wrong.

:class:`WalkForest` keeps the statistics, tags, slack and deferred recounts that a fast forest
keeps, one tree walk per change. Without a fault it equals the twin after any history. Each
:class:`~privml.testing.forest_faults.Fault` is a mistake that such code makes (several were found
in published code); the tests must notice every one of them.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from privml.testing.forest_faults import Fault
from privml.testing.forest_node import Cut, Node
from privml.testing.forest_stats import NodeStatistics
from privml.unlearning.forest import reference, siphash
from privml.unlearning.forest.canonical import canonical_bytes
from privml.unlearning.forest.keys import ForestKey
from privml.unlearning.forest.params import REGRESSION, ForestParams
from privml.unlearning.forest.reference import Floats, Leaf, Rows, Split


class WalkForest(NodeStatistics):
    """An incremental forest in plain Python.

    Parameters
    ----------
    params, key
        As for the twin.
    fault
        The mistake to make.
    block_rows
        Nodes of at most this size keep no statistics.
    defer
        Put recounts off until a query needs them.
    """

    def __init__(
        self,
        params: ForestParams,
        key: ForestKey,
        *,
        fault: Fault = Fault.NONE,
        block_rows: int = 4,
        defer: bool = False,
    ) -> None:
        super().__init__(params, fault=fault, block_rows=block_rows, defer=defer)
        self.key = key
        self.roots: list[Node | None] = [None] * params.n_trees
        self._codes: dict[tuple[int, float], int] = {}

    def fit(
        self, X: Floats, y: NDArray[np.int64], ids: NDArray[np.uint64], *, threads: int = 1
    ) -> None:
        """Replace all rows and decide every node."""
        del threads
        if self.fault is Fault.TWO_VALUED:
            values = [np.unique(column[~np.isnan(column)]) for column in X.T]
            self._flagged = {a for a, found in enumerate(values) if len(found) == 2}
        self.learn(X, y, ids)
        self.resolve()

    def learn(self, X: Floats, y: NDArray[np.int64], ids: NDArray[np.uint64]) -> None:
        """Add rows one by one."""
        for x, target, record in zip(X + np.float32(0), y.tolist(), ids.tolist(), strict=True):
            kind, low, high = record
            place = self.store.add((kind, low, high), self._seen(x), target)
            for t in self._trees(place):
                root = self.roots[t]
                if root is None:
                    kappa = siphash.keyed_hash(self.key.tree, siphash.ROOT, t)
                    root = self.roots[t] = Node(kappa, 0, total=self._zero())
                self._add(root, place)

    def unlearn(self, ids: NDArray[np.uint64]) -> None:
        """Remove rows: large batches per tree, others one by one."""
        places = [self.store.where[kind, low, high] for kind, low, high in ids.tolist()]
        groups: dict[int, list[int]] = {}
        for place in places:
            for t in self._trees(place):
                groups.setdefault(t, []).append(place)
        for t, group in groups.items():
            root = self.roots[t]
            if root is None:
                continue
            self._remove_group(root, group)
            if root.n == 0 and self.fault is not Fault.EMPTY_LEAF:
                self.roots[t] = None
        for place in places:
            self.store.drop(place, self.fault)

    def predict(self, X: Floats, *, threads: int = 1) -> NDArray[np.float64]:
        """Return frequencies or targets; decides what the rows meet on their way."""
        del threads
        regression = self.params.task == REGRESSION
        out = np.zeros((len(X), len(self._zero())))
        roots = [root for root in self.roots if root is not None]
        for i, x in enumerate(X + np.float32(0)):
            for root in roots:
                leaf = self._leaf(root, self._seen(x))
                for c, count in enumerate(leaf.total):
                    share = float(count) / float(leaf.n) if leaf.n else float("nan")
                    out[i, c] += share / 2.0**self.params.target_bits
            out[i] /= float(len(roots))
        return out[:, 0] if regression else out

    def resolve(self, budget_s: float | None = None) -> bool:
        """Decide every tagged node."""
        del budget_s
        stack = [root for root in self.roots if root is not None]
        while stack:
            node = stack.pop()
            self._settle(node)
            stack += [child for child in (node.left, node.right) if child is not None]
        return True

    def purge(self) -> None:
        """Do nothing: freed places are overwritten at once."""

    def canonical(self) -> bytes:
        """Return the canonical form."""
        self.resolve()
        p, alive = self.params.n_features, list(self.store.where.values())
        ids = np.array([self.store.ids[i] for i in alive], dtype=np.uint64).reshape(-1, 3)
        X = np.array([self.store.X[i] for i in alive], dtype=np.float32).reshape(-1, p)
        y = np.array([self.store.y[i] for i in alive], dtype=np.int64)
        rows = Rows(ids, X, y).canonical()
        index = {(k, lo, hi): i for i, (k, lo, hi) in enumerate(rows.ids.tolist())}
        place = {p: index[self.store.ids[p]] for p in alive}
        trees = tuple(None if r is None else _frozen(r, place) for r in self.roots)
        return canonical_bytes(reference.Forest(rows, self.key, self.params, trees))

    # -- changes

    def _add(self, node: Node, place: int) -> None:
        rows = node.members() | {place}
        self._count(node, place, +1)
        if node.state == "inner":
            if self._update(node, place, +1, rows):
                self._add(self._child(node, self.store.X[place]), place)
            else:
                self._tag(node, rows)
            return
        node.rows.add(place)
        if node.state == "split":
            self._update(node, place, +1, rows)
        elif node.state == "leaf" and not self._leaf_rule(node, rows):
            node.state = "fresh"

    def _remove(self, node: Node, place: int) -> None:
        rows = node.members() - {place}
        self._count(node, place, -1)
        if node.state == "inner":
            if self._leaf_rule(node, rows):
                node.become("leaf", rows)
            elif self._update(node, place, -1, rows):
                self._remove(self._child(node, self.store.X[place]), place)
            else:
                self._tag(node, rows)
            return
        node.rows.discard(place)
        if node.state == "split" and self.fault is not Fault.TAG_STATISTICS:
            self._update(node, place, -1, rows)
        elif node.state == "leaf" and not self._leaf_rule(node, rows):
            node.state = "fresh"

    def _remove_group(self, root: Node, group: list[int]) -> None:
        if 3 * len(group) <= root.n or len(group) == 1:
            for place in group:
                self._remove(root, place)
            return
        if self.fault is not Fault.BATCH_COUNTS:
            for place in group:
                self._count(root, place, -1)
        root.become("fresh", root.members() - set(group))

    def _count(self, node: Node, place: int, sign: int) -> None:
        node.n += sign
        node.total = self._plus(node.total, place, sign)

    def _tag(self, node: Node, rows: set[int]) -> None:
        slots = node.slots
        node.become("split", rows)
        node.slots = slots

    # -- decisions

    def _settle(self, node: Node) -> None:
        """Make or complete the decision of a node, if it is put off."""
        if node.dirty:
            rows, old = node.members(), node.choice
            self._refill(node, rows)
            self._choose(node)
            node.dirty = False
            if old is None or node.choice is None or not old.same(node.choice):
                self._tag(node, rows)
        if node.state in ("leaf", "inner"):
            return
        if self._leaf_rule(node, node.rows):
            node.become("leaf", node.rows)
            return
        if node.state == "fresh" or node.slots is None:
            self._refill(node, node.rows)
        self._choose(node)
        if node.choice is None:
            node.become("leaf", node.rows)
            return
        self._divide(node, node.choice)

    def _divide(self, node: Node, choice: Cut) -> None:
        if node.n <= self.block_rows:
            node.slots = None
        for side in (0, 1):
            child = Node(self._child_key(node, side), node.depth + 1, state="fresh")
            child.total = self._zero()
            for place in node.rows:
                value = self.store.X[place][choice.attribute]
                if self._goes_left(node, choice, value) == (side == 0):
                    child.rows.add(place)
                    self._count(child, place, +1)
            if side == 0:
                node.left = child
            else:
                node.right = child
        node.rows = set()
        node.state = "split" if self.fault is Fault.TAG_STAYS else "inner"

    def _child(self, node: Node, x: Floats) -> Node:
        choice, left, right = node.choice, node.left, node.right
        if choice is None or left is None or right is None:
            raise RuntimeError("the walk met an undecided node")
        return left if self._goes_left(node, choice, x[choice.attribute]) else right

    def _leaf(self, node: Node, x: Floats) -> Node:
        while True:
            if not (node.dirty and self.fault is Fault.DIRTY_ANSWER):
                self._settle(node)
            if node.state == "leaf":
                return node
            node = self._child(node, x)

    # -- draws and sums

    def _trees(self, place: int) -> list[int]:
        record = (0, place, 0) if self.fault is Fault.ROW_SLOT else self.store.ids[place]
        return reference.trees_of(self.key, self.params, record=record)

    def _child_key(self, node: Node, side: int) -> int:
        if self.fault is Fault.SEQUENTIAL:
            self._draws += 1
            return siphash.keyed_hash(self.key.tree, siphash.CHILD, self._draws, side)
        return siphash.keyed_hash(self.key.tree, siphash.CHILD, node.kappa, side)

    def _seen(self, x: Floats) -> Floats:
        if self.fault is not Fault.FIRST_SEEN_CODES:
            return x
        x = x.copy()
        for a, flag in enumerate(self.params.categorical):
            if flag and not np.isnan(x[a]):
                x[a] = self._codes.setdefault((a, float(x[a])), len(self._codes))
        return x


def _frozen(node: Node, place: dict[int, int]) -> reference.Node:
    """Return a resolved subtree in the form of the twin."""
    counts: tuple[Any, ...] = tuple(map(int, node.total))
    if node.left is None or node.right is None or node.choice is None:
        return Leaf(np.array(sorted(place[i] for i in node.rows), dtype=np.int64), counts)
    cut = node.choice
    children = _frozen(node.left, place), _frozen(node.right, place)
    return Split(node.n, counts, cut.attribute, cut.j, cut.w, node.kappa, *children)
