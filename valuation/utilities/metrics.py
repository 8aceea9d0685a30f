"""Metrics: from predictions on the validation rows to one score, many models at a time.

Every metric is larger for better models. Accuracy is a multiple of 1/m, so exact ties between
players are common: rank by ``"margin"`` or ``"log_likelihood"`` where order matters.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray

from privml.valuation.errors import ProblemError, SettingError
from privml.valuation.problem import Floats, Ints, Problem

Empty: TypeAlias = Literal["chance", "majority"] | float
"""U of the empty coalition: the score of guessing, that of the constant best for the training
rows, or a number."""

CLASSIFICATION: Final = ("accuracy", "balanced_accuracy", "log_likelihood", "margin", "auc")
REGRESSION: Final = ("neg_mse", "neg_mae", "r2")
PROBABILITY_FLOOR: Final = 1e-3
"""Probabilities below are scored as this, so that one wrong row cannot outweigh all others."""

_BINARY: Final = 2


@dataclass(frozen=True, eq=False)
class Scorer:
    """One metric on the validation rows of one problem; made by :meth:`of`.

    Attributes
    ----------
    metric
        Name of the metric.
    classes
        Number of classes; 0 for a regression.
    truth
        (m,) class codes or targets of the validation rows.
    majority
        Most frequent class of the training rows, or their mean target.
    """

    metric: str
    classes: int
    truth: NDArray[np.float64]
    majority: float

    @classmethod
    def of(cls, metric: str, problem: Problem) -> Scorer:
        """Return the scorer of a metric.

        Raises
        ------
        ProblemError
            The metric does not fit the task, or ``"auc"`` has not two classes.
        SettingError
            There is no such metric.
        """
        regression = problem.task == "regression"
        fitting = REGRESSION if regression else CLASSIFICATION
        if metric not in fitting:
            error = ProblemError if metric in (*CLASSIFICATION, *REGRESSION) else SettingError
            raise error(f"metric={metric!r} is none of a {problem.task}: use one of {fitting}")
        classes = 0 if regression else len(problem.classes)
        if metric == "auc" and (classes != _BINARY or len(np.unique(problem.y_val)) != _BINARY):
            raise ProblemError("metric='auc' needs two classes, both among the validation rows")
        if regression:
            majority = float(problem.y.mean())
        else:
            majority = float(np.bincount(problem.codes, minlength=classes).argmax())
        return cls(metric, classes, problem.y_val, majority)

    def margins(self, decisions: Floats) -> Floats:
        """Return the score of each model from its decisions.

        Parameters
        ----------
        decisions
            (k, m) of two classes, positive for class 1; (k, m, c) of more; (k, m) predictions of
            a regression.

        Returns
        -------
        ndarray
            (k,) float64.

        Notes
        -----
        Where probabilities are needed, they are the logistic function of twice the decision, the
        softmax of twice the decisions: decisions of ridge models aim at -1 and 1.
        """
        if not self.classes:
            return self.targets(decisions)
        if decisions.ndim == _BINARY:
            return self._two(decisions)
        if self.metric == "log_likelihood":
            return self.probabilities(softmax(2.0 * decisions))
        if self.metric == "margin":
            return _margins(decisions, self._codes)
        return self.labels(decisions.argmax(axis=2))

    def probabilities(self, given: Floats) -> Floats:
        """Return the score of each model from (k, m, c) class probabilities."""
        if self.metric == "log_likelihood":
            own = np.take_along_axis(given, self._codes[None, :, None], axis=2)[:, :, 0]
            scores: Floats = np.log(np.clip(own, PROBABILITY_FLOOR, 1.0)).mean(axis=1)
            return scores
        if self.metric == "margin":
            return _margins(given, self._codes)
        if self.metric == "auc":
            return self._auc(given[:, :, 1] - given[:, :, 0])
        return self.labels(given.argmax(axis=2))

    def labels(self, codes: Ints) -> Floats:
        """Return the score of each model from (k, m) predicted class codes."""
        if self.metric in {"log_likelihood", "margin", "auc"}:
            certain = np.eye(self.classes)[codes]
            return self.probabilities(certain)
        return self._hits(codes == self._codes)

    def targets(self, predictions: Floats) -> Floats:
        """Return the score of each model from (k, m) predictions of a regression."""
        if self.metric == "neg_mae":
            return np.asarray(-np.abs(predictions - self.truth).mean(axis=1))
        error: Floats = ((predictions - self.truth) ** 2).mean(axis=1)
        if self.metric == "neg_mse":
            return -error
        spread = float(self.truth.var())
        return 1.0 - error / spread if spread else np.where(error == 0, 1.0, 0.0)

    def of_class(self, code: int) -> float:
        """Return the score of predicting one class, with certainty, for every row."""
        return float(self.labels(np.full((1, len(self.truth)), code, dtype=np.int64))[0])

    def of_empty(self, empty: Empty) -> float:
        """Return U(empty): chance, the majority class or mean target, or the number given.

        Chance is one class in c drawn evenly (no information for ``"auc"``, margin 0), and the
        mean validation target for a regression.
        """
        if empty == "majority":
            if not self.classes:
                return float(self.targets(np.full((1, len(self.truth)), self.majority))[0])
            return self.of_class(int(self.majority))
        if empty == "chance":
            return self._chance()
        given: object = empty
        if not isinstance(given, int | float) or not np.isfinite(given):
            raise SettingError(f"empty={empty!r}: use 'chance', 'majority' or a number")
        return float(given)

    @property
    def _codes(self) -> Ints:
        return self.truth.astype(np.int64)

    def _chance(self) -> float:
        if not self.classes:
            return float(self.targets(np.full((1, len(self.truth)), self.truth.mean()))[0])
        constants = {"log_likelihood": -np.log(self.classes), "margin": 0.0, "auc": 0.5}
        return float(constants.get(self.metric, 1.0 / self.classes))

    def _two(self, decisions: Floats) -> Floats:
        if self.metric == "accuracy":
            return _shares((decisions > 0) == (self.truth > 0))
        if self.metric == "balanced_accuracy":
            return self._hits((decisions > 0) == (self.truth > 0))
        if self.metric == "auc":
            return self._auc(decisions)
        signed = np.where(self.truth > 0, decisions, -decisions)
        if self.metric == "margin":
            scores: Floats = np.clip(signed, -1.0, 1.0).mean(axis=1)
            return scores
        floor = np.log(PROBABILITY_FLOOR)
        own: Floats = np.maximum(-np.logaddexp(0.0, -2.0 * signed), floor).mean(axis=1)
        return own

    def _hits(self, right: NDArray[np.bool_]) -> Floats:
        if self.metric == "accuracy":
            return _shares(right)
        seen = np.unique(self._codes)
        each = np.stack([_shares(right[:, self._codes == c]) for c in seen])
        return np.asarray(each.mean(axis=0))

    def _auc(self, decisions: Floats) -> Floats:
        """Mann-Whitney: the share of pairs in order, ties half."""
        ones = decisions[:, self.truth > 0]
        zeros = np.sort(decisions[:, self.truth <= 0], axis=1)
        out = np.empty(len(decisions))
        for at, (row, others) in enumerate(zip(ones, zeros, strict=True)):
            below = np.searchsorted(others, row, side="left").sum()
            upto = np.searchsorted(others, row, side="right").sum()
            out[at] = (below + upto) / (2.0 * row.size * others.size)
        return out


def _shares(right: NDArray[np.bool_]) -> Floats:
    """Return the share of right answers in each row."""
    return np.asarray(np.count_nonzero(right, axis=1) / float(right.shape[1]))


def softmax(logits: Floats) -> Floats:
    """Return probabilities along the last axis."""
    raised = np.exp(logits - logits.max(axis=-1, keepdims=True))
    out: Floats = raised / raised.sum(axis=-1, keepdims=True)
    return out


def _margins(scores: Floats, codes: Ints) -> Floats:
    """Mean over rows of own score minus the best other one, cut to [-1, 1]."""
    index = codes[None, :, None]
    own = np.take_along_axis(scores, index, axis=2)[:, :, 0]
    others = scores.copy()
    np.put_along_axis(others, np.broadcast_to(index, (len(scores), len(codes), 1)), -np.inf, axis=2)
    gaps = np.clip(own - others.max(axis=2), -1.0, 1.0)
    out: Floats = gaps.mean(axis=1)
    return out
