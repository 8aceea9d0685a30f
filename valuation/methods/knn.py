"""KNN-Shapley: exact Shapley values of a nearest-neighbour model, without training anything."""

from __future__ import annotations

import math
import time
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Final, Literal, Self, TypeAlias

import numpy as np

from privml.backbones.digests import Json
from privml.valuation.errors import SettingError
from privml.valuation.intervals import largest_size, rounding
from privml.valuation.methods import knn_formulas as formulas
from privml.valuation.methods.base import Valuer, residual, spec_digest, versions
from privml.valuation.methods.knn_game import NeighbourGame
from privml.valuation.methods.knn_groups import neighbour_groups, threshold_groups
from privml.valuation.methods.knn_order import (
    Neighbours,
    Order,
    Precision,
    add_shares,
    available,
)
from privml.valuation.methods.knn_rules import KnnRule, Weights, scattered
from privml.valuation.methods.knn_subsets import nearest_sets
from privml.valuation.parallel import Workers
from privml.valuation.problem import Floats, Ints, Problem
from privml.valuation.result import ValuationResult
from privml.valuation.utilities.base import batches

GroupChoice: TypeAlias = Literal["player", "sum"]
_CELLS: Final = 1 << 17
_LEAST: Final = 4
_ROUND: Final = 64


class KNNShapley(Valuer):
    """Exact Shapley values under a nearest-neighbour utility; see :class:`KnnRule`.

    Parameters
    ----------
    k
        Neighbours.
    radius
        Threshold KNN: count the rows within this distance instead of k neighbours.
    weights, bandwidth
        Weights by distance: ``"uniform"``, ``"inverse"``, ``"gaussian"``.
    normalised
        Divide by the sum of weights, not by k. With weights, and in a regression, this needs all
        sets of at most k rows: for few rows or small k only.
    empty
        U(empty) where the formula leaves it open: ``"chance"`` or a number.
    truncate
        Look at the nearest ``max(k, ceil(1 / truncate))`` rows only; every value is then within
        ``truncate`` of the exact one. Classes and uniform weights only.
    precision
        ``"float64"`` or ``"float32"``, of distances; sums are always float64. float32 may order
        nearly equal distances otherwise.
    group_mode
        For groups: ``"player"``, a group enters a coalition as a whole, or ``"sum"`` of the values
        of its rows.
    n_jobs
        Threads; no influence on values.

    Notes
    -----
    Cost for n training rows, m validation rows and d columns: O(m n (d + log n)) time, O(n) memory
    for each thread. Equal distances are ordered by row number. Values tell who is near whom: they
    leak membership of neighbours if they are shown to several contributors.

    Examples
    --------
    >>> X, y = [[0.0], [1.0], [3.0]], ["a", "b", "a"]
    >>> KNNShapley(k=1).fit(X, y, [[0.2]], ["a"]).values_.round(4).tolist()
    [0.8333, -0.1667, 0.3333]
    """

    def __init__(
        self,
        k: int = 5,
        *,
        radius: float | None = None,
        weights: Weights = "uniform",
        bandwidth: float = 1.0,
        normalised: bool = False,
        empty: Literal["chance"] | float = "chance",
        truncate: float | None = None,
        precision: Precision = "float64",
        group_mode: GroupChoice = "player",
        n_jobs: int = 1,
    ) -> None:
        self.k = k
        self.radius = radius
        self.weights = weights
        self.bandwidth = bandwidth
        self.normalised = normalised
        self.empty = empty
        self.truncate = truncate
        self.precision = precision
        self.group_mode = group_mode
        self.n_jobs = n_jobs

    @property
    def rule(self) -> KnnRule:
        """The settings of the utility."""
        return KnnRule(
            self.k, self.radius, self.weights, self.bandwidth, self.normalised, self.empty
        )

    def game(self, problem: Problem) -> NeighbourGame:
        """Return the game whose Shapley values these are, for enumeration or sampling."""
        return NeighbourGame(problem, self.rule, precision=self.precision)

    def fit_problem(self, problem: Problem) -> Self:
        """Value the players of a problem."""
        started, rule = time.monotonic(), self.rule
        rule.check(problem)
        keep = self._kept(problem)
        if self.group_mode not in {"player", "sum"}:
            raise SettingError(f"group_mode={self.group_mode!r}: use 'player' or 'sum'")
        search = Neighbours.of(problem.X, problem.X_val, precision=self.precision)
        whole = problem.group_mode == "player" and self.group_mode == "player"
        job = _Job(problem, rule, search, keep, whole)
        values, full = self._run(job)
        if problem.group_mode == "player" and not whole:
            values = scattered(problem.player_of, values, problem.players)
        self.result_ = self._result(
            problem,
            values,
            full - float(rule.nothing(problem, problem.y_val).mean()),
            keep=keep,
            seconds=time.monotonic() - started,
        )
        return self

    def _kept(self, problem: Problem) -> int:
        if self.truncate is None:
            return problem.n
        if not 0 < self.truncate < 1:
            raise SettingError(f"truncate={self.truncate} must lie strictly between 0 and 1")
        plain = self.weights == "uniform" and not self.normalised and self.radius is None
        if not plain or problem.task != "classification" or problem.group_mode == "player":
            raise SettingError(
                "truncate is for classes, uniform weights, k neighbours and single rows"
            )
        return min(problem.n, max(self.k, math.ceil(1.0 / self.truncate)))

    def _run(self, job: _Job) -> tuple[Floats, float]:
        """Return the means over validation rows of the values and of U of all rows."""
        m = len(job.problem.X_val)
        count = job.problem.players if job.whole else job.problem.n
        values, full = np.zeros(count), 0.0
        parts = list(batches(m, max(_LEAST, _CELLS // job.keep)))
        round_parts = max(_LEAST, _ROUND * _CELLS // count)
        workers = Workers(self.n_jobs, backend="threading")
        for some in batches(len(parts), round_parts):
            # no sum here goes through BLAS, so one job needs no pinning
            alone = self.n_jobs == 1
            work = partial(_part, job)
            for found, worth in map(work, parts[some]) if alone else workers.map(work, parts[some]):
                values += found
                full += worth
        return values / m, full / m

    def _largest(self, problem: Problem) -> float:
        """Return a bound of the size of U of any coalition."""
        size = 1.0
        if problem.task == "regression":
            size = (largest_size(problem.y) + largest_size(problem.y_val)) ** 2
        return max(size, largest_size(self.rule.nothing(problem, problem.y_val)))

    def _result(
        self, problem: Problem, values: Floats, gain: float, *, keep: int, seconds: float
    ) -> ValuationResult:
        n, exact = len(values), keep == problem.n
        bound = 0.0 if exact else 1.0 / keep
        floor = rounding(self._largest(problem), 2 * n + len(problem.X_val))
        mode = "sum" if problem.group_mode == "player" else "row"
        if mode == "sum" and self.group_mode == "player":
            mode = "player"
        spec: dict[str, Json] = {
            "method": "knn/1", **self.rule.spec(), "precision": self.precision, "keep": keep,
            "group_mode": mode,
        }  # fmt: skip
        return ValuationResult(
            ids=problem.ids,
            values=values,
            stderr=np.zeros(n),
            ci_low=values - bound - floor,
            ci_high=values + bound + floor,
            rounding=floor,
            counts=np.full(n, len(problem.X_val), dtype=np.int64),
            truncated_counts=np.zeros(n, dtype=np.int64),
            evaluations=0,
            rows_trained=0,
            seconds=seconds,
            efficiency_residual=residual(values, gain, 0.0),
            status="exact",
            stop_reason="closed form" if exact else f"nearest {keep} rows, within {bound:g}",
            target="shapley",
            method="KNNShapley" if self.radius is None else "KNNShapley (radius)",
            group_mode=mode,
            spec_digest=spec_digest(spec),
            data_digest=problem.digest(),
            versions=versions(),
        )


@dataclass(frozen=True, eq=False)
class _Job:
    problem: Problem
    rule: KnnRule
    search: Neighbours
    keep: int
    whole: bool


def _part(job: _Job, part: slice) -> tuple[Floats, float]:
    """Return sums over some validation rows: values, and U of all rows."""
    problem, rule = job.problem, job.rule
    order, squares = job.search.nearest(part.start, part.stop, job.keep)
    truth = problem.y_val[part]
    looked = job.keep if rule.radius is not None else min(rule.k, job.keep)
    labels = problem.y[order[:, :looked]]
    worth = float(rule.worth(problem, truth, labels, squares[:, :looked], True).sum())
    block = _Block(problem, rule, order, squares, truth)
    if job.whole:
        return block.groups(), worth
    return block.sums(), worth


@dataclass(frozen=True, eq=False)
class _Block:
    """Some validation rows: (b, s) order and squared distances, nearest first, and truths."""

    problem: Problem
    rule: KnnRule
    order: Order
    squares: Floats
    truth: Floats

    @cached_property
    def own(self) -> Floats:
        """(b, s) match or target of each row."""
        labels = self.problem.y[self.order]
        if self.problem.task == "regression":
            return labels
        return np.asarray(labels == self.truth[:, None]).astype(np.float64)

    def sums(self) -> Floats:
        """Return (n,) sums of the values of rows."""
        rule, problem = self.rule, self.problem
        plain = rule.weights == "uniform" and not rule.normalised and rule.radius is None
        if not plain or problem.task != "classification" or not available():
            return scattered(self.order, self.values(), problem.n)
        out, seen = np.zeros(problem.n), self.order.shape[1]
        add_shares(
            self.order,
            problem.codes.astype(np.int32),
            self.truth.astype(np.int32),
            beyond=self._tail() * (1.0 / seen - 1.0 / problem.n),
            coefficient=formulas.coefficients(seen, rule.k),
            values=out,
        )
        return out

    def values(self) -> Floats:
        """Return (b, s) values by place."""
        rule, problem, n = self.rule, self.problem, self.problem.n
        regression = problem.task == "regression"
        nothing = rule.nothing(problem, self.truth)
        if rule.radius is not None:
            return formulas.threshold(self.own, self.squares <= rule.radius * rule.radius, nothing)
        if rule.normalised and (regression or rule.weights != "uniform"):
            return np.stack([self._by_sets(row, nothing[row]) for row in range(len(self.own))])
        if rule.normalised:
            return formulas.normalised_shares(self.own, rule.k, nothing)
        weighted = self.own * rule.weigh(self.squares)
        if regression:
            return formulas.errors(weighted, self.truth, rule.k)
        return formulas.shares(weighted, rule.k, n, self._tail())

    def groups(self) -> Floats:
        """Return (players,) sums of the values of groups that enter as a whole."""
        rule, problem = self.rule, self.problem
        if rule.normalised:
            raise SettingError(
                "normalised values of groups that enter as a whole have no fast form: use "
                "group_mode='sum', or Shapley().fit_game(method.game(problem))"
            )
        owner, out = problem.player_of[self.order], np.zeros(problem.players)
        nothing = rule.nothing(problem, self.truth)
        weighted = self.own * rule.weigh(self.squares)
        for row in range(len(owner)):
            if rule.radius is not None:
                inside = self.squares[row] <= rule.radius * rule.radius
                out += threshold_groups(
                    owner[row, inside],
                    self.own[row, inside],
                    groups=problem.players,
                    nothing=float(nothing[row]),
                )
                continue
            out += neighbour_groups(
                owner[row],
                weighted[row],
                groups=problem.players,
                k=rule.k,
                truth=float(self.truth[row]) if problem.task == "regression" else None,
            )
        return out

    def _tail(self) -> Floats:
        """Return the mean contribution of rows not looked at: what is left of each class."""
        seen, n = self.own.shape[1], self.problem.n
        if seen == n:
            return np.zeros(len(self.own))
        whole = np.bincount(self.problem.codes, minlength=len(self.problem.classes))
        matching = whole[self.truth.astype(np.int64)] - self.own.sum(axis=1)
        return np.asarray(matching / (n - seen))

    def _by_sets(self, row: int, nothing: float) -> Floats:
        labels = self.problem.y[self.order[row]]

        def worth(sets: Ints) -> Floats:
            truth = np.full(len(sets), self.truth[row])
            return self.rule.worth(self.problem, truth, labels[sets], self.squares[row][sets], True)

        return nearest_sets(worth, float(nothing), self.problem.n, self.rule.k)
