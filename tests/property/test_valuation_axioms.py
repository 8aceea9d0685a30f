"""Axioms on random games and tables: duplicates, null players, linearity, efficiency."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from privml.valuation.games import TableGame, enumerate_utilities, table_values
from privml.valuation.laws import SizeLaw
from privml.valuation.methods.shapley import Shapley
from privml.valuation.problem import Problem
from privml.valuation.result import ValuationResult
from privml.valuation.samplers import Antithetic, Permutation, Stratified
from privml.valuation.stopping import MaxUnits
from privml.valuation.utilities import (
    KnnUtility,
    LogisticUtility,
    NearestCentroidUtility,
    RidgeUtility,
)

SEEDS = st.integers(0, 2**32 - 1)
LAWS = st.sampled_from(
    [
        SizeLaw.shapley,
        SizeLaw.banzhaf,
        lambda n: SizeLaw.beta(n, 4, 1),
        lambda n: SizeLaw.capped(n, max(1, n // 2)),
        SizeLaw.loo,
    ]
)


@given(seed=SEEDS, n=st.integers(2, 7), law=LAWS)
def test_semivalues_are_linear_symmetric_and_ignore_null_players(seed, n, law) -> None:  # type: ignore[no-untyped-def]
    rng = np.random.default_rng(seed)
    a, b = rng.normal(size=1 << n), rng.normal(size=1 << n)
    law = law(n)
    mixed = table_values(2 * a - 3 * b, law)
    np.testing.assert_allclose(
        mixed, 2 * table_values(a, law) - 3 * table_values(b, law), atol=1e-11
    )
    index = np.arange(1 << n)
    null = a[index & ~1]  # player 0 changes nothing
    assert abs(table_values(null, law)[0]) < 1e-12
    swapped = (index & ~3) | ((index & 1) << 1) | ((index >> 1) & 1)
    equal = table_values(a + a[swapped], law)  # players 0 and 1 change places
    assert equal[0] == pytest.approx(equal[1], abs=1e-11)
    weights = rng.normal(size=n)
    additive = ((index[:, None] >> np.arange(n)) & 1) @ weights
    np.testing.assert_allclose(table_values(additive, law), weights, atol=1e-11)


@given(seed=SEEDS, n=st.integers(1, 8))
def test_shapley_alone_is_efficient(seed: int, n: int) -> None:
    table = np.random.default_rng(seed).normal(size=1 << n)
    values = table_values(table, SizeLaw.shapley(n))
    assert math.fsum([*values, -table[-1], table[0]]) == pytest.approx(0, abs=1e-12)


@given(
    seed=SEEDS,
    n=st.integers(1, 9),
    sampler=st.sampled_from([Permutation(), Antithetic(), Stratified(3)]),
)
def test_every_number_of_walks_is_efficient(seed: int, n: int, sampler) -> None:  # type: ignore[no-untyped-def]
    table = np.random.default_rng(seed).random(1 << n)
    method = Shapley(sampler=sampler, stopping=MaxUnits(1 + seed % 7), random_state=seed)
    assert abs(method.fit_game(TableGame(table)).result_.efficiency_residual) <= 1e-12


UTILITIES = st.sampled_from(
    [
        RidgeUtility(metric="margin"),
        RidgeUtility(intercept="penalised", metric="log_likelihood"),
        LogisticUtility(metric="log_likelihood"),
        KnnUtility(3, metric="match"),
        NearestCentroidUtility(metric="margin"),
    ]
)


@given(seed=SEEDS, utility=UTILITIES)
def test_copies_of_a_row_have_equal_value(seed: int, utility) -> None:  # type: ignore[no-untyped-def]
    rng = np.random.default_rng(seed)
    X, XV = rng.normal(size=(7, 3)), rng.normal(size=(11, 3))
    y, yv = rng.integers(0, 2, 7), rng.integers(0, 2, 11)
    X[1], y[1] = X[0], y[0]
    y[2], y[3], yv[0], yv[1] = 0, 1, 0, 1
    table = enumerate_utilities(utility.open(Problem.of(X, y, XV, yv)))
    if utility.kind.startswith("knn"):
        # Ties go to the lower number, so the set of labels is the same but its order is not.
        table = np.round(table, 12)
    values = table_values(table, SizeLaw.shapley(7))
    assert values[0] == pytest.approx(values[1], abs=1e-7)


@given(seed=SEEDS)
def test_values_are_linear_over_validation_rows(seed: int) -> None:
    rng = np.random.default_rng(seed)
    X, XV = rng.normal(size=(6, 3)), rng.normal(size=(10, 3))
    y, yv = np.array([0, 1, 0, 1, 0, 1]), np.array([0, 1] * 5)
    utility, law = RidgeUtility(empty=0.5), SizeLaw.shapley(6)

    def values(part: slice) -> np.ndarray:
        game = utility.open(Problem.of(X, y, XV[part], yv[part]))
        return table_values(enumerate_utilities(game), law)

    halves = (values(slice(0, 4)) * 4 + values(slice(4, 10)) * 6) / 10
    np.testing.assert_allclose(values(slice(0, 10)), halves, atol=1e-12)


@given(seed=SEEDS, n=st.integers(1, 12), m=st.integers(0, 15))
def test_order_and_rank_intervals(seed: int, n: int, m: int) -> None:
    rng = np.random.default_rng(seed)
    values = np.round(rng.normal(size=n), 1)
    half = rng.random(n)
    counts = np.ones(n, dtype=np.int64)
    result = ValuationResult(
        ids=tuple(range(n)), values=values, stderr=half, ci_low=values - half,
        ci_high=values + half, counts=counts, truncated_counts=counts * 0, evaluations=1,
        rows_trained=1, seconds=0.0, status="exact", stop_reason="", target="shapley", method="t",
    )  # fmt: skip
    top = result.top(m)
    assert len(top) == min(m, n)
    assert sorted(top.tolist()) == sorted(np.argsort(-values, kind="stable")[:m].tolist())
    assert result.bottom(m).tolist() == np.argsort(values, kind="stable")[:m].tolist()
    best, worst = result.rank_ci()
    for _ in range(5):
        true = rng.uniform(result.ci_low, result.ci_high)
        rank = (true[None] > true[:, None]).sum(axis=1) + 1
        assert (best <= rank).all()
        assert (rank <= worst).all()
