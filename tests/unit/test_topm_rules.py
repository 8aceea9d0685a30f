"""Gap-index rules against slow loops over all pairs; pulls, widths, ties and imagined pulls."""

from __future__ import annotations

import math

import numpy as np
import pytest

from privml.errors import UnsupportedError
from privml.rng import ScienceSeed
from privml.valuation.errors import SettingError
from privml.valuation.topm.beliefs import Beliefs, Ties
from privml.valuation.topm.posterior import Observation
from privml.valuation.topm.posterior_features import FeaturePosterior
from privml.valuation.topm.posterior_independent import IndependentPosterior
from privml.valuation.topm.posterior_joint import JointPosterior
from privml.valuation.topm.pulls import PULLS, arms_to_pull
from privml.valuation.topm.rules import RULES, Choice, Chooser, Rule, rule_named
from privml.valuation.topm.sums import PooledSums
from privml.valuation.topm.widths import Width

N, M, C = 14, 4, 1.3


def random_posterior(rng, n=N):
    features = rng.standard_normal((n, 3))
    posterior = JointPosterior(
        features @ features.T + 0.2 * np.eye(n), prior_mean=0.1, noise=np.full(n, 0.5),
        pair_ratio=0.8,
    )  # fmt: skip
    sums = PooledSums(n)
    for _ in range(3 * n):
        arm = int(rng.integers(n))
        posterior.observe(Observation(arm, -1, float(rng.standard_normal())), sums)
    return posterior


def slow_bounds(posterior, rule: Rule):
    """B by the definition, one pair at a time."""
    n = posterior.arms
    cov = posterior.covariance_block(np.arange(n), np.arange(n))
    out = np.full((n, n), -np.inf)
    for i in range(n):
        for j in range(n):
            if i == j:
                continue
            if rule.paired:
                width = math.sqrt(max(cov[i, i] + cov[j, j] - 2 * cov[i, j], 0.0))
            else:
                width = math.sqrt(cov[i, i]) + math.sqrt(cov[j, j])
            out[i, j] = posterior.mean[i] - posterior.mean[j] + C * width
    return out


def slow_choice(posterior, rule: Rule):
    """Return members, leader, challenger and gap by loops."""
    bounds, n = slow_bounds(posterior, rule), posterior.arms
    index = [sorted(np.delete(bounds[:, j], j))[-M] for j in range(n)]
    order = np.argsort(-posterior.mean) if rule.members == "means" else np.argsort(index)
    members = sorted(order[:M].tolist())
    outside = [i for i in range(n) if i not in members]
    if rule.leader == "gap":
        leader = max(members, key=lambda j: max(bounds[i, j] for i in outside))
    elif rule.leader == "index":
        leader = max(members, key=lambda j: index[j])
    else:
        leader = min(
            members, key=lambda j: posterior.mean[j] - C * math.sqrt(posterior.variance[j])
        )
    challenger = max(outside, key=lambda i: bounds[i, leader])
    gap = bounds[challenger, leader] if rule.members == "means" else max(index[j] for j in members)
    return members, leader, challenger, gap


@pytest.mark.parametrize("name", RULES)
@pytest.mark.parametrize("paired", [None, True, False])
def test_rules_equal_their_definition(rng, name, paired):
    rule = rule_named(name, paired=paired)
    for _ in range(20):
        posterior = random_posterior(rng)
        choice = Chooser(rule, M).choose(Beliefs(posterior), C, Ties(None))
        members, leader, challenger, gap = slow_choice(posterior, rule)
        assert choice.members.tolist() == members
        assert choice.gap == pytest.approx(gap, abs=1e-12)
        if rule.leader == "gap" and not rule.paired:  # the same widest pair: bounds separate
            assert slow_bounds(posterior, rule)[choice.challenger, choice.leader] == pytest.approx(
                gap
            )
        else:
            assert (choice.leader, choice.challenger) == (leader, challenger)


def test_pruned_search_in_small_blocks_finds_the_widest_pair(rng, monkeypatch):
    monkeypatch.setattr("privml.valuation.topm.rules._BLOCK", 8)
    rule = rule_named("gpgape")
    for _ in range(30):
        posterior = random_posterior(rng)
        choice = Chooser(rule, M, "exact").choose(Beliefs(posterior), C, Ties(None))
        _, leader, challenger, gap = slow_choice(posterior, rule)
        assert (choice.leader, choice.challenger) == (leader, challenger)
        assert choice.gap == pytest.approx(gap, abs=1e-12)


def test_anchored_search_is_a_lower_bound_and_certify_is_exact(rng):
    rule = rule_named("gpgape")
    below = 0
    for _ in range(40):
        posterior = random_posterior(rng)
        beliefs = Beliefs(posterior)
        chooser = Chooser(rule, M, "anchor")
        choice = chooser.choose(beliefs, C, Ties(None))
        gap = slow_choice(posterior, rule)[3]
        assert not choice.exact
        assert choice.gap <= gap + 1e-12
        below += choice.gap < gap - 1e-9
        assert chooser.certify(beliefs, C, choice) == pytest.approx(gap, abs=1e-12)
    assert below, "the anchored gap never differed, so certify was not tested"


def test_paired_widths_are_never_wider(rng):
    for _ in range(20):
        posterior = random_posterior(rng)
        paired, apart = (
            slow_bounds(posterior, rule_named("gpgape", paired=p)) for p in (True, False)
        )
        assert (paired <= apart + 1e-12).all()


def test_ties_are_seeded_and_fair():
    values = np.array([0.0, 1.0, 1.0, 1.0, 2.0])
    assert Ties(None).best(values) == 4
    assert Ties(None).largest(values, 2).tolist() == [1, 4]
    seed = ScienceSeed(5)
    assert Ties(seed).largest(values, 2).tolist() == Ties(seed).largest(values, 2).tolist()
    picked = {Ties(seed.child(k)).largest(values, 2)[0] for k in range(60)}
    assert picked == {1, 2, 3}


def test_pull_rules(rng):
    posterior = random_posterior(rng)
    beliefs = Beliefs(posterior)
    choice = Choice(np.arange(M), 1, 9, 0.3)
    less_sure = 1 if posterior.variance[1] > posterior.variance[9] else 9
    assert arms_to_pull("largest_variance", choice, beliefs, Ties(None)) == [(less_sure,)]
    assert arms_to_pull("both", choice, beliefs, Ties(None)) == [(1,), (9,)]
    assert arms_to_pull("pair", choice, beliefs, Ties(None)) == [(1, 9)]

    def left(arms):
        """Variance of the difference after observing ``arms``, by doing it."""
        trial = random_copy(posterior)
        trial.observe(Observation(arms[0], arms[1] if len(arms) > 1 else -1, 0.0), PooledSums(N))
        return float(trial.difference_variances(np.array([1]), np.array([9]))[0])

    greedy = arms_to_pull("greedy", choice, beliefs, Ties(None))[0]
    assert greedy[0] == min(range(N), key=lambda arm: left((arm,)))
    best = arms_to_pull("best", choice, beliefs, Ties(None))[0]
    assert left(best) == pytest.approx(min(left(greedy), left((1, 9))))


def random_copy(posterior):
    """Return a joint posterior with the same covariance as its prior."""
    n = posterior.arms
    cov = posterior.covariance_block(np.arange(n), np.arange(n))
    return JointPosterior(cov, prior_mean=0.0, noise=posterior.noises, pair_ratio=0.8)


def test_pairs_fall_back_where_the_posterior_takes_none():
    apart = IndependentPosterior(np.array([1.0, 2.0, 1.0]), prior_mean=0.0, noise=np.ones(3))
    choice = Choice(np.array([0]), 0, 1, 0.3)
    for pull in ("pair", "best", "largest_variance"):
        assert arms_to_pull(pull, choice, Beliefs(apart), Ties(None)) == [(1,)]
    with pytest.raises(UnsupportedError, match="pair"):
        apart.observe(Observation(0, 1, 0.1), PooledSums(3))
    full = FeaturePosterior(
        np.eye(3), own=np.ones(3), prior_mean=0.0, noise=np.ones(3), pair_ratio=1.0, max_promoted=1
    )
    assert not full.can_pair(0, 1)
    assert arms_to_pull("pair", choice, Beliefs(full), Ties(None))[0] in {(0,), (1,)}


@pytest.mark.parametrize("pair", [False, True])
def test_imagined_observations_lower_variances_as_real_ones(rng, pair):
    posterior = random_posterior(rng)
    beliefs = Beliefs(posterior)
    before = posterior.mean.copy(), posterior.variance.copy()
    twin = random_copy(posterior)
    for arm in (3, 7, 3):
        second = arm + 2 if pair else -1
        beliefs.imagine(arm, second)
        twin.observe(Observation(arm, second, 1.0), PooledSums(N))
    everyone = np.arange(N)
    np.testing.assert_allclose(beliefs.variance, twin.variance, atol=1e-12)
    np.testing.assert_allclose(beliefs.covariance_with(5), twin.covariance_with(5), atol=1e-12)
    np.testing.assert_allclose(
        beliefs.covariance_block(everyone, everyone[:4]),
        twin.covariance_block(everyone, everyone[:4]), atol=1e-12,
    )  # fmt: skip
    np.testing.assert_array_equal(posterior.mean, before[0])
    np.testing.assert_array_equal(posterior.variance, before[1])


def test_multipliers():
    assert Width(2.0, 0.05).multiplier(pulls=9, information=1.0, least_noise=0.1) == 2.0
    heuristic = Width("heuristic", 0.05).multiplier(pulls=100, information=0.0, least_noise=1.0)
    assert heuristic == pytest.approx(math.sqrt(2 * math.log((1 + math.log(100)) / 0.05)))
    theory = Width("theory", 0.1, norm=1.5, sub_gaussian=0.2)
    got = theory.multiplier(pulls=5, information=3.0, least_noise=0.04)
    assert got == pytest.approx(1.5 + 1.0 * math.sqrt(2 * (3.0 + 1.0 + math.log(10))))


@pytest.mark.parametrize(
    "make",
    [
        lambda: Width("wide", 0.1),
        lambda: Width(0.0, 0.1),
        lambda: Width(2.0, 1.0),
        lambda: Width(2.0, 0.1, norm=-1.0),
        lambda: rule_named("best"),
        lambda: arms_to_pull.__globals__["check_pull"]("none"),
    ],
)
def test_settings_out_of_range_are_refused(make):
    with pytest.raises(SettingError):
        make()


def test_paired_indices_of_too_many_arms_are_refused():
    many = 7_000
    apart = IndependentPosterior(np.ones(many), prior_mean=0.0, noise=np.ones(many))
    with pytest.raises(UnsupportedError, match="gpgape"):
        Chooser(rule_named("lingifa"), 5).choose(Beliefs(apart), 1.0, Ties(None))
    assert set(PULLS) == {"largest_variance", "both", "greedy", "pair", "best"}
