"""Intervals hold the truth where the spread of marginals is nothing but rounding."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest

from privml.valuation import Banzhaf, ExactValues, LeaveOneOut, Shapley
from privml.valuation.games import AdditiveGame
from privml.valuation.intervals import half_width, largest_size, rounding
from privml.valuation.links.deravda import DeRDaVa
from privml.valuation.methods.base import Valuer
from privml.valuation.methods.knn import KNNShapley
from privml.valuation.methods.semivalues import BetaShapley
from privml.valuation.problem import Problem
from privml.valuation.result import ValuationResult
from privml.valuation.samplers import MSR, Antithetic, Permutation, Stratified
from privml.valuation.stopping import MaxUnits

SCALES = [1e-12, 1.0, 1e9]


def weights(scale: float, players: int, seed: int) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=players) * scale


def covered(result: ValuationResult, truth: np.ndarray) -> float:
    return float(((result.ci_low <= truth) & (truth <= result.ci_high)).mean())


@pytest.mark.parametrize("scale", SCALES)
@pytest.mark.parametrize("sampler", [Permutation(), Antithetic(), Stratified(5)], ids=str)
def test_walks_of_an_additive_game_hold_the_truth(sampler: object, scale: float) -> None:
    truth = weights(scale, 40, 1)
    method = Shapley(sampler=sampler, stopping=MaxUnits(30), random_state=1)
    result = method.fit_game(AdditiveGame(truth)).result_
    assert covered(result, truth) == 1.0
    assert 0 < result.rounding <= 1e-12 * scale * 40
    assert (result.ci_high - result.ci_low >= 2 * result.rounding * (1 - 1e-3)).all()
    assert (result.stderr <= result.rounding).all()


@pytest.mark.parametrize("scale", SCALES)
def test_other_laws_hold_the_truth_of_an_additive_game(scale: float) -> None:
    truth = weights(scale, 12, 2)
    every: list[Valuer] = [
        BetaShapley(a=4, b=1, stopping=MaxUnits(200), sampler=Stratified(12), random_state=1),
        ExactValues(),
        LeaveOneOut(),
        DeRDaVa(staying=1.0, units=9),
    ]
    for method in every:
        result = method.fit_game(AdditiveGame(truth)).result_
        assert covered(result, truth) == 1.0, type(method).__name__


def test_merged_and_summed_results_keep_the_floor() -> None:
    truth = weights(1.0, 30, 3)
    one, two = (
        Shapley(stopping=MaxUnits(20), random_state=seed).fit_game(AdditiveGame(truth)).result_
        for seed in (1, 2)
    )
    both = one.merge(two)
    assert covered(both, truth) == 1.0
    assert both.rounding >= max(one.rounding, two.rounding)
    groups = [at % 4 for at in range(30)]
    exact = np.array([float(sum(map(Fraction, truth[at::4]))) for at in range(4)])
    assert covered(one.by_group(groups), exact) == 1.0


def test_a_constant_draw_has_the_width_of_its_rounding() -> None:
    game = AdditiveGame(np.zeros(4), base=0.1)
    result = Banzhaf(sampler=MSR(), stopping=MaxUnits(50)).fit_game(game).result_
    assert covered(result, np.zeros(4)) == 1.0
    assert 0 < result.rounding < 1e-13


def test_exact_neighbour_values_hold_what_fractions_give() -> None:
    """One validation row, one neighbour: s_N = 1/N, s_i = s_{i+1} + (m_i - m_{i+1}) / i."""
    n, rng = 23, np.random.default_rng(5)
    X, y = np.arange(float(n))[:, None], rng.integers(0, 2, n)
    problem = Problem.of(X, y, [[-1.0]], [1], task="classification")
    result = KNNShapley(k=1).fit_problem(problem).result_
    match = [int(label == 1) for label in y]
    value = [Fraction(0)] * n
    value[-1] = Fraction(match[-1], n)
    for i in range(n - 1, 0, -1):
        value[i - 1] = value[i] + Fraction(match[i - 1] - match[i], i)
    for at, exact in enumerate(value):
        low, high = Fraction(float(result.ci_low[at])), Fraction(float(result.ci_high[at]))
        assert low <= exact <= high


def test_the_bound_grows_with_terms_and_size() -> None:
    assert rounding(0.0, 100) == 0.0
    assert rounding(2.0, 92) == 200 * 2.0**-52
    assert largest_size(np.array([np.nan, -3.0]), 2.0) == 3.0
    assert largest_size(np.array([])) == 0.0
    assert half_width(np.zeros(1), np.ones(1), 0.95)[0] == 0.0


def test_a_saved_result_keeps_its_floor(tmp_path) -> None:  # type: ignore[no-untyped-def]
    game = AdditiveGame(weights(1.0, 5, 7))
    result = Shapley(stopping=MaxUnits(3)).fit_game(game).result_
    result.save(tmp_path)
    assert ValuationResult.load(tmp_path).rounding == result.rounding
    assert ValuationResult.load(tmp_path).digest() == result.digest()
