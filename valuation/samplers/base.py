"""What every sampler keeps: units of work that are pure functions of seed and index.

Units are independent and identically distributed, so intervals come from the spread of units;
any unit can be made again from its index, so coalitions are never stored.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from privml.backbones.digests import Json
from privml.rng import Generator, ScienceSeed
from privml.valuation.laws import SizeLaw
from privml.valuation.problem import Floats, Ints
from privml.valuation.samplers.estimates import Estimate
from privml.valuation.utilities.base import Game, Truncation, settings_json


@dataclass(frozen=True, eq=False)
class Unit:
    """One unit of work.

    Attributes
    ----------
    index
        Number of the unit.
    orders
        (w, L) int64 walks, w = 0 if there are none.
    coalitions
        Sets of players, each scored once.
    """

    index: int
    orders: Ints
    coalitions: tuple[Ints, ...] = ()


@dataclass(frozen=True, eq=False)
class Outcome:
    """What one unit gave.

    Attributes
    ----------
    evaluations, rows_trained
        Its cost.
    scores
        (w, L+1) scores of the walks, or (k,) scores of the coalitions.
    """

    evaluations: int
    rows_trained: int
    scores: Floats


class Sampler(ABC):
    """A frozen dataclass of settings."""

    kind: ClassVar[str] = ""

    @abstractmethod
    def unit(self, index: int, seed: ScienceSeed, law: SizeLaw) -> Unit:
        """Return unit number ``index``; equal arguments give equal units.

        Parameters
        ----------
        index
            At least 0.
        seed
            Seed of the run.
        law
            Size law of the value; its ``n`` is the number of players.
        """

    @abstractmethod
    def evaluations(self, law: SizeLaw) -> int:
        """Return the most evaluations that one unit costs."""

    @abstractmethod
    def estimate(self, law: SizeLaw, empty: float) -> Estimate:
        """Return an empty estimate that takes the units of this sampler."""

    @abstractmethod
    def check(self, law: SizeLaw) -> None:
        """Raise ``SettingError`` if a setting or the law does not fit."""

    @property
    def cut_below(self) -> float | None:
        """Truncation tolerance of walks, None if walks are never cut."""
        return None

    def spec(self) -> dict[str, Json]:
        """Return the settings as JSON."""
        return {"kind": self.kind or type(self).__name__, **settings_json(self)}

    def generator(self, index: int, seed: ScienceSeed) -> Generator:
        """Return the generator of one unit."""
        return seed.child("unit", index).generator()


def evaluate(game: Game, units: list[Unit], truncation: Truncation | None) -> list[Outcome]:
    """Score several units together; each gets what it would get alone."""
    if not units:
        return []
    if len(units[0].orders):
        return _evaluate_walks(game, units, truncation)
    sets = [coalition for unit in units for coalition in unit.coalitions]
    scores, out, at = game.score(sets), [], 0
    for unit in units:
        asked = [members for members in unit.coalitions if len(members)]
        rows = sum(int(game.row_counts[members].sum()) for members in asked)
        end = at + len(unit.coalitions)
        out.append(Outcome(len(asked), rows, scores[at:end]))
        at = end
    return out


def _evaluate_walks(game: Game, units: list[Unit], truncation: Truncation | None) -> list[Outcome]:
    scores = game.walks(np.concatenate([u.orders for u in units]), truncation=truncation)
    out, at = [], 0
    for unit in units:
        own = scores[at : at + len(unit.orders)]
        at += len(unit.orders)
        scored = ~np.isnan(own[:, 1:])
        rows = np.cumsum(game.row_counts[unit.orders], axis=1)
        out.append(Outcome(int(scored.sum()), int(rows[scored].sum()), own))
    return out
