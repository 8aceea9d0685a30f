"""The encoder's contract: observing, features, loss, slices, digests, ranges, record."""

from __future__ import annotations

import dataclasses
import json
import math

import numpy as np
import pytest
import torch

from privml.backbones.base import Backbone, Op
from privml.backbones.batch import Encoded
from privml.backbones.encoder import Encoder
from privml.backbones.interpreter import interpret
from privml.backbones.loader import random_encoder
from privml.backbones.program import parameter_shapes
from privml.backbones.ranges import calibrate, measure, widen
from privml.backbones.synthetic import random_batch
from privml.errors import ParameterError, UnsupportedError


def tiny(**changes: object) -> Encoder:
    sizes = {"layers": 3, "hidden": 16, "heads": 4, "ffn": 24, "vocab": 40, "max_positions": 20}
    return random_encoder(**{**sizes, "seed": 9, **changes})


@pytest.fixture
def encoder() -> Encoder:
    return tiny()


@pytest.fixture
def batch(encoder: Encoder) -> Encoded:
    return random_batch(encoder.config, rows=4, length=11, seed=2)


def test_encoder_keeps_the_contract(encoder: Encoder) -> None:
    backbone: Backbone = encoder
    assert {node.kind for node in backbone.ops()} <= backbone.supported_ops <= set(Op)
    assert not backbone.deterministic


def test_random_bert_base_shape_program_matches_forward() -> None:
    encoder = random_encoder(layers=1, hidden=768, heads=12, ffn=3072, vocab=50, max_positions=32)
    batch = random_batch(encoder.config, rows=2, length=17, seed=0)
    expected = interpret(encoder.config, encoder.params(), batch)
    with torch.no_grad():
        assert encoder(batch).numpy() == pytest.approx(expected, abs=1e-5)
        assert encoder.double()(batch).numpy() == pytest.approx(expected, abs=1e-9)


def test_observing_is_bit_neutral(encoder: Encoder, batch: Encoded) -> None:
    names = [node.name for node in encoder.ops()] + ["layer1.scores"]
    with torch.no_grad():
        plain = encoder(batch)
    captured = encoder.capture(batch, names)
    assert torch.equal(plain, captured.output)
    assert set(captured.activations) == set(names)
    assert captured.activations["layer1.scores"].shape == (4, 4, 11, 11)
    with pytest.raises(ParameterError, match="no values \\['nothing'\\]"):
        encoder.capture(batch, ["nothing"])


def test_padding_does_not_change_the_output(encoder: Encoder, batch: Encoded) -> None:
    with torch.no_grad():
        short, long = encoder(batch), encoder(batch.padded(20))
        alone = torch.cat([encoder(batch.rows(i, i + 1)) for i in range(4)])
    assert torch.allclose(short, long, atol=1e-6)
    assert torch.allclose(short, alone, atol=1e-6)


def test_features_are_layer_outputs(encoder: Encoder, batch: Encoded) -> None:
    names = ["embed.norm", "layer0.ffn_norm", "layer1.ffn_norm", "layer2.ffn_norm"]
    captured = encoder.capture(batch, names).activations
    with torch.no_grad():
        for layer, name in enumerate(names):
            assert torch.equal(encoder.features(batch, layer), captured[name])
    with pytest.raises(ParameterError, match=r"layer 4 must lie in \[0, 3\]"):
        encoder.features(batch, 4)


def test_batches_outside_the_tables_are_refused(encoder: Encoder) -> None:
    with pytest.raises(ParameterError, match=r"21 positions.*below 40"):
        encoder(Encoded.of(np.full((1, 21), 40)))
    one = np.ones((1, 2), np.int64)
    with pytest.raises(ParameterError, match="segment ids must be below 2"):
        encoder(Encoded.of(one, type_ids=2 * one))


def test_per_sample_loss(batch: Encoded) -> None:
    encoder = tiny(labels=("a", "b", "c"))
    labels = np.array([0, 2, 1, 2])
    with torch.no_grad():
        logits = encoder(batch).double().numpy()
        loss = encoder.per_sample_loss(batch, labels).numpy()
    chosen = logits[np.arange(4), labels]
    assert loss == pytest.approx(np.log(np.exp(logits).sum(1)) - chosen, abs=1e-5)
    for bad in (labels[:3], labels + 1, labels - 1, labels.astype(np.int32)):
        with pytest.raises(ParameterError, match="labels must be int64"):
            encoder.per_sample_loss(batch, bad)
    with pytest.raises(UnsupportedError, match="classifier"):
        tiny().per_sample_loss(batch, labels)


def test_loss_reaches_every_parameter(batch: Encoded) -> None:
    encoder = tiny(labels=("a", "b"))
    encoder.per_sample_loss(batch, np.array([0, 1, 1, 0])).mean().backward()
    assert all(p.grad is not None and p.grad.isfinite().all() for p in encoder.parameters())


def test_params_are_the_program_parameters(encoder: Encoder) -> None:
    params = encoder.params()
    assert {n: a.shape for n, a in params.items()} == parameter_shapes(encoder.config)
    assert all(not a.flags.writeable and a.dtype == np.float32 for a in params.values())
    rebuilt = Encoder(encoder.config, params)
    assert rebuilt.manifest() == encoder.manifest()


@pytest.mark.parametrize(
    ("change", "match"),
    [
        (lambda p: p.pop("embed.word"), "embed.word is missing"),
        (lambda p: p.update(x=np.zeros(1, np.float32)), "x is not expected"),
        (lambda p: p.update({"embed.norm.beta": np.zeros(15, np.float32)}), r"\(15,\), expected"),
        (lambda p: p.update({"embed.norm.beta": np.zeros(16)}), "dtype float64"),
        (lambda p: p.update({"embed.norm.beta": np.full(16, np.inf, np.float32)}), "not finite"),
    ],
)
def test_wrong_params_are_refused(encoder: Encoder, change: object, match: str) -> None:
    params = dict(encoder.params())
    change(params)  # type: ignore[operator]
    with pytest.raises(ParameterError, match=match):
        Encoder(encoder.config, params)


def test_slices_cover_each_parameter_once() -> None:
    encoder = tiny(labels=("a", "b"))
    slices = encoder.slices()
    assert [s.id for s in slices] == ["embed", "layer0", "layer1", "layer2", "head"]
    assert slices[2].depends_on == ("embed", "layer0")
    covered = [(ref.name, ref.start, ref.stop) for s in slices for ref in s.tensors]
    assert sorted(covered) == sorted(
        (n, 0, s[0]) for n, s in parameter_shapes(encoder.config).items()
    )


def test_route_is_public(encoder: Encoder, batch: Encoded) -> None:
    route = encoder.route(batch)
    assert route.shards.tolist() == [0, 0, 0, 0]
    assert (route.depends_on, route.leaked_bits) == ("public", 0.0)


def test_manifest_and_ranges_follow_the_weights(encoder: Encoder) -> None:
    manifest, ranges = encoder.manifest(), encoder.ranges()
    assert encoder.manifest() is manifest
    with torch.no_grad():
        encoder.get_parameter("layer0.ffn_in.weight").mul_(3.0)
    assert encoder.manifest().root != manifest.root
    assert encoder.ranges()["layer0.ffn_in"].bound > 2 * ranges["layer0.ffn_in"].bound


def test_measured_ranges_are_the_extremes(encoder: Encoder, batch: Encoded) -> None:
    ranges = measure(encoder, [batch.rows(0, 2), batch.rows(2, 4)])
    names = [node.name for node in encoder.ops()] + ["layer2.scores"]
    captured = encoder.capture(batch, names).activations
    for name in names:
        assert ranges[name].low == pytest.approx(float(captured[name].min()), abs=1e-5)
        assert ranges[name].high == pytest.approx(float(captured[name].max()), abs=1e-5)
    sums = captured["layer1.ffn_sum"].numpy()
    centred = sums - sums.mean(-1, keepdims=True)
    assert ranges["layer1.ffn_sum.var"].low == pytest.approx(sums.var(-1).min(), rel=1e-4)
    assert ranges["layer1.ffn_sum.centred"].high == pytest.approx(centred.max(), rel=1e-4)
    assert all(r.samples == 4 for r in ranges.values())


def test_widened_ranges_hold_the_margin_on_a_coarse_grid(encoder: Encoder, batch: Encoded) -> None:
    raw, wide = measure(encoder, [batch]), calibrate(encoder, [batch], factor=2.0)
    assert widen(raw, factor=2.0) == wide
    for name, seen in raw.items():
        got, power = wide[name], 4.0 if name.endswith(".var") else 2.0
        assert got.high >= power * seen.high
        assert got.bound <= power * seen.bound * 1.126
        for end in (got.low, got.high):
            assert math.frexp(end)[0] * 16 == int(math.frexp(end)[0] * 16)
        if name.endswith(".var"):
            assert 0 < got.low <= seen.low / 4
        else:
            assert got.low <= min(2 * seen.low, 0.0)
    assert {r.factor for r in wide.values()} == {2.0}


def test_calibration_needs_data_and_a_margin(encoder: Encoder, batch: Encoded) -> None:
    with pytest.raises(ParameterError, match="at least one batch"):
        calibrate(encoder, [])
    for factor in (0.5, float("nan")):
        with pytest.raises(ParameterError, match="at least 1"):
            calibrate(encoder, [batch], factor=factor)


def test_certificate_record_is_canonical_and_bound_to_the_weights() -> None:
    encoder = tiny(labels=("a", "b"))
    record = encoder.certificate_record()
    tree = json.loads(record.to_json())
    assert json.dumps(tree, sort_keys=True, separators=(",", ":")).count("calibrated") > 0
    assert tree["model_root"] == encoder.manifest().root
    assert tree["program_digest"] == encoder.spec().program_digest
    functions = [fact["function"] for fact in tree["nonlinearities"]]
    assert {f: functions.count(f) for f in functions} == {
        "rsqrt": 7,
        "exp": 3,
        "gelu": 3,
        "tanh": 1,
    }
    assert all(f["reach"]["origin"] == "calibrated" for f in tree["nonlinearities"])
    assert [part["id"] for part in tree["slices"]] == [s.id for s in encoder.slices()]
    assert record.to_json() == encoder.certificate_record().to_json()
    with torch.no_grad():
        encoder.get_parameter("layer2.qkv.bias").add_(1.0)
    other = encoder.certificate_record()
    changed = [a.id for a, b in zip(record.slices, other.slices, strict=True) if a != b]
    assert changed == ["layer2"]


@pytest.mark.parametrize("form", ["none", "tanh"])
def test_gelu_slope_bound_holds(form: str) -> None:
    record = tiny().certificate_record()
    slope = next(f.slope for f in record.nonlinearities if f.function == "gelu")
    x = torch.linspace(-12, 12, 200_001, dtype=torch.float64, requires_grad=True)
    torch.nn.functional.gelu(x, approximate=form).sum().backward()
    assert x.grad is not None
    assert slope.low <= float(x.grad.min())
    assert float(x.grad.max()) <= slope.high


def test_config_is_frozen(encoder: Encoder) -> None:
    with pytest.raises(dataclasses.FrozenInstanceError):
        encoder.config.layers = 5  # type: ignore[misc]
