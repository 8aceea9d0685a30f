"""The two numbers per arm that follow the shared weights: phi_i'w and phi_i'C phi_i.

A change of the weights w += step g, C -= shrink g g' changes them by step phi_i'g and
-shrink (phi_i'g)^2, so one pass over the n x D features serves both. With ``refresh_every=k`` only
a band of arms follows at once; the others catch up every k changes in one matrix product.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from privml.valuation.topm.sums import Floats, Ints


class Projections:
    """Projections of all arms on the weights, and on promoted coordinates appended to them.

    Parameters
    ----------
    features
        (n, D) float64 or float32, C-contiguous.
    refresh_every
        Changes between two passes over all arms.
    band
        Number of arms that follow at once in between.

    Attributes
    ----------
    line, spread
        (n,) float64: phi_i'w and phi_i'C phi_i.
    place
        (n,) int64: the arm's own coordinate, -1 if it has none.
    """

    def __init__(self, features: NDArray[Any], *, refresh_every: int, band: int) -> None:
        self.phi = features
        arms = len(features)
        self.place: Ints = np.full(arms, -1, dtype=np.int64)
        self.promoted: Ints = np.zeros(0, dtype=np.int64)
        self.norms: Floats = np.einsum("ij,ij->i", features, features, dtype=np.float64)
        self.line: Floats = np.zeros(arms)
        self.spread: Floats = self.norms.copy()
        self._every, self._size = refresh_every, min(band, arms)
        self._late: list[tuple[Floats, float, float]] = []
        self.band: Ints | None = None
        self._band_phi = features[:0]

    @property
    def behind(self) -> bool:
        """Whether some arms have postponed changes."""
        return bool(self._late)

    def row(self, arm: int) -> Floats:
        """Return (D + P,) float64: the arm's features and promoted coordinates."""
        width = self.phi.shape[1]
        row = np.zeros(width + len(self.promoted))
        row[:width] = self.phi[arm]
        if self.place[arm] >= 0:
            row[self.place[arm]] = 1.0
        return row

    def rows(self, arms: Ints) -> Floats:
        """Return (k, D + P) float64: the rows of ``arms``."""
        width = self.phi.shape[1]
        rows = np.zeros((len(arms), width + len(self.promoted)))
        rows[:, :width] = self.phi[arms]
        owning = np.flatnonzero(self.place[arms] >= 0)
        rows[owning, self.place[arms[owning]]] = 1.0
        return rows

    def along(self, vector: Floats) -> Floats:
        """Return (n,) float64: every arm's row times ``vector`` of length D + P."""
        width = self.phi.shape[1]
        product: Floats = (self.phi @ vector[:width].astype(self.phi.dtype)).astype(np.float64)
        product[self.promoted] += vector[width:]
        return product

    def promote(self, arm: int) -> None:
        """Append a coordinate for ``arm``; postponed changes must have been applied."""
        self.place[arm] = self.phi.shape[1] + len(self.promoted)
        self.promoted = np.append(self.promoted, arm)

    def move(self, gain: Floats, *, step: float, shrink: float) -> bool:
        """Follow one change of the weights; return whether all arms are up to date."""
        if self._every == 1:
            self._shift(slice(None), self.along(gain), step, shrink)
            return True
        self._late.append((gain, step, shrink))
        if self.band is not None:
            width = self.phi.shape[1]
            along = (self._band_phi @ gain[:width].astype(self.phi.dtype)).astype(np.float64)
            place = self.place[self.band]
            owning = np.flatnonzero(place >= 0)
            along[owning] += gain[place[owning]]
            self._shift(self.band, along, step, shrink)
            if len(self._late) < self._every:
                return False
        self.catch_up()
        return True

    def catch_up(self) -> None:
        """Apply postponed changes to the arms outside the band; forget the band."""
        if self._late:
            width = self.phi.shape[1]
            late = np.stack([gain for gain, _, _ in self._late], axis=1)  # (D + P, k)
            along = (self.phi @ late[:width].astype(self.phi.dtype)).astype(np.float64)
            along[self.promoted] += late[width:]
            steps = np.array([step for _, step, _ in self._late])
            shrinks = np.array([shrink for _, _, shrink in self._late])
            line = self.line + along @ steps
            spread = np.maximum(self.spread - along**2 @ shrinks, 0.0)
            if self.band is not None:
                line[self.band], spread[self.band] = self.line[self.band], self.spread[self.band]
            self.line, self.spread, self._late = line, spread, []
        self.band = None

    def follow(self, upper: Floats) -> None:
        """Choose the band: the arms with the largest ``upper`` bounds."""
        if self._every > 1 and self._size < len(upper):
            self.band = np.sort(np.argpartition(-upper, self._size - 1)[: self._size])
            self._band_phi = self.phi[self.band]

    def _shift(self, arms: Ints | slice, along: Floats, step: float, shrink: float) -> None:
        self.line[arms] += step * along
        along *= along
        along *= shrink
        self.spread[arms] = np.maximum(self.spread[arms] - along, 0.0)
