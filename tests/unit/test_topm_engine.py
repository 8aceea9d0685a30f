"""The engine: order of tells, batches, sweeps, resume, signs, settings and their refusal."""

from __future__ import annotations

import numpy as np
import pytest

from privml.rng import ScienceSeed
from privml.valuation.errors import CorruptResult, RunMismatch, SettingError
from privml.valuation.games import AdditiveGame
from privml.valuation.laws import SizeLaw
from privml.valuation.topm import learner as learner_module
from privml.valuation.topm.arms import Arms, standardised
from privml.valuation.topm.engine import Engine
from privml.valuation.topm.evidence import FitSettings, Hyperparameters
from privml.valuation.topm.journal import Snapshot
from privml.valuation.topm.settings import PRESETS, Settings, deviations, from_preset, switch_after
from privml.valuation.topm.target import Kind, Target, evaluate
from privml.valuation.utilities.base import Game

N, M = 12, 3


class NoisyGame(Game):
    """Additive values, linear in features, plus a term of the coalition: noisy marginals."""

    def __init__(self, weights, noise=0.05):
        super().__init__(len(weights), 0.0)
        self.weights, self.noise = weights, noise

    def _score(self, coalitions):
        codes = np.array([float((members * 7919 + 13).sum() % 1009) for members in coalitions])
        total = np.array([self.weights[members].sum() for members in coalitions])
        return total + self.noise * np.sin(codes)


def arms_of(n=N, seed=0):
    rng = np.random.default_rng(seed)
    features = standardised(rng.standard_normal((n, 2)))
    return Arms(features, np.eye(2)[rng.integers(2, size=n)])


def weights_of(arms):
    return 0.05 * arms.features[:, 0] * (2 * arms.labels[:, 0] - 1)


def engine(arms=None, *, law=None, seed=3, **given):
    arms = arms_of() if arms is None else arms
    settings = from_preset("default", {"m": M, "switch": "evaluations:3n", **given})
    alone = settings.posterior == "independent"
    target = Target.of(law or SizeLaw.shapley(arms.count), warm=settings.warm)
    return Engine(None if alone else arms, target, settings, seed=ScienceSeed(seed))


def drive(run, game, evaluations, *, q=1, order=None):
    """Ask and tell until ``evaluations``; ``order`` permutes the tells of each round."""
    while run.evaluations < evaluations:
        requests = run.ask(q)
        answers = list(zip(requests, evaluate(game, requests), strict=True))
        for at in order(len(answers)) if order else range(len(answers)):
            run.tell(*answers[at])
    return run


def equal_states(left, right):
    one, two = left.state(), right.state()
    np.testing.assert_array_equal(one.mean, two.mean)
    np.testing.assert_array_equal(one.stderr, two.stderr)
    np.testing.assert_array_equal(one.members, two.members)
    np.testing.assert_array_equal(one.membership_prob, two.membership_prob)
    assert (one.eps, one.evaluations, one.units) == (two.eps, two.evaluations, two.units)


BACK_ENDS = [
    {},
    {"posterior": "features", "rank": 6},
    {"posterior": "features", "rank": 6, "refresh_every": 4, "band": 5},
    {"posterior": "independent", "rule": "ugape", "pull": "largest_variance"},
    {"rule": "lingifa", "pull": "greedy", "noise": "per-arm", "rebuild_every": 9},
    {"rule": "lucb", "pull": "both", "width": "heuristic"},
    {"pull": "best", "kernel": "mixture", "rebuild_every": 7},
    {"select_kernel": ("rbf-label", "linear-label"), "sign": -1},
]


@pytest.mark.parametrize("given", BACK_ENDS, ids=str)
@pytest.mark.parametrize("law", [SizeLaw.shapley(N), SizeLaw.capped(N, 5), SizeLaw.banzhaf(N)])
def test_every_variant_finds_the_top(given, law):
    arms = arms_of()
    weights = weights_of(arms)
    run = drive(engine(arms, law=law, **given), NoisyGame(weights, noise=0.01), 30 * N)
    best = np.argsort(-given.get("sign", 1) * weights)[:M]
    assert set(run.state().members.tolist()) == set(best.tolist())
    assert run.counts[0] > 0
    assert run.drift < 1e-8


@pytest.mark.parametrize("given", BACK_ENDS, ids=str)
def test_resume_is_bit_for_bit_wherever_it_was_cut(given):
    arms = arms_of()
    game = NoisyGame(weights_of(arms))
    whole = engine(arms, **given)
    cuts = {}
    while whole.evaluations < 16 * N:
        requests = whole.ask(2)
        for at, (request, scores) in enumerate(
            zip(requests, evaluate(game, requests), strict=True)
        ):
            whole.tell(request, scores)
            if at == 0:
                cuts[whole.applied] = whole.snapshot()  # the other one is in flight
    assert any(cut.head["in_flight"] for cut in cuts.values())
    for units in list(cuts)[:: max(1, len(cuts) // 6)]:
        again = engine(arms, **given)
        again.resume(cuts[units])
        flying = [again.ask(1) for _ in cuts[units].head["in_flight"]]
        for requests in flying:
            for request, scores in zip(requests, evaluate(game, requests), strict=True):
                again.tell(request, scores)
        drive(again, game, 16 * N, q=2)
        equal_states(whole, again)


@pytest.mark.parametrize("q", [1, 3, 8])
def test_order_of_tells_does_not_matter(rng, q):
    game = NoisyGame(weights_of(arms_of()))
    straight = drive(engine(), game, 14 * N, q=q)
    shuffled = drive(engine(), game, 14 * N, q=q, order=lambda k: rng.permutation(k))
    equal_states(straight, shuffled)


def test_applying_tells_as_they_come_is_caught(rng, monkeypatch):
    """A mutant that applies out of unit order gives another result."""
    game = NoisyGame(weights_of(arms_of()))
    straight = drive(engine(), game, 14 * N, q=4)
    mutant = engine()

    def eager(self, request, scores):
        self._learner.apply(request, scores)
        del self._pending[request.unit]

    monkeypatch.setattr(Engine, "tell", eager)
    drive(mutant, game, 14 * N, q=4, order=lambda k: np.arange(k)[::-1])
    with pytest.raises(AssertionError):
        equal_states(straight, mutant)


@pytest.mark.parametrize("given", BACK_ENDS[:4], ids=str)
def test_looking_never_changes_the_run(given):
    game = NoisyGame(weights_of(arms_of()))
    quiet = drive(engine(**given), game, 12 * N)
    watched = engine(**given)
    while watched.evaluations < 12 * N:
        requests = watched.ask()
        for request, scores in zip(requests, evaluate(game, requests), strict=True):
            watched.tell(request, scores)
        if watched.ready:
            watched.state()
            _ = watched.gap, watched.certified, watched.members
            watched.snapshot()
    equal_states(quiet, watched)


def test_looking_just_before_the_switch_does_not_fix_the_first_pull():
    game = NoisyGame(weights_of(arms_of()))
    for seed in range(12):
        quiet, watched = (drive(engine(seed=seed), game, 3 * N) for _ in range(2))
        _ = watched.gap
        assert quiet.ask()[0].arms == watched.ask()[0].arms


def test_requests_in_flight_are_imagined():
    """A batch does not ask for one pair q times."""
    run = drive(engine(), NoisyGame(weights_of(arms_of())), 3 * N)
    batch = run.ask(40)
    assert [request.unit for request in batch] == list(range(run.applied, run.applied + 40))
    assert len({request.arms for request in batch}) > 3
    more = run.ask(2)  # without an answer in between
    assert [request.unit for request in more] == [run.applied + 40, run.applied + 41]


def test_no_sweep_is_asked_for_together_with_pulls():
    run = engine(switch="evaluations:2n")
    assert [request.kind for request in run.ask(5)] == [Kind.WALK] * 2
    assert run.ask(5) == []  # answers are needed first


def test_never_switching_only_walks():
    run = drive(engine(switch="never"), NoisyGame(weights_of(arms_of())), 9 * N)
    kinds = run.units_by_kind()
    assert kinds[Kind.WALK] == 9
    assert sum(kinds.values()) == 9
    assert not run.live


def test_pulls_without_sweeps_need_given_hyperparameters():
    with pytest.raises(SettingError, match="sweep"):
        engine(switch="evaluations:0").ask()
    hyper = Hyperparameters((0.01,), own=0.001, noise=0.01, pair_noise=0.01)
    run = engine(switch="evaluations:0", hyperparameters=hyper)
    drive(run, NoisyGame(weights_of(arms_of())), 4 * N)
    assert run.units_by_kind()[Kind.WALK] == 0
    assert run.hyperparameters == hyper


def test_theory_certificates_need_every_condition():
    hyper = Hyperparameters((0.01,), own=0.001, noise=0.01, pair_noise=0.01)
    game = NoisyGame(weights_of(arms_of()))
    full = {
        "width": "theory",
        "hyperparameters": hyper,
        "switch": "evaluations:0",
        "noise": "pooled",
    }
    cases = [
        ({}, "theory"),
        ({"width": 2.0}, "nominal"),
        ({"switch": "evaluations:1n"}, "nominal"),
        ({"noise": "per-arm"}, "nominal"),
        ({"hyperparameters": None, "switch": "evaluations:2n"}, "nominal"),
    ]
    for change, kind in cases:
        run = drive(engine(**{**full, **change}), game, 3 * N)
        assert run.state(draws=0).certificate_kind == kind, change


def test_tells_are_checked():
    run = engine()
    (request,) = run.ask()
    with pytest.raises(SettingError, match="finite scores"):
        run.tell(request, np.zeros(3))
    with pytest.raises(SettingError, match="finite scores"):
        run.tell(request, np.full(N + 1, np.nan))
    with pytest.raises(SettingError, match="not waiting"):
        run.tell(99, np.zeros(N + 1))
    run.tell(request.unit, np.zeros(N + 1))
    with pytest.raises(SettingError, match="not waiting"):
        run.tell(request, np.zeros(N + 1))
    with pytest.raises(SettingError, match="at least one"):
        run.ask(0)


def test_snapshots_of_other_runs_and_damaged_ones_are_refused():
    game = NoisyGame(weights_of(arms_of()))
    run = drive(engine(), game, 8 * N)
    snapshot = run.snapshot()
    with pytest.raises(RunMismatch):
        engine(seed=4).resume(snapshot)
    with pytest.raises(RunMismatch):
        engine(eps=0.5).resume(snapshot)
    with pytest.raises(RunMismatch):
        run.resume(snapshot)
    arrays, head = dict(snapshot.arrays), dict(snapshot.head)
    damaged = [
        Snapshot({**arrays, "kinds": arrays["kinds"] + 9}, head),
        Snapshot({**arrays, "scores": arrays["scores"][:-1]}, head),
        Snapshot({**arrays, "arms": arrays["arms"][:-1]}, head),
        Snapshot({**arrays, "arms": arrays["arms"] + 100}, head),
        Snapshot({**arrays, "lengths": -arrays["lengths"]}, head),
        Snapshot({k: v for k, v in arrays.items() if k != "kinds"}, head),
        Snapshot(arrays, {**head, "fits": [{"units": 3}]}),
        Snapshot(arrays, {**head, "rebuilt_at": 10_000}),
        Snapshot(arrays, {**head, "queue": [["x", []]]}),
        Snapshot(arrays, {k: v for k, v in head.items() if k != "sweeps"}),
    ]
    for snapshot in damaged:
        with pytest.raises(CorruptResult):
            engine().resume(snapshot)


def test_membership_probabilities():
    arms = arms_of()
    run = engine(arms, switch="never")
    drive(run, NoisyGame(weights_of(arms)), 4 * N)
    state = run.state()
    assert state.membership_prob.sum() == pytest.approx(M)
    assert ((state.membership_prob >= 0) & (state.membership_prob <= 1)).all()
    posterior = run._learner.now()
    drawn = posterior.sample(np.random.default_rng(0), 20_000, np.arange(N))
    want = (np.argsort(np.argsort(-drawn, axis=1), axis=1) < M).mean(axis=0)
    sampled = run.state(draws=20_000).membership_prob
    np.testing.assert_allclose(sampled, want, atol=0.02)
    assert np.isnan(run.state(draws=0).membership_prob).all()


def test_rebuilds_do_not_hide_drift(monkeypatch):
    """A mutant update is seen as drift at the next rebuild."""
    game = NoisyGame(weights_of(arms_of()))
    assert drive(engine(rebuild_every=20), game, 20 * N).drift < 1e-8
    observe = learner_module.Observation

    def wrong(first, second, value):
        return observe(first, second, value * 1.01)

    monkeypatch.setattr(learner_module, "Observation", wrong)
    assert drive(engine(rebuild_every=20), game, 20 * N).drift > 1e-6


def test_noise_is_per_arm_until_pulls_follow_the_data():
    game = NoisyGame(weights_of(arms_of()))
    for noise, before, after in [("auto", 1, 0), ("pooled", 0, 0), ("per-arm", 1, 1)]:
        run = drive(engine(noise=noise), game, 3 * N)
        assert (np.ptp(run._learner.now().noises) > 0) == before
        drive(run, game, 4 * N)
        assert run.live
        assert (np.ptp(run._learner.now().noises) > 0) == after


def test_additive_values_are_certified_at_once():
    run = engine(eps=0.02)
    drive(run, AdditiveGame(weights_of(arms_of())), 6 * N)
    assert run.certified
    assert run.state(draws=0).eps <= 0.02


@pytest.mark.parametrize(
    "given",
    [
        {"m": 0}, {"eps": -1.0}, {"sign": 2}, {"rule": "x"}, {"pull": "x"}, {"width": -1.0},
        {"posterior": "x"}, {"switch": "later"}, {"switch": "evaluations:n"}, {"noise": "x"},
        {"prior_mean": "x"}, {"delta": 0.0}, {"rebuild_every": 0}, {"scan": "x"}, {"warm": "x"},
        {"unknown": 1},
    ],
    ids=str,
)  # fmt: skip
def test_settings_are_checked(given):
    with pytest.raises(SettingError):
        from_preset("default", given)


def test_engines_refuse_what_does_not_fit():
    with pytest.raises(SettingError, match="m="):
        engine(m=N)
    with pytest.raises(SettingError, match="kernel"):
        drive(engine(kernel="x"), NoisyGame(weights_of(arms_of())), N)
    settings = from_preset("default", {"m": 2})
    with pytest.raises(SettingError, match="features"):
        Engine(None, Target.of(SizeLaw.shapley(N)), settings, seed=ScienceSeed(1))
    with pytest.raises(SettingError, match="arms"):
        Engine(arms_of(5), Target.of(SizeLaw.shapley(N)), settings, seed=ScienceSeed(1))


def test_presets_and_their_deviations():
    with pytest.raises(SettingError, match="preset"):
        from_preset("best", {})
    paper = from_preset("paper", {})
    assert (paper.pull, paper.width, paper.preset) == ("largest_variance", "theory", "paper")
    assert "rule" in deviations(paper)
    changed = deviations(from_preset("paper", {"pull": "pair", "m": 7}))
    assert "pair" in changed["pull"]
    assert "m" not in changed
    assert "pull" in deviations(Settings())
    assert set(PRESETS) == {"default", "paper"}


def test_settings_are_json_with_functions_named():
    def mine(left, right):
        return left @ right.T

    text = from_preset("default", {"kernel": mine, "fit": FitSettings(signal=0.2)}).as_json()
    assert "mine" in text["kernel"]
    assert text["fit"]["signal"] == 0.2


@pytest.mark.parametrize(
    ("text", "want"),
    [
        ("never", np.inf),
        ("evaluations:500", 500),
        ("evaluations:10n", 70),
        ("evaluations:.5n", 3.5),
    ],
)
def test_switch(text, want):
    assert switch_after(text, 7) == want
