"""Running estimates: sums over units in unit order, O(players) memory, saved exactly."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from privml.valuation.errors import CorruptResult
from privml.valuation.intervals import half_width, largest_size, rounding
from privml.valuation.problem import Floats, Ints

Arrays = dict[str, NDArray[Any]]
_TWO: Final = 2
_NEVER_NEGATIVE: Final = frozenset({"squares", "cut", "counts", "largest"})


class Contribution(NamedTuple):
    """What one unit of walks adds.

    Attributes
    ----------
    means
        (n,) mean weighted marginal of each player.
    cut
        (n,) int64 marginals cut to 0.
    largest
        Largest size of a score.
    """

    means: Floats
    cut: Ints
    largest: float


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

    @abstractmethod
    def rounding(self) -> float:
        """Return a bound of the rounding error of the values."""

    def interval(self, level: float) -> tuple[Floats, Floats]:
        """Return (n,) lower and upper ends of t-intervals, widened by the rounding error."""
        middle, half = self.values(), half_width(self.stderr(), self.freedom(), level)
        half += self.rounding()
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
        self._largest = np.zeros(1)

    def contribution(self, orders: Ints, scores: Floats) -> Contribution:
        """Return what one unit adds, from its (w, L) walks and their (w, L+1) scores."""
        marginals = np.diff(scores, axis=1)
        cut = np.isnan(marginals)
        weighted = np.where(cut, 0.0, marginals) * self._weights
        place = orders.ravel()
        total = np.bincount(place, weights=weighted.ravel(), minlength=self._n)
        times = np.bincount(place, minlength=self._n)
        cuts = np.bincount(place[cut.ravel()], minlength=self._n)
        return Contribution(total / times, cuts, largest_size(scores))

    def add(self, means: Floats, cut: Ints, largest: float) -> None:
        """Add the contribution of one unit (Welford's update)."""
        self.units += 1
        gap = means - self._mean
        self._mean += gap / self.units
        self._squares += gap * (means - self._mean)
        self._cut += cut
        self._largest[0] = max(self._largest[0], largest)

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
        return {
            "mean": self._mean, "squares": self._squares, "cut": self._cut,
            "largest": self._largest,
        }  # fmt: skip

    def rounding(self) -> float:
        """Return the bound for the largest score and factor; a unit has at most n terms."""
        size = float(self._largest[0]) * largest_size(self._weights)
        return rounding(size, 2 * self._n + self.units)


class SplitEstimate(Estimate):
    """Mean U of draws with a player minus mean U of draws without it (maximum sample reuse).

    Scores are taken relative to U(empty), so that sums keep their digits.
    """

    def __init__(self, players: int, empty: float) -> None:
        self._n, self._empty = players, empty
        # without, with
        self._counts, self._means, self._squares = np.zeros((3, 2, players))
        self._largest = np.full(1, abs(empty))

    def add(self, members: Ints, score: float) -> None:
        """Add one draw (Welford's update)."""
        self.units += 1
        inside = np.zeros(self._n, dtype=bool)
        inside[members] = True
        value = score - self._empty
        for side, chosen in enumerate((~inside, inside)):
            self._counts[side, chosen] += 1.0
            gap = value - self._means[side, chosen]
            self._means[side, chosen] += gap / self._counts[side, chosen]
            self._squares[side, chosen] += gap * (value - self._means[side, chosen])
        self._largest[0] = max(self._largest[0], abs(score))

    def values(self) -> Floats:
        """Return the differences of means."""
        known = (self._counts > 0).all(axis=0)
        return np.where(known, self._means[1] - self._means[0], np.nan)

    def stderr(self) -> Floats:
        """Return the standard errors of the differences."""
        return np.asarray(np.sqrt(self._variances().sum(axis=0)))

    def freedom(self) -> Floats:
        """Return the degrees of freedom after Welch and Satterthwaite."""
        each = self._variances()
        with np.errstate(invalid="ignore", divide="ignore"):
            found = each.sum(axis=0) ** 2 / (each**2 / (self._counts - 1)).sum(axis=0)
        least: Floats = np.maximum(self._counts.min(axis=0) - 1, 0)
        return np.where(np.isnan(found), least, found)

    def counts(self) -> Ints:
        """Return the draws on the rarer side."""
        return np.asarray(self._counts.min(axis=0)).astype(np.int64)

    def truncated(self) -> Ints:
        """Return zeros: draws are never cut."""
        return np.zeros(self._n, dtype=np.int64)

    def arrays(self) -> Arrays:
        """Return the state."""
        return {
            "counts": self._counts, "means": self._means, "squares": self._squares,
            "largest": self._largest,
        }  # fmt: skip

    def rounding(self) -> float:
        """Return the bound for two means of the draws."""
        return 2 * rounding(float(self._largest[0]), self._n + self.units)

    def _variances(self) -> Floats:
        """Return (2, n) squared standard errors of both means; NaN below two draws."""
        with np.errstate(invalid="ignore", divide="ignore"):
            spread = self._squares / (self._counts - 1) / self._counts
        return np.where(self._counts < _TWO, np.nan, spread)
