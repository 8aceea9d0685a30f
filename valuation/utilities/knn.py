"""Nearest neighbours: exact in integers, so scores never depend on rounding."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Final

import numpy as np
from numpy.typing import NDArray

from privml.valuation.checks import is_whole
from privml.valuation.errors import ProblemError, SettingError
from privml.valuation.methods.knn_order import Neighbours
from privml.valuation.problem import Floats, Ints, Problem
from privml.valuation.utilities.base import Coalitions, Game, Utility, batches
from privml.valuation.utilities.metrics import Empty, Scorer

MATCH: Final = "match"
Places = NDArray[np.int32]
_CELLS: Final = 1 << 21


@dataclass(frozen=True)
class KnnUtility(Utility):
    """Vote, or mean, of the k nearest rows of a coalition; all of them if it has fewer.

    Parameters
    ----------
    k
        Neighbours, at least 1. Equal distances are ordered by row number.
    metric
        As for :class:`privml.valuation.utilities.ridge.RidgeUtility`, probabilities being shares
        of votes; or ``"match"``, the game of KNN-Shapley: ``(1/k) sum of [match]`` over the
        neighbours, for a regression ``-((1/k) sum of y - y_val)^2``, always divided by k.
        None for accuracy or R2.
    empty
        U(empty); for ``"match"`` it is fixed by the formula and this setting is not used.
    """

    kind: ClassVar[str] = "knn/2"
    k: int = 5
    metric: str | None = None
    empty: Empty = "chance"

    def open(self, problem: Problem) -> KnnGame:
        """Return the game of a problem."""
        if not is_whole(self.k) or self.k < 1:
            raise SettingError(f"k={self.k!r} must be a whole number of at least 1")
        return KnnGame(problem, self)


class KnnGame(Game):
    """The game of :class:`KnnUtility`.

    What is kept of each validation row are the places, in its order of distance, of its nearest
    members; votes, or the sum of targets, are made anew from them when they change. A new row is
    among the nearest k of s with probability k/s, so most steps of a walk change few.
    """

    batch = 32
    local = True

    def __init__(self, problem: Problem, utility: KnnUtility) -> None:
        self._problem, self._k = problem, utility.k
        self._regression = problem.task == "regression"
        metric = utility.metric or ("r2" if self._regression else "accuracy")
        self._scorer = None if metric == MATCH else Scorer.of(metric, problem)
        order = distance_order(problem.X, problem.X_val)
        self._rank = np.empty(order.shape, dtype=np.int32)  # (m, n) place of each row
        np.put_along_axis(self._rank, order, np.arange(problem.n, dtype=np.int32)[None], axis=1)
        none = 0.0 if self._regression else -1.0
        # (m, n+1) label by place; the last column stands for a neighbour that is not there
        self._label = np.column_stack([problem.y[order], np.full(len(order), none)])
        if self._scorer is None:
            nobody = np.full((len(order), 1), problem.n, dtype=np.int32)
            empty = self._judge(self._sums(nobody, np.arange(len(order)))[None], 0)[0]
        else:
            empty = self._scorer.of_empty(utility.empty)
        super().__init__(problem.players, float(empty), row_counts=problem.row_counts)

    def _score(self, coalitions: Coalitions) -> Floats:
        out, rows = np.empty(len(coalitions)), np.arange(len(self._rank))
        for at, members in enumerate(coalitions):
            places = self._rank[:, self._problem.rows_of_all(members)]
            if places.shape[1] > self._k:
                places = np.partition(places, self._k - 1, axis=1)[:, : self._k]
            out[at] = self._judge(self._sums(places, rows)[None], places.shape[1])[0]
        return out

    def _walks(self, orders: Ints) -> Floats:
        if self._problem.group_mode == "player":
            return super()._walks(orders)
        out = np.empty(orders.shape)
        each = max(1, _CELLS // (len(self._rank) * self._k))
        for part in batches(len(orders), each):
            self._insert(orders[part], out[part])
        return out

    def _insert(self, orders: Ints, out: Floats) -> None:
        """Keep the k nearest places of each walk and validation row; one row enters a step."""
        (w, length), m = orders.shape, len(self._rank)
        nearest = np.full((w * m, self._k), self._problem.n, dtype=np.int32)
        farthest = nearest[:, 0].copy()
        rows = np.tile(np.arange(m), w)
        sums = self._sums(nearest, rows)
        for step in range(length):
            new = self._rank[:, orders[:, step]].T.ravel()
            changed = np.flatnonzero(new < farthest)
            own = nearest[changed]
            own[np.arange(len(changed)), own.argmax(axis=1)] = new[changed]
            nearest[changed], farthest[changed] = own, own.max(axis=1)
            sums[changed] = self._sums(own, rows[changed])
            out[:, step] = self._judge(sums.reshape(w, m, -1), min(step + 1, self._k))

    def _sums(self, places: Places, rows: Ints) -> Floats:
        """Return (r, c) votes, or (r, 1) sums of targets in order of distance."""
        if self._regression:
            labels = self._label[rows[:, None], np.sort(places, axis=1)]
            return np.asarray(labels.sum(axis=1, keepdims=True))
        labels = self._label[rows[:, None], places]
        classes = range(len(self._problem.classes))
        return np.stack([np.count_nonzero(labels == c, axis=1) for c in classes], 1).astype(float)

    def _judge(self, sums: Floats, there: int) -> Floats:
        """Return (w,) scores from (w, m, c) votes or (w, m, 1) sums of ``there`` neighbours."""
        if self._scorer is None:
            return self._match(sums)
        if self._regression:
            return self._scorer.targets(sums[:, :, 0] / there)
        if self._scorer.metric in {"accuracy", "balanced_accuracy"}:
            return self._scorer.labels(sums.argmax(axis=2))
        return self._scorer.probabilities(sums / there)

    def _match(self, sums: Floats) -> Floats:
        truth = self._problem.y_val
        if self._regression:
            return np.asarray(-((sums[:, :, 0] / self._k - truth) ** 2).mean(axis=1))
        hits = sums[:, np.arange(len(truth)), truth.astype(np.int64)].sum(axis=1)
        return np.asarray(hits / float(self._k * len(truth)))


def distance_order(x: Floats, x_val: Floats) -> Ints:
    """Return (m, n) int64 training rows by distance to each validation row, ties by number."""
    if x.shape[1] != x_val.shape[1]:
        raise ProblemError("training and validation rows have different numbers of columns")
    out = np.empty((len(x_val), len(x)), dtype=np.int64)
    search = Neighbours.of(x, x_val)
    for part in batches(len(x_val), max(1, _CELLS // len(x))):
        out[part] = search.nearest(part.start, part.stop, len(x))[0]
    return out
