"""Ridge regression and the ridge classifier by recursive least squares."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal, TypeAlias

import numpy as np

from privml.valuation.errors import ProblemError, SettingError
from privml.valuation.problem import Floats, Ints, Problem
from privml.valuation.utilities import _native
from privml.valuation.utilities.base import Utility
from privml.valuation.utilities.metrics import Empty
from privml.valuation.utilities.sequences import Marks, SequenceGame, score_in_parts

Intercept: TypeAlias = Literal["free", "penalised", "none"]
_BINARY = 2
_STEEPEST = 1e12
"""Largest squared length of a row over alpha: the relative error of scores is about 1e-16 of it."""


@dataclass(frozen=True)
class RidgeUtility(Utility):
    """Ridge regression; for classes, the ridge classifier on targets -1 and 1.

    One walk over n rows costs n rank-1 updates instead of n trainings: ``4 d^2 + 2 m d`` floating
    point operations each. Values of the model agree with scikit-learn's ``Ridge`` and
    ``RidgeClassifier`` of the same coalition to rounding.

    Parameters
    ----------
    alpha
        Penalty, > 0; the same for every coalition. Rows longer than a million times its root are
        refused.
    intercept
        ``"free"``: not penalised, as scikit-learn has it. ``"penalised"``: a constant column
        like any other. ``"none"``: no intercept.
    metric
        ``"accuracy"``, ``"balanced_accuracy"``, ``"log_likelihood"``, ``"margin"`` or ``"auc"``;
        for regressions ``"r2"``, ``"neg_mse"`` or ``"neg_mae"``. None for accuracy or R2.
    empty
        U(empty): ``"chance"``, ``"majority"`` or a number.
    """

    kind: ClassVar[str] = "ridge/1"
    alpha: float = 1.0
    intercept: Intercept = "free"
    metric: str | None = None
    empty: Empty = "chance"

    def open(self, problem: Problem) -> RidgeGame:
        """Return the game of a problem."""
        if not (self.alpha > 0 and np.isfinite(self.alpha)):
            raise SettingError(f"alpha={self.alpha} must be a positive number")
        if self.intercept not in {"free", "penalised", "none"}:
            raise SettingError(f"intercept={self.intercept!r}: use 'free', 'penalised' or 'none'")
        return RidgeGame(problem, self)


class RidgeGame(SequenceGame):
    """The game of :class:`RidgeUtility`."""

    def __init__(self, problem: Problem, utility: RidgeUtility) -> None:
        metric = utility.metric or default_metric(problem)
        super().__init__(problem, metric=metric, empty=utility.empty)
        self.alpha, self.intercept = utility.alpha, utility.intercept
        x, x_val = design(problem, utility.intercept)
        if float(np.einsum("ij,ij->i", x, x).max()) > _STEEPEST * self.alpha:
            raise ProblemError(
                "features are so large against alpha that rank-1 updates lose their digits; scale "
                "the columns, or raise alpha"
            )
        self._table = _native.Table.of(x, targets(problem), x_val)
        self._walk = _native.ridge_walk if _native.available() else ref_ridge_walk

    def _sequence(self, rows: Ints, mark: Marks) -> Floats:
        out = self._walk(self._table, rows, mark, alpha=self.alpha, free=self.intercept == "free")
        decisions = out[:, 0] if out.shape[1] == 1 else np.swapaxes(out, 1, 2)
        return score_in_parts(self.scorer, decisions)

    def score_decisions(self, rows: Ints, decisions: Floats) -> float:
        """Return the score of a model of ``rows`` from its (m, c) decisions.

        Rows of one class predict that class, as everywhere.
        """
        if self._by_class:
            codes = self.problem.codes[rows]
            if (codes == codes[0]).all():
                return self._by_class[int(codes[0])]
        one = decisions.shape[1] == 1
        return float(self.scorer.margins(decisions[None, :, 0] if one else decisions[None])[0])


def default_metric(problem: Problem) -> str:
    """Return accuracy for classes and R2 for a regression."""
    return "accuracy" if problem.task == "classification" else "r2"


def targets(problem: Problem) -> Floats:
    """Return (n, c) targets: those of a regression, or -1 and 1; one column for two classes."""
    if problem.task == "regression":
        return problem.y[:, None]
    if len(problem.classes) <= _BINARY:
        return np.where(problem.codes > 0, 1.0, -1.0)[:, None]
    return np.where(problem.codes[:, None] == np.arange(len(problem.classes)), 1.0, -1.0)


def design(problem: Problem, intercept: Intercept) -> tuple[Floats, Floats]:
    """Return training and validation rows as the model gets them.

    A free intercept allows a shift of all rows, which costs nothing and keeps digits. Weights lie
    in the span of the rows: with fewer rows than columns both tables are rotated into it.
    """
    x, x_val = problem.X, problem.X_val
    if intercept == "penalised":
        x = np.column_stack([x, np.ones(len(x))])
        x_val = np.column_stack([x_val, np.ones(len(x_val))])
    elif intercept == "free":
        middle = x.mean(axis=0)
        x, x_val = x - middle, x_val - middle
    return rotated(x, x_val)


def rotated(x: Floats, x_val: Floats) -> tuple[Floats, Floats]:
    """Return both tables in an orthonormal basis of the row space if that has fewer columns."""
    if len(x) >= x.shape[1]:
        return x, x_val
    basis = np.linalg.qr(x.T).Q
    return x @ basis, x_val @ basis


def ref_ridge_walk(
    table: _native.Table, rows: Ints, mark: Marks, *, alpha: float, free: bool
) -> Floats:
    """Return what :func:`privml.valuation.utilities._native.ridge_walk` does, in plain numpy."""
    d = table.d
    p, w = np.eye(d) / alpha, np.zeros((d, table.targets))
    xbar, ybar = np.zeros(d), np.zeros(table.targets)
    out = []
    marked = zip(rows.tolist(), mark.tolist(), strict=True)
    for count, (row, wanted) in enumerate(marked):
        u, r = table.x[row, :d], table.target[row]
        if free:
            gap, miss, factor = u - xbar, r - ybar, np.sqrt(count / (count + 1))
            u, r = factor * gap, factor * miss
            xbar, ybar = xbar + gap / (count + 1), ybar + miss / (count + 1)
        pu = p @ u
        g = pu / (1.0 + u @ pu)
        w = w + np.outer(g, r - u @ w)
        p = p - np.outer(g, pu)
        if wanted:
            decisions = table.columns.T @ w + (ybar - xbar @ w if free else 0.0)
            out.append(decisions[: table.m].T)
    return np.stack(out)
