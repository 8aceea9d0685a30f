"""Checks that the modules of this folder share."""

from __future__ import annotations

import math
from typing import Final

import numpy as np
from numpy.typing import ArrayLike

from privml.valuation.errors import ProblemError, SettingError
from privml.valuation.problem import Floats

_DISTINCT: Final = 2


def numbers(name: str, given: ArrayLike, *, lowest: float = -math.inf) -> Floats:
    """Return a (k,) float64 copy of finite numbers above ``lowest``; raises ``ProblemError``."""
    try:
        found = np.array(given, dtype=np.float64, ndmin=1)
    except (TypeError, ValueError) as error:
        raise ProblemError(f"{name} must hold numbers: {error}") from error
    if found.ndim != 1 or not len(found) or not np.isfinite(found).all():
        raise ProblemError(f"{name} must be a list of finite numbers, at least one")
    if found.min() <= lowest:
        raise ProblemError(f"{name} must be positive; it holds {found.min():g}")
    return found


def pairs(x_name: str, x: ArrayLike, name: str, given: ArrayLike) -> tuple[Floats, Floats]:
    """Return positive sizes, two distinct ones at least, and as many numbers."""
    sizes, values = numbers(x_name, x, lowest=0.0), numbers(name, given)
    if len(sizes) != len(values):
        raise ProblemError(
            f"{x_name} has length {len(sizes)}, {name} length {len(values)}; give equally many"
        )
    if len(np.unique(sizes)) < _DISTINCT:
        raise ProblemError(f"{x_name} needs two distinct sizes at least; measure another one")
    return sizes, values


def positive(name: str, value: float) -> float:
    """Return a positive finite number; raises ``SettingError``."""
    if not (math.isfinite(value) and value > 0):
        raise SettingError(f"{name}={value!r} must be a positive number")
    return float(value)


def whole(name: str, value: object, *, lowest: int = 1) -> int:
    """Return a whole number of at least ``lowest``; raises ``SettingError``."""
    if isinstance(value, bool) or not isinstance(value, int | np.integer) or value < lowest:
        raise SettingError(f"{name}={value!r} must be a whole number, at least {lowest}")
    return int(value)
