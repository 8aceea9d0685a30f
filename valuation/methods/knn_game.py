"""The nearest-neighbour game by its definition: oracle of the closed forms, and for sampling."""

from __future__ import annotations

import numpy as np

from privml.valuation.methods.knn_order import Neighbours, Precision
from privml.valuation.methods.knn_rules import KnnRule, places
from privml.valuation.problem import Floats, Problem
from privml.valuation.utilities.base import Coalitions, Game


class NeighbourGame(Game):
    """U of coalitions under a :class:`privml.valuation.methods.knn_rules.KnnRule`.

    Parameters
    ----------
    problem
        The problem.
    rule
        What a coalition is worth.
    precision
        Of distances.

    Notes
    -----
    A coalition costs O(m s) for s rows; all distances are computed once.
    """

    def __init__(
        self, problem: Problem, rule: KnnRule, *, precision: Precision = "float64"
    ) -> None:
        rule.check(problem)
        self._problem, self._rule = problem, rule
        search = Neighbours.of(problem.X, problem.X_val, precision=precision)
        order, squares = search.nearest(0, len(problem.X_val), problem.n)
        self._place = places(order)
        self._squares, self._labels = squares, problem.y[order]
        empty = float(rule.nothing(problem, problem.y_val).mean())
        super().__init__(problem.players, empty, row_counts=problem.row_counts)

    def _score(self, coalitions: Coalitions) -> Floats:
        out = np.empty(len(coalitions))
        for at, members in enumerate(coalitions):
            chosen = np.sort(self._place[:, self._problem.rows_of_all(members)], axis=1)
            labels = np.take_along_axis(self._labels, chosen, axis=1)
            squares = np.take_along_axis(self._squares, chosen, axis=1)
            worth = self._rule.worth(self._problem, self._problem.y_val, labels, squares, True)
            out[at] = worth.mean()
        return out
