"""The client's part of an encoder: content, embedding, and hostile bytes."""

from __future__ import annotations

import dataclasses
import json
import struct
import time

import numpy as np
import pytest
from safetensors.numpy import load, save

from privml.backbones.batch import Encoded
from privml.backbones.encoder import Encoder
from privml.backbones.loader import random_encoder
from privml.backbones.public import TABLES, PublicPart, public_part
from privml.backbones.synthetic import random_batch
from privml.backbones.tokenizer import Tokenizer
from privml.backbones.tokenizer_json import wordpiece_of
from privml.errors import MalformedMessage, ParameterError

VOCABULARY = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", *(chr(97 + i) for i in range(12))]


def build() -> Encoder:
    encoder = random_encoder(layers=1, hidden=8, heads=2, ffn=8, vocab=16, max_positions=10, seed=1)
    encoder.tokenizer = Tokenizer(wordpiece_of(VOCABULARY, lowercase=True), max_length=10)
    return encoder


ENCODER = build()
BLOB = public_part(ENCODER)
PRIVATE = public_part(ENCODER, tables=False)


def test_round_trip() -> None:
    part = PublicPart.from_bytes(BLOB)
    assert part.config == ENCODER.config
    assert part.released
    assert part.to_bytes() == BLOB
    assert part.tokenizer is not None
    assert part.tokenizer.encode("a b").ids.tolist() == [[2, 4, 5, 3]]
    assert {n: a.shape for n, a in part.tables.items()} == {
        n: ENCODER.params()[n].shape for n in TABLES
    }


def test_embedding_matches_the_encoder() -> None:
    batch = random_batch(ENCODER.config, rows=5, length=10, seed=0)
    expected = ENCODER.capture(batch, ["embed.norm"]).activations["embed.norm"].numpy()
    got = PublicPart.from_bytes(BLOB).embed(batch)
    assert got.dtype == np.float32
    assert got == pytest.approx(expected, abs=2e-6)


def test_no_other_weight_is_inside() -> None:
    names = set(load(BLOB))
    assert names == {*TABLES, "tokenizer"}
    for name, array in ENCODER.params().items():
        if name not in TABLES:
            assert array.tobytes() not in BLOB


def test_private_tables_are_left_out() -> None:
    part = PublicPart.from_bytes(PRIVATE)
    assert not part.released
    assert set(load(PRIVATE)) == {"tokenizer"}
    with pytest.raises(ParameterError, match="embedding='private'"):
        part.embed(Encoded.of(np.array([[2, 3]])))


def test_digest_is_that_of_the_content() -> None:
    digests = {PublicPart.from_bytes(b).digest() for b in (BLOB, PRIVATE)}
    text, tensors = header(BLOB), load(BLOB)
    reordered = save(dict(reversed(tensors.items())), metadata=text["__metadata__"])
    digests.add(PublicPart.from_bytes(reordered).digest())
    assert len(digests) == 2
    tensors["embed.segment"][0, 0] += 1
    altered = save(tensors, metadata=text["__metadata__"])
    assert PublicPart.from_bytes(altered).digest() not in digests


def test_repr_is_short() -> None:
    assert repr(PublicPart.from_bytes(BLOB)) == "PublicPart('random-1x8', released=True)"


def test_embedding_refuses_what_is_outside_the_tables() -> None:
    part = PublicPart.from_bytes(BLOB)
    for batch in (
        Encoded.of(np.array([[16]])),
        Encoded.of(np.array([[1]]), type_ids=np.array([[2]])),
        Encoded.of(np.ones((1, 11), np.int64)),
    ):
        with pytest.raises(ParameterError):
            part.embed(batch)


def header(blob: bytes) -> dict[str, dict[str, object]]:
    (size,) = struct.unpack("<Q", blob[:8])
    return json.loads(blob[8 : 8 + size])


def reheaded(blob: bytes, tree: object) -> bytes:
    (size,) = struct.unpack("<Q", blob[:8])
    text = json.dumps(tree).encode()
    return struct.pack("<Q", len(text)) + text + blob[8 + size :]


def refuse(blob: bytes) -> None:
    start = time.perf_counter()
    with pytest.raises(MalformedMessage):
        PublicPart.from_bytes(blob)
    assert time.perf_counter() - start < 1.0


def test_every_prefix_is_refused() -> None:
    for blob in (BLOB, PRIVATE):
        for end in range(0, len(blob), 7):
            refuse(blob[:end])
        refuse(blob[:-1])
        refuse(blob + b"\0")


@pytest.mark.parametrize(
    "size", [0, 1, 2**21, 2**21 + 1, 2**31 - 1, 2**32 - 1, 2**63 - 1, 2**64 - 1]
)
def test_lying_header_lengths_are_refused(size: int) -> None:
    refuse(struct.pack("<Q", size) + BLOB[8:])


def test_every_header_bit_flip_is_refused_or_harmless() -> None:
    (size,) = struct.unpack("<Q", PRIVATE[:8])
    good = PublicPart.from_bytes(PRIVATE)
    renamed = blank = 0
    for at in range(8 * (8 + size)):
        blob = bytearray(PRIVATE)
        blob[at // 8] ^= 1 << at % 8
        try:
            found = PublicPart.from_bytes(bytes(blob))
        except MalformedMessage:
            continue
        if found.digest() == good.digest():
            assert found.config == good.config
            renamed += found.config.name != good.config.name
            blank += found.config.name == good.config.name
    assert blank < 8  # white space at the end of the header
    assert renamed <= 8 * len(good.config.name)


def test_the_name_is_no_part_of_the_identity() -> None:
    part = PublicPart.from_bytes(BLOB)
    other = dataclasses.replace(part, config=dataclasses.replace(part.config, name="elsewhere"))
    assert other.config == part.config
    assert other.config.digest() != part.config.digest()
    assert other.config.identity() == part.config.identity()
    assert other.digest() == part.digest()
    assert PublicPart.from_bytes(other.to_bytes()).config.name == "elsewhere"
    longer = dataclasses.replace(part.config, ffn=16)
    assert longer != part.config
    assert longer.identity() != part.config.identity()


@pytest.mark.parametrize(
    ("name", "entry"),
    [
        ("embed.word", {"dtype": "F16"}),
        ("embed.word", {"shape": [8, 16]}),
        ("embed.word", {"shape": [16, -8]}),
        ("embed.word", {"shape": [2**62, 2**62]}),
        ("embed.word", {"data_offsets": [0, 2**63]}),
        ("embed.word", {"data_offsets": [-512, 0]}),
        ("embed.word", {"data_offsets": [512, 0]}),
        ("embed.word", {"data_offsets": [0]}),
        ("embed.word", {"extra": 1}),
        ("tokenizer", {"dtype": "F32"}),
        ("tokenizer", {"shape": [1]}),
        ("layer0.qkv.weight", {"dtype": "F32", "shape": [0], "data_offsets": [0, 0]}),
        ("embed.norm.beta", None),
        ("__metadata__", None),
        ("__metadata__", {"more": "x"}),
    ],
)
def test_altered_headers_are_refused(name: str, entry: dict[str, object] | None) -> None:
    tree = header(BLOB)
    if entry is None:
        del tree[name]
    else:
        tree[name] = {**tree.get(name, {}), **entry}
    refuse(reheaded(BLOB, tree))


def test_overlapping_tensors_are_refused() -> None:
    tree = header(BLOB)
    tree["embed.norm.gamma"]["data_offsets"] = tree["embed.norm.beta"]["data_offsets"]
    refuse(reheaded(BLOB, tree))


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_numbers_that_are_not_finite_are_refused(value: float) -> None:
    tensors = load(BLOB)
    tensors["embed.position"][3, 3] = value
    refuse(save(tensors, metadata=header(BLOB)["__metadata__"]))


@pytest.mark.parametrize(
    "change", [{"hidden": 10}, {"vocab": 15}, {"pad_id": 1}, {"max_positions": 11}]
)
def test_configuration_must_fit_tables_and_tokenizer(change: dict[str, int]) -> None:
    config = dataclasses.replace(ENCODER.config, **change)
    refuse(save(load(BLOB), metadata={"privml": config.to_json().decode()}))


@pytest.mark.parametrize("text", [b"", b"{}", b"\xff" * 10, b"[" * 100_000])
def test_bad_tokenizers_are_refused(text: bytes) -> None:
    metadata = header(PRIVATE)["__metadata__"]
    refuse(save({"tokenizer": np.frombuffer(text, np.uint8)}, metadata=metadata))


def test_random_bytes_are_refused() -> None:
    g = np.random.default_rng(5)
    for size in (0, 1, 7, 8, 9, 100, 5000):
        for _ in range(50):
            refuse(g.bytes(size))
        refuse(struct.pack("<Q", size) + g.bytes(size))
        refuse(struct.pack("<Q", size) + b"[" * size)
