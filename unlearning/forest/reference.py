"""The twin: what a forest *is*, as slow and obvious code without any incremental step.

A forest is a pure function of its rows (with ids), its key and its parameters. This module is that
function; the native core must agree with it bit for bit. Nothing here knows of deletions.

Choices of format version 1 that the design leaves open, all visible below: the extra candidate of a
numeric attribute (index s: present values left, missing right) stores the threshold +inf; a
categorical split stores threshold bits 0; candidates of a categorical attribute past index s - 1
are tried up to index 255.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final, TypeAlias

import numpy as np
from numpy.typing import NDArray

from privml.unlearning.forest import siphash as sh
from privml.unlearning.forest.keys import ForestKey
from privml.unlearning.forest.params import REGRESSION, ForestParams

CATEGORY_CAP: Final = 256
MISSING_CODE: Final = 0xFFFFFFFF

Floats: TypeAlias = NDArray[np.float32]
Index: TypeAlias = NDArray[np.int64]


@dataclass(frozen=True)
class Rows:
    """Training rows.

    Attributes
    ----------
    ids
        (n, 3) uint64: type, low word, high word.
    X
        (n, p) float32; NaN is missing, categorical columns hold codes.
    y
        (n,) int64: class index, or fixed-point target.
    """

    ids: NDArray[np.uint64]
    X: Floats
    y: NDArray[np.int64]

    def canonical(self) -> Rows:
        """Return the rows sorted by (type, high, low), with one zero and one NaN pattern."""
        order = np.lexsort((self.ids[:, 1], self.ids[:, 2], self.ids[:, 0]))
        X = self.X[order] + np.float32(0)
        X[np.isnan(X)] = np.float32(np.nan)
        return Rows(self.ids[order], X, self.y[order])


@dataclass(frozen=True)
class Leaf:
    """A leaf: sorted row positions and the class counts (regression: one sum)."""

    rows: Index
    counts: tuple[int, ...]

    @property
    def n(self) -> int:
        """Number of rows."""
        return len(self.rows)


@dataclass(frozen=True)
class Split:
    """An inner node: ``attribute`` and candidate ``j`` with its threshold; value <= w goes left."""

    n: int
    counts: tuple[int, ...]
    attribute: int
    j: int
    threshold: np.float32
    kappa: int
    left: Node
    right: Node


Node: TypeAlias = Leaf | Split


@dataclass(frozen=True)
class Forest:
    """Rows in canonical order and one tree each, None for a tree without rows."""

    rows: Rows
    key: ForestKey
    params: ForestParams
    trees: tuple[Node | None, ...]


@dataclass(frozen=True)
class Candidate:
    """One admissible way to cut a node: which rows go left."""

    attribute: int
    j: int
    threshold: np.float32
    left: NDArray[np.bool_]


def build_forest(rows: Rows, key: ForestKey, params: ForestParams) -> Forest:
    """Return the forest of ``rows``; they may come in any order."""
    rows = rows.canonical()
    members: list[list[int]] = [[] for _ in range(params.n_trees)]
    for i, (kind, lo, hi) in enumerate(rows.ids.tolist()):
        for t in trees_of(key, params, record=(kind, lo, hi)):
            members[t].append(i)
    trees = tuple(build_tree(rows, key, params, tree=t, members=m) for t, m in enumerate(members))
    return Forest(rows, key, params, trees)


def trees_of(key: ForestKey, params: ForestParams, *, record: tuple[int, int, int]) -> list[int]:
    """Return the k trees that hold the row with this id record, in drawing order."""
    order = list(range(params.n_trees))
    for i in range(params.trees_per_row):
        hashed = sh.keyed_hash(key.occurrence, sh.MEMBERSHIP, *record, i)
        other = i + sh.bounded(hashed, params.n_trees - i)
        order[i], order[other] = order[other], order[i]
    return order[: params.trees_per_row]


def build_tree(
    rows: Rows, key: ForestKey, params: ForestParams, *, tree: int, members: Sequence[int]
) -> Node | None:
    """Return the tree number ``tree`` over the rows at the positions ``members``."""
    if not members:
        return None
    kappa = sh.keyed_hash(key.tree, sh.ROOT, tree)
    return _build(rows, key, params, np.array(sorted(members), dtype=np.int64), 0, kappa)


def _build(
    rows: Rows, key: ForestKey, params: ForestParams, where: Index, depth: int, kappa: int
) -> Node:
    y = rows.y[where]
    counts = totals(params, y)
    pure = bool((y == y[0]).all())
    if depth >= params.max_depth or len(where) < params.min_samples_split or pure:
        return Leaf(where, counts)
    best, best_score = None, 0.0
    for candidate in candidates(params, kappa, rows.X[where]):
        value = score(params, y, candidate.left)
        if best is None or value > best_score:
            best, best_score = candidate, value
    if best is None:
        return Leaf(where, counts)
    left, right = (
        _build(rows, key, params, part, depth + 1, sh.keyed_hash(key.tree, sh.CHILD, kappa, side))
        for side, part in enumerate((where[best.left], where[~best.left]))
    )
    return Split(len(where), counts, best.attribute, best.j, best.threshold, kappa, left, right)


def totals(params: ForestParams, y: NDArray[np.int64]) -> tuple[int, ...]:
    """Return the number of rows per class, or for regression the one-element sum of targets."""
    if params.task == REGRESSION:
        return (sum(y.tolist()),)
    return tuple(np.bincount(y, minlength=params.n_classes).tolist())


def candidates(params: ForestParams, kappa: int, X: Floats) -> Iterator[Candidate]:
    """Yield the admissible candidates of a node in tie order: slot by slot, index by index."""
    slots = 0
    for attribute in permutation(kappa, params.n_features):
        x = X[:, attribute]
        categorical = params.categorical[attribute]
        if not (len(set(codes(x))) > 1 if categorical else numeric_usable(x)):
            continue
        draw = categorical_candidates if categorical else numeric_candidates
        yield from draw(params, kappa, attribute, x)
        slots += 1
        if slots == params.max_features:
            return


def permutation(kappa: int, p: int) -> Iterator[int]:
    """Yield the attributes 0..p-1 in the order of the node."""
    order = list(range(p))
    for i in range(p):
        other = i + sh.bounded(sh.node_draw(kappa, sh.PERMUTATION, i, 0), p - i)
        order[i], order[other] = order[other], order[i]
        yield order[i]


def numeric_usable(x: Floats) -> bool:
    """Return whether two present values differ, or missing and present values occur."""
    present = x[~np.isnan(x)]
    if len(present) == 0:
        return False
    return bool(present.min() < present.max()) or len(present) < len(x)


def numeric_candidates(
    params: ForestParams, kappa: int, attribute: int, x: Floats
) -> Iterator[Candidate]:
    """Yield the thresholds of one attribute that leave no side empty."""
    missing = np.isnan(x)
    lowest, highest = x[~missing].min(), x[~missing].max()
    for j in range(params.n_thresholds):
        w = threshold(kappa, attribute, j, lowest, highest)
        left = np.where(missing, missing_side(kappa, attribute, j) == 0, x <= w)
        if left.any() and not left.all():
            yield Candidate(attribute, j, w, left)
    if missing.any():
        yield Candidate(attribute, params.n_thresholds, np.float32(np.inf), ~missing)


def threshold(
    kappa: int, attribute: int, j: int, lowest: np.float32, highest: np.float32
) -> np.float32:
    """Return the threshold of draw ``j`` on the range of the present values."""
    u = (sh.node_draw(kappa, sh.THRESHOLD, attribute, j) >> 11) * 2.0**-53
    w = np.float32(float(lowest) + u * (float(highest) - float(lowest)))
    return np.nextafter(highest, np.float32(-np.inf)) if w >= highest else w


def missing_side(kappa: int, attribute: int, j: int) -> int:
    """Return 0 if a missing value goes left at draw ``j``, 1 if right."""
    return sh.node_draw(kappa, sh.MISSING_SIDE, attribute, j) >> 63


def categorical_candidates(
    params: ForestParams, kappa: int, attribute: int, x: Floats
) -> Iterator[Candidate]:
    """Yield the code subsets of one attribute that leave no side empty.

    If none of the first s does, the first later one below :data:`CATEGORY_CAP` is the only one.
    """
    found = False
    values = codes(x)
    for j in range(max(params.n_thresholds, CATEGORY_CAP)):
        if found and j >= params.n_thresholds:
            return
        left = np.array([category_side(kappa, attribute, j, v) == 0 for v in values])
        if left.any() and not left.all():
            found = True
            yield Candidate(attribute, j, np.float32(0), left)


def category_side(kappa: int, attribute: int, j: int, code: int) -> int:
    """Return 0 if a category code goes left at draw ``j``, 1 if right."""
    return sh.node_draw(kappa, sh.CATEGORY, attribute, j, code) >> 63


def codes(x: Floats) -> list[int]:
    """Return the category codes of a column; a missing value has a code of its own."""
    return [MISSING_CODE if v != v else int(v) for v in x.tolist()]


def score(params: ForestParams, y: NDArray[np.int64], left: NDArray[np.bool_]) -> float:
    """Return V of a cut, to be maximised: exact integers, then float64 in a fixed order."""
    n, n_left = len(y), int(left.sum())
    n_right = n - n_left
    if params.task == REGRESSION:
        d = n * sum(y[left].tolist()) - n_left * sum(y.tolist())
        return (float(d) * float(d)) / (float(n_left) * float(n_right))
    q_left, q_right = (sum(c * c for c in totals(params, y[side])) for side in (left, ~left))
    return float(q_left) / float(n_left) + float(q_right) / float(n_right)


def goes_left(params: ForestParams, node: Split, x: Floats) -> bool:
    """Return whether a row with the features ``x`` goes left at ``node``."""
    value = x[node.attribute]
    if params.categorical[node.attribute]:
        code = codes(x[node.attribute : node.attribute + 1])[0]
        return category_side(node.kappa, node.attribute, node.j, code) == 0
    if np.isnan(value):
        last = node.j == params.n_thresholds
        return not last and missing_side(node.kappa, node.attribute, node.j) == 0
    return bool(value <= node.threshold)


def leaf_of(params: ForestParams, node: Node, x: Floats) -> Leaf:
    """Return the leaf that a row with the features ``x`` falls into."""
    while isinstance(node, Split):
        node = node.left if goes_left(params, node, x) else node.right
    return node


def predict(forest: Forest, X: Floats) -> NDArray[np.float64]:
    """Return (n, C) class frequencies, or (n,) targets: float64 means over non-empty trees."""
    params = forest.params
    trees = [tree for tree in forest.trees if tree is not None]
    width = 1 if params.task == REGRESSION else params.n_classes
    out = np.zeros((len(X), width), dtype=np.float64)
    for i, x in enumerate(X + np.float32(0)):
        for tree in trees:
            leaf = leaf_of(params, tree, x)
            for c, count in enumerate(leaf.counts):
                value = float(count) / float(leaf.n)
                out[i, c] += value / 2.0**params.target_bits
        out[i] /= float(len(trees))
    return out[:, 0] if params.task == REGRESSION else out
