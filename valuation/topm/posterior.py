"""What the rules need to know of a posterior over the arms' values, whatever stands behind it.

An observation is y = a'f + noise with a = e_i (a pull) or a = e_b - e_c (a pair). Three back ends
keep the posterior of f: :mod:`posterior_joint` (n x n covariance), :mod:`posterior_features`
(weights of D features plus an own term per arm) and :mod:`posterior_independent` (no features).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass

import numpy as np

from privml.rng import Generator
from privml.valuation.topm.sums import Floats, Ints, PooledSums


@dataclass(frozen=True)
class Observation:
    """One observation: of arm ``first``, or of f(first) - f(second).

    Attributes
    ----------
    first, second
        Arms; ``second`` is -1 for a pull of one arm.
    value
        What was seen, in units of the utility.
    """

    first: int
    second: int
    value: float


class Posterior(ABC):
    """Posterior of the n values; mean and variance are arrays that change in place.

    Attributes
    ----------
    mean, variance
        (n,) float64; variances are never below 0.
    information
        Half the log-determinant of I + K/lambda over all observations: the realised information
        gain in nats.
    """

    mean: Floats
    variance: Floats
    information: float

    @property
    def arms(self) -> int:
        """Number of arms."""
        return len(self.mean)

    @abstractmethod
    def observe(self, seen: Observation, sums: PooledSums) -> None:
        """Add one observation; ``sums`` are the pooled sums before it."""

    @abstractmethod
    def rebuild(self, sums: PooledSums) -> float:
        """Compute the posterior from scratch and return the largest change of mean or covariance.

        The change is relative to the largest prior variance (or its root, for means); it is
        meaningful only if the same observations had been added one by one.
        """

    @abstractmethod
    def covariance_with(self, arm: int) -> Floats:
        """Return (n,) float64: Cov(f, f_arm)."""

    @abstractmethod
    def covariance_block(self, rows: Ints, columns: Ints) -> Floats:
        """Return (rows, columns) float64: Cov(f_rows, f_columns)."""

    @property
    @abstractmethod
    def noises(self) -> Floats:
        """(n,) float64 noise variance of one pull of each arm."""

    @abstractmethod
    def noise_of(self, first: int, second: int = -1) -> float:
        """Return the noise variance of one pull of an arm or of a pair."""

    @abstractmethod
    def sample(self, generator: Generator, draws: int, arms: Ints) -> Floats:
        """Return (draws, arms) float64: joint samples of the values of ``arms``."""

    def can_pair(self, first: int, second: int) -> bool:
        """Return whether a pair observation of these arms can be added."""
        del first, second
        return True

    def settled(self) -> Posterior:
        """Return a posterior whose means and variances are all up to date.

        It is this one, unless the back end postpones updates; then it is a copy, and this one does
        not change.
        """
        return self

    @abstractmethod
    def difference_variances(self, first: Ints, second: Ints) -> Floats:
        """Return (k,) float64: Var(f_first - f_second), at least 0."""


def relative_change(new: Floats, old: Floats, scale: float) -> float:
    """Return the largest absolute difference in units of ``scale``."""
    return float(np.abs(new - old).max(initial=0.0)) / scale if scale > 0 else 0.0


def gaussian_samples(generator: Generator, draws: int, mean: Floats, covariance: Floats) -> Floats:
    """Return (draws, k) float64 samples of N(mean, covariance), which may be singular."""
    lift = 1e-12 * max(float(np.diag(covariance).max(initial=0.0)), 1e-300)
    values, vectors = np.linalg.eigh(covariance + lift * np.eye(len(mean)))
    root = vectors * np.sqrt(np.maximum(values, 0.0))
    drawn: Floats = mean + generator.standard_normal((draws, len(mean))) @ root.T
    return drawn
