"""Data-OOB: the definition, intervals, bags under deletion, workers, hostile models."""

from __future__ import annotations

import math

import numpy as np
import pytest
from sklearn.base import BaseEstimator, ClassifierMixin, clone
from sklearn.datasets import load_breast_cancer
from sklearn.neighbors import KNeighborsClassifier
from sklearn.tree import DecisionTreeClassifier

from privml.rng import ScienceSeed
from privml.valuation.errors import SettingError, UtilityFailed
from privml.valuation.methods.data_oob import Bags, DataOOB, wilson
from privml.valuation.problem import Problem


def table(n: int = 60, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(n, 3))
    return X, (X[:, 0] + 0.5 * rng.normal(size=n) > 0).astype(int)


@pytest.mark.parametrize("score", ["match", "probability"])
def test_values_are_the_mean_over_bags_without_the_row(score: str) -> None:
    X, y = table()
    problem = Problem.of(X, y, X[:1], y[:1], task="classification")
    bags = Bags(ScienceSeed(3), 60)
    method = DataOOB(DecisionTreeClassifier(min_samples_leaf=4), bags=25, score=score)  # type: ignore[arg-type]
    result = method.fit_bags(problem, bags).result_
    scores: list[list[float]] = [[] for _ in range(60)]
    for bag in range(25):
        counts = bags.counts(bag)
        inside = np.flatnonzero(counts)
        tree = DecisionTreeClassifier(min_samples_leaf=4, random_state=bags.model_seed(bag))
        tree.fit(X[inside], y[inside], sample_weight=counts[inside])
        for row in np.flatnonzero(counts == 0):
            if score == "match":
                scores[row].append(float(tree.predict(X[[row]])[0] == y[row]))
            else:
                scores[row].append(float(np.float32(tree.predict_proba(X[[row]])[0, y[row]])))
    assert np.allclose(result.values, [np.mean(s) for s in scores], atol=1e-12)
    assert result.counts.tolist() == [len(s) for s in scores]
    assert np.allclose(
        result.stderr, [np.std(s, ddof=1) / math.sqrt(len(s)) for s in scores], atol=1e-9
    )
    assert math.isnan(result.efficiency_residual)
    assert result.residual_reason
    assert result.evaluations == 25


def test_a_row_is_out_of_a_bag_with_the_right_probability_and_unknown_rows_are_nan() -> None:
    bags = Bags(ScienceSeed(1), 50)
    out = np.mean([(bags.counts(bag) == 0).mean() for bag in range(400)])
    assert abs(out - (1 - 1 / 50) ** 50) < 0.01
    assert {int(bags.counts(bag).sum()) for bag in range(20)} == {50}
    result = DataOOB(bags=1).fit(*table()).result_
    unknown = result.counts == 0
    assert unknown.any()
    assert np.isnan(result.values[unknown]).all()
    assert np.isnan(result.ci_low[unknown]).all()
    assert not np.isnan(result.values[~unknown]).any()


def test_it_finds_flipped_labels() -> None:
    X, y = load_breast_cancer(return_X_y=True)
    rng = np.random.default_rng(0)
    rows = rng.permutation(len(y))[:200]
    X, y = X[rows], y[rows].copy()
    flipped = rng.permutation(200)[:40]
    y[flipped] = 1 - y[flipped]
    result = DataOOB(bags=100).fit(X, y).result_
    assert np.isin(result.bottom(50), flipped).sum() / 40 >= 0.85


def test_regressions_and_groups() -> None:
    rng = np.random.default_rng(0)
    X = rng.normal(size=(80, 2))
    y = X[:, 0] * 3 + 0.1 * rng.normal(size=80)
    y[7] += 30
    assert DataOOB(bags=40).fit(X, y).result_.bottom(1)[0] == 7
    groups = np.arange(80) // 4
    method = DataOOB(bags=60, keep=True).fit(X, y, groups=groups)
    result = method.result_
    assert result.group_mode == "player"
    assert result.bottom(1)[0] == 7 // 4
    outcomes = method.outcomes_
    assert outcomes is not None
    for bag in range(60):  # a group is out as a whole
        out = ~np.isnan(outcomes[bag])
        assert (out.reshape(20, 4).all(axis=1) == out.reshape(20, 4).any(axis=1)).all()
    mean = np.nanmean(outcomes.reshape(60, 20, 4).mean(axis=2), axis=0)
    assert np.allclose(result.values, mean, rtol=1e-5)


def test_workers_and_keeping_have_no_influence_on_bits() -> None:
    X, y = table()
    base = DataOOB(bags=20, random_state=5).fit(X, y).result_.digest()
    assert DataOOB(bags=20, random_state=5, n_jobs=2).fit(X, y).result_.digest() == base
    assert DataOOB(bags=20, random_state=5, keep=True).fit(X, y).result_.digest() == base
    assert DataOOB(bags=20, random_state=6).fit(X, y).result_.digest() != base


def test_bags_do_not_depend_on_the_order_of_deletions() -> None:
    bags = Bags(ScienceSeed(2), 12)
    one = bags.without([3]).without([6])  # the second is number 7 of all
    both = bags.without([7, 3])
    assert one == both
    for bag in range(30):
        before, after = bags.counts(bag), both.counts(bag)
        assert after.sum() == 12
        assert len(after) == 10
        if not before[[3, 7]].any():
            assert np.array_equal(np.delete(before, [3, 7]), after)
        else:
            assert (np.delete(before, [3, 7]) <= after).all()
    drawn = np.sum([both.counts(bag) for bag in range(2_000)], axis=0) / (2_000 * 12)
    assert np.abs(drawn - 0.1).max() < 0.01


def test_wilson_intervals_cover() -> None:
    rng = np.random.default_rng(0)
    for share in (0.5, 0.9):
        hits = rng.binomial(40, share, size=20_000)
        low, high = wilson(hits / 40, np.full(20_000, 40.0), 0.95)
        assert 0.93 <= ((low <= share) & (share <= high)).mean() <= 0.975
    low, high = wilson(np.array([1.0, np.nan]), np.array([10.0, 0.0]), 0.95)
    assert 0.6 < low[0] < 0.8
    assert high[0] == pytest.approx(1.0)
    assert np.isnan(low[1])


class Broken(ClassifierMixin, BaseEstimator):  # type: ignore[misc]
    def __init__(self, how: str = "raise") -> None:
        self.how = how

    def fit(self, X, y, sample_weight=None):  # type: ignore[no-untyped-def]
        if self.how == "raise":
            raise RuntimeError("no")
        self.classes_ = np.unique(y)
        return self

    def predict_proba(self, X):  # type: ignore[no-untyped-def]
        return np.full((len(X), len(self.classes_)), np.nan)


def test_failing_models_are_never_scores() -> None:
    with pytest.raises(UtilityFailed, match="raised"):
        DataOOB(Broken(), bags=2).fit(*table())
    with pytest.raises(UtilityFailed, match="finite"):
        DataOOB(Broken("nan"), bags=2, score="probability").fit(*table())


def test_models_without_weights_get_their_rows_repeated() -> None:
    result = DataOOB(KNeighborsClassifier(3), bags=30).fit(*table()).result_
    assert np.nanmean(result.values) > 0.6


def test_tiny_and_one_class_tables() -> None:
    assert np.isnan(DataOOB(bags=3).fit([[1.0]], ["a"]).values_).all()
    result = DataOOB(bags=20).fit([[1.0], [2.0], [3.0]], ["a", "a", "a"]).result_
    assert set(result.values[result.counts > 0]) == {1.0}


@pytest.mark.parametrize(
    "settings", [{"bags": 0}, {"tree": "worst"}, {"score": "log"}, {"ci_level": 1.0}], ids=str
)
def test_wrong_settings_are_refused(settings: dict[str, object]) -> None:
    method = DataOOB(**settings)  # type: ignore[arg-type]
    with pytest.raises(SettingError):
        clone(method).fit(*table())
    problem = Problem.of(*table(), *table(3), task="classification")
    with pytest.raises(SettingError, match="number of players"):
        DataOOB().fit_bags(problem, Bags(ScienceSeed(0), 61))
