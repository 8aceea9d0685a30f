"""Decoders and their mixtures with encoders: programs, padding, ranges, public part, digests."""

from __future__ import annotations

import dataclasses
import json
import math

import numpy as np
import pytest
import torch
from safetensors.numpy import load, save

from privml.backbones.base import Op
from privml.backbones.batch import Encoded
from privml.backbones.config import EncoderConfig
from privml.backbones.digests import program_digest
from privml.backbones.encoder import Encoder
from privml.backbones.interpreter import interpret, run_program
from privml.backbones.loader import random_decoder
from privml.backbones.program import encoder_ops, multiply_adds, parameter_shapes
from privml.backbones.public import PublicPart, public_part, table_names
from privml.backbones.ranges import calibrate
from privml.backbones.synthetic import random_batch, random_params
from privml.errors import MalformedMessage, ParameterError

SIZES = {"layers": 2, "hidden": 16, "heads": 4, "ffn": 24, "vocab": 40, "max_positions": 20}


def ragged() -> Encoded:
    """Rows that are full, padded on the right, on the left, on both sides, and of one token."""
    g = np.random.default_rng(5)
    spans = [(0, 9), (0, 4), (3, 9), (2, 6), (8, 9), (0, 1)]
    mask = np.array([[a <= t < b for t in range(9)] for a, b in spans])
    return Encoded.of(g.integers(0, 40, mask.shape), mask)


def forward(model: Encoder, batch: Encoded) -> np.ndarray:
    with torch.no_grad():
        return model.double()(batch).numpy()


def strong(config: EncoderConfig, seed: int = 1) -> Encoder:
    """Model whose every part matters."""
    drawn = random_params(config, seed=seed)
    return Encoder(config, {k: v if k.endswith("gamma") else 12 * v for k, v in drawn.items()})


DECODER = random_decoder(**SIZES).config
MIXTURES = {
    "decoder": DECODER,
    "mean": dataclasses.replace(DECODER, pooling="mean"),
    "labels": dataclasses.replace(DECODER, labels=("a", "b", "c")),
    "normalised": dataclasses.replace(DECODER, normalize=True),
    "pre-norm encoder": dataclasses.replace(DECODER, causal=False, pooling="cls"),
    "pre-norm pooler": dataclasses.replace(DECODER, causal=False, pooling="pooler"),
    "post-norm decoder": dataclasses.replace(DECODER, pre_norm=False),
    "encoder by its last token": dataclasses.replace(DECODER, causal=False, pre_norm=False),
}


@pytest.mark.parametrize("form", MIXTURES)
def test_every_value_of_the_program_is_that_of_forward(form: str) -> None:
    model, batch = strong(MIXTURES[form]).double(), ragged()
    values = run_program(model.ops(), model.params(), batch)
    seen = model.capture(batch, values)
    assert list(values) == [node.name for node in model.ops()]
    for name, value in values.items():
        assert seen.activations[name].numpy() == pytest.approx(value, abs=1e-9), name
    expected = interpret(model.config, model.params(), batch)
    assert seen.output.numpy() == pytest.approx(expected, abs=1e-9)


@pytest.mark.parametrize("form", MIXTURES)
def test_programs_are_well_formed(form: str) -> None:
    config = MIXTURES[form]
    known = {"ids": ("B", "n"), "type_ids": ("B", "n"), "mask": ("B", "n")}
    used = set()
    for node in encoder_ops(config):
        assert all(known[value.name] == value.shape for value in node.inputs)
        assert node.name not in known
        known[node.name] = node.output.shape
        used |= {name for _, name in node.params}
    assert used == set(parameter_shapes(config))
    assert known[encoder_ops(config)[-1].name] == ("B", config.output_dim)
    assert EncoderConfig.from_json(config.to_json()) == config
    slices = strong(config).slices()
    covered = sorted(ref.name for part in slices for ref in part.tensors)
    assert covered == sorted(parameter_shapes(config))
    assert {part.id for part in slices} <= {"embed", "layer0", "layer1", "head"}


def test_order_of_a_pre_norm_program() -> None:
    ops = encoder_ops(dataclasses.replace(DECODER, layers=1))
    layer = "attn_norm qkv context attn_out attn_sum ffn_norm ffn_in ffn_act ffn_out ffn_sum"
    names = ["embed", *(f"layer0.{part}" for part in layer.split()), "pool", "final_norm"]
    assert [node.name for node in ops] == names
    by_name = {node.name: node for node in ops}
    reads = {name: [v.name for v in by_name[name].inputs] for name in by_name}
    assert reads["layer0.attn_norm"] == ["embed"]
    assert reads["layer0.attn_sum"] == ["layer0.attn_out", "embed"]
    assert reads["layer0.ffn_sum"] == ["layer0.ffn_out", "layer0.attn_sum"]
    assert reads["pool"] == ["layer0.ffn_sum", "mask"]
    assert by_name["pool"].kind is Op.POOL_LAST
    assert by_name["final_norm"].output.shape == ("B", 16)
    assert by_name["layer0.context"].flag("causal")


def test_a_token_sees_no_later_token() -> None:
    model = strong(DECODER).double()
    batch = Encoded.of(np.random.default_rng(0).integers(0, 40, (1, 9)))
    before = model.features(batch, 2).detach()
    for t in range(9):
        ids = batch.ids.copy()
        ids[0, t] = (ids[0, t] + 1) % 40
        after = model.features(Encoded.of(ids), 2).detach()
        assert torch.equal(before[:, :t], after[:, :t])
        assert (before[:, t:] != after[:, t:]).all(-1).all()


@pytest.mark.parametrize("form", [f for f, c in MIXTURES.items() if c.pooling in ("last", "mean")])
def test_what_stands_in_padding_has_no_effect(form: str) -> None:
    model, batch = strong(MIXTURES[form]).double(), ragged()
    other = Encoded.of(np.where(batch.mask, batch.ids, batch.ids[::-1]), batch.mask)
    assert np.array_equal(forward(model, batch), forward(model, other))
    params = model.params()
    first, second = (interpret(model.config, params, b) for b in (batch, other))
    assert np.isfinite(first).all()
    assert np.array_equal(first, second)


def test_last_token_of_a_batch() -> None:
    assert ragged().last.tolist() == [8, 3, 8, 5, 8, 0]
    holes = np.array([[True, False, True, False], [False, True, False, False]])
    assert Encoded.of(np.zeros((2, 4), np.int64), holes).last.tolist() == [2, 1]


def test_padding_on_the_right_changes_nothing() -> None:
    model = strong(DECODER).double()
    batch = Encoded.of(np.random.default_rng(1).integers(0, 40, (3, 5)))
    wide = forward(model, batch.padded(20, pad_id=7))
    assert wide == pytest.approx(forward(model, batch), abs=1e-12)


def test_features_of_a_decoder_are_its_residual_stream() -> None:
    model, batch = strong(DECODER), ragged()
    names = ["embed", "layer0.ffn_sum", "layer1.ffn_sum"]
    captured = model.capture(batch, names).activations
    with torch.no_grad():
        for layer, name in enumerate(names):
            assert torch.equal(model.features(batch, layer), captured[name])


def test_ranges_and_record_cover_every_norm() -> None:
    model = strong(DECODER)
    ranges = calibrate(model, [ragged()])
    norms = [node.inputs[0].name for node in model.ops() if node.kind is Op.LAYERNORM]
    assert norms == [
        "embed", "layer0.attn_sum", "layer0.ffn_sum", "layer1.attn_sum", "pool",
    ]  # fmt: skip
    for name in norms:
        assert ranges[f"{name}.var"].low > 0
        assert ranges[f"{name}.centred"].high > 0
    assert all(np.isfinite(r.bound) for r in ranges.values())
    assert ranges.keys() >= {"layer0.scores", "final_norm"}
    functions = [fact.function for fact in model.certificate_record().nonlinearities]
    assert {f: functions.count(f) for f in functions} == {"rsqrt": 5, "exp": 2, "gelu": 2}


def test_public_part_of_a_decoder_has_no_norm() -> None:
    model, batch = strong(DECODER), ragged()
    part = PublicPart.from_bytes(public_part(model))
    assert set(part.tables) == set(table_names(model.config))
    assert set(part.tables) == {"embed.word", "embed.position", "embed.segment"}
    expected = model.capture(batch, ["embed"]).activations["embed"].numpy()
    assert part.embed(batch) == pytest.approx(expected, abs=1e-6)
    blob, extra = public_part(model), np.ones(16, np.float32)
    metadata = {"privml": model.config.to_json().decode()}
    more = {"embed.norm.gamma": extra, "embed.norm.beta": extra}
    for tensors in ({**load(blob), **more}, {"embed.word": load(blob)["embed.word"]}):
        with pytest.raises(MalformedMessage, match="all embedding tables or none"):
            PublicPart.from_bytes(save(tensors, metadata=metadata))


@pytest.mark.parametrize(
    ("changes", "match"),
    [
        ({"pooling": "cls"}, "pool by last or mean"),
        ({"pooling": "pooler"}, "pool by last or mean"),
        ({"pooling": "mean", "labels": ("a", "b")}, "'pooler' or 'last'"),
        ({"labels": ("a", "b"), "normalize": True}, "normalize = False"),
        ({"pooling": "first"}, "mean, cls, pooler or last"),
    ],
)
def test_bad_decoders_are_refused(changes: dict[str, object], match: str) -> None:
    with pytest.raises(ParameterError, match=match):
        dataclasses.replace(DECODER, **changes)


def test_flags_change_the_digests_only_where_they_are_on() -> None:
    """The digests of models from before the flags are what they were; plans and pools bind them."""
    old = EncoderConfig(
        name="tiny", layers=2, hidden=8, heads=2, ffn=12, vocab=20, max_positions=10, max_length=10,
        pooling="pooler", labels=("a", "b"),
    )  # fmt: skip
    assert old.digest() == "fad44469ccdbc5bb7fe1590067eb9ac4f499f73db50351d2b7cd3764d4b1dad3"
    assert program_digest(encoder_ops(old)) == (
        "8e7251800a15a64f0269255bd5dfbc520ad7dff96cc26908abe217493bc839e9"
    )
    assert b"causal" not in old.to_json()
    tree = json.loads(old.to_json())
    off = json.dumps({**tree, "causal": False}, sort_keys=True, separators=(",", ":")).encode()
    with pytest.raises(MalformedMessage, match="canonical"):
        EncoderConfig.from_json(off)
    plain = dataclasses.replace(DECODER, causal=False, pre_norm=False)
    forms = [plain, DECODER]
    forms += [dataclasses.replace(plain, **{flag: True}) for flag in ("causal", "pre_norm")]
    assert len({config.digest() for config in forms}) == 4
    assert len({program_digest(encoder_ops(config)) for config in forms}) == 4
    assert b'"causal":true' in DECODER.to_json()


def test_gpt2_small_has_the_published_size() -> None:
    config = dataclasses.replace(
        DECODER, layers=12, hidden=768, heads=12, ffn=3072, vocab=50257, max_positions=1024,
    )  # fmt: skip
    count = sum(math.prod(shape) for shape in parameter_shapes(config).values())
    assert count - 768 == 124_439_808  # without the segment row of zeros
    assert multiply_adds(config, length=128) == 12 * (128 * 768 * 9216 + 2 * 128 * 128 * 768)


def test_random_decoder_is_reproducible() -> None:
    first, second = random_decoder(**SIZES, seed=4), random_decoder(**SIZES, seed=4)
    assert first.manifest() == second.manifest()
    assert first.spec().architecture == "gpt2-decoder"
    batch = random_batch(first.config, rows=3, length=20, seed=0)
    with torch.no_grad():
        assert first(batch).shape == (3, 16)
    assert random_decoder(**SIZES, labels=("x", "y")).spec().output_dim == 2
