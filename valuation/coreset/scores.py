"""How much a row would still teach: what the reference knows and the coreset's model does not.

With p the probability that a model gives a row's own label:

* ``"loss"`` (the paper's reducible loss): ``-ln p_coreset + ln p_reference``. Unbounded: a model of
  a few rows is sure of itself, so a wrong label has a huge loss and comes first.
* ``"loss-capped"`` (ours): the same with both losses capped.
* ``"prob"`` (ours, the default): ``p_reference - p_coreset``, between -1 and 1. A wrong label has a
  small p_reference and never comes first.

Reference: Tong, Liu, Shi, Gong, Coreset Selection via Reducible Loss in Continual Learning, ICLR
2025. Its accuracies are not reproduced here.
"""

from __future__ import annotations

import math
from typing import Final

import numpy as np

from privml.valuation.errors import SettingError
from privml.valuation.problem import Floats

SCORES: Final = ("prob", "loss-capped", "loss")
SMALLEST: Final = 1e-12
"""Smallest probability that enters a logarithm: a loss is at most 27.6 nats."""


def reducible_loss(
    reference: Floats, coreset: Floats, *, score: str = "prob", cap: float = 3.0
) -> Floats:
    """Return the score of each row; more is better.

    Parameters
    ----------
    reference, coreset
        (n,) float64 probability of each row's own label under either model, 0 to 1.
    score
        ``"prob"``, ``"loss-capped"`` or ``"loss"``.
    cap
        Largest loss in nats, for ``"loss-capped"``.

    Returns
    -------
    ndarray
        (n,) float64, finite.

    Raises
    ------
    SettingError
        The score is unknown or the cap not positive.
    """
    if score not in SCORES:
        raise SettingError(f"score={score!r} is unknown; use one of {SCORES}")
    if not cap > 0 or math.isnan(cap):
        raise SettingError(f"cap={cap!r} must be a positive number of nats")
    if score == "prob":
        return np.asarray(reference - coreset)
    most = cap if score == "loss-capped" else math.inf
    return np.asarray(np.minimum(_loss(coreset), most) - np.minimum(_loss(reference), most))


def _loss(probability: Floats) -> Floats:
    return np.asarray(-np.log(np.maximum(probability, SMALLEST)))
