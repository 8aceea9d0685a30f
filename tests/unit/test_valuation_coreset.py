"""CSReL: against a naive twin, honest references, seeds, hostile classifiers, noisy digits."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
import pytest
from sklearn.base import BaseEstimator, ClassifierMixin, clone
from sklearn.datasets import load_iris
from sklearn.ensemble import RandomForestClassifier
from sklearn.linear_model import LogisticRegression
from sklearn.naive_bayes import GaussianNB
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.svm import LinearSVC
from sklearn.tree import DecisionTreeClassifier
from torch import nn

from privml.rng import ScienceSeed
from privml.valuation.coreset import CSReL, TorchClassifier, cross_fitted, reducible_loss
from privml.valuation.coreset.crossfit import Pool, assigned
from privml.valuation.errors import ProblemError, SettingError, UtilityFailed
from privml.valuation.problem import Problem

NAMES = np.array(["setosa", "versicolor", "virginica"])


def iris() -> tuple[np.ndarray, np.ndarray]:
    X, y = load_iris(return_X_y=True)
    order = np.random.default_rng(0).permutation(len(y))
    return X[order], NAMES[y[order]]


def linear(features: int, classes: int) -> nn.Module:
    return nn.Linear(features, classes)


class Watched(ClassifierMixin, BaseEstimator):
    """A classifier that remembers, over all its clones, which rows it judged after seeing them."""

    log: list[tuple[set[float], set[float]]] = []  # noqa: RUF012 - shared by clones on purpose

    def fit(self, X: np.ndarray, y: np.ndarray) -> Watched:
        self.seen_ = set(X[:, 0].tolist())
        self.classes_ = np.unique(y)
        return self

    def predict_proba(self, X: np.ndarray) -> np.ndarray:
        type(self).log.append((self.seen_, set(X[:, 0].tolist())))
        return np.full((len(X), len(self.classes_)), 1 / len(self.classes_))


def judged_own_rows(fit: Any) -> int:
    Watched.log.clear()
    fit()
    assert Watched.log
    return sum(len(seen & judged) for seen, judged in Watched.log)


# scores


def test_scores_are_their_formulas() -> None:
    reference, coreset = np.array([0.9, 0.2, 0.0]), np.array([0.5, 0.01, 1.0])
    np.testing.assert_allclose(reducible_loss(reference, coreset), [0.4, 0.19, -1.0])
    loss = reducible_loss(reference, coreset, score="loss")
    np.testing.assert_allclose(loss[:2], np.log([0.9 / 0.5, 0.2 / 0.01]))
    capped = reducible_loss(reference, coreset, score="loss-capped", cap=2.0)
    np.testing.assert_allclose(capped, [np.log(0.9 / 0.5), 2 + np.log(0.2), -2.0])
    for score in ("prob", "loss", "loss-capped"):
        ends = reducible_loss(np.array([0.0, 1.0]), np.array([1.0, 0.0]), score=score)
        assert np.isfinite(ends).all()


def test_robust_scores_do_not_prefer_a_wrong_label() -> None:
    """A wrong label: hopeless under both. A lesson: the reference knows it, the coreset not yet."""
    reference, coreset = np.array([0.02, 0.9]), np.array([1e-9, 0.2])
    prefers = {s: reducible_loss(reference, coreset, score=s).argmax() for s in ("prob", "loss")}
    assert prefers == {"prob": 1, "loss": 0}
    assert reducible_loss(reference, coreset, score="loss-capped").argmax() == 1


# reference


def test_reference_models_never_score_rows_they_trained_on() -> None:
    X = np.arange(60.0)[:, None]
    y = np.arange(60) % 3
    assert judged_own_rows(lambda: cross_fitted(Watched(), X, y)) == 0
    found = CSReL(Watched(), 10, folds=4, balanced=True)
    assert judged_own_rows(lambda: found.fit(X, y)) == 0


def test_the_watch_notices_an_in_sample_reference() -> None:
    X = np.arange(60.0)[:, None]
    assert judged_own_rows(lambda: CSReL(Watched(), 5, preset="paper").fit(X, X[:, 0] % 2)) == 60


def test_reference_models_never_score_groups_they_trained_on() -> None:
    groups = np.random.default_rng(0).integers(0, 12, 90)
    X = groups[:, None] * 1.0  # a row shows its group
    y = np.arange(90) % 2
    assert judged_own_rows(lambda: cross_fitted(Watched(), X, y, groups=groups, folds=5)) == 0
    assert judged_own_rows(lambda: cross_fitted(Watched(), X, y, folds=5)) > 0


def test_cross_fitting_equals_a_loop_over_folds() -> None:
    X, y = iris()
    pool = Pool.of(Problem.of(X, y, X, y))
    fold_of = assigned(pool, 4, ScienceSeed(3).child("folds"))
    assert np.bincount(fold_of).tolist() == [38, 38, 37, 37]
    for code in range(3):  # equal shares
        assert np.ptp(np.bincount(fold_of[pool.codes == code], minlength=4)) <= 1
    want = np.empty((150, 3))
    for fold in range(4):
        held = fold_of == fold
        want[held] = GaussianNB().fit(X[~held], y[~held]).predict_proba(X[held])
    found = cross_fitted(GaussianNB(), X, y, folds=4, random_state=3)
    np.testing.assert_array_equal(found, want)
    jobs = cross_fitted(GaussianNB(), X, y, folds=4, random_state=3, n_jobs=2, backend="threading")
    np.testing.assert_array_equal(found, jobs)


def test_a_class_of_one_row_has_probability_zero_under_its_reference() -> None:
    X, y = iris()
    y = y.astype(object)
    y[7] = "unique"
    found = cross_fitted(GaussianNB(), X, y)
    assert found.shape == (150, 4)
    assert found[7, 1] == 0  # sorted: setosa, unique, versicolor, virginica
    for score in ("prob", "loss", "loss-capped"):
        CSReL(GaussianNB(var_smoothing=0.1), 9, score=score, selection_steps=3).fit(X, y)


# selection


def naive(
    X: np.ndarray, y: np.ndarray, size: int, steps: int, known: np.ndarray, score: str
) -> list[int]:
    """Choose rows one by one, by the definition."""
    classes = np.unique(y)
    column = np.searchsorted(classes, y)
    tie = (
        ScienceSeed(0)
        .child(
            "csrel selection",
        )
        .child("ties")
        .generator()
        .permutation(len(y))
    )
    chosen: list[int] = []
    for step in range(steps):
        want = size * (step + 1) // steps
        if len(set(y[chosen])) < 2:
            share = np.array([(y[chosen] == c).sum() + 1 for c in classes], dtype=float)
            probability = np.tile(share / share.sum(), (len(y), 1))
        else:
            model = GaussianNB(var_smoothing=0.1).fit(X[chosen], y[chosen])
            probability = np.zeros((len(y), len(classes)))
            probability[:, np.searchsorted(classes, model.classes_)] = model.predict_proba(X)
        own = probability[np.arange(len(y)), column]
        gain = (
            known - own
            if score == "prob"
            else np.log(np.maximum(known, 1e-12) / np.maximum(own, 1e-12))
        )
        free = [i for i in range(len(y)) if i not in chosen]
        free.sort(key=lambda i: (-round(gain[i], 13), tie[i]))
        chosen += free[: want - len(chosen)]
    return chosen


@pytest.mark.parametrize("score", ["prob", "loss"])
@pytest.mark.parametrize("steps", [1, 4, 12])
def test_selection_equals_the_naive_twin(score: str, steps: int) -> None:
    X, y = iris()
    known = np.random.default_rng(1).uniform(0.05, 0.95, len(y))
    model = CSReL(GaussianNB(var_smoothing=0.1), 12, score=score, selection_steps=steps)
    model.fit(X, y, reference_prob=known)
    assert model.indices_.tolist() == naive(X, y, 12, steps, known, score)


def test_chosen_rows_are_distinct_and_named() -> None:
    X, y = iris()
    model = CSReL(LogisticRegression(max_iter=1000), 30, selection_steps=7)
    model.fit(X, y, ids=[f"row {i}" for i in range(150)])
    assert len(set(model.indices_.tolist())) == 30
    assert model.ids_ == tuple(f"row {i}" for i in model.indices_)
    assert np.bincount(model.rounds_).tolist() == [4, 4, 4, 5, 4, 4, 5]
    assert np.isfinite(model.scores_).all()
    assert model.models_trained_ == 5 + 6
    assert model.rows_trained_ == 4 * 150 + sum(30 * (k + 1) // 7 for k in range(6))


def test_the_whole_pool_can_be_chosen() -> None:
    X, y = iris()
    model = CSReL(GaussianNB(var_smoothing=0.1), 150, selection_steps=3, balanced=True).fit(X, y)
    assert sorted(model.indices_.tolist()) == list(range(150))


def test_balanced_coresets_hold_equally_many_of_each_class() -> None:
    X, y = iris()
    keep = np.concatenate([np.flatnonzero(y == NAMES[0])[:4], np.flatnonzero(y != NAMES[0])])
    X, y = X[keep], y[keep]
    model = CSReL(LogisticRegression(max_iter=1000), 31, balanced=True, selection_steps=4).fit(X, y)
    counts = {name: int((y[model.indices_] == name).sum()) for name in NAMES}
    assert counts[NAMES[0]] == 4
    assert sorted(counts.values())[1:] == [13, 14]


def test_equal_seeds_agree_and_others_do_not() -> None:
    X, y = iris()
    forest = RandomForestClassifier(10)

    def chosen(seed: int, jobs: int = 1) -> list[int]:
        model = CSReL(
            forest, 20, selection_steps=4, random_state=seed, n_jobs=jobs, backend="threading"
        )
        return model.fit(X, y).indices_.tolist()

    assert chosen(1) == chosen(1) == chosen(1, 2)
    assert chosen(1) != chosen(2)
    seed = CSReL(forest, 20, selection_steps=4, random_state=ScienceSeed(1)).fit(X, y)
    assert seed.indices_.tolist() == chosen(1)


def test_the_seed_reaches_the_models_of_the_rounds() -> None:
    X, y = iris()
    known = np.random.default_rng(1).uniform(0.2, 0.9, len(y))  # no ties, no reference to train

    def chosen(seed: int) -> list[int]:
        model = CSReL(RandomForestClassifier(5), 20, selection_steps=4, random_state=seed)
        return model.fit(X, y, reference_prob=known).indices_.tolist()

    assert chosen(1)[:5] == chosen(2)[:5]  # the first round has no model
    assert chosen(1) == chosen(1)
    assert chosen(1) != chosen(2)


def test_ties_do_not_follow_the_order_of_the_table() -> None:
    X, y = iris()
    model = CSReL(DecisionTreeClassifier(), 60, selection_steps=1)
    model.fit(X, y, reference_prob=np.ones(150))
    assert abs(model.indices_.mean() - 74.5) < 15


# settings and records


def test_estimator_conventions() -> None:
    X, y = iris()
    model = CSReL(GaussianNB(), 9, score="loss", random_state=4)
    copied = clone(model)
    assert copied.get_params()["score"] == "loss"
    assert copied.set_params(size=12).size == 12
    frame = pd.DataFrame(X, columns=list("abcd"))
    by_frame = clone(model).fit(frame, pd.Series(y))
    assert by_frame.indices_.tolist() == model.fit(X, y).indices_.tolist()
    rows, labels = clone(model).fit_resample(X, y)
    np.testing.assert_array_equal(rows, X[model.indices_])
    np.testing.assert_array_equal(labels, y[model.indices_])


@pytest.mark.parametrize(
    "estimator",
    [
        GaussianNB(var_smoothing=0.1),
        make_pipeline(StandardScaler(), LogisticRegression()),
        RandomForestClassifier(5),
        TorchClassifier(linear, steps=10),
        LogisticRegression(
            class_weight={"setosa": 2.0, "versicolor": 1.0, "virginica": 1.0}, max_iter=1000
        ),
    ],
    ids=lambda e: type(e).__name__,
)
def test_any_classifier_serves(estimator: Any) -> None:
    X, y = iris()
    model = CSReL(estimator, 12, selection_steps=2, balanced=True).fit(X, y)
    assert len(model.indices_) == 12


def test_presets_and_deviations_are_recorded() -> None:
    X, y = iris()
    paper = CSReL(GaussianNB(var_smoothing=0.1), 4, preset="paper").fit(X, y).as_json()
    assert list(paper["deviations"]) == ["preset"]
    assert "untrained" in paper["deviations"]["preset"]
    mixed = CSReL(GaussianNB(var_smoothing=0.1), 4, preset="paper", score="prob").fit(X, y)
    record = mixed.as_json()
    assert record["deviations"]["score"] == "'prob' instead of 'loss'"
    assert record["spec_digest"] != paper["spec_digest"]
    assert record["data_digest"] == paper["data_digest"]
    assert mixed.rounds_.tolist() == [0, 1, 2, 3]
    assert mixed.models_trained_ >= 2


@pytest.mark.parametrize(
    ("others", "word"),
    [
        ({"size": 0}, "size"),
        ({"size": 151}, "150"),
        ({"size": 2.0}, "size"),
        ({"estimator": None}, "classifier"),
        ({"estimator": GaussianNB}, "classifier"),
        ({"estimator": LinearSVC()}, "predict_proba"),
        ({"reference_estimator": LinearSVC()}, "reference_estimator"),
        ({"preset": "best"}, "preset"),
        ({"score": "entropy"}, "score"),
        ({"score": "loss-capped", "cap": 0.0}, "cap"),
        ({"reference": "oracle"}, "reference"),
        ({"folds": 1}, "folds"),
        ({"folds": 151}, "folds"),
        ({"selection_steps": 0}, "selection_steps"),
        ({"selection_steps": "all"}, "selection_steps"),
        ({"random_state": -1}, "random_state"),
        ({"n_jobs": 0}, "n_jobs"),
    ],
)
def test_wrong_settings_are_refused(others: dict[str, Any], word: str) -> None:
    X, y = iris()
    with pytest.raises(SettingError, match=word):
        CSReL(**{"estimator": GaussianNB(), "size": 5, **others}).fit(X, y)


def test_wrong_tables_are_refused() -> None:
    X, y = iris()
    with pytest.raises(ProblemError, match="single class"):
        CSReL(GaussianNB(), 5).fit(X, ["a"] * 150)
    with pytest.raises(ProblemError, match="NaN"):
        CSReL(GaussianNB(), 5).fit(np.where(X > 7, np.nan, X), y)
    for wrong in (np.full(149, 0.5), np.full(150, 1.5), np.full(150, np.nan)):
        with pytest.raises(ProblemError, match="reference_prob"):
            CSReL(GaussianNB(), 5).fit(X, y, reference_prob=wrong)


class Hostile(ClassifierMixin, BaseEstimator):
    def __init__(self, how: str = "") -> None:
        self.how = how

    def fit(self, X: np.ndarray, y: np.ndarray) -> Hostile:
        if self.how == "fit":
            raise RuntimeError("no")
        self.classes_ = np.array(["z", "zz", "zzz"]) if self.how == "labels" else np.unique(y)
        return self

    def predict_proba(self, X: np.ndarray) -> np.ndarray:
        if self.how == "predict":
            raise RuntimeError("no")
        columns = 2 if self.how == "shape" else 3
        return np.full((len(X), columns), {"nan": np.nan, "large": 7.0}.get(self.how, 1 / 3))


@pytest.mark.parametrize("how", ["fit", "predict", "shape", "nan", "large", "labels"])
def test_failures_of_a_classifier_never_become_scores(how: str) -> None:
    X, y = iris()
    with pytest.raises(UtilityFailed, match="reference model 1"):
        CSReL(Hostile(how), 5).fit(X, y)
