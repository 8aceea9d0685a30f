"""Removal and addition curves: what the model is worth as players leave or join by value."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np

from privml.rng import ScienceSeed
from privml.valuation.errors import SettingError
from privml.valuation.problem import Floats, Ints
from privml.valuation.result import ValuationResult
from privml.valuation.utilities.base import Game

_POINTS: Final = 11
_RANDOM: Final = 3


@dataclass(frozen=True, eq=False)
class Curve:
    """One curve.

    Attributes
    ----------
    name
        Who leaves or joins: ``"remove best first"``, ...
    share
        (k,) float64 share of the players that left or joined.
    score
        (k,) float64 U of those that are in.
    low, high
        (k,) float64 smallest and largest of several random orders, or None.
    """

    name: str
    share: Floats
    score: Floats
    low: Floats | None = None
    high: Floats | None = None


def removal_curves(
    result: ValuationResult,
    game: Game,
    *,
    points: int = _POINTS,
    most: float = 0.5,
    random_state: int = 0,
) -> tuple[Curve, ...]:
    """Return removal and addition curves on the rows that ``game`` scores.

    A useful ranking falls fast when its best players leave and does not fall (or rises) when its
    worst leave. Open ``game`` on rows that the values were *not* computed on: on the same rows the
    curves flatter the values.

    Parameters
    ----------
    result
        Values of the players of ``game``.
    game
        Utility opened on the rows to report on.
    points
        Points of each curve, at least 2; the cost is about ``7 * points`` evaluations.
    most
        Largest share that is removed or added, 0 < most <= 1.
    random_state
        Seed of the three random orders.
    """
    n = len(result.ids)
    if game.players != n:
        raise SettingError(f"the game has {game.players} players, the result {n}; use one problem")
    if points < 2 or not 0 < most <= 1:
        raise SettingError("points is at least 2 and most lies in (0, 1]")
    best = result.top(n)
    worst = result.bottom(n)
    generator = ScienceSeed(random_state).child("curves").generator()
    drawn = [generator.permutation(n).astype(np.int64) for _ in range(_RANDOM)]
    counts = np.unique(np.round(np.linspace(0, most * n, points)).astype(np.int64))
    share = counts / n
    orders = [best, worst, *drawn]
    out = [_scores(game, [order[count:] for count in counts]) for order in orders]
    grown = [_scores(game, [order[:count] for count in counts]) for order in (best, worst)]
    chance = np.stack(out[2:])
    low, high = chance.min(axis=0), chance.max(axis=0)
    return (
        Curve("remove best first", share, out[0]),
        Curve("remove worst first", share, out[1]),
        Curve("remove at random", share, chance.mean(axis=0), low, high),
        Curve("add best first", share, grown[0]),
        Curve("add worst first", share, grown[1]),
    )


def _scores(game: Game, coalitions: list[Ints]) -> Floats:
    return game.score(coalitions)
