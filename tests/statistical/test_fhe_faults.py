"""The fault model: rates, directions, the boundary model, and what may not change."""

from __future__ import annotations

import math
from statistics import NormalDist

import numpy as np
import pytest

from privml.errors import ParameterError
from privml.protocols.fhe.faults import Fault, boundary_sigma
from privml.protocols.fhe.graph import Graph, Input, Output, Table
from privml.protocols.fhe.reference import run
from privml.rng import ScienceSeed
from privml.testing.integer_graphs import random_graph, random_images

SIZE = 20_000
SHOTS = 10


def identity(high: int, *, round_to: int | None = None, exact: bool = True) -> Graph:
    """Return a graph whose scores show the rounded accumulator of every element."""
    nodes = (
        Input("x", (SIZE,), 0, high),
        Table("t", "x", np.ones(SIZE), np.zeros(SIZE), 0, 2 * high, round_to=round_to, exact=exact),
        Output("o", "t", np.ones(SIZE), np.zeros(SIZE)),
    )
    return Graph(nodes)


def within(count: int, n: int, p: float, *, sigmas: float = 4.0) -> bool:
    return abs(count - n * p) <= sigmas * math.sqrt(n * p * (1 - p))


@pytest.mark.parametrize("p", [0.2, 0.05, 0.01, 0.001])
def test_exact_tables_fail_at_the_stated_rate_by_one_either_way(p: float) -> None:
    x = np.full((SHOTS, SIZE), 7)
    moves = run(identity(15), x, fault=Fault(p, 5)) - x
    assert set(np.unique(moves)) <= {-1, 0, 1}
    assert within(int((moves != 0).sum()), moves.size, p)
    assert within(int((moves > 0).sum()), int((moves != 0).sum()), 0.5)


@pytest.mark.parametrize("exact", [True, False])
def test_centred_accumulators_fail_at_the_stated_rate_after_rounding(exact: bool) -> None:
    graph = identity(1023, round_to=6, exact=exact)
    assert graph.lookups["t"].dropped == 5
    x = np.full((SHOTS, SIZE), 5 * 32)
    moves = run(graph, x, fault=Fault(0.05, 6)) - x
    assert set(np.unique(moves)) <= {-32, 0, 32}
    assert within(int((moves != 0).sum()), moves.size, 0.05)


@pytest.mark.parametrize("offset", [0, 6, 12, 15, 16, 20])
def test_near_a_boundary_approximate_rounding_follows_its_noise(offset: int) -> None:
    p = 0.05
    graph = identity(1023, round_to=6, exact=False)
    x = np.full((SHOTS, SIZE), 5 * 32 + offset)
    moved = run(graph, x, fault=Fault(p, 7)) // 32 - 5
    fraction, normal = offset / 32, NormalDist(0, boundary_sigma(p))
    up = 1 - normal.cdf(0.5 - fraction) if offset else 0.0  # the phase passes the upper boundary
    both = run(graph, x, fault=Fault(p, 7, boundary=0.0)) // 32 - 5
    start = 1 if offset >= 16 else 0
    assert within(int((both != start).sum()), both.size, p)
    assert within(int((moved == 1).sum()), moved.size, up * (1 - p) + (1 - up) * p / 2)


def test_flips_of_evenly_spread_accumulators_are_as_planned() -> None:
    p = 0.01
    graph = identity(1023, round_to=6, exact=False)
    x = np.random.default_rng(3).integers(64, 960, (SHOTS, SIZE))
    wrong = run(graph, x, fault=Fault(p, 8)) != run(graph, x)
    expected = boundary_sigma(p) * math.sqrt(2 / math.pi) + p
    assert float(wrong.mean()) == pytest.approx(expected, rel=0.05)


def test_no_index_leaves_its_table() -> None:
    for value in (0, 15):
        x = np.full((1, SIZE), value)
        found = run(identity(15), x, fault=Fault(0.5, 9))
        assert set(np.unique(found)) == {value, abs(value - 1)}


def test_zero_probability_changes_nothing() -> None:
    for seed in range(10):
        graph = random_graph(seed)
        images = random_images(graph, 4, seed=seed)
        np.testing.assert_array_equal(run(graph, images, fault=Fault(0.0, 1)), run(graph, images))


def test_faults_depend_on_seed_table_and_image_but_not_on_the_batch() -> None:
    graph = identity(1023, round_to=6, exact=False)
    x = np.random.default_rng(1).integers(0, 1024, (4, SIZE))
    whole = run(graph, x, fault=Fault(0.1, 1))
    np.testing.assert_array_equal(whole, run(graph, x, fault=Fault(0.1, ScienceSeed(1))))
    parts = [run(graph, x[k : k + 1], fault=Fault(0.1, 1), first=k)[0] for k in range(4)]
    np.testing.assert_array_equal(whole, parts)
    assert (whole != run(graph, x, fault=Fault(0.1, 2))).mean() > 0.1
    same = run(graph, np.repeat(x[:1], 2, axis=0), fault=Fault(0.1, 1))
    assert (same[0] != same[1]).mean() > 0.1


def test_faults_can_be_limited_to_tables() -> None:
    x = np.full((1, SIZE), 7)
    graph = identity(15)
    assert (run(graph, x, fault=Fault(0.5, 1, only=frozenset({"t"}))) != x).any()
    assert (run(graph, x, fault=Fault(0.5, 1, only=frozenset({"other"}))) == x).all()


@pytest.mark.parametrize(
    ("p", "boundary"), [(-0.1, 1.0), (1.0, 1.0), (math.nan, 1.0), (0.1, -1.0), (0.1, math.inf)]
)
def test_impossible_faults_are_refused(p: float, boundary: float) -> None:
    with pytest.raises(ParameterError):
        Fault(p, 1, boundary=boundary)
