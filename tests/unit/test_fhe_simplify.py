"""Rewrites of integer graphs: equal results, fewer nodes, tables that drop the same bits."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest

import privml.protocols.fhe.quant
from privml.protocols.fhe.graph import (
    AddScaled,
    Conv,
    Graph,
    Input,
    Linear,
    Node,
    Output,
    SumPool,
    Table,
)
from privml.protocols.fhe.reference import run
from privml.protocols.fhe.simplify import drop_dead_channels, merge_linear, simplify

ONE = np.ones(2)


def graph_of(*inner: Node, classes: int = 2, side: int = 4) -> Graph:
    last = inner[-1].name
    start = Input("input", (2, side, side), -4, 7)
    return Graph((start, *inner, Output("output", last, np.ones(classes), np.zeros(classes))))


def weights(rng: np.random.Generator, *shape: int) -> np.ndarray:
    return rng.integers(-3, 4, shape)


def table(name: str, x: str, offset: list[float], *, keep: int | None = 5) -> Table:
    return Table(name, x, np.full(len(offset), 0.2), np.array(offset), 0, 15, keep)


def same(one: Graph, two: Graph, rng: np.random.Generator) -> bool:
    x = rng.integers(-4, 8, (20, 2, 4, 4))
    x[0], x[1] = -4, 7
    return np.array_equal(run(one, x), run(two, x))


def test_a_pool_merges_into_the_matrix_after_it(rng: np.random.Generator) -> None:
    for kernel, cells in ((None, 1), (2, 4)):
        graph = graph_of(
            SumPool("pool", "input", kernel), Linear("head", "pool", weights(rng, 2, 2 * cells))
        )
        small = merge_linear(graph)
        assert [node.name for node in small.nodes] == ["input", "head", "output"]
        assert same(graph, small, rng)


def test_matrices_merge(rng: np.random.Generator) -> None:
    graph = graph_of(
        Linear("a", "input", weights(rng, 5, 32)), Linear("b", "a", weights(rng, 2, 5))
    )
    small = simplify(graph)
    assert len(small.nodes) == 3
    assert same(graph, small, rng)


@pytest.mark.parametrize("first", [True, False])
def test_convolutions_merge_with_a_1x1(rng: np.random.Generator, first: bool) -> None:
    one = (1, 1, 0)  # kernel, stride, pad
    wide = (3, 2, 1)
    sizes = (one, wide) if first else (wide, one)
    convs, x = [], "input"
    for name, (kernel, stride, pad) in zip("ab", sizes, strict=True):
        convs.append(Conv(name, x, weights(rng, 2, 2, kernel, kernel), stride, pad))
        x = name
    graph = graph_of(*convs, SumPool("pool", "b"), Linear("head", "pool", weights(rng, 2, 2)))
    small = simplify(graph)
    assert sum(isinstance(node, Conv) for node in small.nodes) == 1
    assert same(graph, small, rng)


def test_what_others_read_or_what_does_not_compose_stays(rng: np.random.Generator) -> None:
    padded = Conv("a", "input", weights(rng, 2, 2, 3, 3), 1, 1)
    graph = graph_of(
        padded, Conv("b", "a", weights(rng, 2, 2, 3, 3), 1, 1),
        AddScaled("sum", "b", "a", np.array([2, 3])), table("t", "sum", [0.0, 1.0]),
        Linear("head", "t", weights(rng, 2, 32)),
    )  # fmt: skip
    assert merge_linear(graph) is graph or merge_linear(graph).digest() == graph.digest()


def test_dead_channels_go_from_both_sides_of_a_sum(rng: np.random.Generator) -> None:
    graph = graph_of(
        Conv("a", "input", weights(rng, 3, 2, 3, 3), 1, 1),
        Conv("s", "input", weights(rng, 3, 2, 1, 1)),
        AddScaled("sum", "a", "s", np.array([1, 2, 1])),
        table("t", "sum", [0.0, -9999.0, 3.0]),
        Linear("head", "t", weights(rng, 2, 48)),
    )  # fmt: skip
    small = drop_dead_channels(graph)
    shapes = {name: edge.shape[0] for name, edge in small.edges().items()}
    assert [shapes[name] for name in ("a", "s", "sum", "t")] == [2, 2, 2, 2]
    assert same(graph, small, rng)
    assert small.lookups["t"].dropped == graph.lookups["t"].dropped


def test_a_channel_that_a_skip_holds_stays(rng: np.random.Generator) -> None:
    graph = graph_of(
        Conv("a", "input", weights(rng, 2, 2, 1, 1)), table("t", "a", [-9999.0, 0.0]),
        Conv("b", "t", weights(rng, 2, 2, 1, 1)), AddScaled("sum", "b", "t", np.array([1, 1])),
        table("u", "sum", [0.0, 0.0]), Linear("head", "u", weights(rng, 2, 32)),
    )  # fmt: skip
    assert simplify(graph).edges()["t"].shape[0] == 2
    assert same(graph, simplify(graph), rng)


def test_one_channel_is_left_of_a_dead_layer(rng: np.random.Generator) -> None:
    graph = graph_of(
        Conv("a", "input", np.ones((3, 2, 1, 1), np.int64)), table("t", "a", [-9999.0] * 3),
        Linear("head", "t", weights(rng, 2, 48)),
    )  # fmt: skip
    small = simplify(graph)
    assert small.edges()["t"].shape[0] == 1
    assert same(graph, small, rng)


def test_narrower_accumulators_keep_their_rounding(rng: np.random.Generator) -> None:
    wide = np.array([[3, -3], [-3, 3]]).reshape(2, 2, 1, 1) * 40
    thin = np.array([[2, 1], [-1, 2]]).reshape(2, 2, 1, 1) * 20
    graph = graph_of(
        Conv("a", "input", np.concatenate([wide, thin])), table("t", "a", [-9e9, -9e9, 0.0, 1.0]),
        Linear("head", "t", weights(rng, 2, 64)),
    )  # fmt: skip
    small = simplify(graph)
    assert small.edges()["a"].bits < graph.edges()["a"].bits
    assert small.lookups["t"].dropped == graph.lookups["t"].dropped
    assert same(graph, small, rng)


def test_quantised_networks_are_reached_without_loading_torch_first() -> None:
    script = (
        "import sys, privml.protocols.fhe.quant, privml.protocols.fhe.lower\n"
        "print('torch' in sys.modules)"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.stdout.strip() == "False", done.stderr
    for name in privml.protocols.fhe.quant.__all__:
        assert getattr(privml.protocols.fhe.quant, name) is not None
    assert not hasattr(privml.protocols.fhe.quant, "no_such_name")
