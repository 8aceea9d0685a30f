"""Posterior back ends against the textbook formula, each other and their own scratch version."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from privml.errors import ParameterError
from privml.valuation.topm.posterior import Observation
from privml.valuation.topm.posterior_features import FeaturePosterior
from privml.valuation.topm.posterior_independent import IndependentPosterior
from privml.valuation.topm.posterior_joint import JointPosterior
from privml.valuation.topm.sums import PooledSums

PAIR_RATIO = 0.7


def case(rng, n, width, *, own_zero=False):
    features = 0.5 * rng.standard_normal((n, width))
    own = np.zeros(n) if own_zero else rng.uniform(0.05, 0.3, n)
    return features, own, rng.uniform(0.4, 2.0, n)


def draw(rng, n, pairs):
    arm = int(rng.integers(n))
    second = -1
    if pairs and rng.random() < 0.4:
        second = int((arm + 1 + rng.integers(n - 1)) % n)
    return Observation(arm, second, float(rng.standard_normal()))


def add(sums, seen):
    if seen.second >= 0:
        sums.add_pair(seen.first, seen.second, seen.value)
    else:
        sums.add_one(seen.first, seen.value)


def feed(posteriors, sums, seen):
    for posterior in posteriors:
        posterior.observe(seen, sums)
    add(sums, seen)


def textbook(prior, mean0, noise, history):
    """Return mean and covariance by conditioning on every observation at once, unpooled."""
    n = len(prior)
    rows = np.zeros((len(history), n))
    for at, seen in enumerate(history):
        rows[at, seen.first] = 1.0
        if seen.second >= 0:
            rows[at, seen.second] = -1.0
    level = [
        PAIR_RATIO * (noise[s.first] + noise[s.second]) / 2 if s.second >= 0 else noise[s.first]
        for s in history
    ]
    total = rows @ prior @ rows.T + np.diag(level)
    gain = np.linalg.solve(total, rows @ prior).T
    values = np.array([s.value for s in history])
    return mean0 + gain @ (values - rows @ np.full(n, mean0)), prior - gain @ rows @ prior


def same(left, right, tolerance):
    everyone = np.arange(left.arms)
    np.testing.assert_allclose(left.mean, right.mean, atol=tolerance)
    np.testing.assert_allclose(left.variance, right.variance, atol=tolerance)
    np.testing.assert_allclose(
        left.covariance_block(everyone, everyone), right.covariance_block(everyone, everyone),
        atol=tolerance,
    )  # fmt: skip
    np.testing.assert_allclose(left.covariance_with(1), right.covariance_with(1), atol=tolerance)
    one, two = np.array([0, 1, 2]), np.array([2, 0, 2])
    np.testing.assert_allclose(
        left.difference_variances(one, two), right.difference_variances(one, two), atol=tolerance
    )


@given(
    seed=st.integers(0, 2**32), n=st.integers(3, 9), steps=st.integers(1, 60), pairs=st.booleans()
)
def test_joint_equals_textbook_pooled_or_not(seed, n, steps, pairs):
    rng = np.random.default_rng(seed)
    features, own, noise = case(rng, n, 3)
    prior = features @ features.T + np.diag(own)
    posterior = JointPosterior(prior, prior_mean=0.3, noise=noise, pair_ratio=PAIR_RATIO)
    sums, history = PooledSums(n), []
    for _ in range(steps):
        history.append(draw(rng, n, pairs))
        feed([posterior], sums, history[-1])
    mean, cov = textbook(prior, 0.3, noise, history)
    np.testing.assert_allclose(posterior.mean, mean, atol=1e-10)
    np.testing.assert_allclose(posterior.variance, np.diag(cov), atol=1e-10)
    information = posterior.information
    assert posterior.rebuild(sums) < 1e-8  # from pooled sums
    np.testing.assert_allclose(posterior.mean, mean, atol=1e-10)
    np.testing.assert_allclose(posterior.covariance_block(*[np.arange(n)] * 2), cov, atol=1e-10)
    assert posterior.information == pytest.approx(information, abs=1e-9)


@given(
    seed=st.integers(0, 2**32),
    n=st.integers(3, 12),
    steps=st.integers(1, 80),
    pairs=st.booleans(),
    every=st.sampled_from([1, 1, 3, 7]),
    own_zero=st.booleans(),
)
def test_features_equal_joint_on_exact_features(seed, n, steps, pairs, every, own_zero):
    rng = np.random.default_rng(seed)
    features, own, noise = case(rng, n, 4, own_zero=own_zero)
    prior = features @ features.T + np.diag(own)
    joint = JointPosterior(prior, prior_mean=-0.2, noise=noise, pair_ratio=PAIR_RATIO)
    mapped = FeaturePosterior(
        features, own=own, prior_mean=-0.2, noise=noise, pair_ratio=PAIR_RATIO,
        refresh_every=every, band=3,
    )  # fmt: skip
    sums = PooledSums(n)
    for _ in range(steps):
        feed([joint, mapped], sums, draw(rng, n, pairs))
    before = mapped.mean.copy()
    settled = mapped.settled()
    tolerance = 1e-7 if own_zero else 1e-10  # the singular joint prior is lifted by 1e-9
    same(joint, settled, tolerance)
    np.testing.assert_array_equal(mapped.mean, before)  # looking changes nothing
    assert settled.information == pytest.approx(joint.information, abs=1e-6)
    assert settled.rebuild(sums) < 1e-8
    same(joint, settled, tolerance)
    mapped.rebuild(sums)
    same(joint, mapped, tolerance)
    assert mapped.information == pytest.approx(joint.information, abs=1e-6)


@given(seed=st.integers(0, 2**32), steps=st.integers(1, 60))
def test_independent_equals_joint_with_a_diagonal_prior(seed, steps):
    rng = np.random.default_rng(seed)
    n = 6
    _, own, noise = case(rng, n, 1)
    apart = IndependentPosterior(own, prior_mean=0.4, noise=noise)
    joint = JointPosterior(np.diag(own), prior_mean=0.4, noise=noise, pair_ratio=1.0)
    sums = PooledSums(n)
    for _ in range(steps):
        feed([apart, joint], sums, draw(rng, n, pairs=False))
    same(apart, joint, 1e-12)
    assert apart.information == pytest.approx(joint.information)
    assert apart.rebuild(sums) < 1e-10
    same(apart, joint, 1e-12)


def test_lazy_variances_are_upper_bounds(rng):
    features, own, noise = case(rng, 60, 5)
    lazy = FeaturePosterior(
        features, own=own, prior_mean=0.0, noise=noise, pair_ratio=1.0, refresh_every=9, band=6
    )
    exact = FeaturePosterior(features, own=own, prior_mean=0.0, noise=noise, pair_ratio=1.0)
    sums, behind = PooledSums(60), 0
    for _ in range(200):
        feed([lazy, exact], sums, draw(rng, 60, pairs=False))
        assert (lazy.variance >= exact.variance - 1e-12).all()
        behind += bool((lazy.variance > exact.variance + 1e-9).any())
    assert behind > 50


@pytest.mark.parametrize("updates", [20_000, pytest.param(100_000, marks=pytest.mark.nightly)])
def test_drift_stays_below_1e_8(rng, updates):
    n = 40
    features, own, _ = case(rng, n, 8)
    noise = np.full(n, 25.0)
    joint = JointPosterior(
        features @ features.T + np.diag(own), prior_mean=0.0, noise=noise, pair_ratio=1.2
    )
    mapped = FeaturePosterior(features, own=own, prior_mean=0.0, noise=noise, pair_ratio=1.2)
    sums = PooledSums(n)
    for _ in range(updates):
        feed([joint, mapped], sums, draw(rng, n, pairs=True))
    assert (joint.variance >= 0).all()
    assert (mapped.variance >= 0).all()
    assert joint.rebuild(sums) < 1e-8
    assert mapped.rebuild(sums) < 1e-8


def test_float32_features_stay_close(rng):
    features, own, noise = case(rng, 50, 8)
    exact, short = (
        FeaturePosterior(features.astype(t), own=own, prior_mean=0.0, noise=noise, pair_ratio=1.0)
        for t in (np.float64, np.float32)
    )
    sums = PooledSums(50)
    for _ in range(500):
        feed([exact, short], sums, draw(rng, 50, pairs=True))
    same(exact, short, 1e-5)


def test_a_plain_feature_model_would_be_wrong(rng):
    """Dropping the own terms is caught: the comparison with the joint posterior fails."""
    features, own, noise = case(rng, 10, 3)
    joint = JointPosterior(
        features @ features.T + np.diag(own), prior_mean=0.0, noise=noise, pair_ratio=1.0
    )
    plain = FeaturePosterior(
        features, own=np.zeros(10), prior_mean=0.0, noise=noise, pair_ratio=1.0
    )
    sums = PooledSums(10)
    for _ in range(40):
        feed([joint, plain], sums, draw(rng, 10, pairs=False))
    with pytest.raises(AssertionError):
        same(joint, plain, 1e-3)


def test_samples_have_the_posterior_moments(rng, seed):
    features, own, noise = case(rng, 8, 3)
    prior = features @ features.T + np.diag(own)
    kinds = [
        JointPosterior(prior, prior_mean=0.1, noise=noise, pair_ratio=1.0),
        FeaturePosterior(features, own=own, prior_mean=0.1, noise=noise, pair_ratio=1.0),
    ]
    sums = PooledSums(8)
    for _ in range(20):
        feed(kinds, sums, draw(rng, 8, pairs=True))
    arms = np.array([1, 4, 6])
    for posterior in kinds:
        drawn = posterior.sample(np.random.default_rng(seed), 60_000, arms)
        np.testing.assert_allclose(drawn.mean(axis=0), posterior.mean[arms], atol=0.02)
        want = posterior.covariance_block(arms, arms)
        np.testing.assert_allclose(np.cov(drawn.T), want, atol=0.03)


def test_bad_priors_are_refused():
    with pytest.raises(ParameterError, match="positive definite"):
        JointPosterior(-np.eye(3), prior_mean=0.0, noise=np.ones(3), pair_ratio=1.0)
    with pytest.raises(ParameterError, match="noise"):
        JointPosterior(np.eye(3), prior_mean=0.0, noise=np.zeros(3), pair_ratio=1.0)
    with pytest.raises(ParameterError, match="own"):
        FeaturePosterior(
            np.eye(3), own=-np.ones(3), prior_mean=0.0, noise=np.ones(3), pair_ratio=1.0
        )


@given(
    values=st.lists(
        st.tuples(st.integers(0, 3), st.floats(-1e3, 1e3, allow_nan=False)), min_size=1, max_size=40
    )
)
def test_pooled_sums_are_count_mean_and_squares(values):
    sums = PooledSums(4)
    for arm, value in values:
        sums.add_one(arm, value)
        sums.add_pair(arm, (arm + 1) % 4, value)
    for arm in range(4):
        mine = np.array([v for a, v in values if a == arm])
        assert sums.count[arm] == len(mine)
        if len(mine):
            assert sums.mean[arm] == pytest.approx(mine.mean(), abs=1e-9)
            assert sums.squares[arm] == pytest.approx(((mine - mine.mean()) ** 2).sum(), abs=1e-6)
    assert sums.pair_count.sum() == len(values)
    assert (sums.pair_arms[:, 0] < sums.pair_arms[:, 1]).all()
