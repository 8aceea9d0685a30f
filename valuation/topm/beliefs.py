"""The posterior as the rules see it, with imagined observations on top, and seeded tie breaks."""

from __future__ import annotations

import numpy as np

from privml.rng import Generator, ScienceSeed
from privml.valuation.topm.posterior import Posterior
from privml.valuation.topm.sums import Floats, Ints


class Beliefs:
    """A posterior whose variances are lowered by observations that were asked for, not yet told.

    Means are kept: an observation whose value is not known yet changes variances only. Nothing is
    written to the posterior. Memory 8 n bytes per imagined observation.
    """

    def __init__(self, posterior: Posterior) -> None:
        self.posterior = posterior
        self._gains: list[Floats] = []
        self.variance = posterior.variance

    @property
    def mean(self) -> Floats:
        """(n,) float64 posterior means."""
        return self.posterior.mean

    def imagine(self, first: int, second: int = -1) -> None:
        """Lower variances as one observation of an arm, or of a pair, would."""
        vector = self.covariance_with(first).copy()
        if second >= 0:
            vector -= self.covariance_with(second)
        spread = float(vector[first] - (vector[second] if second >= 0 else 0.0))
        noise = self.posterior.noise_of(first, second)
        gain = vector / np.sqrt(max(spread, 0.0) + noise)
        self._gains.append(gain)
        self.variance = np.maximum(self.variance - gain**2, 0.0)

    def covariance_with(self, arm: int) -> Floats:
        """Return (n,) float64: covariance of all values with that of ``arm``."""
        column = self.posterior.covariance_with(arm)
        for gain in self._gains:
            column = column - gain * gain[arm]
        return column

    def covariance_block(self, rows: Ints, columns: Ints) -> Floats:
        """Return (rows, columns) float64 covariances."""
        block = self.posterior.covariance_block(rows, columns)
        for gain in self._gains:
            block = block - np.outer(gain[rows], gain[columns])
        return block


class Ties:
    """Chooses among equal values: at random from a seed, or the first if there is none.

    The generator is made on the first tie, so runs without ties never pay for it.
    """

    def __init__(self, seed: ScienceSeed | None) -> None:
        self._seed = seed
        self._generator: Generator | None = None

    def best(self, values: Floats) -> int:
        """Return the position of the largest value."""
        top = int(np.argmax(values))
        equal = np.flatnonzero(values == values[top])
        return top if len(equal) == 1 else int(self._some(equal, 1)[0])

    def largest(self, values: Floats, count: int) -> Ints:
        """Return the positions of the ``count`` largest values, ascending."""
        border = np.partition(values, len(values) - count)[len(values) - count]
        above = np.flatnonzero(values > border)
        equal = np.flatnonzero(values == border)
        missing = count - len(above)
        chosen = equal if missing == len(equal) else self._some(equal, missing)
        return np.sort(np.concatenate([above, chosen]))

    def _some(self, equal: Ints, count: int) -> Ints:
        if self._seed is None:
            return equal[:count]
        if self._generator is None:
            self._generator = self._seed.generator()
        chosen: Ints = self._generator.choice(equal, count, replace=False)
        return chosen
