"""Fault model of table evaluations, for reliability curves without encryption.

Two things go wrong in a TFHE table, both at its input index.

1. With probability ``p_error`` the index is off by one, up or down alike.
2. Approximate rounding leaves the dropped low bits in the encrypted phase. Noise then moves an
   accumulator that lies near a rounding boundary to the other side, whatever ``p_error`` is.

For 2 the noise is Gaussian with the standard deviation, in units of the kept step, at which an
accumulator in the middle of its step is off with probability ``p_error``:
``sigma = boundary * 0.5 / z``, P(|N(0, 1)| > z) = p_error. Its tail beyond half a step is what 1
draws, so 2 is cut off there. ``boundary`` scales sigma to fit executions; 0 switches 2 off.
An index is never moved out of the range of its table's bits.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from statistics import NormalDist

import numpy as np

from privml.errors import ParameterError
from privml.protocols.fhe.lookup import Lookup, table_index
from privml.protocols.fhe.nodes import Ints
from privml.rng import ScienceSeed


@dataclass(frozen=True)
class Fault:
    """Faults to inject; the same seed, tables and images give the same faults.

    Attributes
    ----------
    p_error
        Probability per table, 0 <= p < 1.
    seed
        Seed of the experiment, or the integer of one.
    boundary
        Factor on the noise of approximate rounding.
    only
        Names of the tables that fail; None for all.
    """

    p_error: float
    seed: ScienceSeed | int
    boundary: float = 1.0
    only: frozenset[str] | None = None

    def __post_init__(self) -> None:
        if not 0 <= self.p_error < 1:
            raise ParameterError(f"p_error must lie in [0, 1), not {self.p_error!r}")
        if not 0 <= self.boundary < math.inf:
            raise ParameterError(f"boundary must be finite and >= 0, not {self.boundary!r}")
        if isinstance(self.seed, int):
            object.__setattr__(self, "seed", ScienceSeed(self.seed))

    def indices(self, acc: Ints, lookup: Lookup, *, table: str, exact: bool, first: int) -> Ints:
        """Return the table index of each accumulator, faults included.

        Parameters
        ----------
        acc
            Accumulators, shape (n, ...), int64.
        lookup
            Tables of the node ``table``.
        exact
            Whether its rounding is exact.
        first
            Number of the first image; faults depend on the number, not on the batch.
        """
        if self.only is not None and table not in self.only:
            return table_index(acc, lookup.dropped)
        approximate = lookup.dropped > 0 and not exact
        rows = [
            self._image(row, lookup, self._seed(table, first + k), approximate=approximate)
            for k, row in enumerate(acc)
        ]
        moved = np.stack(rows) if rows else acc
        return np.clip(moved, lookup.first, lookup.first + (1 << lookup.bits) - 1)

    def _seed(self, table: str, image: int) -> ScienceSeed:
        seed = self.seed if isinstance(self.seed, ScienceSeed) else ScienceSeed(self.seed)
        return seed.child("table fault", table, image)

    def _image(self, acc: Ints, lookup: Lookup, seed: ScienceSeed, *, approximate: bool) -> Ints:
        if approximate:
            acc = acc + self._noise(acc.shape, lookup.dropped, seed.child("noise"))
        index = table_index(acc, lookup.dropped).reshape(-1).copy()
        generator = seed.generator()
        faults = int(generator.binomial(index.size, self.p_error))
        where = generator.choice(index.size, size=faults, replace=False, shuffle=False)
        index[where] += 2 * generator.integers(0, 2, size=faults) - 1
        return index.reshape(acc.shape)

    def _noise(self, shape: tuple[int, ...], dropped: int, seed: ScienceSeed) -> Ints:
        """Return the noise in units of the accumulator; it never moves a centred one."""
        half = 1 << (dropped - 1)
        scale = np.float32(boundary_sigma(self.p_error) * self.boundary * (1 << dropped))
        noise = np.floor(seed.generator().standard_normal(shape, dtype=np.float32) * scale)
        clipped: Ints = np.clip(noise.astype(np.int64), -half, half - 1)
        return clipped


def boundary_sigma(p_error: float) -> float:
    """Return the noise, in kept steps, at which a centred index fails with ``p_error``.

    >>> round(boundary_sigma(0.01), 3), boundary_sigma(0.0)
    (0.194, 0.0)
    """
    return -0.5 / NormalDist().inv_cdf(p_error / 2) if p_error > 0 else 0.0
