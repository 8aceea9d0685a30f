"""Confidence intervals of means of independent units."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.special import stdtrit

from privml.valuation.problem import Floats


def half_width(stderr: Floats, freedom: NDArray[Any], level: float) -> Floats:
    """Return half the width of a two-sided t-interval; NaN below one degree of freedom.

    Parameters
    ----------
    stderr
        (n,) standard errors.
    freedom
        (n,) degrees of freedom.
    level
        Confidence, 0 < level < 1.
    """
    degrees = np.asarray(freedom, dtype=np.float64)
    quantile = stdtrit(np.maximum(degrees, 1.0), (1 + level) / 2)
    return np.where(degrees >= 1, quantile * stderr, np.nan)
