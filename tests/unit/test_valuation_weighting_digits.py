"""Weights against wrong labels: digits with two fifths of the labels drawn anew."""

from __future__ import annotations

import numpy as np
from sklearn.base import clone
from sklearn.datasets import load_digits
from torch import nn

from privml.valuation.coreset import TorchClassifier
from privml.valuation.weighting import DIMPLoss, ImportanceWeighter


def mlp(features: int, classes: int) -> nn.Module:
    return nn.Sequential(nn.Linear(features, 64), nn.ReLU(), nn.Linear(64, classes))


def test_digits_with_two_fifths_of_the_labels_redrawn() -> None:
    X, y = load_digits(return_X_y=True)
    found: dict[str, list[float]] = {"plain": [], "quality": [], "dimp": []}
    for seed in range(3):
        draw = np.random.default_rng(seed)
        order = draw.permutation(len(y))
        table, labels = X[order] / 16, y[order]
        shown = labels[100:1100].copy()
        shown[draw.permutation(1000)[:400]] = draw.integers(0, 10, 400)
        rows, test = table[100:1100], (table[1100:], labels[1100:])
        checker = TorchClassifier(mlp, steps=400, lr=5e-3, weight_decay=1e-3)
        weighter = ImportanceWeighter(checker).fit(rows, shown, table[:100], labels[:100])
        model = TorchClassifier(mlp, steps=600, lr=3e-3, batch_size=128)
        found["plain"].append(model.fit(rows, shown).score(*test))
        found["quality"].append(weighter.fit_model(model).score(*test))
        dimp = clone(model).set_params(loss=DIMPLoss(clip=5.0))
        found["dimp"].append(dimp.fit(rows, shown, weighter.quality_).score(*test))
    mean = {name: float(np.mean(runs)) for name, runs in found.items()}
    assert mean["quality"] >= 0.93, mean
    assert mean["dimp"] >= 0.93, mean
    assert mean["plain"] < mean["quality"] - 0.01, mean
