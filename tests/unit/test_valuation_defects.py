"""Rare labels, tables with an index of their own, wrong arguments, and errors that name players."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.tree import ExtraTreeClassifier

from privml.errors import PrivmlError
from privml.valuation import (
    EstimatorUtility,
    LogisticUtility,
    Problem,
    RidgeUtility,
    Shapley,
    TopM,
    ValuationResult,
)
from privml.valuation.errors import SettingError, UtilityFailed, naming
from privml.valuation.games import AdditiveGame
from privml.valuation.links import after_delete, record
from privml.valuation.links.deravda import DeRDaVa
from privml.valuation.methods.data_oob import DataOOB
from privml.valuation.problem import Floats, Ints
from privml.valuation.stopping import MaxUnits
from privml.valuation.utilities.base import Coalitions, Game


def rare() -> tuple[np.ndarray, np.ndarray]:
    """Three classes; the middle code belongs to one row only."""
    X = np.random.default_rng(0).normal(size=(12, 3))
    return X, np.array([0, 2, 0, 2, 0, 2, 0, 2, 0, 2, 0, 1])


class NothingButNumbers(ClassifierMixin, BaseEstimator):  # type: ignore[misc]
    """A model that insists on the classes 0, 1, ... without gaps, as some libraries do."""

    def fit(self, X, y, sample_weight=None):  # type: ignore[no-untyped-def]
        self.classes_ = np.unique(y)
        if self.classes_.tolist() != list(range(len(self.classes_))):
            raise ValueError(f"expected classes 0..{len(self.classes_) - 1}")
        self.inner_ = ExtraTreeClassifier(random_state=0).fit(X, y, sample_weight=sample_weight)
        return self

    def predict(self, X):  # type: ignore[no-untyped-def]
        return self.inner_.predict(X)

    def predict_proba(self, X):  # type: ignore[no-untyped-def]
        return self.inner_.predict_proba(X)


@pytest.mark.parametrize("score", ["match", "probability"])
def test_a_class_that_no_bag_holds_is_told_apart_from_a_wrong_label(score: Any) -> None:
    X, y = rare()
    result = DataOOB(bags=40, score=score).fit(X, y).result_
    assert result.values[11] == 0.0
    assert result.extras["label_in_no_bag"] == [11]
    both = DataOOB(bags=40, score=score).fit(X, np.where(y == 1, 0, y)).result_
    assert "label_in_no_bag" not in both.extras


def test_a_class_that_no_bag_holds_keeps_its_name() -> None:
    X, y = rare()
    names = [f"row {k}" for k in range(12)]
    found = DataOOB(bags=20).fit(X, y, ids=names).result_
    assert found.extras["label_in_no_bag"] == ["row 11"]


@pytest.mark.parametrize("score", ["match", "probability"])
def test_models_never_see_a_gap_between_class_codes(score: Any) -> None:
    """Codes are only names: values are those with the rare class called last instead."""
    X, y = rare()
    last = np.array([0, 2, 1])[y]
    result = DataOOB(NothingButNumbers(), bags=40, score=score).fit(X, y).result_
    other = DataOOB(NothingButNumbers(), bags=40, score=score).fit(X, last).result_
    np.testing.assert_array_equal(result.values, other.values)


def test_bags_after_a_deletion_note_the_same_labels() -> None:
    X, y = rare()
    problem = Problem.of(X, y, X, y)
    method = DataOOB(bags=30, keep=True).fit_problem(problem)
    deletion = after_delete(method, problem, [3])
    again = DataOOB(bags=30).fit_bags(deletion.problem, deletion.method.bags_)  # type: ignore[union-attr]
    assert deletion.result.extras == again.result_.extras == {"label_in_no_bag": [11]}


# --------------------------------------------------------------- tables with an index of their own


def frames() -> dict[str, Any]:
    """The same rows in the same order under a shuffled index."""
    rng = np.random.default_rng(1)
    X, y = rng.normal(size=(20, 2)), rng.integers(0, 2, 20)
    order, other = rng.permutation(20), rng.permutation(20)
    names = [f"r{k}" for k in range(20)]
    groups = [f"g{k % 4}" for k in range(20)]
    return {
        "plain": (X, y, names, groups),
        "tables": (
            pd.DataFrame(X, columns=["a", "b"], index=order), pd.Series(y, index=other),
            pd.Series(names, index=order[::-1]), pd.Series(groups, index=other[::-1]),
        ),
    }  # fmt: skip


def test_rows_labels_ids_and_groups_match_by_position() -> None:
    both = frames()
    for grouped in (False, True):
        digests = []
        for X, y, ids, groups in both.values():
            problem = Problem.of(X, y, X, y, ids=ids, groups=groups if grouped else None)
            digests.append(problem.digest())
        assert digests[0] == digests[1]


def test_reset_and_shuffled_indices_are_one_problem() -> None:
    X, y, ids, _ = frames()["tables"]
    shuffled = Problem.of(X, y, X, y, ids=ids)
    reset = Problem.of(
        X.reset_index(drop=True), y.reset_index(drop=True), X, y, ids=ids.reset_index(drop=True)
    )
    assert shuffled.digest() == reset.digest()


def test_features_groups_and_chances_match_by_position() -> None:
    (X, y, _, groups), (X_t, y_t, _, groups_t) = frames().values()
    problem = Problem.of(X, y, X, y)
    plain = TopM(m=3, features=X, budget="4n").fit_problem(problem).result_
    table = TopM(m=3, features=X_t, budget="4n").fit_problem(problem).result_
    assert plain.digest() == table.digest()
    np.testing.assert_array_equal(plain.by_group(groups).values, plain.by_group(groups_t).values)
    chance = np.linspace(0.2, 1.0, 20)
    results = [
        DeRDaVa(RidgeUtility(), staying=c, units=8).fit_problem(problem).result_
        for c in (chance, pd.Series(chance, index=y_t.index))
    ]
    np.testing.assert_array_equal(results[0].values, results[1].values)
    oob = [DataOOB(bags=9).fit(a, b).result_.digest() for a, b in ((X, y), (X_t, y_t))]
    assert oob[0] == oob[1]


# ------------------------------------------------------------------------------- wrong arguments


@pytest.mark.parametrize("path", ["a\0b", Path("a\0b"), "", 3, b"x"])
def test_impossible_paths_are_settings_errors(path: Any) -> None:
    X, y = rare()
    result = Shapley(stopping=MaxUnits(2)).fit_game(AdditiveGame([1.0, 2.0])).result_
    recording = record(Shapley(RidgeUtility()), Problem.of(X, y, X, y), units=1)
    calls: list[Callable[[], object]] = [
        lambda: Shapley(RidgeUtility(), checkpoint=path, stopping=MaxUnits(1)).fit(X, y, X, y),
        lambda: TopM(m=2, checkpoint=path, budget="2n").fit(X, y, X, y),
        lambda: recording.save(path),
        lambda: recording.load(path),
    ]
    if path != "":
        calls += [lambda: result.save(path), lambda: ValuationResult.load(path)]
    for call in calls:
        with pytest.raises(SettingError, match="give a path"):
            call()


@pytest.mark.parametrize("other", [3, None, "result", {}])
def test_only_results_are_merged(other: Any) -> None:
    result = Shapley(stopping=MaxUnits(2)).fit_game(AdditiveGame([1.0, 2.0])).result_
    with pytest.raises(SettingError, match="takes another ValuationResult"):
        result.merge(other)
    with pytest.raises(SettingError, match="groups"):
        result.by_group(3)  # type: ignore[arg-type]


# ------------------------------------------------------------------------- errors name the players


class Fragile(Game):
    """Fails for coalitions with some players, in batches and alone."""

    def __init__(self, players: int, together: set[int], *, answer: float | None = None) -> None:
        super().__init__(players, 0.0)
        self.together, self.answer = together, answer

    def _score(self, coalitions: Coalitions) -> Floats:
        scores = []
        for members in coalitions:
            failing = self.together <= set(members.tolist())
            if failing and self.answer is None:
                raise RuntimeError("no model")
            scores.append(self.answer if failing else 1.0)
        return np.array(scores)


class WalkedFragile(Fragile):
    """The same with walks of its own."""

    def _walks(self, orders: Ints) -> Floats:
        return np.array([[self._score([order[: k + 1]])[0] for k in range(len(order))]
                         for order in orders])  # fmt: skip


@pytest.mark.parametrize("kind", [Fragile, WalkedFragile])
@pytest.mark.parametrize("answer", [None, float("nan")])
def test_a_failing_walk_names_the_prefix_that_failed(kind: Any, answer: float | None) -> None:
    game = kind(6, {2, 4}, answer=answer)
    with pytest.raises(UtilityFailed) as caught:
        game.walks(np.array([[1, 0, 3], [5, 4, 2]]))
    assert caught.value.coalition == (2, 4, 5)
    assert str(caught.value).endswith("players 2, 4, 5")
    assert game.tally.evaluations == 0
    with pytest.raises(UtilityFailed) as caught:
        game.score([[0], [2, 4, 1], [3]])
    assert caught.value.coalition == (1, 2, 4)


def test_ten_players_are_named_and_the_others_counted() -> None:
    names = [f"p{k}" for k in range(40)]
    with pytest.raises(UtilityFailed) as caught, naming(names):
        Fragile(40, {39}).score([range(15, 40)])
    assert str(caught.value).endswith(
        "; players p15, p16, p17, p18, p19, p20, p21, p22, p23, p24 and 15 more"
    )
    assert caught.value.coalition == tuple(range(15, 40))
    assert isinstance(caught.value.__cause__, RuntimeError)


@pytest.mark.parametrize("n_jobs", [1, 2])
def test_methods_name_players_by_their_ids(n_jobs: int) -> None:
    X, y = rare()
    names = [f"row {k}" for k in range(12)]
    utility = EstimatorUtility(Refuses())
    method = Shapley(utility, stopping=MaxUnits(4), n_jobs=n_jobs)
    with pytest.raises(UtilityFailed, match=r"players row 0, row 1, ") as caught:
        method.fit(X[::-1], y[::-1], X, y, ids=names)
    assert 0 in caught.value.coalition


class Refuses(ClassifierMixin, BaseEstimator):  # type: ignore[misc]
    """Cannot predict once it has seen the rare class."""

    def fit(self, X, y):  # type: ignore[no-untyped-def]
        self.classes_ = np.unique(y)
        return self

    def predict(self, X):  # type: ignore[no-untyped-def]
        if 1 in self.classes_:
            raise ValueError("a strange class")
        return np.full(len(X), self.classes_[0])


def test_a_model_that_does_not_converge_names_its_prefix() -> None:
    X, y = rare()
    game = LogisticUtility(max_iter=1, C=1e6).open(Problem.of(X, y, X, y))
    with pytest.raises(UtilityFailed, match="did not converge") as caught:
        game.walks(np.arange(12)[None])
    assert 2 <= len(caught.value.coalition) <= 3
    assert isinstance(caught.value, PrivmlError)
