"""Size laws and games: closed forms against enumeration, pairs against singles."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest

from privml.valuation.errors import SettingError
from privml.valuation.games import (
    AdditiveGame,
    AirportGame,
    GloveGame,
    SpanningTreeGame,
    TableGame,
    UnanimityGame,
    VotingGame,
    exact_difference,
    exact_values,
    table_values,
)
from privml.valuation.laws import SizeLaw
from privml.valuation.utilities.base import Game

N = 7


def laws(n: int) -> list[SizeLaw]:
    return [
        SizeLaw.shapley(n),
        SizeLaw.beta(n, 16, 1),
        SizeLaw.beta(n, 1, 4),
        SizeLaw.banzhaf(n),
        SizeLaw.capped(n, 3),
        SizeLaw.capped(n, n),
        SizeLaw.loo(n),
    ]


def by_permutations(table: np.ndarray, n: int) -> np.ndarray:
    """Shapley values from their other definition: the mean over all n! orders."""
    total = np.zeros(n)
    for order in itertools.permutations(range(n)):
        before = 0
        for player in order:
            total[player] += table[before | 1 << player] - table[before]
            before |= 1 << player
    return total / math.factorial(n)


def test_enumeration_agrees_with_all_orders(rng: np.random.Generator) -> None:
    table = rng.normal(size=1 << 6)
    found = exact_values(TableGame(table), SizeLaw.shapley(6))
    np.testing.assert_allclose(found, by_permutations(table, 6), atol=1e-13)


@pytest.mark.parametrize("law", laws(N), ids=lambda law: law.name)
def test_laws_sum_to_one_and_pairs_give_differences(law: SizeLaw, rng: np.random.Generator) -> None:
    assert law.p.sum() == pytest.approx(1, abs=1e-12)
    assert law.pair_law().p.sum() == pytest.approx(1, abs=1e-12)
    table = rng.normal(size=1 << N)
    values = table_values(table, law)
    for b, c in ((0, 1), (6, 2), (3, 5)):
        found = exact_difference(table, law.pair_law(), b, c)
        assert found == pytest.approx(values[b] - values[c], abs=1e-12)


def test_known_weights() -> None:
    np.testing.assert_allclose(SizeLaw.beta(9, 16, 1).p[:3], [0.667, 0.232, 0.074], atol=5e-4)
    np.testing.assert_allclose(SizeLaw.beta(9, 1, 1).p, SizeLaw.shapley(9).p, atol=1e-13)
    np.testing.assert_allclose(SizeLaw.banzhaf(4).p, [1 / 8, 3 / 8, 3 / 8, 1 / 8], atol=1e-13)
    capped = SizeLaw.capped(10, 4)
    pair = capped.pair_law().p
    np.testing.assert_allclose(pair[:3], 10 / (4 * 9))
    assert pair[3] == pytest.approx((10 - 4) / (4 * 9))
    assert (capped.largest, capped.name, SizeLaw.capped(10, 10).name) == (
        3,
        "shapley[s=4]",
        "shapley",
    )
    for law, efficient in zip(
        laws(5), (True, False, False, False, False, True, False), strict=True
    ):
        assert law.efficient is efficient
    assert SizeLaw.beta(4, 1, 1).efficient


def test_large_numbers_of_players_do_not_overflow() -> None:
    for law in (SizeLaw.beta(20_000, 16, 1), SizeLaw.banzhaf(20_000)):
        assert law.p.sum() == pytest.approx(1, abs=1e-9)
        assert np.isfinite(law.log_weights()).all()


def test_sizes_are_drawn_from_the_law(rng: np.random.Generator) -> None:
    law = SizeLaw.beta(6, 4, 2)
    sizes = law.draw(rng, 40_000)
    share = np.bincount(sizes, minlength=6) / 40_000
    assert np.abs(share - law.p).max() < 5 * np.sqrt(0.25 / 40_000)
    assert SizeLaw.capped(6, 2).draw(rng, 1_000).max() == 1
    assert (SizeLaw.loo(6).draw(rng, 10) == 5).all()


CLOSED: list[Game] = [
    AdditiveGame([3.0, -1.0, 0.5, 0.0], base=2.0),
    AirportGame([4.0, 1.0, 1.0, 7.0, 0.0]),
    VotingGame([4, 3, 2, 1, 0], 6),
    VotingGame([1] * 6, 4),
    UnanimityGame(5, [1, 3]),
]


@pytest.mark.parametrize("game", CLOSED, ids=lambda game: type(game).__name__)
def test_closed_forms(game: Game) -> None:
    found = exact_values(game, SizeLaw.shapley(game.players))
    np.testing.assert_allclose(found, game.shapley(), atol=1e-12)  # type: ignore[attr-defined]


def test_other_games() -> None:
    gloves = exact_values(GloveGame(1, 2), SizeLaw.shapley(3))
    np.testing.assert_allclose(gloves, [2 / 3, 1 / 6, 1 / 6], atol=1e-13)
    costs = np.array([[0, 2, 5], [2, 0, 1], [5, 1, 0]], dtype=float)
    tree = SpanningTreeGame(costs)
    assert tree.score([[0], [1], [0, 1]]).tolist() == [2, 5, 3]


@pytest.mark.parametrize("game", [*CLOSED, GloveGame(2, 3)], ids=lambda g: type(g).__name__)
def test_walks_and_scores_agree_and_are_counted(game: Game, rng: np.random.Generator) -> None:
    order = rng.permutation(game.players)[None]
    before = game.tally.evaluations
    walk = game.walks(order)
    single = game.score([order[0, :k] for k in range(game.players + 1)])
    np.testing.assert_array_equal(walk[0], single)
    assert game.tally.evaluations - before == 2 * game.players


def test_settings_out_of_range_are_refused() -> None:
    calls = [
        lambda: SizeLaw.shapley(0),
        lambda: SizeLaw.beta(3, 0, 1),
        lambda: SizeLaw.beta(3, 1, math.inf),
        lambda: SizeLaw.capped(3, 4),
        lambda: SizeLaw.capped(3, 0),
        lambda: SizeLaw.shapley(1).pair_law(),
        lambda: TableGame(np.zeros(6)),
        lambda: TableGame(np.array([np.nan, 1.0])),
        lambda: AirportGame([-1.0]),
        lambda: VotingGame([1, 2], 0),
        lambda: UnanimityGame(3, [3]),
        lambda: SpanningTreeGame(np.array([[0.0, 1.0], [2.0, 0.0]])),
        lambda: exact_values(AdditiveGame([1.0] * 21), SizeLaw.shapley(21)),
        lambda: exact_values(AdditiveGame([1.0]), SizeLaw.shapley(2)),
    ]
    for call in calls:
        with pytest.raises(SettingError):
            call()


@pytest.mark.parametrize(
    "request_",
    [
        lambda g: g.score([[0, 0]]),
        lambda g: g.score([[4]]),
        lambda g: g.score([[-1]]),
        lambda g: g.walks(np.array([[0, 0]])),
        lambda g: g.walks(np.array([[0, 9]])),
        lambda g: g.walks(np.array([0, 1])),
        lambda g: g.walks(np.empty((1, 0), dtype=np.int64)),
    ],
)
def test_malformed_requests_are_refused_and_cost_nothing(request_) -> None:  # type: ignore[no-untyped-def]
    game = AdditiveGame([1.0, 2.0, 3.0])
    with pytest.raises(SettingError):
        request_(game)
    assert game.tally.evaluations == 0
