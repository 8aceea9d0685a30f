"""Resampling of planes: triangle filter, widened when it shrinks, centres of pixels aligned."""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import Final

import numpy as np

from privml.protocols.fhe.front.blocks import Plane

#: Entries of the largest map that is kept as a matrix.
_DENSE: Final = 1 << 17


@dataclass(frozen=True)
class Window:
    """Part of one axis that is resampled: ``start`` and ``length`` in samples, both real."""

    start: float
    length: float

    def shrunk(self, factor: int) -> Window:
        """Return the same part of an axis with ``factor`` times fewer samples."""
        return Window(self.start / factor, self.length / factor)


def centred(length: int, target: int, scale: float) -> Window:
    """Return the central part of an axis that becomes ``target`` samples at ``scale``."""
    part = target / scale
    return Window((length - part) / 2, part)


def resize(plane: Plane, shape: tuple[int, int], windows: tuple[Window, Window]) -> Plane:
    """Resample windows of planes of samples to ``shape``.

    Parameters
    ----------
    plane
        float64, shape (..., rows, columns).
    shape
        Rows and columns of the result.
    windows
        Which part of the rows and of the columns. Samples outside the plane have no weight.

    Returns
    -------
    float64, C-contiguous, shape (..., *shape).
    """
    rows = _resize_rows(plane, shape[0], windows[0])
    columns = _resize_rows(rows.swapaxes(-1, -2), shape[1], windows[1])
    return np.ascontiguousarray(columns.swapaxes(-1, -2))


def whole(plane: Plane, shape: tuple[int, int]) -> Plane:
    """Resample all of the planes (..., rows, columns) to ``shape``."""
    rows, columns = plane.shape[-2:]
    return resize(plane, shape, (Window(0, rows), Window(0, columns)))


def _resize_rows(plane: Plane, count: int, window: Window) -> Plane:
    length = plane.shape[-2]
    if count == length and window == Window(0, length):
        return plane
    if count * length <= _DENSE:
        return _matrix(length, count, window) @ plane
    result = np.empty((*plane.shape[:-2], count, plane.shape[-1]))
    for i in range(count):
        part, weights = _filter(length, count, window, i)
        result[..., i, :] = weights @ plane[..., part, :]
    return result


@functools.lru_cache(maxsize=64)
def _matrix(length: int, count: int, window: Window) -> Plane:
    """Return the map of a whole axis: (count, length), read-only."""
    matrix = np.zeros((count, length))
    for i in range(count):
        part, weights = _filter(length, count, window, i)
        matrix[i, part] = weights
    matrix.flags.writeable = False
    return matrix


def _filter(length: int, count: int, window: Window, index: int) -> tuple[slice, Plane]:
    """Return the samples that one output takes part in, and their weights, which sum to 1."""
    step = window.length / count
    reach = max(step, 1.0)  # a filter narrower than one sample would skip samples
    centre = window.start + (index + 0.5) * step - 0.5
    centre = min(max(centre, 0.0), length - 1.0)
    low = max(int(np.floor(centre - reach)) + 1, 0)
    high = min(int(np.ceil(centre + reach)), length)
    weights = 1 - np.abs(np.arange(low, high) - centre) / reach
    return slice(low, high), weights / weights.sum()
