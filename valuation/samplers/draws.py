"""Samplers of coalitions."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Final

import numpy as np

from privml.rng import ScienceSeed
from privml.valuation.errors import SettingError
from privml.valuation.laws import SizeLaw
from privml.valuation.samplers.base import Sampler, Unit
from privml.valuation.samplers.estimates import SplitEstimate

_NO_WALKS: Final = np.empty((0, 0), dtype=np.int64)


@dataclass(frozen=True)
class MSR(Sampler):
    """Maximum sample reuse for the Banzhaf value (Wang and Jia, AISTATS 2023).

    Each unit is one coalition that every player joins with probability one half; the value of a
    player is the mean U with it minus the mean U without it, so each evaluation serves all.
    """

    kind: ClassVar[str] = "msr/1"

    def unit(self, index: int, seed: ScienceSeed, law: SizeLaw) -> Unit:
        """Return one draw."""
        inside = self.generator(index, seed).random(law.n) < 0.5
        return Unit(index, _NO_WALKS, (np.flatnonzero(inside).astype(np.int64),))

    def evaluations(self, law: SizeLaw) -> int:
        """Return 1."""
        del law
        return 1

    def estimate(self, law: SizeLaw, empty: float) -> SplitEstimate:
        """Return an empty estimate."""
        return SplitEstimate(law.n, empty)

    def check(self, law: SizeLaw) -> None:
        """Refuse other values than Banzhaf's."""
        if law.name != "banzhaf":
            raise SettingError(f"MSR estimates the Banzhaf value, not {law.name}; use walks")
