"""Samplers of walks: permutations, antithetic pairs, rotations, truncation.

A law that ends at size s-1 < n-1 needs no walk longer than s: a random permutation is cut into
blocks of length s, each walked from the empty set. Position in the block is uniform and the
predecessors a uniform subset, so each marginal, with the factor s p_k, is unbiased. The last block
is filled up with random players of the others and shuffled; their second marginals count as well.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from privml.rng import Generator, ScienceSeed
from privml.valuation.checks import is_whole
from privml.valuation.errors import SettingError
from privml.valuation.laws import SizeLaw
from privml.valuation.problem import Ints
from privml.valuation.samplers.base import Sampler, Unit
from privml.valuation.samplers.estimates import WalkEstimate


class WalkSampler(Sampler):
    """Shared part of the samplers of walks."""

    def unit(self, index: int, seed: ScienceSeed, law: SizeLaw) -> Unit:
        """Return the walks of one unit."""
        return Unit(index, self._orders(self.generator(index, seed), law.n, law.largest + 1))

    def evaluations(self, law: SizeLaw) -> int:
        """Return the prefixes of one unit."""
        length = law.largest + 1
        return self._walks * length * -(-law.n // length)

    def estimate(self, law: SizeLaw, empty: float) -> WalkEstimate:
        """Return an empty estimate."""
        del empty
        length = law.largest + 1
        return WalkEstimate(law.n, length * law.p[:length])

    def check(self, law: SizeLaw) -> None:
        """Check the tolerance."""
        del law
        if self.cut_below is not None and not 0 <= self.cut_below < np.inf:
            raise SettingError(f"truncation tolerance {self.cut_below} must be a number from 0 on")

    @property
    def _walks(self) -> int:
        """Walks over all players in one unit."""
        return 1

    def _orders(self, generator: Generator, players: int, length: int) -> Ints:
        return blocks(generator, players, length)


@dataclass(frozen=True)
class Permutation(WalkSampler):
    """One random walk a unit.

    Parameters
    ----------
    truncation
        Stop a walk once U(N) - U(prefix) is smaller in absolute value, and count the rest as 0.
        Biased; breaks efficiency; None, the default, never stops.
    """

    kind: ClassVar[str] = "permutation/1"
    truncation: float | None = None

    @property
    def cut_below(self) -> float | None:
        """Truncation tolerance."""
        return self.truncation


@dataclass(frozen=True)
class TMC(WalkSampler):
    """Truncated Monte Carlo (Ghorbani and Zou, ICML 2019): walks that stop near U(N).

    Parameters
    ----------
    tolerance
        See :class:`Permutation`; in units of the metric.
    """

    kind: ClassVar[str] = "tmc/1"
    tolerance: float = 0.01

    @property
    def cut_below(self) -> float | None:
        """Truncation tolerance."""
        return self.tolerance


@dataclass(frozen=True)
class Antithetic(WalkSampler):
    """A walk and its reverse are one unit: errors of early and late positions partly cancel."""

    kind: ClassVar[str] = "antithetic/1"

    @property
    def _walks(self) -> int:
        return 2

    def _orders(self, generator: Generator, players: int, length: int) -> Ints:
        first = blocks(generator, players, length)
        return np.concatenate([first, first[:, ::-1]])


@dataclass(frozen=True)
class Stratified(WalkSampler):
    """Rotations of one walk are one unit: each player stands at evenly spread positions.

    Parameters
    ----------
    strata
        Rotations, at least 2; more than the length of a walk are cut to it. With as many as the
        length, each player is seen once at every size.
    """

    kind: ClassVar[str] = "stratified/1"
    strata: int = 4

    def unit(self, index: int, seed: ScienceSeed, law: SizeLaw) -> Unit:
        """Return the walks of one unit."""
        length = law.largest + 1
        generator = self.generator(index, seed)
        first = blocks(generator, law.n, length)
        turns = min(self.strata, length)
        return Unit(
            index,
            np.concatenate([np.roll(first, length * t // turns, axis=1) for t in range(turns)]),
        )

    def evaluations(self, law: SizeLaw) -> int:
        """Return the prefixes of one unit."""
        length = law.largest + 1
        return min(self.strata, length) * length * -(-law.n // length)

    def check(self, law: SizeLaw) -> None:
        """Check the number of strata."""
        del law
        if not is_whole(self.strata) or self.strata < 2:
            raise SettingError(f"Stratified(strata={self.strata}): give at least 2")


def blocks(generator: Generator, players: int, length: int) -> Ints:
    """Return (w, length) int64: a random permutation cut into walks; see the module's text."""
    order = generator.permutation(players).astype(np.int64)
    rest = players % length
    if not rest:
        return order.reshape(-1, length)
    whole, last = order[: players - rest], order[players - rest :]
    filled = np.concatenate([last, generator.permutation(whole)[: length - rest]])
    return np.concatenate([whole, generator.permutation(filled)]).reshape(-1, length)
