"""Games whose model learns row by row: a walk of players becomes one sequence of rows."""

from __future__ import annotations

from abc import abstractmethod

import numpy as np
from numpy.typing import NDArray

from privml.valuation.problem import Floats, Ints, Problem
from privml.valuation.utilities.base import Coalitions, Game, batches
from privml.valuation.utilities.metrics import Empty, Scorer

Marks = NDArray[np.uint8]


class SequenceGame(Game):
    """A game that scores marked prefixes of one sequence of rows at a time.

    Each walk, and each coalition (its rows ascending), is computed on its own, so scores cannot
    depend on what else is asked for. A prefix whose rows are all of one class predicts that class,
    whatever the model.

    Parameters
    ----------
    problem
        The problem.
    metric, empty
        As :class:`privml.valuation.utilities.metrics.Scorer` takes them.
    """

    batch = 64

    def __init__(self, problem: Problem, *, metric: str, empty: Empty) -> None:
        self.problem = problem
        self.scorer = Scorer.of(metric, problem)
        super().__init__(
            problem.players, self.scorer.of_empty(empty), row_counts=problem.row_counts
        )
        self._by_class = (
            [self.scorer.of_class(code) for code in range(len(problem.classes))]
            if problem.task == "classification"
            else []
        )

    @abstractmethod
    def _sequence(self, rows: Ints, mark: Marks) -> Floats:
        """Return (marks,) scores of the prefixes that end at marked rows."""

    def _score(self, coalitions: Coalitions) -> Floats:
        out = np.empty(len(coalitions))
        for at, members in enumerate(coalitions):
            rows = self.problem.rows_of_all(members)
            mark = np.zeros(len(rows), dtype=np.uint8)
            mark[-1] = 1
            out[at] = self._scored(rows, mark)[0]
        return out

    def _walks(self, orders: Ints) -> Floats:
        out = np.empty(orders.shape)
        for at, order in enumerate(orders):
            rows, mark = self._rows(order)
            out[at] = self._scored(rows, mark)
        return out

    def _rows(self, order: Ints) -> tuple[Ints, Marks]:
        if self.problem.group_mode == "row":
            return order, np.ones(len(order), dtype=np.uint8)
        rows = np.concatenate([self.problem.rows_of(int(player)) for player in order])
        mark = np.zeros(len(rows), dtype=np.uint8)
        mark[np.cumsum(self.row_counts[order]) - 1] = 1
        return rows, mark

    def _scored(self, rows: Ints, mark: Marks) -> Floats:
        """Score a sequence; prefixes of one class are overwritten by that class."""
        out = self._sequence(np.ascontiguousarray(rows), mark)
        if self._by_class:
            codes = self.problem.codes[rows]
            other = codes != codes[0]
            alone = int(other.argmax()) if other.any() else len(codes)
            out[: int(np.count_nonzero(mark[:alone]))] = self._by_class[int(codes[0])]
        return out


def score_in_parts(scorer: Scorer, decisions: Floats) -> Floats:
    """Return (k,) scores of (k, m) or (k, m, c) decisions, a cache-sized part at a time."""
    each = max(1, (1 << 15) // max(1, decisions[0].size if len(decisions) else 1))
    if len(decisions) <= each:
        return scorer.margins(decisions)
    return np.concatenate([scorer.margins(decisions[p]) for p in batches(len(decisions), each)])
