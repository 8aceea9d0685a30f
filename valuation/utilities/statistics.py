"""Models that are sums over rows: adding a row costs its own width. For teaching and tests."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Final

import numpy as np

from privml.valuation.errors import ProblemError, SettingError
from privml.valuation.problem import Floats, Ints, Problem
from privml.valuation.utilities.base import Utility, batches
from privml.valuation.utilities.metrics import Empty, softmax
from privml.valuation.utilities.sequences import Marks, SequenceGame

_CELLS: Final = 1 << 20
_NEVER: Final = -1e300


@dataclass(frozen=True)
class NearestCentroidUtility(Utility):
    """The class whose mean row is nearest (Euclidean).

    Parameters
    ----------
    metric, empty
        As for :class:`privml.valuation.utilities.ridge.RidgeUtility`; classification only.
        Probabilities are the softmax of minus half the squared distances.
    """

    kind: ClassVar[str] = "centroid/1"
    metric: str = "accuracy"
    empty: Empty = "chance"

    def open(self, problem: Problem) -> StatisticsGame:
        """Return the game of a problem."""
        return StatisticsGame(problem, metric=self.metric, empty=self.empty, smoothing=None)


@dataclass(frozen=True)
class NaiveBayesUtility(Utility):
    """Gaussian naive Bayes.

    Parameters
    ----------
    smoothing
        Share of the largest column variance of all training rows that is added to every variance,
        > 0; scikit-learn takes the largest variance of the coalition instead.
    metric, empty
        As for :class:`NearestCentroidUtility`.
    """

    kind: ClassVar[str] = "naive-bayes/1"
    smoothing: float = 1e-3
    metric: str = "accuracy"
    empty: Empty = "chance"

    def open(self, problem: Problem) -> StatisticsGame:
        """Return the game of a problem."""
        if not (self.smoothing > 0 and np.isfinite(self.smoothing)):
            raise SettingError(f"smoothing={self.smoothing} must be a positive number")
        return StatisticsGame(
            problem, metric=self.metric, empty=self.empty, smoothing=self.smoothing
        )


class StatisticsGame(SequenceGame):
    """Class counts, sums and sums of squares along a walk."""

    def __init__(
        self, problem: Problem, *, metric: str, empty: Empty, smoothing: float | None
    ) -> None:
        if problem.task != "classification":
            raise ProblemError("this utility needs classes; use RidgeUtility for targets")
        super().__init__(problem, metric=metric, empty=empty)
        middle = problem.X.mean(axis=0)
        self._x, self._x_val = problem.X - middle, problem.X_val - middle
        self._floor = None if smoothing is None else smoothing * float(self._x.var(axis=0).max())
        if self._floor == 0.0:
            raise ProblemError("all training rows are equal; naive Bayes needs some variance")

    def _sequence(self, rows: Ints, mark: Marks) -> Floats:
        classes = len(self.problem.classes)
        ends = np.flatnonzero(mark)
        share = np.eye(classes)[self.problem.codes[rows]]  # (steps, c)
        count = np.cumsum(share, axis=0)[ends]
        out = np.empty(len(ends))
        each = max(1, _CELLS // (len(self._x_val) * classes))
        total = self._sums(share, self._x[rows], ends)
        squares = None
        if self._floor is not None:
            squares = self._sums(share, self._x[rows] ** 2, ends)
        for part in batches(len(ends), each):
            logits = self._logits(
                count[part], total[part], None if squares is None else squares[part]
            )
            if self.scorer.metric in {"accuracy", "balanced_accuracy"}:
                out[part] = self.scorer.labels(logits.argmax(axis=2))
            else:
                out[part] = self.scorer.probabilities(softmax(logits))
        return out

    @staticmethod
    def _sums(share: Floats, x: Floats, ends: Ints) -> Floats:
        """Return (marks, c, d) sums by class of the rows up to each mark."""
        out: Floats = np.cumsum(share[:, :, None] * x[:, None, :], axis=0)[ends]
        return out

    def _logits(self, count: Floats, total: Floats, squares: Floats | None) -> Floats:
        """Return (marks, m, c) log-likelihoods up to a constant of the row; absent classes lose."""
        seen = np.maximum(count, 1.0)[:, :, None]
        mean = total / seen
        if squares is None or self._floor is None:
            linear = np.einsum("vj,kcj->kvc", self._x_val, mean)
            logits = linear - 0.5 * np.einsum("kcj,kcj->kc", mean, mean)[:, None]
        else:
            variance = np.maximum(squares / seen - mean**2, 0.0) + self._floor
            quadratic = np.einsum("vj,kcj->kvc", self._x_val**2, -0.5 / variance)
            linear = np.einsum("vj,kcj->kvc", self._x_val, mean / variance)
            fixed = -0.5 * (mean**2 / variance + np.log(variance)).sum(axis=2)
            prior = np.log(seen[:, :, 0] / count.sum(axis=1, keepdims=True))
            logits = quadratic + linear + (fixed + prior)[:, None]
        return np.where(count[:, None] > 0, logits, _NEVER)
