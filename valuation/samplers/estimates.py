"""Running estimates: sums over units in unit order, O(players) memory, saved exactly."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from privml.valuation.errors import CorruptResult
from privml.valuation.intervals import half_width
from privml.valuation.problem import Floats, Ints

Arrays = dict[str, NDArray[Any]]
_TWO: Final = 2
_NEVER_NEGATIVE: Final = frozenset({"squares", "cut"})


class Estimate(ABC):
    """Values of all players from the units added so far."""

    units: int = 0

    @abstractmethod
    def values(self) -> Floats:
        """Return (n,) values; NaN where nothing was observed."""

    @abstractmethod
    def stderr(self) -> Floats:
        """Return (n,) standard errors; NaN where not known yet."""

    @abstractmethod
    def freedom(self) -> Floats:
        """Return (n,) degrees of freedom of the standard errors."""

    @abstractmethod
    def counts(self) -> Ints:
        """Return (n,) int64 independent observations behind each value."""

    @abstractmethod
    def truncated(self) -> Ints:
        """Return (n,) int64 marginals that a cut walk set to 0."""

    @abstractmethod
    def arrays(self) -> Arrays:
        """Return the state."""

    def interval(self, level: float) -> tuple[Floats, Floats]:
        """Return (n,) lower and upper ends of t-intervals."""
        middle, half = self.values(), half_width(self.stderr(), self.freedom(), level)
        return middle - half, middle + half

    def restore(self, units: int, arrays: Mapping[str, NDArray[Any]]) -> None:
        """Take over a saved state.

        Raises
        ------
        CorruptResult
            Names, shapes or types are not those of this estimate.
        """
        own = self.arrays()
        if set(own) != set(arrays):
            raise CorruptResult("the checkpoint holds other arrays; remove it to start again")
        for name, array in own.items():
            given = arrays[name]
            if given.shape != array.shape or given.dtype != array.dtype:
                raise CorruptResult(f"{name} in the checkpoint has another form; remove it")
            if not np.isfinite(given).all() or (name in _NEVER_NEGATIVE and (given < 0).any()):
                raise CorruptResult(f"{name} in the checkpoint has impossible numbers; remove it")
        for name, array in own.items():
            array[...] = arrays[name]
        self.units = units


class WalkEstimate(Estimate):
    """Mean over units of each player's weighted marginals.

    Parameters
    ----------
    players
        Number of players.
    weights
        (L,) factor of the marginal at each position.
    """

    def __init__(self, players: int, weights: Floats) -> None:
        self._weights = weights
        self._n = players
        self._mean = np.zeros(players)
        self._squares = np.zeros(players)
        self._cut = np.zeros(players, dtype=np.int64)

    def contribution(self, orders: Ints, scores: Floats) -> tuple[Floats, Ints]:
        """Return (n,) one unit's mean marginal of each player, and its marginals cut to 0."""
        marginals = np.diff(scores, axis=1)
        cut = np.isnan(marginals)
        weighted = np.where(cut, 0.0, marginals) * self._weights
        place = orders.ravel()
        total = np.bincount(place, weights=weighted.ravel(), minlength=self._n)
        times = np.bincount(place, minlength=self._n)
        cuts = np.bincount(place[cut.ravel()], minlength=self._n)
        return total / times, cuts

    def add(self, contribution: Floats, cut: Ints) -> None:
        """Add one unit (Welford's update)."""
        self.units += 1
        gap = contribution - self._mean
        self._mean += gap / self.units
        self._squares += gap * (contribution - self._mean)
        self._cut += cut

    def values(self) -> Floats:
        """Return the means."""
        return self._mean.copy() if self.units else np.full(self._n, np.nan)

    def stderr(self) -> Floats:
        """Return the standard errors of the means."""
        if self.units < _TWO:
            return np.full(self._n, np.nan)
        return np.sqrt(self._squares / (self.units - 1) / self.units)

    def freedom(self) -> Floats:
        """Return units - 1."""
        return np.full(self._n, self.units - 1.0)

    def counts(self) -> Ints:
        """Return the number of units."""
        return np.full(self._n, self.units, dtype=np.int64)

    def truncated(self) -> Ints:
        """Return the marginals cut to 0."""
        return self._cut.copy()

    def arrays(self) -> Arrays:
        """Return the state."""
        return {"mean": self._mean, "squares": self._squares, "cut": self._cut}


class SplitEstimate(Estimate):
    """Mean U of draws with a player minus mean U of draws without it (maximum sample reuse).

    Scores are taken relative to U(empty), so that sums keep their digits.
    """

    def __init__(self, players: int, empty: float) -> None:
        self._n, self._empty = players, empty
        self._sums = np.zeros((2, 3, players))  # without, with; count, sum, sum of squares

    def add(self, members: Ints, score: float) -> None:
        """Add one draw."""
        self.units += 1
        inside = np.zeros(self._n, dtype=bool)
        inside[members] = True
        value = score - self._empty
        for side, chosen in enumerate((~inside, inside)):
            self._sums[side, 0, chosen] += 1.0
            self._sums[side, 1, chosen] += value
            self._sums[side, 2, chosen] += value * value

    def values(self) -> Floats:
        """Return the differences of means."""
        with np.errstate(invalid="ignore", divide="ignore"):
            means = self._sums[:, 1] / self._sums[:, 0]
        return np.asarray(means[1] - means[0])

    def stderr(self) -> Floats:
        """Return the standard errors of the differences."""
        return np.asarray(np.sqrt(self._variances().sum(axis=0)))

    def freedom(self) -> Floats:
        """Return the degrees of freedom after Welch and Satterthwaite."""
        each = self._variances()
        with np.errstate(invalid="ignore", divide="ignore"):
            found = each.sum(axis=0) ** 2 / (each**2 / (self._sums[:, 0] - 1)).sum(axis=0)
        least: Floats = np.maximum(self._sums[:, 0].min(axis=0) - 1, 0)
        return np.where(np.isnan(found), least, found)

    def counts(self) -> Ints:
        """Return the draws on the rarer side."""
        return np.asarray(self._sums[:, 0].min(axis=0)).astype(np.int64)

    def truncated(self) -> Ints:
        """Return zeros: draws are never cut."""
        return np.zeros(self._n, dtype=np.int64)

    def arrays(self) -> Arrays:
        """Return the state."""
        return {"sums": self._sums}

    def _variances(self) -> Floats:
        """Return (2, n) squared standard errors of both means; NaN below two draws."""
        count, total, squares = self._sums[:, 0], self._sums[:, 1], self._sums[:, 2]
        with np.errstate(invalid="ignore", divide="ignore"):
            spread = np.maximum(squares - total**2 / count, 0.0) / (count - 1) / count
        return np.where(count < _TWO, np.nan, spread)
