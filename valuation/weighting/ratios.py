"""Importance of a row: how probable its label really is, over how often it is seen already.

``w = (quality / seen)^(1/temperature)``, computed from logarithms, at most ``clip``, and divided by
its mean if asked for. quality is the probability that a model of the real rows gives the label;
seen is that of a model of the generated rows (IMP) or of the model in training (DIMP).

Reference: Kuo, Liao, Chao, Ma, Cheng, Not All LLM-Generated Data Are Equal, ICLR 2025, arXiv
2410.21526. Clip, normalisation and temperature are ours.
"""

from __future__ import annotations

import math
from typing import Final

import numpy as np
from numpy.typing import ArrayLike

from privml.valuation.errors import ProblemError, SettingError
from privml.valuation.problem import Floats

LARGEST_LOG: Final = math.log(1e30)
"""No weight exceeds 1e30, so that sums of weights stay finite in float32."""
NORMALISATIONS: Final = ("batch", None)


def importance(
    quality: ArrayLike,
    seen: ArrayLike | None = None,
    *,
    clip: float | None = None,
    normalise: str | None = None,
    temperature: float = 1.0,
) -> Floats:
    """Return the weight of each row.

    Parameters
    ----------
    quality
        (n,) probability of each row's label under the model of the real rows; 0 gives weight 0.
    seen
        (n,) probability under the model of the generated rows, or the one in training; None for 1,
        the weight by quality alone.
    clip
        Largest weight, before normalisation; None for none but 1e30.
    normalise
        ``"batch"`` divides by the mean, which leaves the step size of a training as it was; None.
    temperature
        Above 1 evens weights out, below 1 sharpens them.

    Returns
    -------
    ndarray
        (n,) float64, finite, at least 0. All 0 if every quality is 0.

    Raises
    ------
    ProblemError
        Something is no probability.
    SettingError
        A setting is out of range.
    """
    checked_settings(clip, normalise, temperature)
    top = _probabilities("quality", quality)
    below = np.ones_like(top) if seen is None else _probabilities("seen", seen)
    if top.shape != below.shape:
        raise ProblemError(f"quality has shape {top.shape}, seen {below.shape}; give equal ones")
    with np.errstate(divide="ignore", invalid="ignore"):
        log_ratio = np.where(top > 0, np.log(top) - np.log(below), -np.inf) / temperature
    weight = np.exp(np.minimum(log_ratio, LARGEST_LOG if clip is None else math.log(clip)))
    mean = weight.mean() if normalise == "batch" else 0.0
    return np.asarray(weight / mean if mean > 0 else weight)


def checked_settings(clip: float | None, normalise: str | None, temperature: float) -> None:
    """Raise ``SettingError`` for a setting out of range."""
    if clip is not None and not 0 < clip <= math.exp(LARGEST_LOG):
        raise SettingError(f"clip={clip!r} must be a positive number up to 1e30, or None")
    if normalise not in NORMALISATIONS:
        raise SettingError(f"normalise={normalise!r} is unknown; use 'batch' or None")
    if not (math.isfinite(temperature) and temperature > 0):
        raise SettingError(f"temperature={temperature!r} must be a positive number")


def _probabilities(name: str, given: ArrayLike) -> Floats:
    found = np.array(given, dtype=np.float64)
    if found.ndim != 1 or not ((found >= 0) & (found <= 1)).all():
        raise ProblemError(f"{name} must hold a probability, 0 to 1, for each row")
    if not len(found):
        raise ProblemError(f"{name} is empty; give at least one row")
    return found
