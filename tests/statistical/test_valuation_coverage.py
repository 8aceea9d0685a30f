"""Intervals cover the truth as often as they say; broken estimators are caught."""

from __future__ import annotations

import numpy as np
import pytest

from privml.rng import ScienceSeed
from privml.valuation.games import TableGame, exact_values
from privml.valuation.laws import SizeLaw
from privml.valuation.samplers import MSR, Antithetic, Permutation, Sampler, Stratified
from privml.valuation.samplers.base import Unit, evaluate
from privml.valuation.samplers.estimates import Estimate, SplitEstimate, WalkEstimate
from privml.valuation.samplers.walks import WalkSampler, blocks

PLAYERS = 6
CASES: list[tuple[Sampler, SizeLaw, int]] = [
    (Permutation(), SizeLaw.shapley(PLAYERS), 60),
    (Antithetic(), SizeLaw.shapley(PLAYERS), 60),
    (Stratified(3), SizeLaw.shapley(PLAYERS), 60),
    (Permutation(), SizeLaw.capped(PLAYERS, 4), 60),
    (Antithetic(), SizeLaw.beta(PLAYERS, 2, 1), 80),
    (MSR(), SizeLaw.banzhaf(PLAYERS), 120),
]


def submodular(seed: int) -> TableGame:
    """A game like learning: U grows with the size, ever more slowly, plus differences."""
    rng = np.random.default_rng(seed)
    member = (np.arange(1 << PLAYERS)[:, None] >> np.arange(PLAYERS)) & 1
    strength = member @ rng.uniform(0.2, 1.0, PLAYERS)
    return TableGame(1 - np.exp(-strength) + 0.05 * rng.normal(size=1 << PLAYERS))


def sampled(game: TableGame, sampler: Sampler, law: SizeLaw, units: int, seed: int) -> Estimate:
    estimate = sampler.estimate(law, game.empty)
    drawn = [sampler.unit(index, ScienceSeed(seed), law) for index in range(units)]
    for unit, found in zip(drawn, evaluate(game, drawn, None), strict=True):
        if isinstance(estimate, WalkEstimate):
            estimate.add(*estimate.contribution(unit.orders, found.scores))
        elif isinstance(estimate, SplitEstimate):
            estimate.add(unit.coalitions[0], float(found.scores[0]))
    return estimate


def coverage(sampler: Sampler, law: SizeLaw, units: int, runs: int, game: TableGame) -> float:
    truth = exact_values(game, law)
    hits = []
    for run in range(runs):
        low, high = sampled(game, sampler, law, units, 1_000 + run).interval(0.95)
        hits.append((low <= truth) & (truth <= high))
    return float(np.mean(hits))


@pytest.mark.nightly
@pytest.mark.parametrize("case", CASES, ids=lambda c: f"{c[0]}-{c[1].name}")
def test_intervals_of_95_percent_cover_93_to_97(case: tuple[Sampler, SizeLaw, int]) -> None:
    sampler, law, units = case
    assert 0.93 <= coverage(sampler, law, units, 500, submodular(1)) <= 0.97


@pytest.mark.parametrize("case", CASES, ids=lambda c: f"{c[0]}-{c[1].name}")
def test_intervals_are_honest_on_few_runs(case: tuple[Sampler, SizeLaw, int]) -> None:
    sampler, law, units = case
    assert 0.91 <= coverage(sampler, law, units, 60, submodular(1)) <= 0.985


def test_the_error_falls_with_the_root_of_the_walks() -> None:
    game, law = submodular(2), SizeLaw.shapley(PLAYERS)
    truth = exact_values(game, law)
    spread = []
    for units in (50, 800):
        errors = [
            sampled(game, Permutation(), law, units, seed).values() - truth for seed in range(12)
        ]
        spread.append(float(np.sqrt(np.mean(np.square(errors)))))
    assert 2.8 <= spread[0] / spread[1] <= 5.7  # 4 up to the noise of 72 squared errors


class ForgetsTheEmptySet(WalkSampler):
    """Mutant: walks never start with player 0."""

    def _orders(self, generator, players, length):  # type: ignore[no-untyped-def]
        order = blocks(generator, players, length)
        order[:, [0, 1]] = np.where(order[:, :1] == 0, order[:, [1, 0]], order[:, [0, 1]])
        return order


class KeepsItsPadding(WalkSampler):
    """Mutant: filled-up players always come last in their block."""

    def _orders(self, generator, players, length):  # type: ignore[no-untyped-def]
        order = generator.permutation(players)
        rest = players % length
        fill = order[: length - rest] if rest else order[:0]
        return np.concatenate([order, fill]).reshape(-1, length)


class SortsItsSecondHalf(WalkSampler):
    """Mutant: the tail of a walk is in order."""

    def _orders(self, generator, players, length):  # type: ignore[no-untyped-def]
        order = generator.permutation(players)
        order[players // 2 :] = np.sort(order[players // 2 :])
        return order[None]


class ForgetsTheFactor(WalkEstimate):
    """Mutant: marginals are not weighted by the law."""

    def __init__(self, players: int, weights: np.ndarray) -> None:
        super().__init__(players, np.ones_like(weights))


class Unweighted(Permutation):
    def estimate(self, law: SizeLaw, empty: float) -> WalkEstimate:
        return ForgetsTheFactor(law.n, np.ones(law.largest + 1))


class OneSided(MSR):
    """Mutant: players join with probability 0.3, which is no longer the Banzhaf value."""

    def unit(self, index: int, seed: ScienceSeed, law: SizeLaw) -> Unit:
        inside = self.generator(index, seed).random(law.n) < 0.3
        return Unit(index, np.empty((0, 0), dtype=np.int64), (np.flatnonzero(inside),))


FIRST = TableGame(np.minimum(np.arange(1 << PLAYERS), 1.0))  # all is gained by the first player
MUTANTS: list[tuple[Sampler, SizeLaw, TableGame]] = [
    (ForgetsTheEmptySet(), SizeLaw.shapley(PLAYERS), submodular(3)),
    (KeepsItsPadding(), SizeLaw.capped(PLAYERS, 5), FIRST),
    (SortsItsSecondHalf(), SizeLaw.shapley(PLAYERS), submodular(3)),
    (Unweighted(), SizeLaw.beta(PLAYERS, 4, 1), submodular(3)),
    (OneSided(), SizeLaw.banzhaf(PLAYERS), submodular(3)),
]


@pytest.mark.parametrize("case", MUTANTS, ids=lambda case: type(case[0]).__name__)
def test_broken_samplers_are_caught(case: tuple[Sampler, SizeLaw, TableGame]) -> None:
    """Each lies more than six standard errors off; the right one stays within five."""
    sampler, law, game = case
    truth = exact_values(game, law)
    wrong = sampled(game, sampler, law, 6_000, 5)
    assert (np.abs(wrong.values() - truth) / wrong.stderr()).max() > 6
    right = sampled(game, MSR() if law.name == "banzhaf" else Permutation(), law, 6_000, 5)
    assert (np.abs(right.values() - truth) / right.stderr()).max() < 5


def test_counting_a_pair_as_two_units_is_caught() -> None:
    """The walks of an antithetic pair depend on each other: taken apart, intervals miscover."""
    additive = np.arange(1 << PLAYERS).astype(np.float64)
    size = np.array([bin(index).count("1") for index in range(1 << PLAYERS)])
    game, law = TableGame(additive * 0 + size**2.0), SizeLaw.shapley(PLAYERS)
    pairs = sampled(game, Antithetic(), law, 40, 3)
    singles = WalkEstimate(PLAYERS, np.ones(PLAYERS))
    for index in range(40):
        unit = Antithetic().unit(index, ScienceSeed(3), law)
        for order, score in zip(unit.orders, game.walks(unit.orders), strict=True):
            singles.add(*singles.contribution(order[None], score[None]))
    np.testing.assert_allclose(singles.values(), pairs.values())
    # marginals 2k+1 and 2(n-1-k)+1 of a pair cancel: the true error is zero
    assert pairs.stderr().max() < 1e-12
    assert singles.stderr().min() > 0.1
