"""Mean and standard deviation of each channel, over the cells of all training images."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from privml.errors import ParameterError
from privml.params import check

_SMALLEST_STD: Final = 1e-3  # of values in units of 8-bit samples
_LARGEST: Final = 1e6
_MAX_IMAGES: Final = 1 << 40


@dataclass(frozen=True)
class Statistics:
    """What each channel is normalised by; public to every client, so it reveals these moments.

    Attributes
    ----------
    mean, std
        One finite number for each channel, in units of 8-bit samples; std > 0. A channel that
        never varies has std 1.
    images
        How many images they were taken from.

    Raises
    ------
    ParameterError
        Other numbers.
    """

    mean: tuple[float, ...]
    std: tuple[float, ...]
    images: int

    def __post_init__(self) -> None:
        problems = []
        if not self.mean or len(self.mean) != len(self.std):
            problems.append(f"{len(self.mean)} means and {len(self.std)} deviations")
        if not all(abs(value) <= _LARGEST for value in self.mean):
            problems.append("a mean is not finite or beyond 10^6")
        if not all(_SMALLEST_STD <= value <= _LARGEST for value in self.std):
            problems.append(f"a deviation lies outside [{_SMALLEST_STD:g}, {_LARGEST:g}]")
        if not 1 <= self.images <= _MAX_IMAGES:
            problems.append(f"images = {self.images} must be positive")
        check("statistics", problems)

    def normalise(self, values: NDArray[np.float64]) -> NDArray[np.float32]:
        """Return (values - mean) / std for each channel of (channels, rows, columns).

        Returns
        -------
        float32, the same shape, C-contiguous; computed in float64.
        """
        if values.ndim != 3 or len(values) != len(self.mean):
            raise ParameterError(f"{len(self.mean)} channels expected, not shape {values.shape}")
        mean, std = (np.array(v)[:, None, None] for v in (self.mean, self.std))
        return np.ascontiguousarray((values - mean) / std, dtype=np.float32)

    def keep(self, indices: Sequence[int]) -> Statistics:
        """Return the statistics of the channels at ``indices``."""
        return Statistics(
            tuple(self.mean[i] for i in indices), tuple(self.std[i] for i in indices), self.images
        )


def measure(images: Iterable[NDArray[np.float64]]) -> Statistics:
    """Return the statistics of images of shape (channels, rows, columns), read once, in order.

    Raises
    ------
    ParameterError
        There is no image.
    """
    count, images_seen = 0, 0
    mean = squares = np.zeros(0)
    for image in images:
        flat = image.reshape(len(image), -1)
        own_mean, own_count = flat.mean(axis=1), flat.shape[1]
        own_squares = np.square(flat - own_mean[:, None]).sum(axis=1)
        if images_seen == 0:
            mean, squares = np.zeros_like(own_mean), np.zeros_like(own_squares)
        total = count + own_count
        step = own_mean - mean  # the pairwise update of Chan, Golub and LeVeque (1979)
        mean = mean + step * (own_count / total)
        squares = squares + own_squares + np.square(step) * (count * own_count / total)
        count, images_seen = total, images_seen + 1
    if images_seen == 0:
        raise ParameterError("statistics need at least one image")
    std = np.sqrt(squares / count)
    std[std < _SMALLEST_STD] = 1.0
    return Statistics(tuple(mean.tolist()), tuple(std.tolist()), images_seen)
