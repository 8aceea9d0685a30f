"""Slot layout: element j of image i lies in slot ``j * images + i``.

With ``dimension * images = slots``, a rotation by ``k * images`` slots turns every image's vector
cyclically by k elements, so one product with a clear matrix serves all images of a ciphertext at
the price of one.

A matrix with ``rows`` (a power of two) up to ``dimension`` columns is multiplied by diagonals,
``y_j = sum_k W[j mod rows, j + k] x_{j+k}`` for k < rows, after which rotations by ``rows``,
``2 rows``, ... are added up. Rotations of x are shared between diagonals (baby steps), those of
partial sums are few (giant steps): about ``2 sqrt(rows)`` in place of ``rows``.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from privml.errors import ParameterError

Floats = NDArray[np.float64]


def power_of_two(n: int) -> int:
    """Return the least power of two that is at least ``n``.

    >>> [power_of_two(n) for n in (1, 2, 3, 64, 65)]
    [1, 2, 4, 64, 128]
    """
    return 1 << max(n - 1, 0).bit_length()


@dataclass(frozen=True)
class Packing:
    """Layout of vectors of up to ``dimension`` elements in ``slots`` slots, powers of two."""

    dimension: int
    slots: int

    def __post_init__(self) -> None:
        for value in (self.dimension, self.slots):
            if value < 1 or value & (value - 1):
                raise ParameterError("dimension and slots are powers of two")
        if self.dimension > self.slots:
            raise ParameterError(
                f"{self.dimension} features do not fit {self.slots} slots; use a larger degree"
            )

    @property
    def images(self) -> int:
        """Images in one ciphertext."""
        return self.slots // self.dimension

    def pack(self, x: Floats) -> Floats:
        """Return the slots (slots,) of images (n, features), n at most :attr:`images`."""
        if x.ndim != 2 or x.shape[0] > self.images or x.shape[1] > self.dimension:
            raise ParameterError(
                f"at most {self.images} images of {self.dimension} features, not {x.shape}"
            )
        table = np.zeros((self.dimension, self.images))
        table[: x.shape[1], : x.shape[0]] = x.T
        return table.reshape(-1)

    def unpack(self, slots: Floats, *, images: int, features: int) -> Floats:
        """Return (images, features) of slots, C-contiguous."""
        table = slots.reshape(self.dimension, self.images)
        return np.ascontiguousarray(table[:features, :images].T)

    def spread(self, vector: Floats) -> Floats:
        """Return slots that hold ``vector``, repeated to the dimension, for every image."""
        period = power_of_two(len(vector))
        padded = np.zeros(period)
        padded[: len(vector)] = vector
        return np.repeat(np.tile(padded, self.dimension // period), self.images)


@dataclass(frozen=True, eq=False)
class Diagonals:
    """A clear matrix, ready to be multiplied with packed vectors.

    Parameters
    ----------
    packing
        Layout of input and output.
    matrix
        (outputs, inputs). The output repeats with period ``rows``.
    """

    packing: Packing
    matrix: Floats

    @cached_property
    def rows(self) -> int:
        """Outputs, padded to a power of two."""
        return power_of_two(len(self.matrix))

    @cached_property
    def baby(self) -> int:
        """How many rotations of the input are shared."""
        return 1 << (self.rows.bit_length() // 2)

    @cached_property
    def terms(self) -> dict[int, dict[int, Floats]]:
        """Slots to multiply with: by giant step, then by baby step; zero diagonals left out.

        Those of giant step g are turned back by g, because their sum is turned by g afterwards.
        """
        d, rows = self.packing.dimension, self.rows
        padded = np.zeros((rows, d))
        padded[: self.matrix.shape[0], : self.matrix.shape[1]] = self.matrix
        j = np.arange(d)
        found: dict[int, dict[int, Floats]] = {}
        for k in range(rows):
            diagonal = padded[j % rows, (j + k) % d]
            if diagonal.any():
                giant, small = k - k % self.baby, k % self.baby
                turned = np.roll(diagonal, giant)
                found.setdefault(giant, {})[small] = np.repeat(turned, self.packing.images)
        return found

    @cached_property
    def folds(self) -> tuple[int, ...]:
        """Element rotations that are added up at the end."""
        steps = (self.packing.dimension // self.rows).bit_length() - 1
        return tuple(self.rows << n for n in range(steps))

    @cached_property
    def baby_steps(self) -> tuple[int, ...]:
        """Element rotations of the input, without 0."""
        return tuple(sorted({k for terms in self.terms.values() for k in terms} - {0}))

    @cached_property
    def giant_steps(self) -> tuple[int, ...]:
        """Element rotations of partial sums, without 0."""
        return tuple(sorted(set(self.terms) - {0}))

    @property
    def rotations(self) -> int:
        """Rotations of one product."""
        return len(self.baby_steps) + len(self.giant_steps) + len(self.folds)

    @property
    def products(self) -> int:
        """Products with clear slots."""
        return sum(map(len, self.terms.values()))

    @property
    def steps(self) -> frozenset[int]:
        """Slot rotations that need a key."""
        elements = {*self.baby_steps, *self.giant_steps, *self.folds}
        return frozenset(step * self.packing.images for step in elements)


def rotation_count(rows: int, dimension: int) -> int:
    """Return the rotations of a dense matrix with that many rows, both powers of two.

    >>> rotation_count(64, 64), rotation_count(16, 64)
    (14, 8)
    """
    baby = 1 << (rows.bit_length() // 2)
    return baby - 1 + rows // baby - 1 + int(math.log2(dimension // rows))
