"""Weights: their formulas, gradients, ends of the range, checkers, estimators, and noisy digits."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from sklearn.base import BaseEstimator, ClassifierMixin, clone
from sklearn.datasets import load_iris
from sklearn.linear_model import LogisticRegression
from sklearn.naive_bayes import GaussianNB
from sklearn.neighbors import KNeighborsClassifier
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.svm import LinearSVC
from torch import Tensor, nn

from privml.rng import ScienceSeed
from privml.valuation.coreset import TorchClassifier, cross_fitted
from privml.valuation.errors import ProblemError, SettingError, UtilityFailed
from privml.valuation.weighting import DIMPLoss, ImportanceLoss, ImportanceWeighter, importance

CLASSES = 5


def batch(seed: int = 0, rows: int = 7, scale: float = 2.0) -> tuple[Tensor, Tensor, Tensor]:
    draw = np.random.default_rng(seed)
    logits = torch.tensor(scale * draw.normal(size=(rows, CLASSES)))
    target = torch.tensor(draw.integers(0, CLASSES, rows))
    return logits, target, torch.tensor(draw.uniform(0, 1, rows))


def own_p(logits: Tensor, target: Tensor) -> np.ndarray:
    return torch.softmax(logits, 1)[torch.arange(len(target)), target].numpy()


# weights


@pytest.mark.parametrize("temperature", [0.5, 1.0, 4.0])
@pytest.mark.parametrize("clip", [None, 2.0])
@pytest.mark.parametrize("normalise", [None, "batch"])
def test_importance_is_its_formula(
    temperature: float, clip: float | None, normalise: str | None
) -> None:
    draw = np.random.default_rng(0)
    quality, seen = draw.uniform(0.01, 1, (2, 50))
    want = np.minimum((quality / seen) ** (1 / temperature), clip or np.inf)
    want = want / want.mean() if normalise else want
    found = importance(quality, seen, clip=clip, normalise=normalise, temperature=temperature)
    np.testing.assert_allclose(found, want, rtol=1e-12)


def test_importance_without_denominator_is_the_quality() -> None:
    np.testing.assert_allclose(importance([0.0, 0.3, 1.0]), [0.0, 0.3, 1.0])


def test_importance_at_the_ends_of_the_range() -> None:
    quality = [0.0, 0.0, 1.0, 1.0, 1e-300, 1.0]
    seen = [0.0, 1.0, 1e-30, 0.0, 1e-300, 1e-300]
    np.testing.assert_allclose(importance(quality, seen), [0, 0, 1e30, 1e30, 1, 1e30])
    assert (importance(quality, seen, clip=5.0) <= 5 + 1e-12).all()
    np.testing.assert_array_equal(importance([0.0, 0.0], [0.5, 0.5], normalise="batch"), [0, 0])
    np.testing.assert_allclose(importance(quality, seen, normalise="batch").mean(), 1)
    assert np.isfinite(importance(quality, seen, temperature=1e-3)).all()


def test_wrong_weights_are_refused() -> None:
    for wrong in ([-0.1], [1.1], [np.nan], [], [[0.5]]):
        with pytest.raises(ProblemError):
            importance(wrong)
    with pytest.raises(ProblemError, match="shape"):
        importance([0.5], [0.5, 0.5])
    for others in ({"clip": 0.0}, {"clip": np.inf}, {"normalise": "sum"}, {"temperature": 0.0}):
        with pytest.raises(SettingError):
            importance([0.5], **others)  # type: ignore[arg-type]
        with pytest.raises(SettingError):
            DIMPLoss(**others)  # type: ignore[arg-type]


# losses


class Attached(DIMPLoss):
    """The mistake that the gradient test must catch: the gradient flows through the weights."""

    def weights(self, log_p: Tensor, quality: Tensor) -> Tensor:
        return quality / torch.exp(log_p)


LOSSES: dict[str, ImportanceLoss] = {
    "fixed": ImportanceLoss(),
    "fixed, normalised": ImportanceLoss(normalise="batch", alpha=[1, 2, 0, 1, 0.5]),
    "dimp": DIMPLoss(),
    "dimp, clipped": DIMPLoss(clip=1.5),
    "dimp, all": DIMPLoss(clip=3.0, normalise="batch", temperature=2.0, alpha=[1, 2, 0, 1, 0.5]),
}


def detached(loss: ImportanceLoss, at: Tensor, target: Tensor, weight: Tensor) -> Any:
    """Return the loss as a function of the logits with the weights held at ``at``, in numpy."""
    w = weight.numpy()
    if isinstance(loss, DIMPLoss):
        w = np.minimum((w / own_p(at, target)) ** (1 / loss.temperature), loss.clip or np.inf)
    w = w / w.mean() if loss.normalise else w
    w = w * loss.alpha.double().numpy()[target.numpy()] if loss.alpha is not None else w
    return lambda logits: float(-(w * np.log(own_p(logits, target))).mean())


def gradient_error(loss: ImportanceLoss) -> float:
    logits, target, weight = batch()
    logits.requires_grad_()
    loss(logits, target, weight).backward()
    plain = detached(loss, logits.detach(), target, weight)
    step, worst = 1e-5, 0.0
    for row in range(len(target)):
        for column in range(CLASSES):
            change = torch.zeros_like(logits)
            change[row, column] = step
            up, down = plain(logits.detach() + change), plain(logits.detach() - change)
            slope = float(logits.grad[row, column])  # type: ignore[index]
            worst = max(worst, abs((up - down) / (2 * step) - slope))
    return worst


@pytest.mark.parametrize("name", LOSSES)
def test_losses_and_gradients_with_weights_detached(name: str) -> None:
    loss, (logits, target, weight) = LOSSES[name], batch()
    want = detached(loss, logits, target, weight)(logits)
    assert float(loss(logits, target, weight)) == pytest.approx(want, rel=1e-10)
    assert gradient_error(loss) < 1e-8


def test_the_gradient_test_catches_attached_weights() -> None:
    assert gradient_error(Attached()) > 1e-3


def test_dimp_is_the_expected_identity() -> None:
    """The gradient of DIMP is that of the sum of quality/p: its weight is quality/p."""
    logits, target, quality = batch()
    logits.requires_grad_()
    DIMPLoss()(logits, target, quality).backward()
    other = logits.detach().clone().requires_grad_()
    p = torch.softmax(other, 1)[torch.arange(len(target)), target]
    (quality / p).mean().backward()
    torch.testing.assert_close(logits.grad, other.grad)


def test_a_denominator_of_its_own() -> None:
    logits, target, quality = batch()
    calm, _, _ = batch(1)
    found = DIMPLoss()(logits, target, quality, calm)
    w = quality.numpy() / own_p(calm, target)
    assert float(found) == pytest.approx(-(w * np.log(own_p(logits, target))).mean())
    same = DIMPLoss()(logits, target, quality, logits)
    assert float(same) == pytest.approx(float(DIMPLoss()(logits, target, quality)))


@pytest.mark.parametrize("kind", [torch.float64, torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("clip", [None, 5.0])
@pytest.mark.parametrize("normalise", [None, "batch"])
def test_losses_stay_finite(kind: torch.dtype, clip: float | None, normalise: str | None) -> None:
    low = float(np.log(1e-30))
    logits = torch.tensor(
        [[0.0, low], [0.0, low], [0.0, -3e4], [0.0, 0.0], [0.0, 3e4]], dtype=kind
    ).requires_grad_()
    target = torch.tensor([1, 1, 1, 0, 1])
    quality = torch.tensor([1.0, 0.0, 1.0, 0.0, 1.0])
    loss = DIMPLoss(clip=clip, normalise=normalise)
    found = loss(logits, target, quality)
    found.backward()
    assert torch.isfinite(found)
    if not (kind == torch.float16 and clip is None and normalise is None):
        assert torch.isfinite(logits.grad).all()  # 1e30 does not fit float16
    assert float(logits.grad[1].abs().sum()) == 0  # quality 0
    nothing = loss(logits, target, torch.zeros(5))
    assert nothing.item() == 0


def test_losses_refuse_shapes_and_classes() -> None:
    logits, target, weight = batch()
    for wrong in (
        (logits[0], target, weight),
        (logits, target[1:], weight),
        (logits, target, logits),
    ):
        with pytest.raises(ProblemError, match="fit"):
            DIMPLoss()(*wrong)
    with pytest.raises(SettingError, match="alpha"):
        ImportanceLoss(alpha=[1.0, -1.0])
    assert "alpha" in ImportanceLoss(alpha=[1.0, 2.0]).state_dict()


# the weighter


def iris() -> tuple[np.ndarray, ...]:
    """Return 110 rows, some with wrong labels, then 40 real ones."""
    X, y = load_iris(return_X_y=True)
    draw = np.random.default_rng(0)
    order = draw.permutation(150)
    X, y = X[order], np.array(["a", "b", "c"])[y[order]]
    y_bad = y[:110].copy()
    y_bad[:20] = np.array(["a", "b", "c"])[draw.integers(0, 3, 20)]
    return X[:110], y_bad, X[110:], y[110:]


def test_quality_weights_are_the_checker_s_probabilities() -> None:
    X, y, X_real, y_real = iris()
    found = ImportanceWeighter(GaussianNB(), normalise=None).fit(X, y, X_real, y_real)
    checker = GaussianNB().fit(X_real, y_real)
    want = checker.predict_proba(X)[np.arange(110), np.searchsorted(checker.classes_, y)]
    np.testing.assert_allclose(found.quality_, want)
    np.testing.assert_allclose(found.weights_, want, rtol=1e-12)
    assert ImportanceWeighter(GaussianNB()).fit(
        X, y, X_real, y_real
    ).weights_.mean() == pytest.approx(1)


@pytest.mark.parametrize("folds", [0, 4])
def test_imp_weights_divide_by_the_diversity_checker(folds: int) -> None:
    X, y, X_real, y_real = iris()
    weighter = ImportanceWeighter(
        GaussianNB(),
        "imp",
        diversity_checker=GaussianNB(var_smoothing=0.1),
        normalise=None,
        cross_fit=folds,
    ).fit(X, y, X_real, y_real)
    own = np.arange(110), np.searchsorted(["a", "b", "c"], y)
    if folds:
        seed = ScienceSeed(0).child("weighting").child("diversity")
        seen = cross_fitted(GaussianNB(var_smoothing=0.1), X, y, folds=4, random_state=seed)
    else:
        seen = GaussianNB(var_smoothing=0.1).fit(X, y).predict_proba(X)
    np.testing.assert_allclose(weighter.weights_, weighter.quality_ / seen[own], rtol=1e-9)


def test_dimp_weights_follow_the_model() -> None:
    X, y, X_real, y_real = iris()
    weighter = ImportanceWeighter(GaussianNB(), "dimp", clip=5.0, normalise=None)
    weighter.fit(X, y, X_real, y_real)
    table = np.random.default_rng(0).dirichlet(np.ones(3), 110)
    own = table[np.arange(110), np.searchsorted(["a", "b", "c"], y)]
    want = np.minimum(weighter.quality_ / own, 5)
    np.testing.assert_allclose(weighter.weights_for(table), want, rtol=1e-12)
    np.testing.assert_allclose(weighter.weights_for(own), want, rtol=1e-12)
    with pytest.raises(ProblemError):
        weighter.weights_for(own[:-1])


def test_fitted_dimp_model_is_stationary() -> None:
    """When the weights settle, the weighted gradient of the model is zero at its own weights."""
    X, y, X_real, y_real = iris()
    weighter = ImportanceWeighter(GaussianNB(), "dimp", clip=3.0, rounds=40)
    model = weighter.fit(X, y, X_real, y_real).fit_model(LogisticRegression(tol=1e-8, max_iter=500))
    again = weighter.weights_for(model.predict_proba(X))
    np.testing.assert_allclose(weighter.weights_, again, atol=1e-3)
    first = ImportanceWeighter(GaussianNB(), "dimp", clip=3.0, rounds=1)
    first.fit(X, y, X_real, y_real).fit_model(LogisticRegression(max_iter=500))
    assert np.abs(first.weights_ - weighter.weights_).max() > 0.1


@pytest.mark.parametrize(
    ("model", "name"),
    [
        (LogisticRegression(max_iter=500), "sample_weight"),
        (
            make_pipeline(StandardScaler(), LogisticRegression()),
            "logisticregression__sample_weight",
        ),
        (GaussianNB(), "sample_weight"),
        (TorchClassifier(lambda f, c: nn.Linear(f, c), steps=30), "sample_weight"),
    ],
    ids=["logistic", "pipeline", "bayes", "torch"],
)
@pytest.mark.parametrize("mode", ["quality", "imp", "dimp"])
def test_any_weighted_estimator_serves(model: Any, name: str, mode: str) -> None:
    X, y, X_real, y_real = iris()
    weighter = ImportanceWeighter(GaussianNB(), mode, clip=5.0, rounds=2)
    fitted = weighter.fit(X, y, X_real, y_real).fit_model(model, weight_name=name)
    assert set(fitted.predict(X)) <= {"a", "b", "c"}
    assert fitted is not model


def test_equal_seeds_agree() -> None:
    X, y, X_real, y_real = iris()
    checker = TorchClassifier(lambda f, c: nn.Linear(f, c), steps=20)

    def weights(seed: int, jobs: int = 1) -> np.ndarray:
        weighter = ImportanceWeighter(
            checker, "imp", random_state=seed, n_jobs=jobs, backend="threading"
        )
        return weighter.fit(X, y, X_real, y_real).weights_

    np.testing.assert_array_equal(weights(1), weights(1))
    np.testing.assert_array_equal(weights(1), weights(1, 2))
    assert (weights(1) != weights(2)).any()


def test_weighter_conventions() -> None:
    X, y, X_real, y_real = iris()
    weighter = ImportanceWeighter(GaussianNB(), "imp", clip=4.0)
    copied = clone(weighter)
    assert copied.get_params()["clip"] == 4.0
    frames = copied.fit(pd.DataFrame(X), pd.Series(y), pd.DataFrame(X_real), pd.Series(y_real))
    np.testing.assert_array_equal(frames.weights_, weighter.fit(X, y, X_real, y_real).weights_)
    groups = np.arange(110) // 10
    grouped = clone(weighter).fit(X, y, X_real, y_real, groups=groups)
    assert (grouped.weights_ != weighter.weights_).any()


@pytest.mark.parametrize(
    ("others", "word"),
    [
        ({"quality_checker": None}, "quality_checker"),
        ({"quality_checker": LinearSVC()}, "predict_proba"),
        ({"diversity_checker": LinearSVC()}, "diversity_checker"),
        ({"mode": "best"}, "mode"),
        ({"clip": -1.0}, "clip"),
        ({"normalise": "max"}, "normalise"),
        ({"temperature": 0.0}, "temperature"),
        ({"mode": "imp", "cross_fit": 1}, "folds"),
        ({"cross_fit": -1}, "cross_fit"),
        ({"rounds": 0}, "rounds"),
    ],
)
def test_wrong_settings_are_refused(others: dict[str, Any], word: str) -> None:
    with pytest.raises(SettingError, match=word):
        ImportanceWeighter(**{"quality_checker": GaussianNB(), **others}).fit(*iris())


class Nought(ClassifierMixin, BaseEstimator):
    """A checker that believes no label it is asked about."""

    def fit(self, X: np.ndarray, y: np.ndarray) -> Nought:
        self.classes_ = np.unique(y)
        return self

    def predict_proba(self, X: np.ndarray) -> np.ndarray:
        return np.zeros((len(X), len(self.classes_)))


def test_wrong_uses_are_refused() -> None:
    X, y, X_real, y_real = iris()
    fresh = ImportanceWeighter(GaussianNB())
    with pytest.raises(SettingError, match="fit"):
        fresh.fit_model(GaussianNB())
    fresh.fit(X, y, X_real, y_real)
    with pytest.raises(SettingError, match="fixed"):
        fresh.weights_for(np.full(110, 0.5))
    with pytest.raises(SettingError, match="sample_weight"):
        fresh.fit_model(KNeighborsClassifier())
    with pytest.raises(SettingError, match="sample_weight"):
        fresh.fit_model(GaussianNB)
    with pytest.raises(UtilityFailed, match="fit raised"):
        fresh.fit_model(LogisticRegression(C=-1.0))
    with pytest.raises(ProblemError, match="single class"):
        ImportanceWeighter(GaussianNB()).fit(X, y, X_real, ["a"] * 40)
    with pytest.raises(ProblemError, match="probability 0"):
        ImportanceWeighter(Nought()).fit(X, y, X_real, y_real)


def test_a_label_that_the_real_rows_lack_gets_weight_zero() -> None:
    X, y, X_real, y_real = iris()
    y[5] = "unheard of"
    weights = ImportanceWeighter(GaussianNB()).fit(X, y.astype(str), X_real, y_real).weights_
    assert np.isfinite(weights).all()
