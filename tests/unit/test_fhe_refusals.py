"""What a plan refuses, every way to execute refuses for the same reason, before it computes."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import msgspec
import numpy as np
import pytest

from privml._cli import output
from privml._cli.fhe import fhe
from privml._cli.output import UsageError
from privml.backbones.cnn import small_cnn
from privml.backbones.quant_model import QuantModel
from privml.errors import (
    BitsExceeded,
    ClaimTooWeak,
    MalformedMessage,
    MemoryExceeded,
    ParameterError,
    PrivmlError,
)
from privml.protocols.fhe import planned, toolkit
from privml.protocols.fhe.building import build
from privml.protocols.fhe.classifier import EncryptedClassifier
from privml.protocols.fhe.graph import Graph
from privml.protocols.fhe.manifest import Manifest
from privml.protocols.fhe.plan import plan
from privml.protocols.fhe.planned import Machine
from privml.rng import ScienceSeed
from privml.testing.fhe_parts import fake_part
from privml.testing.tiny_graphs import residual_graph, vector_graph
from privml.transport.identity import Identity

SMALL = Machine("small", 1, 100_000_000)


@pytest.fixture(autouse=True)
def _nothing_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    def ran(*_: object) -> None:
        raise AssertionError("the compiler was reached")

    monkeypatch.setattr(toolkit, "frontend", ran)
    monkeypatch.setattr(toolkit, "compiler", ran)


def predict(graph: Graph, folder: Path, *words: str) -> None:
    (folder / "graph").write_bytes(graph.to_bytes())
    node = graph.input
    np.save(folder / "x.npy", np.full(node.shape, node.low))
    fixed = ["predict", folder / "graph", folder / "x.npy", "--mode", "execute", "--accept-licence"]
    fhe([*map(str, fixed), *words], prog_name="fhe", standalone_mode=False)


Door = Callable[[Graph, Path], None]


def by_command_line(graph: Graph, folder: Path) -> None:
    predict(graph, folder)


def by_bundles(graph: Graph, folder: Path) -> None:
    build(graph, folder / "bundles", identity=Identity.generate(folder, "operator"))


@pytest.mark.parametrize("door", [by_command_line, by_bundles])
@pytest.mark.parametrize(
    ("graph", "error"),
    [(vector_graph(2, 9), BitsExceeded), (residual_graph(exact=False), ClaimTooWeak)],
)
def test_every_door_gives_the_plans_reason(
    graph: Graph, error: type[PrivmlError], door: Door, tmp_path: Path
) -> None:
    with pytest.raises(error) as planned_one:
        plan(graph, p_error=0.01).require_execute()
    with pytest.raises(error) as executed:
        door(graph, tmp_path)
    assert str(planned_one.value) in str(executed.value)
    assert not (tmp_path / "bundles").exists()


@pytest.mark.parametrize("door", [by_command_line, by_bundles])
def test_memory_of_this_machine_counts(
    door: Door, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    graph = vector_graph(3, 2)
    monkeypatch.setattr(planned, "available_memory", lambda: SMALL.memory_bytes)
    with pytest.raises(MemoryExceeded) as expected:
        plan(graph, p_error=0.01)
    with pytest.raises(MemoryExceeded) as found:
        door(graph, tmp_path)
    assert str(found.value) == str(expected.value)


def test_the_command_line_says_what_to_add(tmp_path: Path) -> None:
    with pytest.raises(ClaimTooWeak, match="--measure IMAGES, or --exact"):
        predict(residual_graph(exact=False), tmp_path)
    with pytest.raises(AssertionError, match="compiler was reached"):  # measured: it goes on
        predict(residual_graph(exact=False), tmp_path, "--measure", str(tmp_path / "x.npy"))


@pytest.fixture
def classifier() -> EncryptedClassifier:
    model = QuantModel(small_cnn((1, 4, 4), (2,), classes=3, seed=ScienceSeed(1)))
    model.calibrate(np.random.default_rng(1).normal(size=(32, 1, 4, 4)))
    return EncryptedClassifier(model)


def test_a_plan_changed_by_hand_is_planned_again(classifier: EncryptedClassifier) -> None:
    honest = classifier.plan()
    assert honest.contract == "measured"
    with pytest.raises(ClaimTooWeak) as expected:
        classifier.plan(contract="exact")
    with pytest.raises(ClaimTooWeak) as found:
        classifier.compile(replace(honest, contract="exact"))
    assert str(found.value) == str(expected.value)
    other = classifier.measure(np.zeros((2, 1, 4, 4)), p_error=0.05, seeds=[0])
    with pytest.raises(ParameterError, match="another graph, rounding or p_error"):
        classifier.compile(replace(honest, disagreement=other))
    with pytest.raises(MemoryExceeded):
        classifier.compile(replace(honest, machine=SMALL))


def test_execution_of_a_classifier_checks_contract_and_memory(
    classifier: EncryptedClassifier, monkeypatch: pytest.MonkeyPatch
) -> None:
    image = np.zeros((1, 1, 4, 4))
    made: list[str] = []
    circuit = SimpleNamespace(
        has_keys=False, make_keys=lambda: made.append("keys"), close=lambda: None
    )
    classifier._circuit, classifier._plan = cast("Any", circuit), classifier.plan()
    with pytest.raises(ClaimTooWeak, match="measured disagreement"):
        classifier.run(image, mode="execute")
    with pytest.raises(ClaimTooWeak, match="measured disagreement"):
        classifier.compare(image, planned=classifier.plan())
    classifier._plan = classifier.plan(evidence=classifier.measure(image, seeds=[0]))
    monkeypatch.setattr(planned, "available_memory", lambda: SMALL.memory_bytes)
    with pytest.raises(MemoryExceeded):
        classifier.run(image, mode="execute")
    assert made == []


def test_a_manifest_without_its_evidence_is_refused() -> None:
    manifest = fake_part().manifest
    bare = msgspec.structs.replace(manifest, contract="measured")
    with pytest.raises(MalformedMessage, match="needs a measured disagreement"):
        Manifest.from_json(bare.to_json())


@pytest.mark.parametrize("bits", ["", "x", "0", "9", "5,5", "6,-1"])
def test_widths_that_cannot_be_measured_are_refused_first(bits: str, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="widths are"):
        fhe(["calibrate", "--out", str(tmp_path / "c"), "--bits", bits, "--accept-licence"],
            prog_name="fhe", standalone_mode=False)  # fmt: skip


def test_the_default_of_calibration_is_two_widths_in_ten_seconds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(output, "MODE", output.Mode(json=True))
    from privml.protocols.fhe import measuring
    from privml.protocols.fhe.calibration import Point

    clock = iter([0.0, 0.0, 6.0, 6.0, 20.0])
    monkeypatch.setattr(measuring.time, "monotonic", lambda: next(clock))
    monkeypatch.setattr(
        measuring, "_point", lambda bits, p_error: Point(bits, p_error, 20.0, 19.0, 21.0)
    )
    fhe(["calibrate", "--out", str(tmp_path / "c"), "--accept-licence", "--json"],
        prog_name="fhe", standalone_mode=False)  # fmt: skip
    found = json.loads(capsys.readouterr().out)
    assert [point["bits"] for point in found["points"]] == [6]
    assert found["left_out"] == [5]
