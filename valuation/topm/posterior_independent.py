"""Arms without features: every value has its own prior N(mean, variance), nothing is shared.

Pairs are kept out: they would couple two arms. A rule that wants a pair pulls one arm instead.
"""

from __future__ import annotations

import math

import numpy as np

from privml.errors import UnsupportedError
from privml.rng import Generator
from privml.valuation.topm.posterior import Observation, Posterior, relative_change
from privml.valuation.topm.sums import Floats, Ints, PooledSums


class IndependentPosterior(Posterior):
    """Conjugate normal posterior of each arm alone.

    Parameters
    ----------
    prior_variance
        (n,) float64; large for no shrinkage.
    prior_mean
        Common prior mean.
    noise
        (n,) float64 noise variance of one pull, all positive.
    """

    def __init__(self, prior_variance: Floats, *, prior_mean: float, noise: Floats) -> None:
        self._prior = prior_variance
        self._prior_mean = prior_mean
        self._noise = noise
        self.mean = np.full(len(prior_variance), float(prior_mean))
        self.variance = prior_variance.copy()
        self.information = 0.0

    def observe(self, seen: Observation, sums: PooledSums) -> None:
        """Add one pull. Cost O(1)."""
        del sums
        if seen.second >= 0:
            raise UnsupportedError("independent arms take no pair observations; pull one arm")
        arm = seen.first
        before = float(self.variance[arm])
        noise = float(self._noise[arm])
        self.mean[arm] += before / (before + noise) * (seen.value - self.mean[arm])
        self.variance[arm] = before * noise / (before + noise)
        self.information += 0.5 * math.log1p(before / noise)

    def rebuild(self, sums: PooledSums) -> float:
        """Compute all arms from the pooled sums. Cost O(n)."""
        ratio = sums.count * self._prior / self._noise
        weight = ratio / (1 + ratio)
        mean = self._prior_mean + weight * (sums.mean - self._prior_mean)
        variance = self._prior / (1 + ratio)
        scale = float(self._prior.max())
        drift = max(
            relative_change(mean, self.mean, math.sqrt(scale)),
            relative_change(variance, self.variance, scale),
        )
        self.mean, self.variance = mean, variance
        self.information = 0.5 * float(np.log1p(ratio).sum())
        return drift

    def covariance_with(self, arm: int) -> Floats:
        """Return zeros but for the arm's own variance."""
        row = np.zeros(self.arms)
        row[arm] = self.variance[arm]
        return row

    def covariance_block(self, rows: Ints, columns: Ints) -> Floats:
        """Return the variances where row and column are the same arm, else 0."""
        block: Floats = np.where(
            rows[:, None] == columns[None, :], self.variance[rows][:, None], 0.0
        )
        return block

    def difference_variances(self, first: Ints, second: Ints) -> Floats:
        """Return the sums of both variances, 0 for an arm with itself."""
        total: Floats = self.variance[first] + self.variance[second]
        return np.where(first == second, 0.0, total)

    @property
    def noises(self) -> Floats:
        """(n,) float64 noise variance of one pull of each arm."""
        return self._noise

    def noise_of(self, first: int, second: int = -1) -> float:
        """Return the noise variance of one pull of ``first``."""
        del second
        return float(self._noise[first])

    def can_pair(self, first: int, second: int) -> bool:
        """Return False: a pair would couple two arms."""
        del first, second
        return False

    def sample(self, generator: Generator, draws: int, arms: Ints) -> Floats:
        """Return independent normal samples of the arms."""
        normal = generator.standard_normal((draws, len(arms)))
        drawn: Floats = self.mean[arms] + normal * np.sqrt(self.variance[arms])
        return drawn
