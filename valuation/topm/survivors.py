"""The units of a top-m run after a deletion: as they were, without the players that are gone.

A random order without z is a random order of the others. Let S be drawn by the law from the others
of an arm: without z it is again uniform for its size, and its size has the law of one player fewer,
``p_k (n-1-k)/(n-1) + p_(k+1) (k+1)/(n-1)``, which for Shapley, Beta, Banzhaf and leave-one-out is
the same law with n - 1 players. So each reduced walk, single pull and pair is a proper unit on the
survivors, with weight one. Capped laws are not kept, and neither are blocks.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from privml.backbones.digests import Json
from privml.rng import ScienceSeed
from privml.valuation.errors import SettingError
from privml.valuation.laws import SizeLaw
from privml.valuation.topm.sums import Ints
from privml.valuation.topm.target import Kind, Request, Target


def stays_valid(base: Target, law: SizeLaw) -> bool:
    """Return whether units of the base, without some players, are units of a law of fewer."""
    reduced = base.law
    for _ in range(base.arms - law.n):
        reduced = reduced.pair_law()
    kept = np.allclose(reduced.p[: law.n], law.p, rtol=1e-9, atol=1e-15)
    return bool(kept) and base.warm != "blocks"


@dataclass(frozen=True, eq=False)
class SurvivorTarget(Target):
    """A target on the players left of a larger run.

    Attributes
    ----------
    base
        Target of the run before the deletion.
    gone
        Numbers, there, of the deleted players, ascending.
    units
        Number, there, of each unit that is kept; later units are drawn anew.
    """

    base: Target
    gone: tuple[int, ...]
    units: tuple[int, ...]

    @classmethod
    def after(cls, base: Target, law: SizeLaw, gone: Ints, units: tuple[int, ...]) -> Target:
        """Return the target without some players.

        Raises
        ------
        SettingError
            The law is not the base's law for fewer players: its units do not stay valid.
        """
        if not stays_valid(base, law):
            raise SettingError(
                f"units of the law {base.law.name} do not stay valid without a player; run again"
            )
        return cls(law, base.warm, base, tuple(gone.tolist()), units)

    def numbers(self) -> Ints:
        """Return the number of each player of the base among the survivors, -1 if deleted."""
        number = np.full(self.base.arms, -1, dtype=np.int64)
        left = np.delete(np.arange(self.base.arms), list(self.gone))
        number[left] = np.arange(len(left))
        return number

    def before(self, seed: ScienceSeed, unit: int, kind: Kind, arms: tuple[int, ...]) -> Request:
        """Return the unit of the base, its players numbered as there; arms as survivors."""
        left = np.delete(np.arange(self.base.arms), list(self.gone))
        own = tuple(int(left[arm]) for arm in arms)
        return self.base.request(seed, self.units[unit], kind, own)

    def request(
        self, seed: ScienceSeed, unit: int, kind: Kind, arms: tuple[int, ...] = ()
    ) -> Request:
        """Return a unit of the base without the deleted players, renumbered, or a new one."""
        if unit >= len(self.units):
            return super().request(seed.child("survivors", *self.gone), unit, kind, arms)
        old, number = self.before(seed, unit, kind, arms), self.numbers()
        orders = number[old.orders]
        if len(orders):
            orders = orders[orders >= 0].reshape(len(orders), -1)
        sets = tuple(number[members][number[members] >= 0] for members in old.coalitions)
        return Request(unit, kind, arms, orders=orders, coalitions=sets)

    def described(self) -> Json:
        """Return what a digest needs."""
        return [
            super().described(), self.base.described(), list(self.gone), list(self.units),
        ]  # fmt: skip
