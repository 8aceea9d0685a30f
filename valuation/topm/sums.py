"""Pooled observations: one row of running sums per arm and one per distinct pair.

Repeated pulls of an arm (or of a pair) with equal noise are worth exactly one observation of
their mean with noise lambda / n, so count, mean and squared deviations are all that is kept.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

_START = 64


class PooledSums:
    """Counts, means and squared deviations of all observations so far.

    Parameters
    ----------
    arms
        Number of arms n.

    Attributes
    ----------
    count, mean, squares
        (n,) int64, float64, float64: observations of each arm, their mean (0 if none) and the sum
        of squared deviations from it.
    """

    def __init__(self, arms: int) -> None:
        self.count: Ints = np.zeros(arms, dtype=np.int64)
        self.mean: Floats = np.zeros(arms)
        self.squares: Floats = np.zeros(arms)
        self._index: dict[tuple[int, int], int] = {}
        self._pair_arms: Ints = np.zeros((_START, 2), dtype=np.int64)
        self._pair_sums: Floats = np.zeros((_START, 3))

    @property
    def arms(self) -> int:
        """Number of arms."""
        return len(self.count)

    @property
    def pulls(self) -> int:
        """Number of observations of single arms."""
        return int(self.count.sum())

    @property
    def pair_arms(self) -> Ints:
        """(P, 2) int64: the distinct pairs, smaller arm first."""
        return self._pair_arms[: len(self._index)]

    @property
    def pair_count(self) -> Floats:
        """(P,) float64: observations of each pair."""
        return self._pair_sums[: len(self._index), 0]

    @property
    def pair_mean(self) -> Floats:
        """(P,) float64: mean of f(first) - f(second)."""
        return self._pair_sums[: len(self._index), 1]

    @property
    def pair_squares(self) -> Floats:
        """(P,) float64: squared deviations from the pair's mean."""
        return self._pair_sums[: len(self._index), 2]

    def add(self, arms: Ints, values: Floats) -> None:
        """Add one observation for each of ``arms``, which are distinct."""
        self.count[arms] += 1
        step = values - self.mean[arms]
        self.mean[arms] += step / self.count[arms]
        self.squares[arms] += step * (values - self.mean[arms])

    def add_one(self, arm: int, value: float) -> None:
        """Add one observation of ``arm``."""
        self.count[arm] += 1
        step = value - self.mean[arm]
        self.mean[arm] += step / self.count[arm]
        self.squares[arm] += step * (value - self.mean[arm])

    def add_pair(self, first: int, second: int, value: float) -> None:
        """Add one observation of f(first) - f(second)."""
        if first > second:
            first, second, value = second, first, -value
        row = self._index.setdefault((first, second), len(self._index))
        if row == len(self._pair_sums):
            self._pair_arms = np.concatenate([self._pair_arms, np.zeros_like(self._pair_arms)])
            self._pair_sums = np.concatenate([self._pair_sums, np.zeros_like(self._pair_sums)])
        sums = self._pair_sums[row]
        self._pair_arms[row] = first, second
        sums[0] += 1
        step = value - sums[1]
        sums[1] += step / sums[0]
        sums[2] += step * (value - sums[1])

    def within_variance(self) -> float:
        """Return the pooled variance inside arms, NaN while no arm was pulled twice."""
        freedom = float(np.maximum(self.count - 1, 0).sum())
        return float(self.squares.sum()) / freedom if freedom else float("nan")
