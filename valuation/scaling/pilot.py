"""The number of samples after which more of the same hardly helps, from a pilot."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from privml.valuation.errors import SettingError
from privml.valuation.scaling.checks import pairs, positive


@dataclass(frozen=True)
class Saturation:
    """What a pilot says about samples per object.

    Attributes
    ----------
    count
        Smallest measured count from which no larger one gains ``tolerance``; the largest measured
        if there is none.
    gain
        Share of the largest score that the best larger count gains over ``count``; 0 at the end.
    reached
        Whether such a count was found.
    """

    count: int
    gain: float
    reached: bool


def saturation(
    counts: ArrayLike, scores: ArrayLike, *, max_score: float, tolerance: float = 0.05
) -> Saturation:
    """Return the smallest count after which more samples gain less than ``tolerance``.

    Parameters
    ----------
    counts, scores
        (n,) samples per object of the pilot and its scores, in any order; two counts at least.
    max_score
        Score of a perfect model.
    tolerance
        Share of ``max_score``, between 0 and 1.

    Raises
    ------
    ProblemError, SettingError
        Counts, scores or the tolerance do not fit.
    """
    top = positive("max_score", max_score)
    if not 0 < tolerance < 1:
        raise SettingError(f"tolerance={tolerance!r} must lie between 0 and 1")
    sizes, found = pairs("counts", counts, "scores", scores)
    distinct, of = np.unique(sizes, return_inverse=True)
    mean = np.bincount(of, found) / np.bincount(of) / top
    best_later = np.maximum.accumulate(mean[::-1])[::-1][1:]
    gains = best_later - mean[:-1]
    for count, gain in zip(distinct[:-1], gains, strict=True):
        if gain < tolerance:
            return Saturation(_count(count), float(gain), True)
    return Saturation(_count(distinct[-1]), 0.0, False)


def _count(value: float) -> int:
    return max(1, round(float(value)))
