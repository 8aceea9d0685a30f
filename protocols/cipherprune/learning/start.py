"""Thresholds to start from and to go to: quantiles of the scores of the model as it is."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from privml.backbones.encoder import Encoder
from privml.backbones.pruned import layer_scores
from privml.backbones.pruned_masks import FAINT, protected_rows
from privml.protocols.cipherprune.learning.data import Rows

_BATCH = 64
_HALVINGS = 40
_NARROW = 0.01
_BEYOND = 1.5  # times the largest score: drops all that is not protected


def profile(lengths: NDArray[np.int64], layers: int, budget: float) -> list[float]:
    """Return the share of tokens to be kept after each layer but the last.

    The shares fall linearly until only the protected row of each text is left, and their mean is
    the budget. Late layers then have one row, where attention costs nothing, and early layers,
    which tell little yet about what matters, keep as much as the budget allows.
    """
    total = float(lengths.sum())

    def shares(slope: float) -> list[float]:
        left = [1.0 - slope * layer for layer in range(1, layers)]
        return [float(np.maximum(1.0, lengths * share).sum()) / total for share in left]

    low, high = 0.0, 1.0
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        if float(np.mean(shares(middle))) > budget:
            low = middle
        else:
            high = middle
    return shares(high)


def spreads(model: Encoder, rows: Rows, *, reference: int) -> list[float]:
    """Return the standard deviation of the logarithm of the scores of each layer but the last.

    Protected rows are left out. Cost: one forward pass over the rows.
    """
    zeros = [0.0] * (model.config.layers - 1)
    return [
        max(float((scores + FAINT).log().std()), _NARROW) if len(scores) > 1 else 1.0
        for scores in _scores(model, rows, (zeros, zeros), reference)
    ]


def towards(shares: Sequence[float], mean: float, *, weights: Sequence[float]) -> list[float]:
    """Stretch what shares lack to 1 by one factor, so that their weighted mean is a given one.

    Order and proportions of what they lack stay, but that no share falls below 0, and that a share
    of 1 lacks a per cent too.
    """
    lacks = np.clip(1.0 - np.asarray(shares, np.float64), _NARROW, 1.0)

    def stretched(factor: float) -> NDArray[np.float64]:
        return np.clip(1.0 - factor * lacks, 0.0, 1.0)

    low, high = 0.0, 1.0 / _NARROW
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        if float(np.average(stretched(middle), weights=weights)) > mean:
            low = middle
        else:
            high = middle
    return [float(share) for share in stretched(high)]


def fitted(
    model: Encoder, rows: Rows, kept: Sequence[float], high: Sequence[float], *, reference: int
) -> tuple[list[float], list[float]]:
    """Return thresholds that keep given shares of the tokens, layer after layer.

    Parameters
    ----------
    kept
        Share of all tokens to keep after each layer but the last.
    high
        Share of those tokens that is to be of high importance, for each layer.

    Returns
    -------
    tuple
        theta and beta in units of the score times ``reference``.

    Notes
    -----
    Cost: one forward pass over the rows, whose activations of one layer are held.
    """
    count, total = model.config.layers - 1, int(rows.lengths.sum())
    theta, beta = [0.0] * count, [0.0] * count
    for layer, scores in enumerate(_scores(model, rows, (theta, beta), reference)):
        free = [share * total - len(rows) for share in (kept[layer], high[layer] * kept[layer])]
        low, top = (_level(scores, math.floor(number)) for number in free)
        theta[layer], beta[layer] = low / reference, max(low, top) / reference
    return [t * reference for t in theta], [b * reference for b in beta]


def _scores(
    model: Encoder, rows: Rows, limits: tuple[list[float], list[float]], reference: int
) -> Iterator[Tensor]:
    """Yield the scores of each layer, those of protected and of pruned rows left out.

    Limits of a layer may be set between its scores and those of the next one.
    """
    batches = [rows.batch(which) for which in rows.in_order(_BATCH)]
    free = [~protected_rows(model.config, batch) for batch in batches]
    with torch.no_grad():
        each = [layer_scores(model, batch, *limits, reference=reference) for batch in batches]
        for layer in zip(*each, strict=True):
            pairs = zip(layer, free, strict=True)
            scores = torch.cat([raw[there & rest] for (there, raw), rest in pairs])
            yield scores / model.config.heads


def _level(scores: Tensor, number: int) -> float:
    """Return a threshold that a number of scores reach; the mean score if there are none."""
    if not len(scores):
        return 1.0
    if number >= len(scores):
        return 0.0
    ordered = scores.sort(descending=True).values
    if number <= 0:
        return _BEYOND * float(ordered[0])
    return float(ordered[number - 1 : number + 1].mean())
