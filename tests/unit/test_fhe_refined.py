"""Plans after compilation: the cost model of bootstraps, refinement, comparison, measuring."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from privml.errors import ParameterError
from privml.protocols.fhe import toolkit
from privml.protocols.fhe.calibration import Calibration, MachineKey, Point
from privml.protocols.fhe.circuits import Circuit, Compiled
from privml.protocols.fhe.costs import Range
from privml.protocols.fhe.measuring import measure, probe_graph
from privml.protocols.fhe.plan import plan
from privml.protocols.fhe.planned import Machine
from privml.protocols.fhe.refined import Comparison, refined
from privml.protocols.fhe.work import Bootstrap, reference_ms
from privml.testing.tiny_graphs import residual_graph

KEY = MachineKey("p", 2, "concrete-python", "2.11.0")
CALIBRATION = Calibration(KEY, (Point(6, 0.01, 40.0, 39.0, 41.0, model_ms=20.0),))
MACHINE = Machine("test", 2, 16_000_000_000, CALIBRATION)

# (bits, rounded, measured ms, bootstrap) of circuits on the reference machine
MEASURED = (
    (3, 7.5, Bootstrap(1, 715, 1, 5, 256, 1280 * 3 * 715)),
    (4, 8.1, Bootstrap(1, 755, 1, 3, 512, 1536 * 4 * 755)),
    (5, 11.2, Bootstrap(1, 794, 1, 2, 1024, 2048 * 5 * 794)),
    (6, 14.1, Bootstrap(1, 854, 1, 1, 2048, 2048 * 6 * 854)),
    (5, 17.0, Bootstrap(1, 794, 2, 2, 1024, 2048 * 5 * 794)),
    (6, 19.8, Bootstrap(1, 815, 2, 1, 2048, 2048 * 8 * 815)),
    (4, 18.2, Bootstrap(1, 745, 2, 4, 512, 2048 * 5 * 745)),
    (7, 80.6, Bootstrap(1, 899, 2, 1, 8192, 8192 * 4 * 899)),
)

concrete = pytest.mark.skipif(toolkit.missing() is not None, reason=str(toolkit.missing()))


@pytest.mark.parametrize(("bits", "ms", "kind"), MEASURED)
def test_the_model_follows_measured_circuits(bits: int, ms: float, kind: Bootstrap) -> None:
    assert kind.reference_ms == pytest.approx(ms, rel=0.12)
    assert reference_ms([replace(kind, count=10)] * 2) == pytest.approx(20 * kind.reference_ms)
    assert bits > 0


def compiled(**changes: object) -> Compiled:
    kind = Bootstrap(100, 815, 2, 1, 2048, 2048 * 8 * 815)
    made = Compiled(
        bootstraps={"t": 100}, table_bits={"t": 6}, accumulator_bits={"t": 12}, p_error=0.01,
        key_bytes=53_000_000, query_bytes=1000, answer_bytes=2000, loaded_key_bytes=200_000_000,
        complexity=1.0, work=(kind,),
    )  # fmt: skip
    return replace(made, **changes)  # type: ignore[arg-type]


def test_a_compiled_plan_counts_what_was_compiled() -> None:
    planned = plan(residual_graph(exact=False), machine=MACHINE)
    report = compiled()
    later = refined(planned, report)
    want = 2.0 * 1e-3 * reference_ms(report.work)
    assert later.core_s.expected == pytest.approx(want)
    assert sum(layer.core_s.expected for layer in later.layers) == pytest.approx(want)
    assert later.core_s.low < want < later.core_s.high
    assert later.seconds.expected / planned.seconds.expected == pytest.approx(
        want / planned.core_s.expected
    )
    assert (later.keys_mb.expected, later.query_bytes, later.answer_bytes) == (53.0, 1000, 2000)
    plain = plan(residual_graph(exact=False), machine=replace(MACHINE, calibration=None))
    assert refined(plain, report).core_s == plain.core_s


def test_a_comparison_says_how_far_off_it_was() -> None:
    found = Comparison(
        planned=Range(1, 2, 3), refined=Range(1, 2.4, 3), measured_core_s=3.0, images=3,
        planned_tables=100, bootstraps=100, planned_keys_mb=50.0, keys_mb=53.0, load=0.4,
    )  # fmt: skip
    assert (found.planned_ratio, found.refined_ratio) == (1.5, 1.25)
    assert found.within(0.25)
    assert not found.within(0.1)
    assert "quiet" in str(found)
    assert "not quiet" in str(replace(found, load=3.0))
    assert json.loads(json.dumps(found.to_dict()))["planned_ratio"] == 1.5


@pytest.mark.parametrize("bits", range(1, 9))
def test_probes_have_tables_of_the_wanted_width(bits: int) -> None:
    graph = probe_graph(bits)
    layers = plan(graph, machine=MACHINE).layers
    assert [layer.bits_after for layer in layers] == [bits, bits]
    assert sum(layer.tables for layer in layers) == 32


def test_nothing_is_measured_for_no_width() -> None:
    with pytest.raises(ParameterError, match="at least one width"):
        measure(bits=())


@concrete
@pytest.mark.filterwarnings("ignore::privml.protocols.fhe.toolkit.LicenceNotice")
@pytest.mark.parametrize("exact", [False, True])
def test_compiled_circuits_report_their_work(exact: bool) -> None:
    with Circuit(residual_graph(exact=exact), p_error=0.01) as circuit:
        report = circuit.report
    assert sum(kind.count for kind in report.work) == report.total_bootstraps
    assert all(kind.switch > 0 and kind.lwe >= 450 for kind in report.work)
    assert 50 < reference_ms(report.work) < 2000


@concrete
@pytest.mark.nightly
@pytest.mark.filterwarnings("ignore::privml.protocols.fhe.toolkit.LicenceNotice")
def test_the_self_test_predicts_within_its_tolerance() -> None:
    from privml.protocols.fhe.selftest import self_test

    found = self_test(images=3)
    assert "limit" in found.refusal
    assert found.comparison.bootstraps == found.plan.tables
    if found.comparison.load <= 1.0:
        assert found.good, str(found)
    else:
        assert found.comparison.within(1.0), str(found)
