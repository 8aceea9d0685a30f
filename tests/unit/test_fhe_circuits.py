"""The TFHE executor against the numpy reference, without and with encryption."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from privml.errors import BitsExceeded, FheRefused, ParameterError, UnsupportedError
from privml.protocols.fhe import reference, toolkit
from privml.protocols.fhe.circuits import Circuit
from privml.protocols.fhe.entry import Mode
from privml.protocols.fhe.graph import Conv, Graph, Input, Linear, Node, Output, Table
from privml.testing.integer_graphs import random_graph, random_images
from privml.testing.tiny_graphs import residual_graph, vector_graph

NEVER = 2.0**-24  # p_error at which some hundred tables show no fault in a test's lifetime

pytestmark = [
    pytest.mark.skipif(toolkit.missing() is not None, reason=str(toolkit.missing())),
    pytest.mark.filterwarnings("ignore::privml.protocols.fhe.toolkit.LicenceNotice"),
]


def exactly(graph: Graph) -> Graph:
    def one(node: Node) -> Node:
        if not isinstance(node, Table):
            return node
        return replace(node, exact=True, round_to=min(node.round_to or 4, 4))

    return Graph(tuple(one(node) for node in graph.nodes))


@pytest.fixture(scope="module")
def exact() -> Iterator[Circuit]:
    with Circuit(residual_graph(exact=True), global_p_error=2.0**-20) as circuit:
        yield circuit


@pytest.fixture(scope="module")
def approximate() -> Iterator[Circuit]:
    with Circuit(residual_graph(exact=False), p_error=0.01) as circuit:
        yield circuit


@pytest.mark.parametrize("graph_seed", range(6))
def test_simulation_without_faults_is_the_reference(graph_seed: int) -> None:
    graph = exactly(random_graph(graph_seed))
    images = random_images(graph, 4, seed=graph_seed)
    with Circuit(graph, p_error=NEVER) as circuit:
        simulated = circuit.run(images, mode="simulate")
        clear = circuit.run(images, mode="clear")
    assert (simulated.integers == clear.integers).all()
    assert (simulated.scores == clear.scores).all()
    assert (clear.integers == reference.run(graph, images)).all()


def test_encrypted_under_the_exact_contract_is_the_reference(exact: Circuit) -> None:
    images = random_images(exact.graph, 3, seed=1)[1:]
    answer = exact.run(images, mode="execute")
    clear = exact.run(images, mode="clear")
    assert (answer.integers == clear.integers).all()
    assert (answer.scores == clear.scores).all()
    assert (answer.classes == clear.classes).all()
    assert [answer.mode, clear.mode] == [Mode.EXECUTE, Mode.CLEAR]
    assert "not encrypted" in exact.run(images, mode="simulate").label


def test_approximate_rounding_moves_scores_a_little(approximate: Circuit) -> None:
    images = random_images(approximate.graph, 3, seed=2)[1:]
    clear = approximate.run(images, mode="clear").integers
    weight = next(n.weight for n in approximate.graph.nodes if isinstance(n, Linear))
    # An index off by one moves a table of the last layer by one; a few of four may be off, and
    # those of the first layer move several.
    bound = 8 * np.abs(weight).sum(axis=1)
    for mode in (Mode.SIMULATE, Mode.EXECUTE):
        off = np.abs(approximate.run(images, mode=mode).integers - clear)
        assert (off <= bound).all(), (mode, off)


def test_counts_are_those_of_the_graph(exact: Circuit, approximate: Circuit) -> None:
    for circuit in (exact, approximate):
        graph, report = circuit.graph, circuit.report
        for name, count in graph.tables().items():
            lookup = graph.lookups[name]
            dropped = lookup.dropped if circuit is exact else 0
            assert report.bootstraps[name] == count * (1 + dropped)
            assert report.table_bits[name] <= lookup.bits
            assert report.accumulator_bits[name] >= report.table_bits[name] + lookup.dropped
    assert approximate.report.total_bootstraps == sum(approximate.graph.tables().values())
    assert exact.report.p_error <= 2.0**-20
    assert 0.001 < approximate.report.p_error <= 0.01


def test_the_compilers_noise_lies_on_the_security_curve(approximate: Circuit) -> None:
    for dimension, variance in approximate.spec.info._noise():
        curve = -0.025696778711484593 * dimension + 2.675931372549016
        assert np.log2(variance) / 2 == pytest.approx(curve, abs=2e-4)


def test_simulation_injects_faults_at_the_stated_rate() -> None:
    graph = vector_graph(250, 4)
    images = random_images(graph, 8, seed=3)
    with Circuit(graph, p_error=0.1) as circuit:
        rate = circuit.report.p_error
        off = circuit.run(images, mode="simulate").integers - images
    n = off.size
    assert abs((off != 0).mean() - rate) < 4 * np.sqrt(rate * (1 - rate) / n)
    # Inside a fault is one step; past the ends the table comes back with its sign changed.
    assert set(np.unique(off[(images > 0) & (images < 15)])) <= {-2, -1, 0, 1, 2}
    assert set(np.unique(off[images == 0])) <= {0, 1, 32 - 15}
    assert set(np.unique(off[images == 15])) <= {-15, -1, 0}


def test_constant_and_signed_tables_and_wide_scores() -> None:
    rng = np.random.default_rng(4)
    gain, offset = np.array([0.0, -0.5]), np.array([-3.0, 0.0])
    nodes = (
        Input("x", (3,), -2, 1),
        Linear("a", "x", rng.integers(-9, 10, (2, 3))),
        Table("t", "a", gain, offset, -8, -1, round_to=3, exact=True),
        Linear("b", "t", np.array([[90, 7], [-90, 1]])),
        Output("y", "b", np.ones(2), np.zeros(2)),
    )
    graph = Graph(nodes)
    images = random_images(graph, 12, seed=5)
    with Circuit(graph, p_error=NEVER) as circuit:
        simulated = circuit.run(images, mode="simulate").integers
    assert (simulated == reference.run(graph, images)).all()


@pytest.mark.parametrize(
    "budget", [{}, {"p_error": 0.1, "global_p_error": 0.1}, {"p_error": 0.0}, {"p_error": 1.0}]
)
def test_one_probability_must_be_given(budget: dict[str, float]) -> None:
    with pytest.raises(ParameterError, match="p_error"):
        Circuit(vector_graph(2, 2), **budget)


def test_wide_accumulators_are_refused_by_name() -> None:
    one = np.ones(1)
    nodes = (
        Input("x", (4, 1, 1), 0, 255),
        Conv("c", "x", np.full((1, 4, 1, 1), 127)),
        Table("t", "c", one, one, 0, 3, round_to=6),
        Output("y", "t", one, one),
    )
    with pytest.raises(BitsExceeded, match="t: its accumulator needs 17 bits") as caught:
        Circuit(Graph(nodes), p_error=0.01)
    assert (caught.value.layer, caught.value.value, caught.value.limit) == ("t", 17, 16)


def test_wide_tables_are_refused_by_name() -> None:
    with pytest.raises(BitsExceeded, match="t: its tables see 9 bits") as caught:
        Circuit(vector_graph(2, 9), p_error=0.01)
    assert (caught.value.layer, caught.value.value, caught.value.limit) == ("t", 9, 8)


def test_what_the_compiler_cannot_do_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise RuntimeError("NoParametersFound")

    monkeypatch.setattr(toolkit.frontend().Compiler, "compile", fail)
    with pytest.raises(FheRefused, match=r"NoParametersFound; lower the bits .* larger p_error"):
        Circuit(vector_graph(2, 2), p_error=0.01)


def test_nothing_is_left_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    graph = vector_graph(2, 2)
    with Circuit(graph, p_error=0.1) as circuit:
        circuit.run(random_images(graph, 1, seed=6), mode="simulate")
        circuit.run(random_images(graph, 1, seed=6), mode="execute")
        assert list(tmp_path.iterdir())
    assert not list(tmp_path.iterdir())


def test_the_licence_notice_is_shown_at_first_use() -> None:
    toolkit._notice.cache_clear()
    toolkit._load.cache_clear()
    with pytest.warns(toolkit.LicenceNotice, match="no patent licence"):
        toolkit.compiler()
    toolkit._load.cache_clear()
    toolkit.compiler()  # once a process: a second notice would be an error here


def test_another_version_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(toolkit, "VERSION", "2.12.0")
    toolkit._load.cache_clear()
    with pytest.raises(UnsupportedError, match=r"2\.11\.0 is installed, but 2\.12\.0"):
        toolkit.frontend()
    toolkit._load.cache_clear()
