"""Plans: counts by hand, times and memory against reference measurements, refusals."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from privml.errors import (
    BitsExceeded,
    ClaimTooWeak,
    LicenceNotAcknowledged,
    MemoryExceeded,
    ParameterError,
)
from privml.protocols.fhe import costs
from privml.protocols.fhe.calibration import Calibration, MachineKey, Point
from privml.protocols.fhe.graph import AddScaled, Conv, Graph, Input, Linear, Node, Output, Table
from privml.protocols.fhe.licence import require_licence
from privml.protocols.fhe.plan import Machine, Plan, Rounding, plan
from privml.protocols.fhe.reliability import Disagreement

KEY = MachineKey("processor", 2, "concrete-python", "2.11.0")
MACHINE = Machine("processor", 2, 16 << 30)
APPROXIMATE = Rounding(6, "approximate")


def table(name: str, x: str, channels: int) -> Table:
    return Table(name, x, np.full(channels, 0.05), np.full(channels, 0.3), 0, 15)


def chain(first: Input, *layers: tuple[int, int, int, int]) -> Graph:
    """Return convolutions (out, kernel, stride, pad), each with a table, and 10 scores."""
    nodes: list[Node] = [first]
    channels = first.shape[0]
    for k, (out, kernel, stride, pad) in enumerate(layers):
        weight = np.ones((out, channels, kernel, kernel), int)
        nodes.append(Conv(f"c{k}", nodes[-1].name, weight, stride=stride, pad=pad))
        nodes.append(table(f"t{k}", f"c{k}", out))
        channels = out
    features = Graph((*nodes, Output("o", nodes[-1].name, *ends(nodes)))).edges()["o"].size
    nodes.append(Linear("fc", nodes[-1].name, np.ones((10, features), int)))
    return Graph((*nodes, Output("o", "fc", np.ones(10), np.zeros(10))))


def ends(nodes: list[Node]) -> tuple[np.ndarray, np.ndarray]:
    """Return scales and offsets for the last value of unfinished nodes of a digits chain."""
    sizes = {"t3": 16, "t2": 16}
    size = sizes[nodes[-1].name]
    return np.ones(size), np.zeros(size)


def digits_dct() -> Graph:
    return chain(Input("x", (3, 4, 4), -8, 7), (16, 3, 1, 1), (16, 3, 1, 1), (16, 4, 1, 0))


def digits_pixel() -> Graph:
    first = Input("x", (1, 8, 8), 0, 15)
    return chain(first, (8, 3, 1, 1), (16, 3, 2, 1), (16, 3, 1, 1), (16, 4, 1, 0))


def residual() -> Graph:
    """Return 784 tables: stem, one fused block, a last convolution."""
    ones = np.ones((16, 16, 3, 3), int)
    nodes = (
        Input("x", (3, 4, 4), -8, 7),
        Conv("c0", "x", np.ones((16, 3, 3, 3), int), pad=1),
        table("t0", "c0", 16),
        Conv("c1", "t0", ones, pad=1),
        table("t1", "c1", 16),
        Conv("c2", "t1", ones, pad=1),
        AddScaled("add", "c2", "t0", np.full(16, 8)),
        table("t2", "add", 16),
        Conv("c3", "t2", np.ones((16, 16, 4, 4), int)),
        table("t3", "c3", 16),
        Linear("fc", "t3", np.ones((10, 16), int)),
        Output("o", "fc", np.ones(10), np.zeros(10)),
    )
    return Graph(nodes)


def planned(graph: Graph, **options: Any) -> Plan:
    return plan(graph, machine=MACHINE, **options)


def test_counts_by_hand() -> None:
    found = planned(digits_dct(), rounding=Rounding(6, "exact"))
    rows = [(r.name, r.tables, r.bits_before, r.bits_after, r.rounding_pbs) for r in found.layers]
    # 27 taps of [-8, 7]; 144 and 256 taps of [0, 15]
    assert rows == [
        ("t0", 256, 9, 6, 256 * 3),
        ("t1", 256, 12, 6, 256 * 6),
        ("t2", 16, 12, 6, 16 * 6),
    ]
    assert (found.tables, found.pbs) == (528, 528 + 768 + 1536 + 96)
    assert found.expected_faulty == pytest.approx(5.28)
    assert found.max_bits == 12
    assert found.graph == digits_dct().with_rounding(6, exact=True).digest()
    assert planned(digits_dct()).graph == digits_dct().digest()


def test_the_bit_of_overflow_protection_is_counted() -> None:
    high = 252  # rounds to 256 at 5 bits
    nodes = (
        Input("x", (1,), 0, high),
        replace(table("t", "x", 1), round_to=5),
        Output("o", "t", np.ones(1), np.zeros(1)),
    )
    found = planned(Graph(nodes), rounding=Rounding(5, "exact"))
    layer = found.layers[0]
    assert (layer.bits_before, layer.bits_after, layer.rounding_pbs) == (9, 5, 4)
    assert found.max_bits == 9


@pytest.mark.parametrize(
    ("graph", "bits", "tables", "measured_s"),
    [
        (digits_dct(), 6, 528, 18.2),
        (digits_pixel(), 6, 1040, 35.6),
        (digits_dct(), 5, 528, 11.1),
        (residual(), 6, 784, 26.0),
        (residual(), 5, 784, 17.1),
    ],
)
def test_reference_runs_are_predicted_within_a_quarter(
    graph: Graph, bits: int, tables: int, measured_s: float
) -> None:
    found = planned(graph, rounding=Rounding(bits, "approximate"))
    assert found.tables == tables
    assert found.core_s.expected == pytest.approx(measured_s, rel=0.25)
    assert measured_s in found.core_s
    assert found.seconds.expected == pytest.approx(measured_s / 2 / 0.95, rel=0.25)
    assert found.memory_mb.expected == pytest.approx(1300, rel=0.1)  # 1.2 to 1.4 GB
    assert 54 <= found.keys_mb.low <= found.keys_mb.high <= 65
    assert found.query_bytes == pytest.approx(1400, rel=0.3)
    assert found.answer_bytes == pytest.approx(164_000, rel=0.01)


def test_exact_rounding_costs_more() -> None:
    approximate, exact = (
        planned(digits_dct(), rounding=Rounding(6, m)) for m in ("approximate", "exact")
    )
    assert exact.core_s.expected > 2 * approximate.core_s.expected
    assert all(layer.flips == 0 for layer in exact.layers)
    assert all(layer.flips > layer.faulty for layer in approximate.layers)


def test_costs_follow_bits_and_probability() -> None:
    assert costs.reference_table_ms(6, 0.01) == 27.0
    assert costs.reference_table_ms(6, 0.5) == 24.5
    assert costs.reference_table_ms(6, 2**-60) == 115.0
    assert costs.reference_table_ms(6, 1e-4) == pytest.approx(44.5, abs=1)
    assert costs.reference_table_ms(8, 1e-4) is None
    assert costs.reference_table_ms(9, 0.01) is None
    assert costs.reference_table_ms(8, 0.02) == pytest.approx(203, abs=2)


def test_a_calibration_replaces_the_reference() -> None:
    points = (Point(6, 0.01, 68.04, 50.0, 90.0, 70_000_000, 400_000_000),)
    machine = replace(MACHINE, calibration=Calibration(KEY, points))
    base = planned(digits_dct(), rounding=APPROXIMATE)
    mine = plan(digits_dct(), rounding=APPROXIMATE, machine=machine)
    assert mine.core_s.expected == pytest.approx(2 * base.core_s.expected)  # 27 ms times 1.26
    assert mine.core_s.low == pytest.approx(0.050 * mine.tables)
    assert mine.core_s.high == pytest.approx(0.090 * mine.tables)
    assert (mine.keys_mb.expected, mine.keys_loaded_mb.expected) == (70.0, 400.0)
    assert not any("calibrate" in text for text in mine.warnings)
    assert any("calibrate" in text for text in base.warnings)
    scaled = plan(digits_dct(), rounding=APPROXIMATE, machine=machine, p_error=0.05)
    assert scaled.core_s.expected == pytest.approx(mine.core_s.expected * 24.5 / 27.0)
    four = plan(digits_dct(), rounding=Rounding(4), machine=machine)
    there = planned(digits_dct(), rounding=Rounding(4)).core_s
    assert four.core_s.expected == pytest.approx(2 * there.expected)  # as much slower as 6 bits
    exact = [
        plan(digits_dct(), rounding=Rounding(6, "exact"), machine=one) for one in (MACHINE, machine)
    ]
    assert exact[1].core_s.expected == pytest.approx(2 * exact[0].core_s.expected)


def test_more_cores_help_in_whole_waves() -> None:
    two = planned(digits_dct(), rounding=APPROXIMATE)
    many = plan(digits_dct(), rounding=APPROXIMATE, machine=replace(MACHINE, cores=96))
    waves = sum(-(-layer.tables // 96) for layer in many.layers)
    assert waves == 3 + 3 + 1
    assert many.seconds.expected == pytest.approx(waves * two.core_s.expected / 528 / 0.95)


def test_contracts() -> None:
    exact = Rounding(6, "exact")
    loose = planned(digits_dct(), rounding=exact)
    assert loose.contract == "measured"
    tight = planned(digits_dct(), rounding=exact, p_error=2.0**-40)
    assert tight.contract == "exact"
    assert tight.global_failure == pytest.approx(tight.pbs * 2.0**-40)
    tight.require_execute()
    with pytest.raises(ClaimTooWeak, match="some table fails with probability"):
        planned(digits_dct(), rounding=exact, contract="exact")
    with pytest.raises(ClaimTooWeak, match="t0 and 2 more layers round approximately"):
        planned(digits_dct(), rounding=APPROXIMATE, p_error=2.0**-40, contract="exact")
    with pytest.raises(ParameterError, match="'exact' or 'measured'"):
        planned(digits_dct(), contract="maybe")
    with pytest.raises(ClaimTooWeak, match="at least 300 images"):
        planned(digits_dct(), rounding=APPROXIMATE).require_execute()


def test_measured_needs_evidence_of_this_graph_and_probability() -> None:
    graph = digits_dct().with_rounding(6, exact=False)
    record = Disagreement(graph.digest(), 0.01, 1000, 10, 0.002, 0.0, 0.007, 0.95, "reference")
    found = planned(digits_dct(), rounding=APPROXIMATE, evidence=record)
    found.require_execute()
    assert "at most 0.70%" in str(found)
    for wrong in (replace(record, p_error=0.02), replace(record, graph=digits_dct().digest())):
        if wrong.graph == found.graph and wrong.p_error == 0.01:
            continue
        with pytest.raises(ParameterError, match="measure it again"):
            planned(digits_dct(), rounding=Rounding(6, "exact"), evidence=wrong)


def test_wide_integers_are_refused_by_layer() -> None:
    weight = np.full((4, 3, 3, 3), 127)
    nodes = (
        Input("x", (3, 4, 4), -128, 127),
        Conv("stem", "x", weight, pad=1),
        table("t", "stem", 4),
        Output("o", "t", np.ones(64), np.zeros(64)),
    )
    with pytest.raises(BitsExceeded, match="stem: integers of 20 bits, the limit is 16") as caught:
        planned(Graph(nodes))
    assert (caught.value.layer, caught.value.value, caught.value.limit) == ("stem", 20, 16)
    assert caught.value.code == "unsupported.fhe.bits"


@pytest.mark.parametrize(("bits", "p_error"), [(9, 0.01), (8, 2.0**-40)])
def test_tables_without_parameters_are_refused(bits: int, p_error: float) -> None:
    with pytest.raises(BitsExceeded, match=f"t0: a table of {bits} bits") as caught:
        planned(digits_dct(), rounding=Rounding(bits), p_error=p_error)
    assert caught.value.limit == bits - 1


def test_runs_that_do_not_fit_into_memory_are_refused() -> None:
    small = replace(MACHINE, memory_bytes=1 << 30)
    with pytest.raises(MemoryExceeded, match="80 %") as caught:
        plan(digits_dct(), machine=small)
    assert caught.value.value is not None
    assert caught.value.limit == pytest.approx(0.8 * (1 << 30) / 1e6)


@pytest.mark.parametrize("p_error", [0.0, 1.0, -1.0, float("nan")])
def test_probabilities_lie_between_zero_and_one(p_error: float) -> None:
    with pytest.raises(ParameterError, match="p_error"):
        planned(digits_dct(), p_error=p_error)


@pytest.mark.parametrize(
    "make", [lambda: Rounding(0), lambda: Rounding(17), lambda: Rounding(6, "near")]
)
def test_roundings_that_do_not_exist_are_refused(make: Any) -> None:
    with pytest.raises(ParameterError, match="rounding"):
        make()


def test_text_and_json_say_the_same() -> None:
    found = planned(digits_dct(), rounding=APPROXIMATE)
    text, raw = str(found), json.loads(found.to_json())
    assert raw["tables"] == 528
    assert raw["share_results"] == "forbidden"
    assert raw["machine"] == {
        "calibrated": False,
        "cores": 2,
        "memory_bytes": 16 << 30,
        "name": "processor",
    }
    assert "528 (528 bootstraps)" in text
    assert raw["licence"] in text
    assert all(warning in text for warning in raw["warnings"])
    assert max(map(len, text.splitlines()[:4])) <= 80
    assert found.to_json() == planned(digits_dct(), rounding=APPROXIMATE).to_json()


def test_a_graph_without_tables_has_a_plan() -> None:
    graph = Graph((Input("x", (4,), 0, 15), Output("o", "x", np.ones(4), np.zeros(4))))
    found = planned(graph)
    assert (found.tables, found.core_s.expected, found.contract) == (0, 0.0, "exact")


def test_this_machine() -> None:
    here = Machine.here()
    assert here.cores >= 1
    assert here.memory_bytes > 0
    assert here.name


def test_the_licence_must_be_acknowledged() -> None:
    require_licence(acknowledged=True, how="")
    with pytest.raises(LicenceNotAcknowledged, match=r"patent licence from Zama.*say yes"):
        require_licence(acknowledged=False, how="say yes")
