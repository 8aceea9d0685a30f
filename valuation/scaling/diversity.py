"""More groups or more rows of each: what a user's own grouped table says.

Groups are hospitals, sites, users, sources. Two curves: a growing number of groups with a fixed
number of rows each, and all groups with a growing number of rows each. The first curve is the mean
utility by coalition size of the game whose players are groups, so its total rise, shared among the
groups, is their mean Shapley value, and its next step is what one more group is worth on average.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final, Literal, TypeAlias

import numpy as np
from numpy.typing import ArrayLike

from privml.rng import Generator, ScienceSeed
from privml.valuation.errors import ProblemError
from privml.valuation.methods.base import checked_utility, seed_of
from privml.valuation.problem import Floats, Ints, PlayerId, Problem, Task
from privml.valuation.scaling.checks import positive, whole
from privml.valuation.scaling.law import ScalingLaw
from privml.valuation.utilities.base import Game, Utility

Advice: TypeAlias = Literal["more groups", "more rows per group", "unclear"]

_GROUPS: Final = 2
_CLEAR: Final = 2.0
_ENOUGH: Final = 8


@dataclass(frozen=True, eq=False)
class Curve:
    """Mean utility over a growing number of groups, or of rows per group.

    Attributes
    ----------
    counts
        (k,) int64 numbers, ascending, by doubling.
    scores
        (repeats, k) float64 utilities.
    law
        Law of the mean scores; None where it cannot be fitted.
    reason
        Why there is no law.
    """

    counts: Ints
    scores: Floats
    law: ScalingLaw | None
    reason: str

    @property
    def mean(self) -> Floats:
        """(k,) float64 mean utility."""
        return np.asarray(self.scores.mean(axis=0))

    @property
    def stderr(self) -> Floats:
        """(k,) float64 standard error of the mean; NaN for a single repeat."""
        repeats = len(self.scores)
        if repeats == 1:
            return np.full(self.scores.shape[1], np.nan)
        return np.asarray(self.scores.std(axis=0, ddof=1) / np.sqrt(repeats))

    @property
    def exponent(self) -> tuple[float, float]:
        """Exponent of the law and its jackknife standard error over repeats; NaN if unknown."""
        if self.law is None:
            return np.nan, np.nan
        repeats = len(self.scores)
        try:
            left = [
                _fit(self.counts, np.delete(self.scores, r, axis=0), self.law.max_score).b
                for r in range(repeats if repeats > 1 else 0)
            ]
        except ProblemError:
            left = []
        spread = np.std(left) * np.sqrt(repeats - 1) if left else np.nan
        return self.law.b, float(spread)


@dataclass(frozen=True, eq=False)
class DiversityReport:
    """Both curves and what they advise.

    Attributes
    ----------
    groups
        Curve over the number of groups, ``rows_per_group`` rows of each.
    rows
        Curve over the rows of each group, all groups.
    rows_per_group
        Rows of each group on the first curve: as many as the smallest group has.
    mean_value
        Mean Shapley value of a group at that size: (U(all) - U(nothing)) / groups.
    advice
        The curve along which the gap falls faster with every doubling: the law with the smaller
        exponent, if by two standard errors. Unclear below 8 groups: the errors cover the draws,
        not which groups happen to be in the table.
    evaluations, rows_trained
        Cost.
    """

    groups: Curve
    rows: Curve
    rows_per_group: int
    mean_value: float
    advice: Advice
    evaluations: int
    rows_trained: int


def diversity_report(
    utility: Utility,
    X: ArrayLike,
    y: ArrayLike,
    X_val: ArrayLike,
    y_val: ArrayLike,
    *,
    groups: Iterable[PlayerId],
    max_score: float = 1.0,
    repeats: int = 8,
    task: Task | None = None,
    random_state: int | ScienceSeed = 0,
) -> DiversityReport:
    """Compare more groups with more rows of each group.

    Parameters
    ----------
    utility
        What a set of rows is worth; more is better and ``max_score`` is perfect.
    X, y, X_val, y_val, task
        As :meth:`privml.valuation.problem.Problem.of` takes them. Validation rows should come from
        groups that are not in ``X``.
    groups
        (n,) group of each row; at least two groups, of at least two rows each.
    max_score
        Utility of a perfect model: 1 for accuracy and R2.
    repeats
        Random orders of groups and rows.
    random_state
        Seed; equal seeds give equal reports.

    Raises
    ------
    ProblemError, SettingError
        Data or a setting does not fit.
    UtilityFailed
        A model could not be trained or scored.
    """
    top = positive("max_score", max_score)
    whole("repeats", repeats)
    grouped = Problem.of(X, y, X_val, y_val, groups=groups, task=task)
    per_group = int(grouped.row_counts.min())
    if grouped.players < _GROUPS or per_group < _GROUPS:
        raise ProblemError(
            f"{grouped.players} groups, the smallest of {per_group} rows: a comparison needs two "
            "groups with two rows each; merge or drop small groups"
        )
    rows = Problem.of(grouped.X, grouped.y, grouped.X_val, grouped.y_val, task=grouped.task)
    game = checked_utility(utility).open(rows)
    generator = seed_of(random_state).child("diversity").generator()
    orders = [_order(grouped, per_group, generator) for _ in range(repeats)]
    many, deep = _doubling(grouped.players), _doubling(per_group)
    by_group = _curve(game, [[o[:g].ravel() for g in many] for o in orders], many, top)
    by_row = _curve(game, [[o[:, :k].ravel() for k in deep] for o in orders], deep, top)
    return DiversityReport(
        groups=by_group,
        rows=by_row,
        rows_per_group=per_group,
        mean_value=float((by_group.mean[-1] - game.empty) / grouped.players),
        advice=_advice(by_group, by_row),
        evaluations=game.tally.evaluations,
        rows_trained=game.tally.rows_trained,
    )


def _order(problem: Problem, per_group: int, generator: Generator) -> Ints:
    """Return (groups, per_group) int64 rows: groups in random order, rows of each likewise."""
    order = generator.permutation(problem.players)
    return np.stack(
        [generator.permutation(problem.rows_of(int(group)))[:per_group] for group in order]
    )


def _doubling(most: int) -> Ints:
    sizes = [1]
    while sizes[-1] * 2 <= most:
        sizes.append(sizes[-1] * 2)
    if sizes[-1] < most:
        sizes.append(most)
    return np.array(sizes, dtype=np.int64)


def _curve(game: Game, coalitions: Sequence[Sequence[Ints]], counts: Ints, top: float) -> Curve:
    scores = np.stack([game.score(walk) for walk in coalitions])
    try:
        law: ScalingLaw | None = _fit(counts, scores, top)
        reason = ""
    except ProblemError as error:
        law, reason = None, str(error)
    return Curve(counts, scores, law, reason)


def _fit(counts: Ints, scores: Floats, top: float) -> ScalingLaw:
    return ScalingLaw.fit(counts, scores.mean(axis=0), max_score=top)


def _advice(by_group: Curve, by_row: Curve) -> Advice:
    (many, many_error), (deep, deep_error) = by_group.exponent, by_row.exponent
    if by_group.counts[-1] < _ENOUGH:
        return "unclear"
    if not abs(many - deep) > _CLEAR * np.hypot(many_error, deep_error):
        return "unclear"
    return "more groups" if many < deep else "more rows per group"
