"""Fitted trees, forests and boosted trees as node arrays, by reading; nothing is unpickled.

Every kind ends in the same form: a row goes left at a node if its feature is at most the
threshold, and a leaf adds its values to the outputs. Forests average, boosted trees add up.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, Self

import numpy as np

from privml.errors import UnsupportedError
from privml.protocols.fhe.nodes import Floats, Ints

LEAF: Final = -1


@dataclass(frozen=True, eq=False)
class Tree:
    """One binary tree; children come after their parents.

    Attributes
    ----------
    left, right
        Children, int64 (nodes,); -1 at a leaf.
    feature
        Feature that a node asks for, int64 (nodes,).
    threshold
        Rows with at most this value go left, float64 (nodes,).
    value
        What a leaf adds, float64 (nodes, outputs).
    """

    left: Ints
    right: Ints
    feature: Ints
    threshold: Floats
    value: Floats

    def leaves(self, rows: Floats) -> Floats:
        """Return the values of the leaves that rows (n, features) reach, (n, outputs)."""
        at = np.zeros(len(rows), np.int64)
        every = np.arange(len(rows))
        while (inner := self.left[at] != LEAF).any():
            goes = rows[every, np.where(inner, self.feature[at], 0)] <= self.threshold[at]
            at = np.where(inner, np.where(goes, self.left[at], self.right[at]), at)
        result: Floats = self.value[at]
        return result

    def ordered(self) -> Self:
        """Return the tree with reachable nodes only, each level after the one above it."""
        order, queue = [], [0]
        while queue:
            order += queue
            inner = [node for node in queue if self.left[node] != LEAF]
            queue = [int(side[node]) for node in inner for side in (self.left, self.right)]
            if len(order) > len(self.left):
                raise UnsupportedError("a tree of the model has a cycle; fit it again")
        number = np.full(len(self.left) + 1, LEAF)
        number[order] = np.arange(len(order))
        parts = (self.feature[order], self.threshold[order], self.value[order])
        return replace(
            self,
            left=number[self.left[order]],
            right=number[self.right[order]],
            feature=parts[0],
            threshold=parts[1],
            value=parts[2],
        )

    def split(self) -> Self:
        """Return a tree with at least one split: a lone leaf gets two equal ones below it."""
        if self.left[0] != LEAF:
            return self
        zeros = np.zeros(3, np.int64)
        return replace(
            self,
            left=np.array([1, LEAF, LEAF]),
            right=np.array([2, LEAF, LEAF]),
            feature=zeros,
            threshold=zeros.astype(np.float64),
            value=np.repeat(self.value[:1], 3, axis=0),
        )


@dataclass(frozen=True, eq=False)
class Ensemble:
    """Trees and how they make the outputs.

    Attributes
    ----------
    trees
        The trees, of one output each if boosted.
    outputs
        Number of sums.
    boosted
        Whether trees add up; otherwise they are averaged.
    output
        To which sum each boosted tree belongs, int64 (trees,).
    offset
        Added to the sums, float64 (outputs,).
    """

    trees: tuple[Tree, ...]
    outputs: int
    boosted: bool
    output: Ints
    offset: Floats

    def scores(self, rows: Floats) -> Floats:
        """Return the outputs of rows (n, features), (n, outputs)."""
        if not self.boosted:
            mean: Floats = sum((tree.leaves(rows) for tree in self.trees), np.zeros(()))
            return mean / len(self.trees)
        total = np.tile(self.offset, (len(rows), 1))
        for tree, output in zip(self.trees, self.output, strict=True):
            total[:, output] += tree.leaves(rows)[:, 0]
        return total

    def on_grid(self, scale: Floats, zero: Floats, low: Ints, high: Ints) -> Self:
        """Return the ensemble for rows that were quantised by these quantisers.

        A threshold becomes the integer below the boundary between grid points nearest to it.
        """
        return replace(self, trees=tuple(_on_grid(t, scale, zero, low, high) for t in self.trees))

    def arrays(self) -> dict[str, np.ndarray[Any, Any]]:
        """Return the node arrays as the worker takes them; thresholds must be integers."""
        joined: dict[str, np.ndarray[Any, Any]] = {
            name: np.concatenate([pick(tree) for tree in self.trees])
            for name, pick in _PARTS.items()
        }
        sizes = [len(tree.left) for tree in self.trees]
        starts = np.cumsum([0, *sizes]).astype(np.int64)
        return {**joined, "starts": starts, "output": self.output.astype(np.int64)}


_PARTS: Final[dict[str, Callable[[Tree], np.ndarray[Any, Any]]]] = {
    "left": lambda tree: tree.left.astype(np.int64),
    "right": lambda tree: tree.right.astype(np.int64),
    "feature": lambda tree: np.where(tree.left == LEAF, 0, tree.feature).astype(np.int64),
    "threshold": lambda tree: np.where(tree.left == LEAF, 0, np.floor(tree.threshold)).astype(
        np.int64
    ),
    "value": lambda tree: tree.value.astype(np.float64),
}


def _on_grid(tree: Tree, scale: Floats, zero: Floats, low: Ints, high: Ints) -> Tree:
    feature = np.where(tree.left == LEAF, 0, tree.feature)
    spot = np.floor(tree.threshold / scale[feature] + zero[feature])
    bounded = np.clip(spot, low[feature] - 1, high[feature])
    return replace(tree, threshold=np.where(tree.left == LEAF, 0.0, bounded))


def forest(trees: Sequence[Any], *, classes: int) -> Ensemble:
    """Read trees of scikit-learn that are averaged; ``classes`` is 0 for regression."""
    read = tuple(_scikit(tree.tree_, share=classes > 0) for tree in trees)
    outputs = classes or 1
    return Ensemble(read, outputs, False, np.zeros(len(read), np.int64), np.zeros(outputs))


def boosted(trees: Sequence[Sequence[Any]], *, rate: float, offset: Floats) -> Ensemble:
    """Read gradient boosting of scikit-learn: one row of trees per round."""
    flat = [(n, tree) for row in trees for n, tree in enumerate(row)]
    read = [_scikit(tree.tree_, share=False) for _, tree in flat]
    scaled = tuple(replace(tree, value=tree.value * rate) for tree in read)
    output = np.array([n for n, _ in flat], np.int64)
    return Ensemble(scaled, len(offset), True, output, offset)


def histogram(rounds: Sequence[Sequence[Any]], *, outputs: int) -> Ensemble:
    """Read histogram gradient boosting of scikit-learn: one row of predictors per round."""
    flat = [(n, one.nodes) for row in rounds for n, one in enumerate(row)]
    if any(nodes["is_categorical"].any() for _, nodes in flat):
        raise UnsupportedError(
            "the model splits on categories, which have no encrypted form; encode them as numbers "
            "and fit it again"
        )
    read = tuple(_histogram(nodes) for _, nodes in flat)
    output = np.array([n for n, _ in flat], np.int64)
    return Ensemble(read, outputs, True, output, np.zeros(outputs))


def xgboost(raw: bytes, *, outputs: int) -> Ensemble:
    """Read XGBoost's own JSON of a fitted booster."""
    try:
        booster = json.loads(raw)["learner"]["gradient_booster"]
        if booster["name"] != "gbtree":
            raise UnsupportedError(
                f"XGBoost's booster {booster['name']!r} has no encrypted form; use 'gbtree'"
            )
        trees = tuple(_xgboost(tree) for tree in booster["model"]["trees"])
        output = np.array(booster["model"]["tree_info"], np.int64)
    except (KeyError, ValueError, TypeError, IndexError) as error:
        raise UnsupportedError(
            "this version of XGBoost stores its trees in a form that is not known here; use "
            "GradientBoosting of scikit-learn"
        ) from error
    return Ensemble(trees, outputs, True, output, np.zeros(outputs))


def with_offset(ensemble: Ensemble, rows: Floats, raw: Floats) -> Ensemble:
    """Return the ensemble with the offset that makes its sums on ``rows`` those of the model.

    Raises
    ------
    UnsupportedError
        The difference depends on the row, as with an ``init`` estimator of the user's.
    """
    differences = raw.reshape(len(rows), -1) - ensemble.scores(rows)
    offset = np.median(differences, axis=0)
    spread = np.abs(differences - offset).max(initial=0.0)
    if spread > 1e-4 * (1.0 + np.abs(raw).max(initial=0.0)):
        raise UnsupportedError(
            "the model does more than add up its trees (an init estimator or missing values); fit "
            "it without"
        )
    return replace(ensemble, offset=ensemble.offset + offset)


def _scikit(native: Any, *, share: bool) -> Tree:  # noqa: ANN401
    value = np.asarray(native.value, np.float64)[:, 0, :]
    if share:
        value = value / value.sum(axis=1, keepdims=True)
    return (
        Tree(
            left=np.asarray(native.children_left, np.int64),
            right=np.asarray(native.children_right, np.int64),
            feature=np.asarray(native.feature, np.int64),
            threshold=np.asarray(native.threshold, np.float64),
            value=value,
        )
        .ordered()
        .split()
    )


def _histogram(nodes: Any) -> Tree:  # noqa: ANN401
    leaf = nodes["is_leaf"].astype(bool)
    return (
        Tree(
            left=np.where(leaf, LEAF, nodes["left"].astype(np.int64)),
            right=np.where(leaf, LEAF, nodes["right"].astype(np.int64)),
            feature=nodes["feature_idx"].astype(np.int64),
            threshold=nodes["num_threshold"].astype(np.float64),
            value=nodes["value"].astype(np.float64)[:, None],
        )
        .ordered()
        .split()
    )


def _xgboost(tree: dict[str, Any]) -> Tree:
    if any(tree.get("split_type", ())):
        raise UnsupportedError(
            "the model splits on categories, which have no encrypted form; encode them as numbers "
            "and fit it again"
        )
    left = np.array(tree["left_children"], np.int64)
    numbers = np.array(tree["split_conditions"], np.float32)
    # XGBoost sends rows below the threshold left: at most the number before it.
    below = np.nextafter(numbers, np.float32(-np.inf)).astype(np.float64)
    return (
        Tree(
            left=left,
            right=np.array(tree["right_children"], np.int64),
            feature=np.array(tree["split_indices"], np.int64),
            threshold=below,
            value=numbers.astype(np.float64)[:, None],
        )
        .ordered()
        .split()
    )
