"""Training of polynomial networks: floating point, one stage, seconds for small images."""

from __future__ import annotations

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn

from privml.backbones.cnn_data import Source
from privml.backbones.cnn_training import Progress, Recipe
from privml.errors import ParameterError
from privml.rng import ScienceSeed

_CHUNK = 512


def fit_polynomial(
    net: nn.Sequential, train: Source, valid: Source | None = None, *, recipe: Recipe,
    limit: float, seed: ScienceSeed, progress: Progress | None = None,
) -> float | None:  # fmt: skip
    """Train a network in place.

    Parameters
    ----------
    net
        Affine layers and squares.
    train, valid
        Data; ``valid`` steers nothing.
    recipe
        Epochs, rates and the like.
    limit
        Inputs are cut to [-limit, limit], as the client will do.
    seed
        Of the order of samples and of augmentation.
    progress
        Told about every step.

    Returns
    -------
    float or None
        Share of right predictions on ``valid``, if given.

    Raises
    ------
    ParameterError
        The loss is no longer finite.
    """
    optimiser = _optimiser(net, recipe)
    count = len(train.labels)
    per_epoch = max(count // recipe.batch, 1)
    total, at = recipe.epochs * per_epoch, 0
    for epoch in range(recipe.epochs):
        order = seed.child("polynomial order", epoch).generator().permutation(count)
        for first in range(0, per_epoch * recipe.batch, recipe.batch):
            if progress is not None:
                progress("polynomial", at / total)
            for group in optimiser.param_groups:
                group["lr"] = recipe.rate_at(at / total)
            which = order[first : first + recipe.batch]
            rng = seed.child("polynomial augment", at).generator()
            x = torch.from_numpy(train.batch(which, rng=rng)).clamp(-limit, limit)
            net.train()
            labels = torch.from_numpy(train.labels[which])
            loss = F.cross_entropy(net(x), labels, label_smoothing=recipe.smoothing)
            if not bool(loss.isfinite()):
                raise ParameterError("the loss is not finite; lower the rate")
            optimiser.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]
            torch.nn.utils.clip_grad_norm_(net.parameters(), 1.0)
            optimiser.step()
            at += 1
    net.eval()
    return None if valid is None else polynomial_accuracy(net, valid, limit=limit)


def polynomial_accuracy(net: nn.Sequential, data: Source, *, limit: float) -> float:
    """Return the share of right predictions in floating point."""
    right, count = 0, len(data.labels)
    net.eval()
    for which in np.array_split(np.arange(count), -(-count // _CHUNK)):
        x = torch.from_numpy(data.batch(which, rng=None)).clamp(-limit, limit)
        with torch.no_grad():
            right += int((net(x).argmax(1).numpy() == data.labels[which]).sum())
    return right / count


def _optimiser(net: nn.Sequential, recipe: Recipe) -> torch.optim.Optimizer:
    parameters = list(net.parameters())
    groups = [
        {"params": [p for p in parameters if p.ndim > 1], "weight_decay": recipe.decay},
        {"params": [p for p in parameters if p.ndim <= 1], "weight_decay": 0.0},
    ]
    if recipe.optimiser == "sgd":
        return torch.optim.SGD(groups, lr=recipe.rate, momentum=0.9, nesterov=True)
    return torch.optim.AdamW(groups, lr=recipe.rate)
