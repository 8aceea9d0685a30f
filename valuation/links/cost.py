"""What a deletion would cost, told before it is executed. It never justifies refusing one."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import asdict, dataclass, replace
from typing import Final

import numpy as np

from privml.backbones.digests import Json
from privml.rng import ScienceSeed
from privml.valuation.errors import RunMismatch, SettingError
from privml.valuation.intervals import half_width, largest_size, rounding
from privml.valuation.links.deletion import players_of
from privml.valuation.links.recording import Recording
from privml.valuation.methods.base import checked_utility
from privml.valuation.parallel import Workers
from privml.valuation.problem import Floats, Ints, PlayerId, Problem
from privml.valuation.result import ValuationResult
from privml.valuation.utilities.base import Utility

NOTE: Final = (
    "A deletion is owed whatever it costs: use this to plan what to collect again. The report is "
    "derived from the records named in the request; remove it with them."
)


@dataclass(frozen=True)
class ForgettingCost:
    """The report of one request; NaN where not known.

    Attributes
    ----------
    players, rows
        How many would go.
    value, value_low, value_high
        Sum of their values, with an interval: from single units if a recording was given, else the
        sum of the single intervals, which is wider.
    share
        Of the sum of all values; only for values that sum to U(N) - U(empty).
    interval
        ``"units"`` or ``"sum of intervals"``.
    change, change_low, change_high
        U without the players minus U with them, measured by training, and a t-interval over parts
        of the validation rows.
    evaluations, rows_trained
        Cost of this report.
    affected, units
        Units of the recording that hold one of the players, of how many.
    ci_level
        Confidence of each interval.
    note
        How to read it.
    """

    players: int
    rows: int
    value: float
    value_low: float
    value_high: float
    share: float
    interval: str
    change: float
    change_low: float
    change_high: float
    evaluations: int
    rows_trained: int
    affected: int
    units: int
    ci_level: float
    note: str = NOTE

    def to_json(self) -> dict[str, Json]:
        """Return the report as JSON; unknown numbers as None."""
        found = asdict(self)
        return {
            name: None if isinstance(value, float) and not math.isfinite(value) else value
            for name, value in found.items()
        }


def cost_of_forgetting(
    problem: Problem,
    result: ValuationResult,
    ids: Iterable[PlayerId],
    *,
    utility: Utility | None = None,
    recording: Recording | None = None,
    folds: int = 10,
    random_state: int = 0,
) -> ForgettingCost:
    """Return what deleting some players would cost; nothing is deleted.

    Parameters
    ----------
    problem, result
        The problem and its values.
    ids
        Names of the players.
    utility
        If given, the change of U is measured by training with and without them, ``folds + 1`` times
        two coalitions.
    recording
        If given, the interval of the sum comes from single units.
    folds
        Parts of the validation rows behind the interval of the change, at least 2, or 0 for none.
    random_state
        How validation rows are parted.

    Raises
    ------
    RunMismatch
        The result or the recording is of another problem.
    """
    players = players_of(problem, ids)
    if result.data_digest != problem.digest():
        raise RunMismatch("the result belongs to another problem")
    total = float(result.values[players].sum())
    low, high, how = _interval(problem, result, players, recording)
    efficient = not math.isnan(result.efficiency_residual)
    whole = float(result.values.sum())
    change, ends, cost = math.nan, (math.nan, math.nan), (0, 0)
    if utility is not None:
        change, ends, cost = _measured(
            problem, checked_utility(utility), players, folds, random_state, result.ci_level
        )
    affected = 0 if recording is None else _affected(recording, players)
    return ForgettingCost(
        len(players), int(problem.row_counts[players].sum()), total, low, high,
        total / whole if efficient and whole else math.nan, how, change, *ends, *cost,
        affected, 0 if recording is None else recording.units, result.ci_level,
    )  # fmt: skip


def _interval(
    problem: Problem, result: ValuationResult, players: Ints, recording: Recording | None
) -> tuple[float, float, str]:
    if recording is not None and recording.data_digest != problem.digest():
        raise RunMismatch("the recording belongs to another problem")
    if recording is None or recording.scores.ndim < _WALKS:
        low, high = result.ci_low[players].sum(), result.ci_high[players].sum()
        return float(low), float(high), "sum of intervals"
    sums = recording.contributions()[:, players].sum(axis=1)
    middle, half = _mean_interval(sums, result.ci_level)
    half += rounding(largest_size(sums), len(sums)) + len(players) * result.rounding
    return middle - half, middle + half, "units"


_WALKS: Final = 3


def _mean_interval(values: Floats, level: float) -> tuple[float, float]:
    if len(values) < 2:
        return float(values.mean()), math.nan
    stderr = np.array([values.std(ddof=1) / math.sqrt(len(values))])
    return float(values.mean()), float(half_width(stderr, np.array([len(values) - 1]), level)[0])


def _affected(recording: Recording, players: Ints) -> int:
    if recording.scores.ndim == _WALKS:
        return recording.units
    sampler, hit = recording.sampler, 0
    for number in range(recording.units):
        unit = sampler.unit(number, recording.seed, recording.law)
        hit += bool(np.isin(unit.coalitions[0], players).any())
    return hit


def _measured(
    problem: Problem,
    utility: Utility,
    players: Ints,
    folds: int,
    random_state: int,
    level: float,
) -> tuple[float, tuple[float, float], tuple[int, int]]:
    """Return the change of U, its interval and the cost."""
    m = len(problem.X_val)
    if folds and not 2 <= folds <= m:
        raise SettingError(f"folds={folds}: give 0, or 2 to {m}, the validation rows")
    order = ScienceSeed(random_state).child("folds").generator().permutation(m)
    parts = [np.arange(m), *(np.sort(part) for part in np.array_split(order, folds or 1))]
    changes, cost, largest = [], np.zeros(2, dtype=np.int64), 0.0
    with Workers(1):
        for part in parts[: folds + 1]:
            chosen = replace(
                problem,
                X_val=np.ascontiguousarray(problem.X_val[part]),
                y_val=np.ascontiguousarray(problem.y_val[part]),
                _digest="",
            )
            game = utility.open(chosen)
            everybody = np.arange(problem.players)
            with_them, without = game.score([everybody, np.delete(everybody, players)])
            changes.append(float(without - with_them))
            largest = max(largest, largest_size(with_them, without))
            cost += game.tally.evaluations, game.tally.rows_trained
    half = _mean_interval(np.array(changes[1:]), level)[1] if folds else math.nan
    half += rounding(largest, 2 * problem.players + folds)
    spent = int(cost[0]), int(cost[1])
    return changes[0], (changes[0] - half, changes[0] + half), spent
