"""Deletions in every bit equal to tables that never held the rows, also where a class is gone."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from sklearn.tree import DecisionTreeClassifier
from torch import nn

from privml.unlearning.forest import DynForestClassifier
from privml.valuation.errors import ProblemError
from privml.valuation.links import after_delete, audit_deletion, record
from privml.valuation.links.recording import Recording
from privml.valuation.methods.classwise import ClasswiseShapley
from privml.valuation.methods.data_oob import DataOOB
from privml.valuation.methods.knn import KNNShapley
from privml.valuation.methods.semivalues import Banzhaf, BetaShapley
from privml.valuation.methods.shapley import Shapley
from privml.valuation.problem import Problem
from privml.valuation.stopping import MaxUnits
from privml.valuation.topm import TopM
from privml.valuation.utilities import (
    EstimatorUtility,
    ForestUtility,
    KnnUtility,
    LogisticUtility,
    NaiveBayesUtility,
    NearestCentroidUtility,
    RidgeUtility,
    TorchUtility,
)
from privml.valuation.utilities.base import Utility

N, UNITS = 10, 6
RNG = np.random.default_rng(5)
# few distinct numbers: exact ties, which rounding would break
X = RNG.integers(0, 3, size=(N, 3)).astype(float)
XV = RNG.integers(0, 3, size=(6, 3)).astype(float)
LABELS = np.array(["no", "yes", "secret"])
Y = LABELS[[0, 1, 0, 1, 2, *(X[5:, 0] > 0).astype(int)]]
YV = LABELS[RNG.integers(0, 2, 6)]
NAMES = [f"p{number}" for number in range(N)]


def linear(features: int, outputs: int) -> nn.Module:
    return nn.Linear(features, outputs)


TREE = DecisionTreeClassifier(max_features=1, splitter="random")
RANDOM: list[Utility] = [
    EstimatorUtility(TREE, metric="log_likelihood"),
    TorchUtility(linear, steps=2, metric="log_likelihood"),
    ForestUtility(DynForestClassifier, {"n_estimators": 3}, metric="log_likelihood"),
]
UTILITIES: list[Utility] = [
    *RANDOM,
    RidgeUtility(),
    RidgeUtility(metric="log_likelihood", empty="majority"),
    LogisticUtility(),
    KnnUtility(2, metric="log_likelihood", empty="majority"),
    NaiveBayesUtility(metric="log_likelihood"),
    NearestCentroidUtility(metric="margin"),
]


def table(keep: Any = slice(None), *, groups: bool = False) -> Problem:
    rows = np.arange(N)[keep]
    owner = [f"g{row % 4}" for row in rows] if groups else None
    return Problem.of(X[rows], Y[rows], XV, YV, ids=[NAMES[row] for row in rows], groups=owner)


@pytest.mark.parametrize("gone", [[4], [6], [4, 7], [0]], ids=str)
def test_without_is_the_problem_of_tables_that_never_held_the_rows(gone: list[int]) -> None:
    left, other = table().without(gone), table(np.delete(np.arange(N), gone))
    assert left.digest() == other.digest()
    assert left.classes == other.classes
    assert ("secret" in left.classes) == (4 not in gone)
    assert np.array_equal(left.codes, other.codes)
    assert np.array_equal(left.val_codes, other.val_codes)


def test_a_class_stays_as_long_as_a_validation_row_has_it() -> None:
    both = Problem.of(X[:3], ["a", "b", "c"], XV[:2], ["c", "a"])
    assert both.without([2]).classes == ("a", "b", "c")
    assert both.without([1]).classes == ("a", "c")
    assert both.without([1]).y_val.tolist() == [1.0, 0.0]
    regression = Problem.of(X[:3], [0.5, 1.0, 2.0], XV[:2], [1.0, 2.0])
    assert regression.without([2]).y_val.tolist() == [1.0, 2.0]


def how(recording: Recording) -> list[dict[str, Any]]:
    kept: dict[str, Any] = {"recording": recording}
    return [{}, kept, {**kept, "reuse": "suffix"}, {**kept, "reuse": "none"}]


@pytest.mark.parametrize("gone", [[4], [6], [4, 7]], ids=str)
@pytest.mark.parametrize("utility", UTILITIES, ids=lambda u: u.kind)
def test_sampled_values_equal_a_run_from_scratch(utility: Utility, gone: list[int]) -> None:
    names, other = [NAMES[row] for row in gone], table(np.delete(np.arange(N), gone))
    for method in (
        Shapley(utility, stopping=MaxUnits(UNITS)),
        Banzhaf(utility, stopping=MaxUnits(UNITS)),
        BetaShapley(utility, a=1 / 3, b=7.123456789, stopping=MaxUnits(UNITS)),
    ):
        recording = record(method, table(), units=UNITS)
        for given in how(recording):
            deletion = after_delete(method, table(), names, **given)
            kept = deletion.recording or deletion.method
            again = type(method)(**{**method.get_params(), "sampler": kept.sampler})  # type: ignore[union-attr]
            scratch = again.fit_problem(other).result_
            assert np.array_equal(scratch.values, deletion.result.values, equal_nan=True)
            audit = audit_deletion(method, table(), names, deletion)
            assert audit.consistent, audit.findings
            assert audit.identical
        partly = after_delete(method, table(), names, recording=recording, refill=False)
        assert audit_deletion(method, table(), names, partly).identical


@pytest.mark.parametrize("gone", [["g0"], ["g1", "g2"]], ids=str)
def test_groups_too(gone: list[str]) -> None:
    keep = [row for row in range(N) if f"g{row % 4}" not in gone]
    other = table(keep, groups=True)
    for utility in UTILITIES:
        method = Shapley(utility, stopping=MaxUnits(4))
        recording = record(method, table(groups=True), units=4)
        deletion = after_delete(method, table(groups=True), gone, recording=recording)
        assert deletion.problem.digest() == other.digest()
        assert audit_deletion(method, table(groups=True), gone, deletion).identical


@pytest.mark.parametrize("utility", RANDOM, ids=lambda u: u.kind)
def test_models_are_seeded_by_names_not_places(utility: Utility) -> None:
    whole, left = table(), table([1, 2, 3, 4, 5, 8])
    sets = [[0, 1, 2, 3], [0, 3, 4, 5], [1, 2, 5]]
    places = np.array([1, 2, 3, 4, 5, 8])
    mine = utility.open(left).score(sets)
    assert np.array_equal(mine, utility.open(whole).score([places[members] for members in sets]))
    renamed = Problem.of(X, Y, XV, YV, ids=range(50, 50 + N))
    three = [np.sort(np.random.default_rng(k).permutation(N)[:7]) for k in range(12)]
    assert not np.array_equal(utility.open(whole).score(three), utility.open(renamed).score(three))


def test_methods_computed_anew_forget_the_class() -> None:
    left = table(np.delete(np.arange(N), [4]))
    for method in (
        KNNShapley(3, normalised=True),
        KNNShapley(radius=1.0),
        ClasswiseShapley(EstimatorUtility(TREE), contexts=3),
        TopM(m=2, budget="12n"),
    ):
        deletion = after_delete(method, table(), ["p4"])
        scratch = type(method)(**method.get_params()).fit_problem(left).result_
        assert scratch.digest() == deletion.result.digest()
        assert audit_deletion(method, table(), ["p4"], deletion).identical
    bags = DataOOB(bags=20, keep=True, score="probability").fit_problem(table())
    deletion = after_delete(bags, table(), ["p4"])
    assert audit_deletion(bags, table(), ["p4"], deletion).identical


def test_one_text_is_no_list_of_names() -> None:
    for wrong in ("p4", b"p4", 4, None):
        with pytest.raises(ProblemError, match="list of names"):
            after_delete(KNNShapley(2), table(), wrong)  # type: ignore[arg-type]
