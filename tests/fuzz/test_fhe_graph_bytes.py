"""Hostile graph and calibration bytes: only the declared error, in bounded time and memory."""

from __future__ import annotations

import contextlib
import json
import time
import tracemalloc
from collections.abc import Callable
from typing import Any

import msgspec
import numpy as np
import pytest
import rfc8785
from safetensors.numpy import load, save

from privml.errors import Corrupt, MalformedMessage
from privml.protocols.fhe.calibration import Calibration, MachineKey, Point
from privml.protocols.fhe.graph import Graph
from privml.testing.integer_graphs import random_graph

MAX_S = 1.0
MAX_BYTES = 64 << 20
SAMPLES = [random_graph(seed).to_bytes() for seed in range(20)]


def refused(data: bytes) -> bool:
    """Decode; True if refused, False if it is a graph that encodes to the same content."""
    try:
        graph = Graph.from_bytes(data)
    except MalformedMessage:
        return True
    assert Graph.from_bytes(graph.to_bytes()).digest() == graph.digest()
    return False


def rewritten(
    data: bytes,
    document: Callable[[dict[str, Any]], None] = lambda _: None,
    tensors: Callable[[dict[str, Any]], None] = lambda _: None,
) -> bytes:
    """Return the blob after changes to its JSON and its arrays."""
    size = int.from_bytes(data[:8], "little")
    text = json.loads(json.loads(data[8 : 8 + size])["__metadata__"]["privml"])
    document(text)
    arrays = load(data)
    tensors(arrays)
    return save(arrays, metadata={"privml": rfc8785.dumps(text).decode()})


def test_every_prefix_is_refused() -> None:
    for data in SAMPLES:
        cuts = {*range(min(len(data), 600)), *range(0, len(data), 97)}
        assert all(refused(data[:cut]) for cut in cuts if cut < len(data))
        assert refused(data + b"\0")


def test_flipped_bytes_never_escape() -> None:
    rng = np.random.default_rng(7)
    counted = 0
    for _ in range(1500):
        data = bytearray(SAMPLES[int(rng.integers(len(SAMPLES)))])
        header = 8 + int.from_bytes(data[:8], "little")
        place = int(rng.integers(header if rng.random() < 0.8 else len(data)))
        data[place] ^= 1 << int(rng.integers(8))
        counted += refused(bytes(data))
    assert counted > 900


def test_random_bytes_are_refused() -> None:
    rng = np.random.default_rng(8)
    for n in (*range(64), 1000):
        body = rng.bytes(n)
        assert refused(body)
        assert refused(n.to_bytes(8, "little") + body)


@pytest.mark.parametrize("length", [0, 1, 2, 2**22, 2**31 - 1, 2**32 - 1, 2**63 - 1, 2**64 - 1])
def test_lying_lengths_cost_nothing(length: int) -> None:
    data = length.to_bytes(8, "little") + SAMPLES[0][8:]
    tracemalloc.start()
    start = time.perf_counter()
    assert refused(data)
    assert time.perf_counter() - start < MAX_S
    assert tracemalloc.get_traced_memory()[1] < MAX_BYTES
    tracemalloc.stop()


FIRST = {"kind": "input", "name": "x", "shape": [1], "low": 0, "high": 1}
NODE_CHANGES = [
    {"kind": "system"},
    {"kind": None},
    {"kind": 3},
    {"shape": 5},
    {"shape": None},
    {"shape": []},
    {"shape": [2**40]},
    {"shape": [-1, 2, 2]},
    {"low": True},
    {"low": 2**53},
    {"low": "0"},
    {"name": None},
    {"name": "a b"},
    {"__class__": 1},
    {"high": -1000},
]


@pytest.mark.parametrize("change", NODE_CHANGES, ids=str)
def test_altered_inputs_are_refused(change: dict[str, Any]) -> None:
    def alter(text: dict[str, Any]) -> None:
        text["nodes"][0].update(change)

    try:
        data = rewritten(SAMPLES[0], alter)
    except rfc8785.IntegerDomainError:
        return
    assert refused(data)


@pytest.mark.parametrize(
    "alter",
    [
        lambda text: text.update(format=2),
        lambda text: text.update(extra=1),
        lambda text: text.pop("format"),
        lambda text: text.update(nodes=[]),
        lambda text: text.update(nodes=text["nodes"][::-1]),
        lambda text: text.update(nodes=text["nodes"] * 2),
        lambda text: text.update(nodes=[FIRST] * 5000),
        lambda text: text["nodes"].pop(),
        lambda text: text["nodes"][1].pop("stride"),
        lambda text: text["nodes"][1].update(stride=10**9),
        lambda text: text["nodes"][1].update(x="nowhere"),
        lambda text: text["nodes"][1].update(kind="linear"),
        lambda text: text["nodes"][2].update(round_to=True),
        lambda text: text["nodes"][2].update(exact=1),
        lambda text: text["nodes"][2].update(gain=[1]),
    ],
)
def test_altered_documents_are_refused(alter: Callable[[dict[str, Any]], None]) -> None:
    assert refused(rewritten(SAMPLES[0], alter))


@pytest.mark.parametrize(
    "alter",
    [
        lambda held: held.pop("1/weight"),
        lambda held: held.update({"99/weight": np.ones(1, np.int8)}),
        lambda held: held.update({"1/weight": held["1/weight"].astype(np.int32)}),
        lambda held: held.update({"1/weight": held["1/weight"].astype(np.float64)}),
        lambda held: held.update({"1/weight": held["1/weight"].astype(np.float32)}),
        lambda held: held.update({"1/weight": held["1/weight"][0]}),
        lambda held: held.update({"1/weight": held["1/weight"][:0]}),
        lambda held: held.update({"2/gain": np.ones(len(held["2/gain"]), np.int8)}),
        lambda held: held.update({"2/gain": np.full(len(held["2/gain"]), np.nan)}),
        lambda held: held.update({"2/gain": np.full(len(held["2/gain"]), np.inf)}),
        lambda held: held.update({"2/gain": held["2/gain"][:-1]}),
    ],
)
def test_altered_arrays_are_refused(alter: Callable[[dict[str, Any]], None]) -> None:
    assert refused(rewritten(SAMPLES[0], tensors=alter))


def test_text_that_is_not_canonical_is_refused() -> None:
    data = SAMPLES[0]
    size = int.from_bytes(data[:8], "little")
    text = json.loads(data[8 : 8 + size])["__metadata__"]["privml"]
    loose = save(load(data), metadata={"privml": text.replace(":", ": ", 1)})
    doubled = save(load(data), metadata={"privml": text.replace("{", '{"format":1,', 1)})
    more = save(load(data), metadata={"privml": text, "other": "x"})
    assert refused(loose)
    assert refused(doubled)
    assert refused(more)
    assert refused(save(load(data)))


def test_deep_nesting_is_refused() -> None:
    head = b'{"__metadata__":' + b"[" * 100_000
    assert refused(len(head).to_bytes(8, "little") + head)


def calibration() -> Calibration:
    points = (Point(6, 0.01, 27.0, 25.5, 30.0, 60_000_000, 350_000_000), Point(5, 0.01, 20, 20, 20))
    return Calibration(MachineKey("processor", 2, "concrete-python", "2.11.0"), points)


@pytest.mark.parametrize(
    "change",
    [
        {"bits": 0},
        {"bits": 99},
        {"bits": 6.5},
        {"bits": True},
        {"p_error": 0},
        {"p_error": 1},
        {"ms": -1.0},
        {"ms": 1e300},
        {"ms": "27"},
        {"ms_low": 28.0},
        {"keys_bytes": -1},
        {"keys_bytes": 2**52},
        {"other": 1},
        {"bits": 6},
    ],
    ids=str,
)
def test_altered_calibrations_are_refused(change: dict[str, Any]) -> None:
    text = json.loads(calibration().to_json())
    text["points"][0].update(change)
    with pytest.raises(Corrupt):
        Calibration.from_json(json.dumps(text).encode())


def test_broken_calibrations_are_refused() -> None:
    data = calibration().to_json()
    for cut in range(len(data)):
        with pytest.raises(Corrupt):
            Calibration.from_json(data[:cut])
    for text in (b"[]", b"null", b"[" * 100_000, data.replace(b'"format":1', b'"format":2')):
        with pytest.raises(Corrupt):
            Calibration.from_json(text)
    for cores in (-1, 0, 2**60):
        with pytest.raises(Corrupt):
            Calibration.from_json(data.replace(b'"cores":2', b'"cores":%d' % cores))
    for place in range(len(data)):
        with contextlib.suppress(Corrupt):
            Calibration.from_json(data[:place] + bytes([data[place] ^ 128]) + data[place + 1 :])
    assert Calibration.from_json(data) == calibration()
    assert msgspec.json.decode(data)["points"][0]["bits"] == 5
