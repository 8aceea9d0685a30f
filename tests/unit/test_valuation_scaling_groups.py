"""Groups against rows per group: tables whose truth is known say what was put into them."""

from __future__ import annotations

import numpy as np
import pytest

from privml.valuation import ExactValues, KnnUtility, RidgeUtility
from privml.valuation.errors import ProblemError, SettingError
from privml.valuation.scaling import DiversityReport, diversity_report

FEATURES = 1


def table(*, between: float, within: float, groups: int = 32, rows: int = 16, seed: int = 0):
    """Return a regression whose level differs between groups, validated on the mean level."""
    draw = np.random.default_rng(seed)
    slopes = np.ones(FEATURES)
    level = between * draw.normal(size=(groups, 1))
    X = draw.normal(size=(groups, rows, FEATURES))
    y = X @ slopes + level + within * draw.normal(size=(groups, rows))
    X_val = draw.normal(size=(200, FEATURES))
    labels = np.repeat([f"site {g}" for g in range(groups)], rows)
    return X.reshape(-1, FEATURES), y.ravel(), X_val, X_val @ slopes, labels


def report(**others: float) -> DiversityReport:
    *data, labels = table(**others)
    utility = RidgeUtility(alpha=1e-3)
    return diversity_report(utility, *data, groups=labels, task="regression", repeats=24)


def test_random_levels_ask_for_groups() -> None:
    found = report(between=0.7, within=0.0)
    assert found.advice == "more groups"
    assert found.groups.law is not None
    assert found.rows.law is not None
    assert -1.4 < found.groups.law.b < -0.7  # the error of a mean of groups falls as 1/groups
    assert found.rows.law.b > -0.5


def test_noise_within_groups_asks_for_rows() -> None:
    found = report(between=0.0, within=3.0, groups=4, rows=64)
    assert found.rows.law is not None
    assert found.rows.law.b < -0.7
    assert found.advice == "unclear"  # four groups say little about groups
    assert found.rows.mean[-1] == pytest.approx(found.groups.mean[-1])


def test_report_counts_its_cost_and_repeats_itself() -> None:
    *data, labels = table(between=1.0, within=0.1, groups=8, rows=4)
    utility = RidgeUtility()
    first = diversity_report(utility, *data, groups=labels, task="regression", repeats=3)
    assert first.groups.counts.tolist() == [1, 2, 4, 8]
    assert first.rows.counts.tolist() == [1, 2, 4]
    assert first.evaluations == 3 * (4 + 3)
    assert first.rows_trained == 3 * (4 * (1 + 2 + 4 + 8) + 8 * (1 + 2 + 4))
    again = diversity_report(utility, *data, groups=labels, task="regression", repeats=3)
    np.testing.assert_array_equal(first.groups.scores, again.groups.scores)
    other = diversity_report(
        utility, *data, groups=labels, task="regression", repeats=3, random_state=1
    )
    assert (first.groups.scores != other.groups.scores).any()


def test_mean_value_is_the_mean_shapley_value_of_the_groups() -> None:
    *data, labels = table(between=1.0, within=0.1, groups=5, rows=4)
    utility = RidgeUtility(empty=-0.5)
    values = ExactValues(utility).fit(*data, groups=labels, task="regression").values_
    found = diversity_report(utility, *data, groups=labels, task="regression", repeats=2)
    assert found.mean_value == pytest.approx(values.mean())


def test_tables_without_a_comparison_are_refused() -> None:
    *data, labels = table(between=1.0, within=0.1, groups=3, rows=2)
    with pytest.raises(ProblemError, match="two"):
        diversity_report(RidgeUtility(), *data, groups=["one"] * 6, task="regression")
    with pytest.raises(ProblemError, match="two"):
        diversity_report(RidgeUtility(), *data, groups=range(6), task="regression")
    with pytest.raises(SettingError, match="repeats"):
        diversity_report(RidgeUtility(), *data, groups=labels, task="regression", repeats=0)
    single = diversity_report(RidgeUtility(), *data, groups=labels, task="regression", repeats=1)
    assert single.advice == "unclear"
    assert np.isnan(single.groups.stderr).all()


def test_a_curve_without_a_gap_has_a_reason_instead_of_a_law() -> None:
    X = np.repeat([[0.0], [1.0]], 8, axis=0)
    y = np.repeat(["a", "b"], 8)
    groups = np.tile(np.arange(4), 4)
    found = diversity_report(KnnUtility(1), X, y, X, y, groups=groups, repeats=2)
    assert found.groups.law is None
    assert found.groups.reason
