"""One object, three modes: binding of the front end, plans, refusals, results."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from sklearn.datasets import load_digits
from torch import nn

from privml.backbones.cnn import Bits, small_cnn
from privml.backbones.cnn_data import Arrays, Images
from privml.backbones.cnn_training import Recipe, Training, fit
from privml.backbones.gates import learn_gates
from privml.backbones.quant_model import QuantModel
from privml.errors import (
    BitsExceeded,
    ClaimTooWeak,
    MalformedMessage,
    MemoryExceeded,
    ParameterError,
    ProtocolError,
    UnsupportedLayer,
)
from privml.protocols.fhe import reference, toolkit
from privml.protocols.fhe.binding import bind, describe, described, mirror, training_data
from privml.protocols.fhe.calibration import Calibration, MachineKey, Point
from privml.protocols.fhe.classifier import EncryptedClassifier
from privml.protocols.fhe.frequency import Frequency
from privml.protocols.fhe.planned import Machine, Rounding
from privml.protocols.fhe.quant import save_model
from privml.rng import ScienceSeed

MACHINE = Machine("test", 2, 16_000_000_000)
SHORT = Training(
    first=Recipe(epochs=2, rate=0.1, batch=32),
    second=Recipe(epochs=1, rate=2e-3, batch=32, optimiser="adamw"),
    calibration=64,
)
NAMES = ("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine")

concrete = pytest.mark.skipif(toolkit.missing() is not None, reason=str(toolkit.missing()))


def photos(count: int) -> list[np.ndarray]:
    images = load_digits().images[:count]
    return [np.rint(image * 15.9375).astype(np.uint8) for image in images]


@pytest.fixture(scope="module")
def front() -> Frequency:
    return Frequency(2, channels="y3", source="array").fit(photos(200))


@pytest.fixture(scope="module")
def model(front: Frequency) -> QuantModel:
    net = small_cnn(front.shape, (4, 6), seed=ScienceSeed(1))
    made = bind(net, front, bits=Bits(accumulator=11), names=NAMES)
    made.calibrate(front.batch(photos(64)))
    return made


@pytest.fixture
def classifier(model: QuantModel) -> EncryptedClassifier:
    return EncryptedClassifier(model)


def test_clear_scores_are_those_of_the_network(
    classifier: EncryptedClassifier, model: QuantModel, front: Frequency
) -> None:
    found = classifier.run(photos(20), mode="clear")
    np.testing.assert_allclose(found.scores, model.scores(front.batch(photos(20))), rtol=1e-12)
    assert np.array_equal(classifier.prepare(photos(20)), model.quantise(front.batch(photos(20))))
    assert found.labels == tuple(NAMES[k] for k in found.classes)
    assert (found.scheme, found.mode, found.failure_probability) == ("tfhe", "clear", 0.0)
    assert "BSD-3-Clause-Clear" in found.licence
    tree = json.loads(json.dumps(found.to_dict()))
    assert tree["share_results"] == "forbidden"
    assert tree["mode"] == "clear"


def test_simulation_has_faults_and_says_so(classifier: EncryptedClassifier) -> None:
    clear = classifier.run(photos(30), mode="clear")
    found = classifier.run(photos(30), mode="simulate", seed=1)
    again = classifier.run(photos(30), mode="simulate", seed=1)
    assert type(found) is type(clear)
    assert np.array_equal(found.scores, again.scores)
    assert not np.array_equal(found.scores, clear.scores)
    assert "not encrypted" in found.note
    assert "numpy fault model" in found.note
    assert found.failure_probability == classifier.plan().global_failure > 0.5


def test_memory_layout_never_changes_a_result(classifier: EncryptedClassifier) -> None:
    images = photos(3)
    wide = [np.repeat(image, 2, axis=1)[:, ::2] for image in images]
    turned = [np.asfortranarray(image) for image in images]
    want = classifier.run(images, mode="clear").scores
    for same in (wide, turned):
        assert classifier.prepare(same).flags.c_contiguous
        assert np.array_equal(classifier.run(same, mode="clear").scores, want)


def test_a_front_end_of_other_statistics_is_refused(model: QuantModel, front: Frequency) -> None:
    other = Frequency(2, channels="y3", source="array").fit(photos(100))
    assert EncryptedClassifier(model, front=front).front == front
    with pytest.raises(ParameterError, match="another front end"):
        EncryptedClassifier(model, front=other)
    with pytest.raises(ParameterError, match="shape"):
        bind(small_cnn((4, 4, 4), (4,)), front)
    with pytest.raises(ParameterError, match="fit the front end"):
        describe(Frequency(2, channels="y3", source="array", size=8))
    with pytest.raises(ParameterError, match="names"):
        bind(model.net, front, names=("a", "b"))
    with pytest.raises(MalformedMessage):
        described({"block": 2})
    with pytest.raises(MalformedMessage):
        described({"labels": [3]})
    assert described({}) == (None, ())
    assert described(model.front) == (front, NAMES)


def test_training_refuses_data_of_another_front_end(front: Frequency) -> None:
    labels = load_digits().target[:64]
    other = Frequency(2, channels="y3", source="array").fit(photos(100))
    model = bind(small_cnn(front.shape, (4,), seed=ScienceSeed(1)), front)
    assert model.front_digest == front.digest()
    good, bad = (training_data(one, photos(64), labels) for one in (front, other))
    with pytest.raises(ParameterError, match="one front end, fitted once"):
        fit(model, bad, training=SHORT, seed=ScienceSeed(2))
    with pytest.raises(ParameterError, match="one front end, fitted once"):
        fit(model, good, bad, training=SHORT, seed=ScienceSeed(2))
    fit(model, good, training=SHORT, seed=ScienceSeed(2))
    plain = Arrays(good.x, labels)
    assert plain.front_digest == ""
    version = Images(np.zeros((1, 1, 8, 8), np.uint8), [0], front=lambda x: x, version="own")
    assert version.front_digest == ""


def test_mirrored_images_are_mirrored_coefficients(front: Frequency) -> None:
    image = photos(1)[0]
    plain = front.from_array(image)
    want = front.from_array(np.ascontiguousarray(image[:, ::-1]))
    rule = mirror(front)
    sign, offset = (np.array(v)[:, None, None] for v in (rule.sign, rule.offset))
    np.testing.assert_allclose(plain[..., ::-1] * sign + offset, want, atol=1e-5)
    with pytest.raises(ParameterError, match="control='dct'"):
        mirror(Frequency(2, control="mean-pool", source="array").fit(photos(5)))


def test_a_saved_model_is_the_same_classifier(tmp_path: Path, model: QuantModel) -> None:
    save_model(model, tmp_path)
    one, two = EncryptedClassifier(model), EncryptedClassifier.load(tmp_path)
    assert one.graph.digest() == two.graph.digest()
    assert (one.front, one.scale, one.names) == (two.front, two.scale, two.names)
    assert two.frontend is not None
    assert two.frontend.front.digest() == model.front_digest


def test_arrays_go_in_where_there_is_no_front_end() -> None:
    net = small_cnn((2, 4, 4), (4,), classes=3, seed=ScienceSeed(1))
    model = QuantModel(net)
    x = ScienceSeed(2).generator().standard_normal((40, 2, 4, 4))
    model.calibrate(x)
    classifier = EncryptedClassifier(model)
    assert classifier.frontend is None
    np.testing.assert_allclose(classifier.run(x, mode="clear").scores, model.scores(x), rtol=1e-12)
    for bad in (x[:, :1], x[:0], np.full_like(x, np.nan)):
        with pytest.raises(ParameterError, match="at least one image"):
            classifier.run(bad, mode="clear")


def test_a_torch_network_becomes_a_classifier(front: Frequency) -> None:
    net = nn.Sequential(
        nn.Conv2d(3, 6, 3, padding=1), nn.BatchNorm2d(6), nn.ReLU(), nn.AdaptiveAvgPool2d(1),
        nn.Flatten(), nn.Linear(6, 10),
    ).eval()  # fmt: skip
    x = front.batch(photos(64))
    with torch.no_grad():
        want = net(torch.from_numpy(x)).numpy()
    bits = Bits(weight=8, act=8, input=8, round_to=None, accumulator=None)
    made = EncryptedClassifier.from_torch(net, photos(64), front=front, bits=bits, names=NAMES)
    found = made.run(photos(64), mode="clear")
    assert np.abs(found.scores - want).max() < 0.05 * np.abs(want).max()
    assert made.front == front
    arrays = EncryptedClassifier.from_torch(net, x, bits=bits).run(x, mode="clear")
    np.testing.assert_allclose(arrays.scores, found.scores)
    net[2] = nn.GELU()
    net[3] = nn.AdaptiveMaxPool2d(1)
    with pytest.raises(UnsupportedLayer, match=r"2 \(GELU\): use ReLU.*3 \(AdaptiveMaxPool2d\)"):
        EncryptedClassifier.from_torch(net, x)


def test_refusals_come_before_any_run(classifier: EncryptedClassifier) -> None:
    with pytest.raises(BitsExceeded, match="act: a table of 8 bits") as caught:
        classifier.plan(rounding=Rounding(8), p_error=2.0**-40, machine=MACHINE)
    assert caught.value.layer.endswith("act")
    with pytest.raises(MemoryExceeded, match="another machine"):
        classifier.plan(machine=replace(MACHINE, memory_bytes=300_000_000))
    with pytest.raises(ClaimTooWeak, match="exact rounding"):
        classifier.plan(contract="exact", machine=MACHINE)
    with pytest.raises(ProtocolError, match="compile"):
        classifier.run(photos(1), mode="execute")
    with pytest.raises(ProtocolError, match="compile"):
        _ = classifier.compiled_plan
    for mode in ("", "EXECUTE", "fhe"):
        with pytest.raises(ParameterError, match="clear, simulate, execute"):
            classifier.run(photos(1), mode=mode)


def test_the_plan_scales_with_this_machine(classifier: EncryptedClassifier) -> None:
    key = MachineKey("p", 2, "concrete-python", "2.11.0")
    slow = Calibration(key, (Point(6, 0.01, 60.0, 59.0, 61.0, model_ms=20.0),))
    rounding = Rounding(6)
    plain = classifier.plan(machine=MACHINE, rounding=rounding)
    found = classifier.plan(machine=replace(MACHINE, calibration=slow), rounding=rounding)
    assert found.core_s.expected == pytest.approx(0.060 * found.tables)
    assert "calibrate this one" in str(plain)
    assert "calibrate this one" not in str(found)
    assert slow.speed == 3.0
    other = Rounding(4)  # not measured: as much slower as the width that was
    ratio = slow.slowness
    assert ratio > 1
    four = [
        classifier.plan(machine=machine, rounding=other).core_s.expected
        for machine in (MACHINE, replace(MACHINE, calibration=slow))
    ]
    assert four[1] / four[0] == pytest.approx(ratio)


def test_gates_find_the_channels_that_matter() -> None:
    draw = ScienceSeed(5).generator()
    x = draw.standard_normal((600, 8, 4, 4)).astype(np.float32)
    labels = (x[:, 2].mean((1, 2)) > 0) * 2 + (x[:, 5].mean((1, 2)) > 0)
    net = small_cnn((8, 4, 4), (8,), classes=4, seed=ScienceSeed(6))
    told: list[float] = []
    gates = learn_gates(
        net, Arrays(x, labels), seed=ScienceSeed(7), penalty=0.05,
        recipe=Recipe(epochs=14, rate=0.1, batch=50),
        progress=lambda stage, done: told.append(done),
    )  # fmt: skip
    assert gates.best(2) == (2, 5)
    assert told == sorted(told)
    assert gates.open[[2, 5]].min() > gates.open[[0, 1, 3, 4, 6, 7]].max()
    for bad in (0, 9):
        with pytest.raises(ParameterError):
            gates.best(bad)


def test_a_learned_set_is_frozen_into_a_front_end() -> None:
    full = Frequency(4, channels="y16", source="array").fit(photos(300))
    labels = load_digits().target[:300]
    net = small_cnn(full.shape, (16,), seed=ScienceSeed(8))
    recipe = Recipe(epochs=3, rate=0.05, batch=50)
    data = training_data(full, photos(300), labels)
    gates = [
        learn_gates(small_cnn(full.shape, (16,), seed=ScienceSeed(8)), data, seed=ScienceSeed(9),
                    recipe=recipe) for _ in range(2)
    ]  # fmt: skip
    assert np.array_equal(gates[0].scores, gates[1].scores)
    chosen = full.select(gates[0].scores, 6)
    assert chosen.shape == (6, 2, 2)
    assert chosen.statistics is not None
    kept = full.batch(photos(3))[:, list(gates[0].best(6))]
    assert np.array_equal(chosen.batch(photos(3)), kept)
    model = bind(small_cnn(chosen.shape, (4,), seed=ScienceSeed(1)), chosen)
    assert model.front_digest == chosen.digest() != full.digest()
    assert net.spec.shape == full.shape


@concrete
@pytest.mark.filterwarnings("ignore::privml.protocols.fhe.toolkit.LicenceNotice")
def test_execution_matches_the_plan(classifier: EncryptedClassifier) -> None:
    images = photos(6)
    evidence = classifier.measure(images, seeds=(0,))
    chosen = classifier.plan(evidence=evidence)
    with classifier.compile(chosen):
        later = classifier.compiled_plan
        assert later.tables == chosen.tables == classifier.circuit.report.total_bootstraps
        assert later.keys_mb.low == later.keys_mb.high
        assert classifier.run(images, mode="simulate").simulator == "concrete-python"
        one = classifier.run(images[:1], mode="execute")
        assert (one.mode, one.simulator) == ("execute", None)
        assert one.disagreement == evidence
        assert one.predicted_core_s is not None
        clear = classifier.run(images[:1], mode="clear")
        integers = reference.run(classifier.graph, classifier.prepare(images[:1]))
        assert np.array_equal(classifier.graph.scores(integers), clear.scores)
        assert np.abs(one.scores - clear.scores).max() < np.abs(clear.scores).max()
        classifier._plan = replace(later, disagreement=None)
        with pytest.raises(ClaimTooWeak, match="measured disagreement"):
            classifier.run(images[:1], mode="execute")
    with pytest.raises(ParameterError, match="plan"):
        classifier.compile(replace(chosen, graph="00" * 32))
