"""Kernels are positive semidefinite; the pooled evidence is the likelihood of all observations."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import approx_fprime

from privml.rng import ScienceSeed
from privml.valuation.errors import SettingError
from privml.valuation.problem import Problem
from privml.valuation.topm.arms import Arms, standardised
from privml.valuation.topm.evidence import FitSettings, Hyperparameters, _Problem, fit, pair_noise
from privml.valuation.topm.kernels import KERNELS, components, fourier, nystrom
from privml.valuation.topm.posterior_joint import JointPosterior
from privml.valuation.topm.sums import PooledSums

FREE = FitSettings(own_spread=1e6, signal_spread=1e6)


def arms(rng, n, *, targets=False, groups=False):
    features = standardised(rng.standard_normal((n, 3)))
    if targets:
        return Arms(features, standardised(rng.standard_normal((n, 1))), targets=True)
    labels = np.eye(3)[rng.integers(3, size=n)]
    if groups:
        labels = rng.dirichlet(np.ones(3), size=n)
    return Arms(features, labels)


@given(
    seed=st.integers(0, 2**32),
    kernel=st.sampled_from(KERNELS),
    n=st.integers(7, 25),
    form=st.sampled_from(["rows", "groups", "targets"]),
    scale=st.sampled_from([0.5, 1.0, 3.0]),
)
def test_kernels_are_positive_semidefinite(seed, kernel, n, form, scale):
    known = arms(np.random.default_rng(seed), n, targets=form == "targets", groups=form == "groups")
    everyone = np.arange(n)
    for part in components(kernel, known, lengthscale=scale):
        block = part.block(everyone, everyone)
        np.testing.assert_allclose(block, block.T, atol=1e-12)
        np.testing.assert_allclose(np.diag(block), part.diagonal(), atol=1e-12)
        assert np.linalg.eigvalsh(block).min() > -1e-9
        assert part.diagonal().max() < 20


@given(seed=st.integers(0, 2**32), rank=st.integers(1, 20))
def test_nystrom_is_exact_at_full_rank_and_below_otherwise(seed, rank):
    known = arms(np.random.default_rng(seed), 20)
    parts, everyone = components("mixture", known), np.arange(20)
    weights = (0.5, 1.0, 0.2)
    whole = sum(w * part.block(everyone, everyone) for w, part in zip(weights, parts, strict=True))
    features, missing = nystrom(parts, weights, rank=rank)
    left = whole - features @ features.T
    np.testing.assert_allclose(np.diag(left), missing, atol=1e-8)
    assert np.linalg.eigvalsh(left).min() > -1e-7
    if rank == 20:
        np.testing.assert_allclose(features @ features.T, whole, atol=1e-4)


def test_fourier_features_approach_the_kernel(rng, seed):
    known = arms(rng, 30)
    waves = fourier(known, np.random.default_rng(seed), rank=12_000)
    everyone = np.arange(30)
    want = components("rbf-label", known)[0].block(everyone, everyone)
    np.testing.assert_allclose(waves @ waves.T, want, atol=0.12)


def test_functions_as_kernels(rng):
    known = arms(rng, 10)
    (part,) = components(lambda a, b: a @ b.T, known)
    points = np.hstack([known.features, known.labels])
    everyone = np.arange(10)
    np.testing.assert_allclose(part.block(everyone, everyone), points @ points.T)
    (bad,) = components(lambda a, b: np.zeros(3), known)
    with pytest.raises(SettingError, match="shape"):
        bad.block(everyone, everyone)
    for wrong in ({"lengthscale": 0.0}, {"kernel": "x"}):
        with pytest.raises(SettingError):
            components(**{"kernel": "mixture", "arms": known, **wrong})


def drawn(rng, n, repeats, noise=0.5):
    known = arms(rng, n)
    parts, everyone = components("agreement", known), np.arange(n)
    kernel = sum(part.block(everyone, everyone) for part in parts) + 0.2 * np.eye(n)
    values = 0.7 + np.linalg.cholesky(kernel) @ rng.standard_normal(n)
    sums, seen = PooledSums(n), []
    for arm in range(n):
        for _ in range(int(rng.integers(1, repeats + 1))):
            seen.append((arm, float(values[arm] + np.sqrt(noise) * rng.standard_normal())))
            sums.add_one(*seen[-1])
    return parts, sums, seen, values


def full_likelihood(parts, seen, weights, own, noise, mean):
    """Return the log density of every single observation, unpooled."""
    at = np.array([arm for arm, _ in seen])
    kernel = sum(w * part.block(at, at) for w, part in zip(weights, parts, strict=True))
    kernel = kernel + own * (at[:, None] == at) + noise * np.eye(len(at))
    off = np.array([value for _, value in seen]) - mean
    _, logdet = np.linalg.slogdet(2 * np.pi * kernel)
    return -0.5 * (logdet + off @ np.linalg.solve(kernel, off))


@given(seed=st.integers(0, 2**32))
@settings(max_examples=25)
def test_pooled_evidence_equals_the_unpooled_likelihood(seed):
    """Up to a constant that hyperparameters do not move."""
    rng = np.random.default_rng(seed)
    parts, sums, seen, _ = drawn(rng, 8, 4)
    problem = _Problem(parts, sums, np.arange(8), FREE, 0.3)
    gaps = []
    for _ in range(3):
        logs = rng.uniform(-1, 1, 4)
        *weights, own, noise = np.exp(logs)
        gaps.append(-problem(logs)[0] - full_likelihood(parts, seen, weights, own, noise, 0.3))
    np.testing.assert_allclose(gaps, gaps[0], atol=1e-6)


@given(seed=st.integers(0, 2**32), held=st.booleans(), mean=st.sampled_from([None, 0.2]))
@settings(max_examples=25)
def test_gradients_equal_finite_differences(seed, held, mean):
    rng = np.random.default_rng(seed)
    parts, sums, _, _ = drawn(rng, 10, 3)
    how = FitSettings(own_spread=0.0 if held else 1.0)
    problem = _Problem(parts, sums, np.arange(10), how, mean)
    at = problem.start(None) + 0.3 * rng.standard_normal(4)
    want = approx_fprime(at, lambda x: problem(x)[0], 1e-6)
    np.testing.assert_allclose(problem(at)[1], want, atol=2e-3, rtol=1e-4)


def test_fits_recover_what_made_the_data(rng):
    parts, sums, _, _ = drawn(rng, 220, 6)
    hyper, _ = fit(parts, sums, settings=FitSettings(), seed=ScienceSeed(1))
    assert 0.4 < hyper.noise < 0.6
    assert 0.8 < sum(hyper.weights) + hyper.own < 6.0
    part, _ = fit(parts, sums, settings=FitSettings(most_arms=90), seed=ScienceSeed(1))
    assert 0.3 < part.noise < 0.7
    held, _ = fit(parts, sums, settings=FitSettings(own_spread=0.0), seed=ScienceSeed(1))
    assert held.own / (held.own + sum(held.weights)) == pytest.approx(0.1)
    known, _ = fit(parts, sums, settings=FitSettings(), seed=ScienceSeed(1), mean=0.7)
    assert known.mean == 0.7


def test_a_single_sweep_or_constant_data_give_finite_hyperparameters(rng):
    for values in (rng.standard_normal(12), np.zeros(12), np.full(12, 3.0)):
        sums = PooledSums(12)
        sums.add(np.arange(12), values)
        hyper, evidence = fit(
            components("mixture", arms(rng, 12)), sums, settings=FitSettings(), seed=ScienceSeed(1)
        )
        assert np.isfinite([*hyper.weights, hyper.own, hyper.noise, hyper.mean, evidence]).all()
    with pytest.raises(SettingError, match="pulled"):
        fit([], PooledSums(3), settings=FitSettings(), seed=ScienceSeed(1))


def test_pair_noise_is_learned_from_pairs(rng):
    n = 30
    _, sums, _, values = drawn(rng, n, 40)
    hyper = Hyperparameters((1.0,), own=1.0, noise=0.5, pair_noise=0.7)
    for _ in range(600):
        first, second = rng.choice(n, 2, replace=False)
        gap = values[first] - values[second] + np.sqrt(0.2) * rng.standard_normal()
        sums.add_pair(int(first), int(second), float(gap))
    ratio = hyper.pair_ratio
    for _ in range(6):  # expectation maximisation
        posterior = JointPosterior(
            2 * np.eye(n), prior_mean=0.7, noise=np.full(n, 0.5), pair_ratio=ratio
        )
        posterior.rebuild(sums)
        ratio = pair_noise(posterior, sums, hyper, FitSettings()) / hyper.noise
    assert ratio * hyper.noise == pytest.approx(0.2, rel=0.25)


@pytest.mark.parametrize(
    "given",
    [((), 1.0, 1.0), ((0.0,), 0.0, 1.0), ((-1.0,), 1.0, 1.0), ((1.0,), 1.0, 0.0)],
)
def test_hyperparameters_are_checked(given):
    weights, own, noise = given
    with pytest.raises(SettingError):
        Hyperparameters(weights, own=own, noise=noise, pair_noise=1.0)


def test_arms_of_groups_are_means():
    X = np.array([[0.0, 1.0], [2.0, 1.0], [4.0, 1.0], [8.0, 1.0]])
    problem = Problem.of(X, [0, 1, 1, 1], X, [0, 1, 0, 1], groups=["a", "a", "b", "b"])
    known = Arms.of(problem)
    np.testing.assert_allclose(known.labels, [[0.5, 0.5], [0.0, 1.0]])
    np.testing.assert_allclose(known.features, [[-1.0, 0.0], [1.0, 0.0]])
    same = Arms.of(problem, features=[[1.0], [6.0]])
    np.testing.assert_allclose(same.features, [[-1.0], [1.0]])
