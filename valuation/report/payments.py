"""Values and what a payment rule would make of them, side by side, with the uncertainty of both.

The rule: a fixed budget; a floor that everybody gets for taking part; the rest in proportion to the
positive part of the value. Nothing here says that values are good prices: :data:`INCENTIVES` is
part of every price list.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final

import numpy as np

from privml.rng import ScienceSeed
from privml.valuation.errors import SettingError
from privml.valuation.problem import Floats, PlayerId
from privml.valuation.result import ValuationResult

INCENTIVES: Final = (
    "Values are not prices. A payment by value is not incentive compatible: contributors may gain "
    "by copying, splitting or withholding rows, as only VCG or Myerson type auctions rule out "
    "(arXiv 2504.05563). Whoever chooses utility, metric and validation rows chooses who is paid "
    "(arXiv 2506.12619). Rows of value near zero were collected at a cost and earn nothing but the "
    "floor (arXiv 2510.08869)."
)
_DRAWS: Final = 2_000
_CHUNK: Final = 2_000_000


@dataclass(frozen=True, eq=False)
class Prices:
    """A price list.

    Attributes
    ----------
    ids
        Players.
    values, ci_low, ci_high
        (n,) float64 values and their intervals, as in the result.
    price, price_low, price_high
        (n,) float64 payment by the rule, and the range it has at the same confidence level if all
        values vary as their errors say.
    unpaid_prob
        (n,) float64 probability to get no more than the floor.
    equal
        Payment if the budget were split evenly.
    budget, floor
        Amount to be paid in all, and to each player at least.
    level
        Confidence of the intervals.
    warning
        :data:`INCENTIVES`.
    """

    ids: tuple[PlayerId, ...]
    values: Floats
    ci_low: Floats
    ci_high: Floats
    price: Floats
    price_low: Floats
    price_high: Floats
    unpaid_prob: Floats
    equal: float
    budget: float
    floor: float
    level: float
    warning: str = INCENTIVES


def pricing(
    result: ValuationResult,
    *,
    budget: float,
    floor: float = 0.0,
    draws: int = _DRAWS,
    random_state: int = 0,
) -> Prices:
    """Return the payments of the rule and how sure they are.

    Each value is drawn from a normal distribution with its standard error, independently, ``draws``
    times; every draw is paid for, and the payments' quantiles are the range. Errors of sampled
    values are slightly dependent (their sum is nearly fixed), which this leaves out.

    Parameters
    ----------
    result
        Values; groups make one player per contributor.
    budget
        Amount to be paid, > 0.
    floor
        Part of it that each player gets whatever its value; players · floor <= budget.
    draws
        Draws for the range.
    random_state
        Seed of the draws.

    Raises
    ------
    SettingError
        Budget, floor or draws are out of range, or a value is unknown.
    """
    n = len(result.ids)
    if not (budget > 0 and math.isfinite(budget)):
        raise SettingError(f"budget={budget} must be a positive number")
    if not 0 <= floor * n <= budget * (1 + 1e-12):
        raise SettingError(f"floor={floor} for {n} players does not fit the budget of {budget}")
    if draws < 1:
        raise SettingError(f"draws={draws}: give at least 1")
    if np.isnan(result.values).any():
        raise SettingError("some values are unknown: run longer, or leave these players out")
    price = paid(result.values, budget=budget, floor=floor)
    low, high, unpaid = _spread(result, budget, floor, draws, random_state)
    return Prices(
        ids=result.ids,
        values=result.values,
        ci_low=result.ci_low,
        ci_high=result.ci_high,
        price=price,
        price_low=low,
        price_high=high,
        unpaid_prob=unpaid,
        equal=budget / n,
        budget=float(budget),
        floor=float(floor),
        level=result.ci_level,
    )


def paid(values: Floats, *, budget: float, floor: float) -> Floats:
    """Return (..., n) payments: the floor, and the rest by the positive part of the value.

    Where no value is positive the rest is not paid.
    """
    positive = np.maximum(values, 0.0)
    total = positive.sum(axis=-1, keepdims=True)
    share = np.divide(positive, total, out=np.zeros_like(positive), where=total > 0)
    out: Floats = floor + share * max(budget - floor * values.shape[-1], 0.0)
    return out


def _spread(
    result: ValuationResult, budget: float, floor: float, draws: int, random_state: int
) -> tuple[Floats, Floats, Floats]:
    """Return the range of each payment and the probability of none but the floor."""
    stderr = np.nan_to_num(result.stderr, nan=0.0)
    unknown = np.isnan(result.stderr)
    n, tail = len(stderr), (1 - result.ci_level) / 2
    draws = max(min(draws, _CHUNK // n), 200)
    generator = ScienceSeed(random_state).child("pricing").generator()
    drawn = result.values + stderr * generator.standard_normal((draws, n))
    pays = paid(drawn, budget=budget, floor=floor)
    low, high = np.quantile(pays, [tail, 1 - tail], axis=0)
    unpaid = (drawn <= 0).mean(axis=0)
    for array in (low, high, unpaid):
        array[unknown] = np.nan
    return low, high, unpaid
