"""What settings are: whole numbers and numbers, of Python or numpy, but no booleans."""

from __future__ import annotations

import math

import numpy as np


def is_whole(value: object) -> bool:
    """Return whether a value is an integer."""
    return isinstance(value, int | np.integer) and not isinstance(value, bool)


def is_finite(value: object) -> bool:
    """Return whether a value is a finite real number."""
    if isinstance(value, bool) or not isinstance(value, int | float | np.number):
        return False
    return not isinstance(value, np.complexfloating) and math.isfinite(value)
