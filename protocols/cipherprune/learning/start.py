"""Thresholds to start from and to go to: quantiles of the scores of the model as it is."""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from privml.backbones.encoder import Encoder
from privml.backbones.pruned import pruned_forward
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

    Protected rows are left out. Cost: one forward pass over the rows for each layer.
    """
    count = model.config.layers - 1
    zeros = [0.0] * count
    found = []
    for layer in range(count):
        scores = torch.cat(list(_scores(model, rows, (zeros, zeros), layer, reference)))
        found.append(max(float((scores + FAINT).log().std()), _NARROW) if len(scores) > 1 else 1.0)
    return found


def fitted(
    model: Encoder, rows: Rows, kept: list[float], high: float, *, reference: int
) -> tuple[list[float], list[float]]:
    """Return thresholds that keep given shares of the tokens, layer after layer.

    Parameters
    ----------
    kept
        Share of all tokens to keep after each layer but the last.
    high
        Share of the kept tokens that is to be of high importance.

    Returns
    -------
    tuple
        theta and beta in units of the score times ``reference``.

    Notes
    -----
    Cost: one forward pass over the rows for each layer.
    """
    count = model.config.layers - 1
    total = int(rows.lengths.sum())
    theta: list[float] = []
    beta: list[float] = []
    for layer in range(count):
        rest = [0.0] * (count - layer)
        limits = [t / reference for t in theta] + rest, [b / reference for b in beta] + rest
        scores = torch.cat(list(_scores(model, rows, limits, layer, reference)))
        free = [share * total - len(rows) for share in (kept[layer], high * kept[layer])]
        low, top = (_level(scores, math.floor(number)) for number in free)
        theta.append(low)
        beta.append(max(low, top))
    return theta, beta


def _scores(
    model: Encoder, rows: Rows, limits: tuple[list[float], list[float]], layer: int, reference: int
) -> Iterator[Tensor]:
    """Yield the scores of one layer, those of protected and of pruned rows left out."""
    with torch.no_grad():
        for which in rows.in_order(_BATCH):
            batch = rows.batch(which)
            out = pruned_forward(model, batch, *limits, reference=reference)
            there = out.kept[layer] & ~protected_rows(model.config, batch)
            yield out.scores[layer][there] / model.config.heads


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
