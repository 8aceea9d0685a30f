"""Logistic regression by Newton's method (iteratively reweighted least squares)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from privml.valuation.errors import ProblemError, SettingError, UtilityFailed
from privml.valuation.problem import Floats, Ints, Problem
from privml.valuation.utilities import _native
from privml.valuation.utilities.base import Utility
from privml.valuation.utilities.metrics import Empty
from privml.valuation.utilities.ridge import rotated
from privml.valuation.utilities.sequences import Marks, SequenceGame, score_in_parts

_BINARY = 2
_SLACK = 1e-13
_HALVINGS = 40
_NEAR, _MOVED = 1e-10, 0.1


@dataclass(frozen=True)
class LogisticUtility(Utility):
    """Logistic regression with the objective of scikit-learn, trained to the optimum.

    ``(1/2) |w|^2 + C sum log-loss`` with an unpenalised intercept. A walk starts each prefix from
    the model of the one before; as every model is trained until the Newton decrement is below
    ``tol``, scores are those of a model trained afresh. More than two classes: one model per class
    against the rest (of the classes that the coalition has), the largest decision wins.

    Parameters
    ----------
    C
        Weight of the loss, > 0.
    tol
        Bound on the root of the Newton decrement, relative to that of the objective; 0 < tol <=
        1e-4.
    max_iter
        Most Newton steps of one model; a model that needs more raises ``UtilityFailed``.
    metric, empty
        As for :class:`privml.valuation.utilities.ridge.RidgeUtility`; classification only.
    """

    kind: ClassVar[str] = "logistic/3"
    C: float = 1.0
    tol: float = 1e-8
    max_iter: int = 100
    metric: str = "accuracy"
    empty: Empty = "chance"

    def open(self, problem: Problem) -> LogisticGame:
        """Return the game of a problem."""
        if not (self.C > 0 and np.isfinite(self.C)):
            raise SettingError(f"C={self.C} must be a positive number")
        if not 0 < self.tol <= 1e-4 or self.max_iter < 1:
            raise SettingError("tol lies in (0, 1e-4] and max_iter is at least 1")
        if problem.task != "classification":
            raise ProblemError("logistic regression needs classes; use RidgeUtility for targets")
        return LogisticGame(problem, self)


class LogisticGame(SequenceGame):
    """The game of :class:`LogisticUtility`."""

    def __init__(self, problem: Problem, utility: LogisticUtility) -> None:
        super().__init__(problem, metric=utility.metric, empty=utility.empty)
        self._c, self._tol, self._most = utility.C, utility.tol, utility.max_iter
        self._two = len(problem.classes) <= _BINARY
        middle = problem.X.mean(axis=0)
        x, x_val = rotated(problem.X - middle, problem.X_val - middle)
        x = np.column_stack([x, np.ones(len(x))])
        x_val = np.column_stack([x_val, np.ones(len(x_val))])
        wanted = [1] if self._two else range(len(problem.classes))
        self._tables = [
            _native.Table.of(x, (problem.codes == code).astype(np.float64)[:, None], x_val)
            for code in wanted
        ]
        self._walk = _native.logistic_walk if _native.available() else ref_logistic_walk

    def _sequence(self, rows: Ints, mark: Marks) -> Floats:
        each = []
        for table in self._tables:
            decisions, failed = self._walk(
                table, rows, mark, c=self._c, tol=self._tol, most_steps=self._most
            )
            if failed or not np.isfinite(decisions).all():
                raise UtilityFailed(
                    f"{failed} logistic models did not converge in {self._most} steps, or gave "
                    "decisions that are no numbers; scale the features, raise max_iter or lower C"
                )
            each.append(decisions)
        if self._two:
            # The model's decisions are log-odds; those of the scorer count half of them.
            return score_in_parts(self.scorer, each[0] / 2)
        return self._rest(np.stack(each, axis=2))

    def _rest(self, decisions: Floats) -> Floats:
        """Score one-against-the-rest models; probabilities are the normalised logistic ones."""
        if self.scorer.metric in {"accuracy", "balanced_accuracy"}:
            return score_in_parts(self.scorer, decisions)
        share = 1.0 / (1.0 + np.exp(-decisions))
        return self.scorer.probabilities(share / share.sum(axis=2, keepdims=True))


def ref_logistic_walk(
    table: _native.Table, rows: Ints, mark: Marks, *, c: float, tol: float, most_steps: int
) -> tuple[Floats, int]:
    """Return what :func:`privml.valuation.utilities._native.logistic_walk` does, in numpy."""
    d, w, failed, out = table.d, np.zeros(table.d), 0, []
    for k in range(1, len(rows) + 1):
        if not mark[k - 1]:
            continue
        x, y = table.x[rows[:k], :d], table.target[rows[:k], 0]
        if y.min() == y.max():
            out.append(np.full(table.m, 1.0 if y[0] else -1.0))
            continue
        w, reached = _newton(x, y, w, c=c, tol=tol, most_steps=most_steps)
        failed += not reached
        out.append(table.columns.T[: table.m] @ w)
    return np.stack(out), failed


def _newton(
    x: Floats, y: Floats, w: Floats, *, c: float, tol: float, most_steps: int
) -> tuple[Floats, bool]:
    penalised, side = np.append(np.ones(len(w) - 1), 0.0), 2 * y - 1

    def objective(w: Floats) -> float:
        z = x @ w
        return float(0.5 * (penalised * w * w).sum() + c * np.logaddexp(0.0, -side * z).sum())

    value = objective(w)
    for _ in range(most_steps):
        z = x @ w
        small = np.exp(-np.abs(z))
        wrong = np.where(side * z >= 0, small, 1.0) / (1.0 + small)  # 1 less the share of the class
        gradient = penalised * w - c * (side * wrong) @ x
        hessian = (x * (c * small / (1.0 + small) ** 2)[:, None]).T @ x + np.diag(
            np.maximum(penalised, 1e-12)
        )
        step = np.linalg.solve(hessian, gradient)
        decrement = float(gradient @ step)
        if decrement <= tol * tol * value:
            return w - step, True
        near = decrement <= _NEAR * (1.0 + abs(value)) and np.abs(x @ step).max() <= _MOVED
        length = 1.0
        for _ in range(_HALVINGS):
            found = objective(w - length * step)
            if near or found <= value - 1e-4 * length * decrement + _SLACK * abs(value):
                break
            length *= 0.5
        w, value = w - length * step, found
    return w, False
