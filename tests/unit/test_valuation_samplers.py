"""Samplers and stopping: pure units, unbiased on average, budgets kept."""

from __future__ import annotations

import math

import numpy as np
import pytest

from privml.rng import ScienceSeed
from privml.valuation.errors import CorruptResult, SettingError
from privml.valuation.games import TableGame, exact_values
from privml.valuation.laws import SizeLaw
from privml.valuation.samplers import MSR, TMC, Antithetic, Permutation, Sampler, Stratified
from privml.valuation.samplers.base import evaluate
from privml.valuation.samplers.estimates import SplitEstimate, WalkEstimate
from privml.valuation.samplers.walks import blocks
from privml.valuation.stopping import (
    MaxEvaluations,
    MaxRows,
    MaxSeconds,
    MaxUnits,
    Progress,
    StdErr,
    Stopping,
)

SEED = ScienceSeed(7)
WALKS: list[Sampler] = [Permutation(), Antithetic(), Stratified(3), Stratified(50), TMC(0.0)]


@pytest.mark.parametrize("sampler", [*WALKS, MSR()], ids=repr)
def test_units_are_functions_of_seed_and_index(sampler: Sampler) -> None:
    law = SizeLaw.banzhaf(9)

    def drawn(index: int, seed: ScienceSeed) -> bytes:
        unit = sampler.unit(index, seed, law)
        return unit.orders.tobytes() + b"".join(c.tobytes() for c in unit.coalitions)

    assert drawn(3, SEED) == drawn(3, ScienceSeed(7))
    assert len({drawn(3, SEED), drawn(4, SEED), drawn(3, ScienceSeed(8))}) == 3


@pytest.mark.parametrize("length", [1, 2, 3, 7, 10])
def test_blocks_cover_everybody_once_but_for_the_padding(
    length: int, rng: np.random.Generator
) -> None:
    players = 10
    for _ in range(20):
        walks = blocks(rng, players, length)
        assert walks.shape == (-(-players // length), length)
        times = np.bincount(walks.ravel(), minlength=players)
        assert times.min() == 1
        assert times.sum() - players == -players % length
        assert all(len(set(walk)) == length for walk in walks.tolist())


@pytest.mark.parametrize("sampler", WALKS, ids=repr)
@pytest.mark.parametrize(
    "law", [SizeLaw.shapley(5), SizeLaw.capped(5, 2), SizeLaw.capped(5, 3), SizeLaw.beta(5, 4, 1)],
    ids=lambda law: law.name,
)  # fmt: skip
def test_walks_are_unbiased(sampler: Sampler, law: SizeLaw, rng: np.random.Generator) -> None:
    """The mean over many units lies within five standard errors of the enumeration."""
    game = TableGame(rng.normal(size=32))
    estimate = sampler.estimate(law, game.empty)
    assert isinstance(estimate, WalkEstimate)
    units = [sampler.unit(index, SEED, law) for index in range(4_000)]
    cost = sampler.evaluations(law)
    for unit, found in zip(units, evaluate(game, units, None), strict=True):
        assert found.evaluations == unit.orders.size == cost
        estimate.add(*estimate.contribution(unit.orders, found.scores))
    gap = np.abs(estimate.values() - exact_values(game, law))
    assert (gap <= 5 * estimate.stderr() + 1e-12).all()
    assert (estimate.counts() == 4_000).all()


def test_a_rotation_for_every_size_removes_the_noise_of_positions() -> None:
    """In a game whose marginals depend on the size only, such units are exact."""
    n = 6
    size = np.array([bin(index).count("1") for index in range(1 << n)])
    game = TableGame(np.sqrt(size))
    sampler, law = Stratified(n), SizeLaw.shapley(n)
    unit = sampler.unit(0, SEED, law)
    found = evaluate(game, [unit], None)[0]
    estimate = sampler.estimate(law, 0.0)
    value, *_ = estimate.contribution(unit.orders, found.scores)
    np.testing.assert_allclose(value, exact_values(game, law), atol=1e-13)


def test_draws_with_and_without_a_player(rng: np.random.Generator) -> None:
    game, law, sampler = TableGame(rng.normal(size=32)), SizeLaw.banzhaf(5), MSR()
    estimate = sampler.estimate(law, game.empty)
    scores: list[tuple[np.ndarray, float]] = []
    for index in range(3_000):
        unit = sampler.unit(index, SEED, law)
        score = evaluate(game, [unit], None)[0].scores[0]
        scores.append((unit.coalitions[0], score))
        estimate.add(unit.coalitions[0], score)
    gap = np.abs(estimate.values() - exact_values(game, law))
    assert (gap <= 5 * estimate.stderr()).all()
    inside = np.array([[p in set(c.tolist()) for p in range(5)] for c, _ in scores])
    u = np.array([score for _, score in scores])
    for p in range(5):
        a, b = u[inside[:, p]], u[~inside[:, p]]
        assert estimate.values()[p] == pytest.approx(a.mean() - b.mean())
        spread = a.var(ddof=1) / len(a) + b.var(ddof=1) / len(b)
        assert estimate.stderr()[p] == pytest.approx(math.sqrt(spread))


def test_running_sums_equal_numpy(rng: np.random.Generator) -> None:
    estimate = WalkEstimate(4, np.ones(4))
    assert np.isnan(estimate.values()).all()
    given = rng.normal(size=(50, 4)) + 1e6
    for row in given:
        estimate.add(row, np.zeros(4, dtype=np.int64), 1e6)
    np.testing.assert_allclose(estimate.values(), given.mean(axis=0), rtol=1e-13)
    np.testing.assert_allclose(
        estimate.stderr(), given.std(axis=0, ddof=1) / np.sqrt(50), rtol=1e-6
    )


def test_unknown_values_are_nan_never_zero() -> None:
    estimate = SplitEstimate(3, 0.0)
    estimate.add(np.array([0]), 1.0)
    estimate.add(np.array([0, 1]), 3.0)
    assert np.isnan(estimate.values()).tolist() == [True, False, True]
    assert np.isnan(estimate.stderr()).all()


def test_truncated_marginals_are_zero_and_counted() -> None:
    estimate = WalkEstimate(3, np.ones(3))
    orders = np.array([[2, 0, 1]])
    value, cut, _ = estimate.contribution(orders, np.array([[0.0, 0.7, np.nan, np.nan]]))
    assert value.tolist() == [0.0, 0.0, 0.7]
    assert cut.tolist() == [1, 1, 0]


def test_states_of_another_form_are_refused() -> None:
    estimate = WalkEstimate(3, np.ones(3))
    good = {name: array.copy() for name, array in estimate.arrays().items()}
    estimate.restore(5, good)
    assert estimate.units == 5
    for bad in (
        {},
        {**good, "more": np.zeros(3)},
        {**good, "mean": np.zeros(4)},
        {**good, "cut": np.zeros(3)},
    ):
        with pytest.raises(CorruptResult):
            estimate.restore(5, bad)


def test_samplers_refuse_what_they_cannot_estimate() -> None:
    for sampler, law in (
        (MSR(), SizeLaw.shapley(4)),
        (Stratified(1), SizeLaw.shapley(4)),
        (TMC(-1.0), SizeLaw.shapley(4)),
        (Permutation(truncation=math.nan), SizeLaw.shapley(4)),
    ):
        with pytest.raises(SettingError):
            sampler.check(law)


def progress(**changes: float) -> Progress:
    state = {"units": 100, "evaluations": 1_000, "rows_trained": 5_000, "seconds": 2.0}
    given = {**state, **changes}
    stderr = given.pop("stderr", 0.1)
    spread = np.array([stderr, stderr / 2])
    return Progress(**given, values=np.zeros(2), stderr=spread)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("rule", "status"),
    [
        (MaxEvaluations(1_000), "budget"),
        (MaxEvaluations(1_001), None),
        (MaxUnits(100), "budget"),
        (MaxUnits(101), None),
        (MaxRows(5_000), "budget"),
        (MaxRows(5_001), None),
        (MaxSeconds(2), "budget"),
        (MaxSeconds(2.1), None),
        (StdErr(0.1), "converged"),
        (StdErr(0.09), None),
        (StdErr(0.05, quantile=0.5), "converged"),
        (StdErr(0.1, least_units=101), None),
        (MaxUnits(101) | StdErr(0.1), "converged"),
        (MaxUnits(100) & StdErr(0.1), "budget"),
        (MaxUnits(100) & StdErr(0.01), None),
        (StdErr(0.2) & StdErr(0.1), "converged"),
        ((MaxUnits(101) | MaxRows(1)) & MaxSeconds(1), "budget"),
    ],
)
def test_rules_and_their_combinations(rule: Stopping, status: str | None) -> None:
    verdict = rule.verdict(progress())
    assert (None if verdict is None else verdict.status) == status
    assert StdErr(0.1).verdict(progress(stderr=math.nan)) is None


def test_budgets_combine() -> None:
    first, second = MaxEvaluations(10), MaxEvaluations(20)
    assert (first | second).evaluations() == 10
    assert (first & second).evaluations() == 20
    assert (first & MaxUnits(3)).evaluations() == math.inf
    assert (first | StdErr(0.1)).spec() == {"any": [first.spec(), StdErr(0.1).spec()]}


@pytest.mark.parametrize(
    "make",
    [
        lambda: MaxEvaluations(0),
        lambda: MaxSeconds(-1),
        lambda: MaxRows(math.inf),  # type: ignore[arg-type]
        lambda: StdErr(math.nan),
        lambda: StdErr(0.1, quantile=0),
        lambda: StdErr(0.1, least_units=1),
    ],
)
def test_impossible_rules_are_refused(make) -> None:  # type: ignore[no-untyped-def]
    with pytest.raises(SettingError):
        make()
