"""Units of work: what they ask for, what they cost, and that they are unbiased for the target."""

from __future__ import annotations

import numpy as np
import pytest

from privml.rng import ScienceSeed
from privml.valuation.errors import SettingError
from privml.valuation.games import TableGame, exact_difference, exact_values, table_values
from privml.valuation.laws import SizeLaw
from privml.valuation.topm.target import Kind, Target, evaluate

N = 6
LAWS = {
    "shapley": SizeLaw.shapley(N),
    "capped 2": SizeLaw.capped(N, 2),
    "capped 4": SizeLaw.capped(N, 4),  # 6 players in blocks of 4: the last block is padded
    "beta 4,1": SizeLaw.beta(N, 4, 1),
    "beta 1,4": SizeLaw.beta(N, 1, 4),
    "banzhaf": SizeLaw.banzhaf(N),
    "loo": SizeLaw.loo(N),
}


def game(rng):
    return TableGame(rng.standard_normal(1 << N))


def mean_and_error(values):
    array = np.array(values)
    return array.mean(axis=0), array.std(axis=0, ddof=1) / np.sqrt(len(array))


def sweep_estimates(law, warm, table, units, seed):
    """Return (units, N): each unit's mean observation of each arm, and the exact values."""
    target = Target.of(law, warm=warm)
    kind = Kind.WALK if warm == "walks" else Kind.BLOCKS
    requests = [target.request(ScienceSeed(seed), unit, kind) for unit in range(units)]
    out = np.zeros((units, N))
    for row, (request, scores) in enumerate(zip(requests, evaluate(table, requests), strict=True)):
        count = np.zeros(N)
        for arms, values in target.marginals(request, scores):
            out[row, arms] += values
            count[arms] += 1
        out[row] /= count
    return out, exact_values(table, law)


@pytest.mark.parametrize("name", LAWS)
def test_walks_are_unbiased_for_every_law(rng, seed, name):
    got, want = sweep_estimates(LAWS[name], "walks", game(rng), 3_000, seed)
    mean, error = mean_and_error(got)
    assert (np.abs(mean - want) < 5.5 * error + 1e-12).all()


def block_bias(rng, seed, cap, units=3_000):
    """Return the largest |z| of block-walk observations, unit means over all their marginals."""
    law, table = SizeLaw.capped(N, cap), game(rng)
    target = Target.of(law)
    totals = []
    for unit in range(units):
        request = target.request(ScienceSeed(seed), unit, Kind.BLOCKS)
        totals.append(request)
    want, z = exact_values(table, law), 0.0
    sums = np.zeros((len(totals), N))
    for row, (request, scores) in enumerate(zip(totals, evaluate(table, totals), strict=True)):
        for arms, values in target.marginals(request, scores):
            sums[row, arms] += values - want[arms]  # 0 in the mean for each marginal
    mean, error = mean_and_error(sums)
    return float(np.max(np.abs(mean) / (error + 1e-12), initial=z))


@pytest.mark.parametrize("cap", [1, 2, 3, 4, 5, 6])
def test_block_walks_are_unbiased_padded_or_not(rng, seed, cap):
    assert block_bias(rng, seed, cap) < 5.5


def test_leaving_out_the_padded_block_is_caught(rng, seed, monkeypatch):
    """A mutant that walks a shorter last block: small coalitions come too often."""
    marginals = Target.marginals

    def shorter(self, request, scores):
        found = marginals(self, request, scores)
        return [*found[:-1], (found[-1][0][: N % 4], found[-1][1][: N % 4])]

    monkeypatch.setattr(Target, "marginals", shorter)
    assert max(block_bias(rng, seed + i, 4, 6_000) for i in range(4)) > 8  # a game may be too even


@pytest.mark.parametrize("name", LAWS)
def test_pair_law_identity(rng, name):
    """f(b) - f(c) by enumeration equals the pair law's sum, for every semivalue."""
    law, table = LAWS[name], game(rng)
    values = table_values(table.table, law)
    for b, c in [(0, 1), (4, 2), (5, 0)]:
        got = exact_difference(table.table, law.pair_law(), b, c)
        assert got == pytest.approx(values[b] - values[c], abs=1e-12)


def test_the_single_law_in_place_of_the_pair_law_is_caught(rng):
    law, table = SizeLaw.beta(N, 4, 1), game(rng)
    values = table_values(table.table, law)
    kept = law.log_p[: N - 1].copy()
    wrong = SizeLaw("wrong", kept - np.logaddexp.reduce(kept))
    gaps = [
        exact_difference(table.table, wrong, 0, j) - (values[0] - values[j]) for j in range(1, N)
    ]
    assert max(map(abs, gaps)) > 1e-3  # one pair alone may differ by chance little


@pytest.mark.parametrize("name", LAWS)
def test_singles_and_pairs_are_unbiased(rng, seed, name):
    law, table = LAWS[name], game(rng)
    target, want = Target.of(law), exact_values(table, law)
    units = range(2_500)
    singles = [target.request(ScienceSeed(seed), u, Kind.SINGLE, (2,)) for u in units]
    pairs = [target.request(ScienceSeed(seed), u, Kind.PAIR, (4, 1)) for u in units]
    mean, error = mean_and_error([s[1] - s[0] for s in evaluate(table, singles)])
    assert abs(mean - want[2]) < 5.5 * error + 1e-12
    mean, error = mean_and_error([s[0] - s[1] for s in evaluate(table, pairs)])
    assert abs(mean - (want[4] - want[1])) < 5.5 * error + 1e-12


@pytest.mark.parametrize("name", LAWS)
def test_cost_is_what_the_game_counts(rng, name):
    target, table = Target.of(LAWS[name]), game(rng)
    units = [(kind, arms) for kind, arms in target.warm_units()]
    units += [(Kind.SINGLE, (0,)), (Kind.PAIR, (3, 5)), (Kind.WALK, ())]
    requests = [target.request(ScienceSeed(4), at, *unit) for at, unit in enumerate(units)]
    answers = evaluate(table, requests)
    assert table.tally.evaluations == sum(request.evaluations for request in requests)
    assert [len(a) for a in answers] == [request.scores for request in requests]


def test_requests_are_functions_of_seed_and_index():
    target = Target.of(SizeLaw.shapley(30))
    for kind, arms in [(Kind.WALK, ()), (Kind.SINGLE, (3,)), (Kind.PAIR, (7, 9))]:
        one, two = (target.request(ScienceSeed(8), 5, kind, arms) for _ in range(2))
        other = target.request(ScienceSeed(8), 6, kind, arms)
        np.testing.assert_array_equal(one.orders, two.orders)
        for left, right in zip(one.coalitions, two.coalitions, strict=True):
            np.testing.assert_array_equal(left, right)
        same = np.array_equal(one.orders, other.orders) and all(
            np.array_equal(a, b) for a, b in zip(one.coalitions, other.coalitions, strict=True)
        )
        assert not same


def test_coalitions_avoid_the_arms_they_are_for():
    target = Target.of(SizeLaw.shapley(5))
    for unit in range(200):
        request = target.request(ScienceSeed(unit), unit, Kind.PAIR, (4, 1))
        first, second = request.coalitions
        assert first[-1] == 4
        assert second[-1] == 1
        rest = set(first[:-1].tolist())
        assert rest == set(second[:-1].tolist())
        assert not rest & {1, 4}
        assert len(rest) == len(first) - 1


@pytest.mark.parametrize(
    ("law", "warm"), [("shapley", "walks"), ("capped 2", "blocks"), ("banzhaf", "singles")]
)
def test_warm_units_cover_every_arm(law, warm):
    target = Target.of(LAWS[law])
    assert target.warm == warm
    seen = set()
    for at, unit in enumerate(target.warm_units()):
        request = target.request(ScienceSeed(1), at, *unit)
        seen |= set(request.orders.ravel().tolist()) | set(request.arms)
    assert seen == set(range(N))


def test_wrong_sweeps_are_refused():
    with pytest.raises(SettingError, match="block walks"):
        Target.of(SizeLaw.banzhaf(N), warm="blocks")
    with pytest.raises(SettingError, match="warm"):
        Target.of(SizeLaw.banzhaf(N), warm="hot")
