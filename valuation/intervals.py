"""Confidence intervals of means of independent units, and what rounding adds to them.

A spread of zero does not make a mean of floating-point numbers exact: in an additive game every
marginal of a player is the same number, but for the last digits. So each interval is at least as
wide as a bound of the rounding error, see :func:`rounding`.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np
from numpy.typing import NDArray
from scipy.special import stdtrit

from privml.valuation.problem import Floats

_EPS: Final = 2.0**-52
_STEPS: Final = 8
_SMALL: Final = 2.0**-450


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


def rounding(largest: float, terms: float) -> float:
    """Return a bound of the rounding error of a mean of differences of utilities.

    ``(terms + 8) 2^-52 largest``. Each utility is taken to be as good as a sum of as many rounded
    terms as there are players, each of them at most ``largest``; the difference of two, a factor, a
    sum over ``terms`` and a division follow. What a model's own solver leaves is not in it.
    Squares of spreads vanish where utilities are below ``2^-450``: there four times the largest is
    added, which holds every mean.

    Parameters
    ----------
    largest
        Largest size of a utility, times the largest factor of a marginal.
    terms
        Terms of the longest chain of sums: players plus units that are averaged.
    """
    lost = 4.0 * largest if largest < _SMALL else 0.0
    return (terms + _STEPS) * _EPS * largest + lost


def largest_size(*numbers: NDArray[Any] | float) -> float:
    """Return the largest absolute value; NaN is left out, nothing gives 0."""
    found = 0.0
    for each in numbers:
        sizes = np.abs(np.asarray(each, dtype=np.float64)).ravel()
        found = max(found, float(sizes.max(initial=0.0, where=~np.isnan(sizes))))
    return found
