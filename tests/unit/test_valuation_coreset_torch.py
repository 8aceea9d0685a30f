"""Torch modules as classifiers, no torch where none is needed, and the noisy digits."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import numpy as np
import pytest
import torch
from sklearn.base import clone
from sklearn.datasets import load_digits, load_iris
from torch import nn

from privml.rng import ScienceSeed
from privml.valuation.coreset import CSReL, TorchClassifier
from privml.valuation.errors import ProblemError, SettingError

NAMES = np.array(["setosa", "versicolor", "virginica"])


def iris() -> tuple[np.ndarray, np.ndarray]:
    X, y = load_iris(return_X_y=True)
    order = np.random.default_rng(0).permutation(len(y))
    return X[order], NAMES[y[order]]


def mlp(features: int, classes: int) -> nn.Module:
    return nn.Sequential(nn.Linear(features, 64), nn.ReLU(), nn.Linear(64, classes))


def linear(features: int, classes: int) -> nn.Module:
    return nn.Linear(features, classes)


def test_torch_classifier_is_plain_training() -> None:
    """One full batch a step, so the order of rows does not matter: equal to a loop by hand."""
    X, y = iris()
    model = TorchClassifier(linear, steps=20, batch_size=150, optimizer="sgd", lr=0.05).fit(X, y)
    start = ScienceSeed(0).child("parameters").generator().uniform(-0.5, 0.5, (3, 4))
    weight, bias = start.astype(np.float32).astype(float), np.zeros(3)
    speed_w, speed_b = np.zeros((3, 4)), np.zeros(3)
    hot = (y[:, None] == NAMES).astype(float)
    for _ in range(20):
        logits = X @ weight.T + bias
        p = np.exp(logits - logits.max(1, keepdims=True))
        error = (p / p.sum(1, keepdims=True) - hot) / 150
        speed_w, speed_b = 0.9 * speed_w + error.T @ X, 0.9 * speed_b + error.sum(0)
        weight, bias = weight - 0.05 * speed_w, bias - 0.05 * speed_b
    np.testing.assert_allclose(model.module_.weight.detach().numpy(), weight, atol=1e-4)
    np.testing.assert_allclose(model.predict_proba(X).sum(axis=1), 1)


def test_torch_weights_are_repetitions() -> None:
    X, y = iris()
    times = np.random.default_rng(0).integers(0, 3, 150)
    times[:3] = 1
    settings = {"steps": 15, "optimizer": "sgd", "lr": 0.05}
    weighted = TorchClassifier(linear, batch_size=150, **settings)
    weighted.fit(X, y, sample_weight=times * 150 / times.sum())
    repeated = TorchClassifier(linear, batch_size=int(times.sum()), **settings)
    repeated.fit(np.repeat(X, times, axis=0), np.repeat(y, times))
    np.testing.assert_allclose(weighted.predict_proba(X), repeated.predict_proba(X), atol=1e-5)


def test_torch_classifier_repeats_itself_whatever_torch_s_own_seed() -> None:
    X, y = iris()
    found = []
    for seed in (0, 1):
        with torch.random.fork_rng():
            torch.manual_seed(seed)
            found.append(TorchClassifier(mlp, steps=5).fit(X, y).predict_proba(X))
    np.testing.assert_array_equal(*found)
    other = TorchClassifier(mlp, steps=5, random_state=1).fit(X, y).predict_proba(X)
    assert (found[0] != other).any()
    model = clone(TorchClassifier(mlp, steps=300)).fit(X, y)
    assert model.score(X, y) > 0.9
    assert set(model.predict(X)) <= set(NAMES)


@pytest.mark.parametrize(
    "others",
    [{"steps": 0}, {"batch_size": 0}, {"lr": 0.0}, {"optimizer": "lbfgs"}, {"weight_decay": -1.0}],
)
def test_torch_classifier_refuses_settings(others: dict[str, Any]) -> None:
    with pytest.raises(SettingError):
        TorchClassifier(linear, **others).fit(*iris())


def test_torch_classifier_refuses_dropout_and_bad_tables() -> None:
    X, y = iris()
    with pytest.raises(SettingError, match="dropout"):
        TorchClassifier(lambda f, c: nn.Sequential(nn.Dropout(0.5), nn.Linear(f, c))).fit(X, y)
    with pytest.raises(ProblemError, match="sample_weight"):
        TorchClassifier(linear).fit(X, y, sample_weight=-np.ones(150))
    with pytest.raises(ProblemError, match="finite"):
        TorchClassifier(linear).fit(np.full((150, 2), np.inf), y)
    with pytest.raises(ProblemError, match="label"):
        TorchClassifier(linear).fit(X, y[:-1])


def test_coresets_load_without_torch() -> None:
    code = (
        "import sys; import privml.valuation.coreset.csrel; import privml.valuation.weighting;"
        "import privml.valuation.weighting.weighter; import privml.valuation.scaling.law;"
        "sys.exit('torch' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


# the number to reach


def digits(seed: int) -> tuple[np.ndarray, ...]:
    """Return 1,000 rows with a fifth of the labels wrong, the true labels, and test rows."""
    X, y = load_digits(return_X_y=True)
    draw = np.random.default_rng(seed)
    order = draw.permutation(len(y))
    X, y = X[order] / 16, y[order]
    shown = y[:1000].copy()
    bad = draw.permutation(1000)[:200]
    shown[bad] = (shown[bad] + draw.integers(1, 10, 200)) % 10
    return X[:1000], shown, y[:1000], X[1000:], y[1000:]


def accuracy_and_noise(seed: int, **others: Any) -> tuple[float, float]:
    X, shown, true, X_test, y_test = digits(seed)
    model = CSReL(
        TorchClassifier(mlp, steps=60),
        50,
        reference_estimator=TorchClassifier(mlp, steps=300, lr=3e-3),
        random_state=seed,
        **others,
    ).fit(X, shown)
    chosen = model.indices_
    final = TorchClassifier(mlp, steps=300, lr=5e-3).fit(X[chosen], shown[chosen])
    return final.score(X_test, y_test), float((shown[chosen] != true[chosen]).mean())


def test_fifty_digits_out_of_a_fifth_wrong_labels() -> None:
    runs = np.array([accuracy_and_noise(seed) for seed in range(3)])
    assert runs[:, 0].mean() >= 0.88
    assert runs[:, 1].mean() <= 0.03


def test_the_paper_s_score_takes_wrong_labels() -> None:
    accuracy, noise = accuracy_and_noise(0, score="loss", selection_steps=10)
    assert noise > 0.2
    assert accuracy < 0.8
