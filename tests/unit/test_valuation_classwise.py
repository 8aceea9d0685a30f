"""Class-wise values: brute force over contexts and orders as oracle, accounting, settings."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest

from privml.valuation.errors import ProblemError, SettingError
from privml.valuation.methods.classwise import ClasswiseShapley
from privml.valuation.problem import Problem
from privml.valuation.utilities import KnnUtility, NearestCentroidUtility, RidgeUtility

Y = np.array([0, 0, 0, 1, 1, 2])


def problem(seed: int = 0) -> Problem:
    rng = np.random.default_rng(seed)
    X_val = rng.normal(size=(30, 2)) + np.repeat(np.eye(3)[:, :2], 10, axis=0)
    X = rng.normal(size=(6, 2)) + np.eye(3)[Y][:, :2]
    return Problem.of(X, Y, X_val, np.repeat([0, 1, 2], 10), task="classification")


def correct(table: Problem, rows: tuple[int, ...], code: int) -> tuple[float, float]:
    """Validation rows of the class, and of others, predicted by the nearest centroid, over all."""
    if not rows:
        own = (table.val_codes == code).mean()
        return own / 3, (1 - own) / 3
    chosen = np.array(sorted(rows))
    found = sorted(set(table.codes[chosen]))
    centres = np.array([table.X[chosen][table.codes[chosen] == c].mean(axis=0) for c in found])
    gaps = ((table.X_val[:, None] - centres[None]) ** 2).sum(axis=2)
    right = np.array(found)[gaps.argmin(axis=1)] == table.val_codes
    own = table.val_codes == code
    return float((right & own).mean()), float((right & ~own).mean())


def brute(table: Problem, law: str) -> np.ndarray:
    """Exact values: every context with its probability, every order of the class."""
    out = np.zeros(6)
    for code in range(3):
        own, others = np.flatnonzero(code == Y), np.flatnonzero(code != Y)
        for size in range(len(others) + 1):
            for context in itertools.combinations(others.tolist(), size):
                if law == "size":
                    weight = 1 / (len(others) + 1) / math.comb(len(others), size)
                elif law == "half":
                    weight = 0.5 ** len(others)
                else:
                    weight = float(size == len(others))
                orders = list(itertools.permutations(own.tolist()))
                for order in orders if weight else []:
                    before = None
                    for k in range(len(order) + 1):
                        a, b = correct(table, (*order[:k], *context), code)
                        worth = a * math.exp(b)
                        if before is not None:
                            out[order[k - 1]] += weight * (worth - before) / len(orders)
                        before = worth
    return out


@pytest.mark.parametrize("law", ["size", "half", "all"])
def test_values_estimate_the_definition(law: str) -> None:
    table = problem()
    wanted = brute(table, law)
    method = ClasswiseShapley(
        NearestCentroidUtility(),
        contexts=600,
        context_law=law,  # type: ignore[arg-type]
    )
    result = method.fit_problem(table).result_
    assert (np.abs(result.values - wanted) <= 5 * result.stderr + 1e-12).all()
    assert result.stderr.max() < 0.02
    assert math.isnan(result.efficiency_residual)


def test_normalised_values_sum_to_the_share_of_each_class() -> None:
    table = problem(1)
    method = ClasswiseShapley(NearestCentroidUtility(), contexts=10, normalise="class_share")
    values = method.fit_problem(table).values_
    plain = ClasswiseShapley(NearestCentroidUtility(), contexts=10).fit_problem(table).values_
    for code in range(3):
        own = code == Y
        share = correct(table, tuple(range(6)), code)[0]
        if abs(plain[own].sum()) > 1e-12:
            assert values[own].sum() == pytest.approx(share, abs=1e-12)
            assert np.allclose(values[own] / values[own].sum(), plain[own] / plain[own].sum())


def test_cost_is_counted_and_workers_have_no_influence() -> None:
    rng = np.random.default_rng(0)
    X, y = rng.normal(size=(20, 3)), np.arange(20) % 2
    X_val, y_val = rng.normal(size=(15, 3)), np.arange(15) % 2
    method = ClasswiseShapley(RidgeUtility(), contexts=4, context_law="all")
    result = method.fit(X, y, X_val, y_val).result_
    assert result.evaluations == 2 * 4 * 2 * 2 * 11  # classes, contexts, walks, parts, prefixes
    two = ClasswiseShapley(RidgeUtility(), contexts=4, context_law="all", n_jobs=2)
    assert two.fit(X, y, X_val, y_val).result_.digest() == result.digest()


def test_it_finds_flipped_labels() -> None:
    rng = np.random.default_rng(0)
    X = rng.normal(size=(260, 4))
    y = (X[:, 0] + X[:, 1] > 0).astype(int)
    wrong = rng.permutation(60)[:12]
    labels = y[:60].copy()
    labels[wrong] = 1 - labels[wrong]
    result = (
        ClasswiseShapley(KnnUtility(3), contexts=40).fit(X[:60], labels, X[60:], y[60:]).result_
    )
    assert np.isin(result.bottom(15), wrong).sum() >= 9


def test_classes_without_validation_or_training_rows() -> None:
    values = ClasswiseShapley(KnnUtility(1), contexts=3).fit(
        [[0.0], [1.0], [2.0]], ["a", "a", "b"], [[0.1], [0.2]], ["b", "c"]
    ).values_  # fmt: skip
    assert values[:2].tolist() == [0.0, 0.0]  # no validation row of class a
    assert np.isfinite(values).all()


@pytest.mark.parametrize(
    "settings",
    [
        {"contexts": 1}, {"context_law": "none"}, {"inner": "log"}, {"outer": "log"},
        {"normalise": "sum"}, {"ci_level": 0.0}, {"utility": None},
        {"utility": RidgeUtility(metric="margin")},
    ],
    ids=str,
)  # fmt: skip
def test_wrong_settings_are_refused(settings: dict[str, object]) -> None:
    arguments = {"utility": KnnUtility(1), **settings}
    with pytest.raises(SettingError):
        ClasswiseShapley(**arguments).fit_problem(problem())  # type: ignore[arg-type]


def test_regressions_and_groups_are_refused() -> None:
    with pytest.raises(ProblemError):
        ClasswiseShapley(KnnUtility(1)).fit([[0.0], [1.0]], [0.5, 1.5], [[0.0]], [0.5])
    with pytest.raises(ProblemError):
        ClasswiseShapley(KnnUtility(1)).fit([[0.0], [1.0]], [0, 1], [[0.0]], [0], groups=["g", "g"])
