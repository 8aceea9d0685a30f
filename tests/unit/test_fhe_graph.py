"""Construction of integer graphs: what is refused and how it is named, digests, frozen arrays."""

from __future__ import annotations

from dataclasses import FrozenInstanceError, fields, replace
from typing import Any

import numpy as np
import pytest

from privml.errors import ParameterError, UnsupportedError
from privml.protocols.fhe.graph import (
    AddScaled,
    Conv,
    Edge,
    Graph,
    Input,
    Linear,
    Node,
    Output,
    SumPool,
    Table,
    bit_width,
)
from privml.protocols.fhe.nodes import arrays

DIGEST = "9ecdfe676b620eb6ab6736c8cf5f9cdd65a89a13875d9240bc0d1ee44c7356bb"


def nodes() -> list[Node]:
    """Return a residual block with a shortcut, pooled, with two classes."""
    weight = np.arange(-4, 5).reshape(1, 1, 3, 3)
    return [
        Input("x", (1, 4, 4), -8, 7),
        Conv("c1", "x", np.concatenate([weight, -weight]), pad=1),
        Table("t1", "c1", np.array([0.25, -0.25]), np.zeros(2), 0, 15),
        Conv("c2", "t1", np.ones((2, 1, 3, 3), np.int8), pad=1, groups=2),
        AddScaled("add", "c2", "t1", np.array([8, -9])),
        Table("t2", "add", np.full(2, 0.1), np.full(2, 0.5), 0, 15, round_to=5, exact=True),
        SumPool("pool", "t2", 2),
        Linear("fc", "pool", np.ones((2, 8), np.int64)),
        Output("out", "fc", np.ones(2), np.zeros(2)),
    ]


def test_edges_of_a_residual_block() -> None:
    graph = Graph(tuple(nodes()))
    edges = graph.edges()
    assert edges["x"] == Edge((1, 4, 4), -8, 7)
    assert edges["c1"] == Edge((2, 4, 4), -150, 150)
    assert edges["c2"] == Edge((2, 4, 4), 0, 135)
    assert edges["add"] == Edge((2, 4, 4), -135, 135 + 120)
    assert edges["pool"] == Edge((2, 2, 2), 0, 60)
    assert edges["out"] == Edge((2,), 0, 480)
    assert graph.bounds["add"].low.tolist() == [0, -135]
    assert graph.bounds["add"].high.tolist() == [255, 135]
    assert (edges["add"].bits, edges["add"].signed, edges["c2"].bits) == (9, True, 8)
    assert graph.tables() == {"t1": 32, "t2": 32}
    assert graph.max_bits == 9
    assert repr(graph) == "Graph(9 nodes, 64 tables)"
    assert graph.node("fc") is graph.nodes[7]


def test_the_digest_never_changes() -> None:
    assert Graph(tuple(nodes())).digest() == DIGEST


def changed(value: Any) -> Any:
    """Return a neighbour of a field's value."""
    if isinstance(value, np.ndarray):
        result = value.copy()
        result.reshape(-1)[-1] += 1
        return result
    return not value if isinstance(value, bool) else value + 1


CHANGES = [
    (k, f.name)
    for k, node in enumerate(nodes())
    for f in fields(node)
    if f.name not in ("name", "x", "skip", "shape", "kernel", "stride", "pad", "groups")
]


@pytest.mark.parametrize(("place", "field"), CHANGES)
def test_every_constant_is_in_the_digest(place: int, field: str) -> None:
    found = nodes()
    found[place] = replace(found[place], **{field: changed(getattr(found[place], field))})
    assert Graph(tuple(found)).digest() != DIGEST


def test_names_wiring_and_geometry_are_in_the_digest() -> None:
    variants = [
        {1: replace(nodes()[1], stride=2), 4: None, 5: replace(nodes()[5], x="c2")},
        {6: SumPool("pool", "t2", 1), 7: Linear("fc", "pool", np.ones((2, 32), int))},
        {6: SumPool("pool", "t2"), 7: Linear("fc", "pool", np.ones((2, 2), int))},
        {4: AddScaled("add", "t1", "c2", np.array([8, -9]))},
        {8: replace(nodes()[8], name="scores")},
        {3: Conv("c2", "t1", np.ones((2, 2, 3, 3), int), pad=1)},
    ]
    digests = {DIGEST}
    for variant in variants:
        found = [variant.get(k, node) for k, node in enumerate(nodes())]
        if variant.get(1) is not None:
            found[7] = Linear("fc", "pool", np.ones((2, 2), int))
        digests.add(Graph(tuple(node for node in found if node is not None)).digest())
    assert len(digests) == len(variants) + 1


def test_integer_types_and_layouts_do_not_change_the_digest() -> None:
    found = nodes()
    wide = np.asfortranarray(np.asarray(found[1].weight, np.int32))
    found[1] = Conv("c1", "x", wide, pad=1)
    assert Graph(tuple(found)).digest() == DIGEST


def test_arrays_are_copied_and_read_only() -> None:
    weight = np.ones((1, 4), np.int64)
    node = Linear("fc", "x", weight)
    weight[0, 0] = 9
    assert node.weight.tolist() == [[1, 1, 1, 1]]
    for node in nodes():
        for value in arrays(node).values():
            with pytest.raises(ValueError, match="read-only"):
                value.reshape(-1)[0] = 1
        with pytest.raises(FrozenInstanceError):
            node.name = "y"  # type: ignore[misc]


def test_rounding_is_replaced_everywhere() -> None:
    graph = Graph(tuple(nodes())).with_rounding(4, exact=False)
    tables = [node for node in graph.nodes if isinstance(node, Table)]
    assert {(node.round_to, node.exact) for node in tables} == {(4, False)}


def test_scores_are_scaled_per_class() -> None:
    found = [*nodes()[:-1], Output("out", "fc", np.array([0.5, 2.0]), np.array([1.0, -1.0]))]
    assert Graph(tuple(found)).scores(np.array([[2, 3]])).tolist() == [[2.0, 5.0]]


def test_widths() -> None:
    cases = {(0, 1): 1, (0, 2): 2, (3, 3): 2, (-1, 0): 1, (-1, 1): 2, (-5, -5): 4, (-4, 3): 3}
    assert {case: bit_width(*case) for case in cases} == cases


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: Input("x", (1, 2), 0, 1), "shape"),
        (lambda: Input("x", (1, 0, 2), 0, 1), "side"),
        (lambda: Input("x", (1 << 17, 1, 1), 0, 1), "channels"),
        (lambda: Input("x", (1,), 2, 1), "high"),
        (lambda: Input("x", (1,), 0, 1 << 41), "high"),
        (lambda: Input("x", (1,), False, 1), "low"),
        (lambda: Input("", (1,), 0, 1), "node name"),
        (lambda: Input("a/b", (1,), 0, 1), "node name"),
        (lambda: Input("é", (1,), 0, 1), "node name"),
        (lambda: Input("x" * 65, (1,), 0, 1), "node name"),
        (lambda: Conv("c", "x", np.ones((1, 1, 3, 3))), "integers"),
        (lambda: Conv("c", "x", np.ones((1, 1, 3), int)), "4 axes"),
        (lambda: Conv("c", "x", np.ones((0, 1, 3, 3), int)), "empty"),
        (lambda: Conv("c", "x", np.full((1, 1, 1, 1), 1 << 32)), "2\\^31"),
        (lambda: Conv("c", "x", np.full((1, 1, 1, 1), 2**64 - 1, np.uint64)), "2\\^31"),
        (lambda: Conv("c", "x", np.ones((1, 1, 3, 3), int), pad=3), "pad"),
        (lambda: Conv("c", "x", np.ones((1, 1, 3, 3), int), stride=0), "stride"),
        (lambda: Conv("c", "x", np.ones((3, 1, 3, 3), int), groups=2), "divide"),
        (lambda: Conv("c", "x", np.ones((1, 1, 65, 1), int)), "kernel"),
        (lambda: Table("t", "x", np.array([np.nan]), np.zeros(1), 0, 1), "finite"),
        (lambda: Table("t", "x", np.array([np.inf]), np.zeros(1), 0, 1), "finite"),
        (lambda: Table("t", "x", np.ones(2), np.zeros(1), 0, 1), "length"),
        (lambda: Table("t", "x", np.ones(1), np.zeros(1), 0, 1, round_to=0), "round_to"),
        (lambda: Table("t", "x", np.ones(1), np.zeros(1), 0, 1, round_to=17), "round_to"),
        (lambda: Table("t", "x", np.ones(1), np.zeros(1), 0, 1, exact=1), "exact"),
        (lambda: SumPool("p", "x", 0), "kernel"),
        (lambda: Output("o", "x", np.ones((1, 1)), np.zeros(1)), "vector"),
    ],
)
def test_nodes_that_mean_nothing_are_refused(make: Any, words: str) -> None:
    with pytest.raises(ParameterError, match=words):
        make()


X = Input("x", (2, 5, 5), 0, 15)
FC = Linear("fc", "x", np.ones((1, 50), int))
OUT = Output("o", "fc", np.ones(1), np.zeros(1))


@pytest.mark.parametrize(
    ("found", "words"),
    [
        ((X,), "2 to 4096 nodes"),
        ((X, FC), "one output"),
        ((FC, X, OUT), "one input"),
        ((X, replace(X, name="y"), FC, OUT), "one input"),
        ((X, OUT, FC), "one output"),
        ((X, FC, OUT, replace(OUT, name="o2")), "one output"),
        ((X, OUT), "reads 'fc'"),
        ((X, replace(FC, name="x"), OUT), "two nodes are named 'x'"),
        ((X, SumPool("p", "x"), FC, OUT), "nothing reads p"),
        ((X, replace(FC, weight=np.ones((1, 49), int)), OUT), "fc: weights for 49 features"),
        ((X, FC, replace(OUT, scale=np.ones(2), offset=np.ones(2))), "o: 2 scales"),
        (
            (X, Conv("c", "x", np.ones((1, 3, 1, 1), int)), replace(FC, x="c"), OUT),
            "c: weights for 3 channels",
        ),
        (
            (X, Conv("c", "x", np.ones((1, 2, 6, 1), int)), replace(FC, x="c"), OUT),
            "c: the kernel 6x1",
        ),
        ((X, AddScaled("a", "x", "x", np.ones(3, int)), replace(FC, x="a"), OUT), "a: 3 factors"),
        ((X, Table("t", "x", np.ones(3), np.ones(3), 0, 1), replace(FC, x="t"), OUT), "t: 3 gains"),
        ((X, FC, SumPool("p", "fc"), replace(OUT, x="p")), "p: pooling needs a map"),
        ((X, replace(FC, weight=np.full((1, 50), 1 << 31)), OUT), "fc: its values could pass"),
        (
            (
                replace(X, high=1 << 30),
                Table("t", "x", np.ones(2), np.ones(2), 0, 1, round_to=None),
                replace(FC, x="t"),
                OUT,
            ),
            "t: the tables are too large",
        ),
    ],
)
def test_graphs_that_do_not_fit_are_refused(found: tuple[Node, ...], words: str) -> None:
    with pytest.raises(ParameterError, match=words):
        Graph(found)


def test_pooling_that_drops_rows_is_refused() -> None:
    with pytest.raises(UnsupportedError, match="p: pooling windows of 5x5 do not divide the 7x7"):
        Graph((Input("x", (2, 7, 7), 0, 1), SumPool("p", "x", 5), replace(OUT, x="p")))


def test_unknown_names_are_refused() -> None:
    with pytest.raises(ParameterError, match="no node 'y'"):
        Graph((X, FC, OUT)).node("y")
