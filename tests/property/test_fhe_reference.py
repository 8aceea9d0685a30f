"""The numpy executor against loops over Python integers, and bounds against both."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from privml.errors import ParameterError
from privml.protocols.fhe import exact
from privml.protocols.fhe.graph import (
    Conv,
    Edge,
    Graph,
    Input,
    Linear,
    Output,
    Table,
    bit_width,
    dropped_bits,
    index_range,
    table_index,
)
from privml.protocols.fhe.lookup import index_bits
from privml.protocols.fhe.reference import run
from privml.testing.integer_graphs import loop_round, loop_values, random_graph, random_images

SEEDS = st.integers(0, 2**32)


@given(seed=SEEDS)
def test_the_executor_equals_loops_over_integers(seed: int) -> None:
    graph = random_graph(seed)
    images = random_images(graph, 3, seed=seed)
    got = run(graph, images)
    for image, row in zip(images, got, strict=True):
        values = loop_values(graph, image)
        assert list(values[graph.output.name].values()) == row.tolist()
        for name, edge in graph.edges().items():
            bounds, held = graph.bounds[name], values[name]
            assert len(held) == edge.size
            for place, value in held.items():
                assert bounds.low[place[0]] <= value <= bounds.high[place[0]]


@given(seed=SEEDS)
def test_bytes_keep_a_graph(seed: int) -> None:
    graph = random_graph(seed)
    again = Graph.from_bytes(graph.to_bytes())
    assert again.digest() == graph.digest()
    assert again.to_bytes() == graph.to_bytes()
    images = random_images(graph, 2, seed=seed)
    np.testing.assert_array_equal(run(again, images), run(graph, images))


@given(seed=SEEDS, channels=st.integers(1, 4), pad=st.integers(0, 2), low=st.integers(-9, 3))
def test_bounds_of_a_convolution_are_reached_by_corner_inputs(
    seed: int, channels: int, pad: int, low: int
) -> None:
    rng = np.random.default_rng(seed)
    weight = rng.integers(-9, 10, (3, channels, 3, 3))
    high = low + 7
    graph = _scores_of(Conv("c", "x", weight, pad=pad), (channels, 3, 3), low, high)
    edge, bounds = graph.edges()["c"], graph.bounds["c"]
    for o in range(3):
        for sign, bound in ((1, bounds.high[o]), (-1, bounds.low[o])):
            image = np.where(sign * weight[o] > 0, high, low)[None]
            row = run(graph, image).reshape(edge.shape)
            assert sign * row[o].max() <= sign * bound if sign < 0 else row[o].max() <= bound
            centre = row[o, pad, pad]
            assert centre == bound or (pad and (low > 0 or high < 0))


@given(low=st.integers(-(2**16), 2**16), width=st.integers(0, 2**16), keep=st.integers(1, 8))
@settings(max_examples=300)
def test_rounding_is_to_the_nearest_and_never_overflows(low: int, width: int, keep: int) -> None:
    high = low + width
    n = dropped_bits(low, high, keep)
    first, last = index_range(low, high, n)
    assert index_bits(low, high, n) <= max(keep, 1)
    assert n <= max(bit_width(low, high) - keep, 0) + 1
    points = {low, high, (low + high) // 2, min(low + 1, high), max(high - 1, low)}
    acc = np.array(sorted(points))
    for value, index in zip(acc.tolist(), table_index(acc, n).tolist(), strict=True):
        assert first <= index <= last
        assert (index << n) == loop_round(value, low, high, keep)
        assert -(1 << n) < 2 * ((index << n) - value) <= 1 << n or n == 0


@pytest.mark.parametrize(
    ("low", "high", "keep", "dropped"),
    [
        (0, 255, 8, 0),
        (0, 252, 5, 4),  # 252 would round to 256: one more bit
        (0, 251, 5, 3),
        (-2048, 2015, 6, 6),
        (-2048, 2016, 6, 7),  # the top half step of a signed range
        (-2048, 0, 6, 6),  # the bottom needs no protection
        (0, 0, 1, 0),
        (-3, 2000, 6, 6),
    ],
)
def test_overflow_protection_at_both_ends(low: int, high: int, keep: int, dropped: int) -> None:
    assert dropped_bits(low, high, keep) == dropped


def test_halves_go_up_on_both_sides_of_zero() -> None:
    assert table_index(np.array([-6, -2, 2, 6, 1, -3]), 2).tolist() == [-1, 0, 1, 2, 0, -1]


@given(seed=SEEDS, n=st.integers(0, 5))
def test_results_depend_on_neither_batch_nor_layout(seed: int, n: int) -> None:
    graph = random_graph(seed % 50)
    images = random_images(graph, n, seed=seed)
    whole = run(graph, images)
    assert whole.dtype == np.int64
    assert whole.shape == (n, graph.edges()["out"].size)
    turned = np.asfortranarray(images.astype(np.int8))
    np.testing.assert_array_equal(run(graph, turned), whole)
    strided = np.repeat(images, 2, axis=3)[..., ::2]
    np.testing.assert_array_equal(run(graph, strided), whole)
    for k in range(n):
        np.testing.assert_array_equal(run(graph, images[k : k + 1])[0], whole[k])


@pytest.mark.parametrize("bits", [24, 25, 40])
def test_products_are_exact_up_to_the_limit_of_their_type(bits: int) -> None:
    high = (1 << bits) // 1024 - 1
    weight = np.full((2, 1024), 1)
    weight[1, ::2] = -1
    edge = Edge((1024,), 0, high)
    kind = np.float32 if bits == 24 else np.float64
    assert exact.exact_type(weight, edge) == kind
    x = np.full((1, 1024), high)
    x[0, 0] = high - 1
    assert exact.linear(x, weight, edge).tolist() == [[1024 * high - 1, 1]]


@pytest.mark.parametrize(
    ("image", "words"),
    [
        (np.zeros((1, 2, 3, 3)), "float64"),
        (np.zeros((2, 3, 3), int), "shape"),
        (np.zeros((1, 2, 3, 4), int), "shape"),
        (np.full((1, 2, 3, 3), 8), r"\[-8, 7\]"),
        (np.full((1, 2, 3, 3), -9, np.int8), r"\[-8, 7\]"),
        (np.full((1, 2, 3, 3), 2**63, np.uint64), r"\[-8, 7\]"),
        (np.ones((1, 2, 3, 3), bool), "bool"),
    ],
)
def test_inputs_that_do_not_fit_are_refused(image: np.ndarray, words: str) -> None:
    graph = _scores_of(Conv("c", "x", np.ones((1, 2, 3, 3), int)), (2, 3, 3), -8, 7)
    with pytest.raises(ParameterError, match=words):
        run(graph, image)


def test_a_table_equals_its_formula_on_every_index() -> None:
    gain, offset = np.array([0.5, -0.25, 0.0]), np.array([0.0, 1.5, 2.5])
    nodes = (
        Input("x", (3,), -100, 90),
        Table("t", "x", gain, offset, -20, 15, round_to=5, exact=True),
        Linear("fc", "t", np.eye(3, dtype=int)),
        Output("o", "fc", np.ones(3), np.zeros(3)),
    )
    graph = Graph(nodes)
    lookup = graph.lookups["t"]
    assert (lookup.dropped, lookup.bits, lookup.first) == (3, 5, -16)
    x = np.repeat(np.arange(-100, 91)[:, None], 3, axis=1)
    rounded = np.floor(x / 8 + 0.5) * 8
    wanted = np.clip(np.floor(gain * rounded + offset + 0.5), -20, 15)
    np.testing.assert_array_equal(run(graph, x), wanted)


def _scores_of(node: Conv, shape: tuple[int, int, int], low: int, high: int) -> Graph:
    """Return a graph that shows the accumulators of one convolution."""
    side = shape[1] + 2 * node.pad - node.weight.shape[2] + 1
    scores = len(node.weight) * side * side
    last = Output("o", "c", np.ones(scores), np.zeros(scores))
    return Graph((Input("x", shape, low, high), node, last))
