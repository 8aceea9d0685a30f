"""Configurations, programs, digests and the interpreter's own checks."""

from __future__ import annotations

import dataclasses
import json

import numpy as np
import pytest

from privml.backbones.base import Interval, Op, OpNode, ValueSpec
from privml.backbones.batch import Encoded
from privml.backbones.config import EncoderConfig
from privml.backbones.digests import build_manifest, program_digest, tensor_digest
from privml.backbones.interpreter import interpret, run_program
from privml.backbones.program import (
    encoder_ops,
    finish_output,
    multiply_adds,
    parameter_shapes,
)
from privml.backbones.synthetic import random_batch, random_params
from privml.errors import MalformedMessage, ParameterError

CONFIG = EncoderConfig(
    name="tiny",
    layers=2,
    hidden=8,
    heads=2,
    ffn=12,
    vocab=20,
    max_positions=10,
    max_length=10,
)


def with_(**changes: object) -> EncoderConfig:
    return dataclasses.replace(CONFIG, **changes)


@pytest.mark.parametrize(
    ("changes", "match"),
    [
        ({"layers": 0}, "layers = 0"),
        ({"heads": 3}, "not a multiple of heads"),
        ({"max_length": 11}, "max_positions = 10"),
        ({"pad_id": 20}, "not below vocab"),
        ({"eps": 0.0}, "eps"),
        ({"eps": float("nan")}, "eps"),
        ({"name": ""}, "name"),
        ({"name": "a\nb"}, "name"),
        ({"activation": "relu"}, "activation 'relu'"),
        ({"pooling": "max"}, "pooling 'max'"),
        ({"labels": ("a", "b")}, "needs pooling = 'pooler'"),
        ({"labels": ("a", "a"), "pooling": "pooler"}, "labels repeat"),
    ],
)
def test_bad_configurations_are_refused(changes: dict[str, object], match: str) -> None:
    with pytest.raises(ParameterError, match=match):
        with_(**changes)


def test_all_bad_fields_are_listed_at_once() -> None:
    with pytest.raises(ParameterError, match=r"layers.*ffn.*eps"):
        with_(layers=0, ffn=0, eps=1.0)


def test_json_round_trip_is_strict() -> None:
    config = with_(pooling="pooler", labels=("no", "yes"), eps=1e-5)
    data = config.to_json()
    assert EncoderConfig.from_json(data) == config
    tree = json.loads(data)
    bad = [
        data + b" ",
        data[:-1],
        b"",
        b"[]",
        json.dumps({**tree, "extra": 1}).encode(),
        json.dumps({**tree, "layers": 0}).encode(),
        json.dumps({**tree, "layers": "2"}).encode(),
        json.dumps({**tree, "layers": 2.5}).encode(),
        json.dumps(tree).encode(),
        b"[" * 100_000,
        b" " * (1 << 21),
    ]
    for text in bad:
        with pytest.raises(MalformedMessage):
            EncoderConfig.from_json(text)


@pytest.mark.parametrize("pooling", ["mean", "cls", "pooler"])
def test_program_is_well_formed(pooling: str) -> None:
    config = with_(pooling=pooling, labels=("a", "b") if pooling == "pooler" else ())
    known = {"ids": ("B", "n"), "type_ids": ("B", "n"), "mask": ("B", "n")}
    used = set()
    for node in encoder_ops(config):
        for value in node.inputs:
            assert known[value.name] == value.shape
        assert node.name not in known
        known[node.name] = node.output.shape
        used |= {name for _, name in node.params}
    assert used == set(parameter_shapes(config))
    assert known[encoder_ops(config)[-1].name] == ("B", config.output_dim)


def test_attention_reads_one_fused_product() -> None:
    node = next(n for n in encoder_ops(CONFIG) if n.kind is Op.ATTENTION)
    assert [v.name for v in node.inputs] == ["layer0.qkv", "mask"]
    assert node.inputs[0].resolve(rows=3, length=5) == (3, 5, 24)
    assert (node.int_attr("heads"), node.int_attr("head_dim")) == (2, 4)
    assert parameter_shapes(CONFIG)["layer0.qkv.weight"] == (24, 8)


def test_program_digest_sees_every_field() -> None:
    ops = encoder_ops(CONFIG)
    digests = {program_digest(ops), program_digest(ops[1:])}
    digests |= {program_digest(encoder_ops(with_(**c))) for c in ({"heads": 4}, {"eps": 1e-5})}
    digests.add(program_digest((dataclasses.replace(ops[0], leakage=()), *ops[1:])))
    assert len(digests) == 5
    assert program_digest(encoder_ops(with_(name="other"))) == program_digest(ops)


def test_tensor_digest_binds_name_dtype_and_shape() -> None:
    a = np.arange(6, dtype=np.float32)
    variants = [
        tensor_digest("w", a),
        tensor_digest("v", a),
        tensor_digest("w", a.reshape(2, 3)),
        tensor_digest("w", a.reshape(3, 2)),
        tensor_digest("w", a.view(np.int32)),
        tensor_digest("w", a[::-1]),
    ]
    assert len({t.sha256 for t in variants}) == len(variants)
    assert tensor_digest("w", a.astype(">f4")) == variants[0]
    assert tensor_digest("w", np.repeat(a, 2)[::2]) == variants[0]


def test_manifest_root_changes_with_one_bit() -> None:
    params = random_params(CONFIG, seed=1)
    manifest = build_manifest(params, config=CONFIG.digest())
    assert manifest == build_manifest(dict(reversed(params.items())), config=CONFIG.digest())
    name = "layer1.ffn_in.bias"
    params[name].view(np.uint32)[0] ^= 1
    changed = build_manifest(params, config=CONFIG.digest())
    assert changed.root != manifest.root
    assert changed.digest_of(name) != manifest.digest_of(name)
    with pytest.raises(ParameterError, match="no parameter 'x'"):
        manifest.digest_of("x")


def test_multiply_adds_of_bert_base() -> None:
    base = with_(layers=12, hidden=768, heads=12, ffn=3072, max_positions=512, max_length=512)
    assert multiply_adds(base, length=128) == 12 * (128 * 768 * 9216 + 2 * 128 * 128 * 768)


def test_finish_output_normalises_only_if_asked() -> None:
    raw = np.array([[3.0, 4.0], [0.0, 0.0]])
    assert finish_output(CONFIG, raw) is raw
    assert finish_output(with_(normalize=True), raw).tolist() == [[0.6, 0.8], [0.0, 0.0]]


def test_random_params_do_not_depend_on_order_or_depth() -> None:
    deep = random_params(with_(layers=3), seed=5)
    for name, array in random_params(CONFIG, seed=5).items():
        assert np.array_equal(array, deep[name])
    assert not np.array_equal(deep["embed.word"], random_params(CONFIG, seed=6)["embed.word"])


def test_random_batch_is_reproducible_and_ragged() -> None:
    batch = random_batch(CONFIG, rows=5, length=10, seed=3)
    again = random_batch(CONFIG, rows=5, length=10, seed=3)
    assert np.array_equal(batch.ids, again.ids)
    assert batch.lengths[0] == 10 > batch.lengths.min()
    with pytest.raises(ParameterError, match="length = 11"):
        random_batch(CONFIG, rows=1, length=11, seed=0)


def test_interpreter_refuses_what_does_not_fit() -> None:
    params = random_params(CONFIG, seed=0)
    with pytest.raises(ParameterError, match="token ids must be below 20"):
        interpret(CONFIG, params, Encoded.of(np.array([[20]])))
    with pytest.raises(ParameterError, match="11 positions"):
        interpret(CONFIG, params, Encoded.of(np.zeros((1, 11), np.int64)))
    del params["embed.word"]
    with pytest.raises(ParameterError, match=r"missing: embed\.word"):
        interpret(CONFIG, params, Encoded.of(np.array([[1]])))


def test_interpreter_known_answers() -> None:
    x = ValueSpec("x", ("B", 2))
    node = OpNode(
        kind=Op.GELU, inputs=(x,), output=ValueSpec("y", ("B", 2)), attrs=(("form", "gelu"),)
    )
    embed = OpNode(
        kind=Op.EMBED,
        inputs=(),
        output=x,
        params=(("word", "w"), ("position", "p"), ("type", "s")),
        attrs=(("scale", 2.0),),
    )
    tables = {"w": np.float32([[0, 0], [1, -1]]), "p": np.zeros((1, 2), np.float32)}
    tables["s"] = tables["p"]
    values = run_program((embed, node), tables, Encoded.of(np.array([[1]])))
    # GELU(2) and GELU(-2) = x * Phi(x), Phi(2) = 0.9772498680518208
    assert values["x"].tolist() == [[[2.0, -2.0]]]
    assert values["y"][0, 0] == pytest.approx([1.9544997361036416, -0.0455002638963584], abs=1e-15)


def test_interval_rules() -> None:
    wide = Interval(low=-3.0, high=1.0, origin="proved")
    assert wide.bound == 3.0
    assert wide.contains(Interval(low=-1.0, high=1.0, origin="proved"))
    assert not wide.contains(Interval(low=-1.0, high=1.5, origin="proved"))
    for low, high in ((1.0, 0.0), (float("nan"), 1.0), (0.0, float("inf"))):
        with pytest.raises(ParameterError, match="no interval"):
            Interval(low=low, high=high, origin="proved")
