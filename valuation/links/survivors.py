"""The units of a run after a deletion: as they were, without the players that are gone.

A uniform random walk without z is a uniform random walk over the others, and a random half of the
players without z is a random half of the others. So the reduced units are the units of a proper
sampler on the survivors, and they do not depend on the order of deletions.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from privml.backbones.digests import Json
from privml.rng import ScienceSeed
from privml.valuation.errors import SettingError
from privml.valuation.laws import SizeLaw
from privml.valuation.problem import Ints
from privml.valuation.samplers import MSR
from privml.valuation.samplers.base import Sampler, Unit
from privml.valuation.samplers.estimates import Estimate
from privml.valuation.samplers.walks import WalkSampler


@dataclass(frozen=True)
class Survivors(Sampler):
    """A sampler on the players left of a larger run.

    Parameters
    ----------
    base
        Sampler of the run before deletions: untruncated walks, or draws of halves.
    players
        Number of players then.
    gone
        Their numbers that are deleted, ascending.
    """

    kind: ClassVar[str] = "survivors/1"
    base: Sampler
    players: int
    gone: tuple[int, ...]

    def unit(self, index: int, seed: ScienceSeed, law: SizeLaw) -> Unit:
        """Return a unit of the base sampler without the deleted players, renumbered."""
        del law
        unit, number = self.before(index, seed), self.numbers()
        if not len(unit.orders):
            left = tuple(number[c][number[c] >= 0] for c in unit.coalitions)
            return Unit(index, unit.orders, left)
        orders = number[unit.orders]
        return Unit(index, orders[orders >= 0].reshape(len(orders), -1))

    def before(self, index: int, seed: ScienceSeed) -> Unit:
        """Return the unit of the base sampler."""
        return self.base.unit(index, seed, self._base_law())

    def numbers(self) -> Ints:
        """Return (players,) the number of each player among the survivors, -1 if deleted."""
        number = np.full(self.players, -1, dtype=np.int64)
        left = np.delete(np.arange(self.players), list(self.gone))
        number[left] = np.arange(len(left))
        return number

    def evaluations(self, law: SizeLaw) -> int:
        """Return the most evaluations that one unit costs."""
        each = self.base.evaluations(self._base_law())
        return each if isinstance(self.base, MSR) else each // self.players * law.n

    def estimate(self, law: SizeLaw, empty: float) -> Estimate:
        """Return an empty estimate that takes the units of this sampler."""
        return self.base.estimate(law, empty)

    def check(self, law: SizeLaw) -> None:
        """Check that the units stay units of the law."""
        inside = all(0 <= player < self.players for player in self.gone)
        if not inside or len(set(self.gone)) != len(self.gone):
            raise SettingError(f"deleted players {self.gone} must differ and lie in the run")
        if law.n != self.players - len(self.gone):
            raise SettingError("the law is of another number of players than survived")
        if not isinstance(self.base, MSR | WalkSampler) or self.base.cut_below is not None:
            raise SettingError("only untruncated walks and MSR draws have units that stay valid")
        if isinstance(self.base, WalkSampler) and law.largest != law.n - 1:
            raise SettingError("walks of capped laws do not stay valid; run them again")
        self.base.check(law)

    def without(self, survivors: tuple[int, ...]) -> Survivors:
        """Return the sampler after a further deletion, players numbered as survivors."""
        left = np.flatnonzero(self.numbers() >= 0)
        gone = sorted({*self.gone, *(int(left[player]) for player in survivors)})
        return Survivors(self.base, self.players, tuple(gone))

    def spec(self) -> dict[str, Json]:
        """Return the settings as JSON."""
        return {
            "kind": self.kind,
            "base": self.base.spec(),
            "players": self.players,
            "gone": list(self.gone),
        }

    def _base_law(self) -> SizeLaw:
        make = SizeLaw.banzhaf if isinstance(self.base, MSR) else SizeLaw.shapley
        return make(self.players)
