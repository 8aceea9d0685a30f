"""Hostile bytes: every decoder raises only MalformedMessage, in bounded time and memory."""

from __future__ import annotations

import contextlib
import time
import tracemalloc

import numpy as np
import pytest

from privml import handshake
from privml.errors import MalformedMessage, PeerAborted
from privml.transcript import Transcript
from privml.transport import memory
from privml.transport.channel import Deadline
from privml.transport.frames import FrameReader, run_flight
from privml.wire import HEADER_BYTES, NO_SESSION, Expected, FrameType, Header, decode_header

CAP = 4096
LENGTHS = [0, 1, CAP - 1, CAP, CAP + 1, 2**31 - 1, 2**32 - 1, 2**48, 2**48 + 1, 2**63 - 1]
MAX_S = 0.05
MAX_BYTES = 64 << 20


def blob_reader() -> FrameReader:
    expected = Expected(FrameType.BLOB, 0, NO_SESSION, 3, 9, 0, CAP)
    return FrameReader(expected, transcript=Transcript())


def data_reader(expect: int) -> FrameReader:
    expected = Expected(FrameType.DATA, 0, NO_SESSION, 3, 9, expect, expect)
    return FrameReader(expected, transcript=Transcript())


def feed(reader: FrameReader, data: bytes) -> None:
    """Let `reader` see `data` and then the end of the stream."""
    here, there = memory.pair(capacity_bytes=max(1, len(data)))
    if data:
        there.try_send(memoryview(data))
    there.close()
    run_flight(here, None, reader=reader, deadline=Deadline.after(5), doing="reading hostile data")


def frame(kind: FrameType, payload: bytes, **changes: int) -> bytes:
    header = Header(kind, 0, NO_SESSION, changes.get("round", 3), changes.get("tag", 9), 0)
    head = header.encode()[:24] + changes.get("length", len(payload)).to_bytes(8, "little")
    return head + payload


def hello(**changes: object) -> bytes:
    values = {"version": 1, "rank": 0, "insecure": False, "nonce": bytes(range(32))}
    values |= {"binding": {"program": bytes(32)}, "offer": {"tokens": 5}} | changes
    return handshake.encode_hello(handshake.Hello(**values))


SAMPLES = [frame(FrameType.BLOB, bytes(n)) for n in range(20)]
HELLOS = [hello(offer={f"n{i}": i - 10 for i in range(n)}) for n in range(20)]


def test_the_samples_are_valid() -> None:
    for sample in SAMPLES:
        reader = blob_reader()
        feed(reader, sample)
        assert bytes(reader.payload) == sample[HEADER_BYTES:]
    for sample in HELLOS:
        assert handshake.encode_hello(handshake.decode_hello(sample)) == sample


@pytest.mark.parametrize("sample", SAMPLES[::4], ids=len)
def test_every_prefix_of_a_frame(sample: bytes) -> None:
    for size in range(len(sample)):
        with pytest.raises(PeerAborted):
            feed(blob_reader(), sample[:size])


def test_every_prefix_of_a_header_and_of_a_hello() -> None:
    for sample in SAMPLES:
        for size in range(HEADER_BYTES):
            with pytest.raises(MalformedMessage):
                decode_header(sample[:size])
    for sample in HELLOS:
        for size in range(len(sample)):
            with pytest.raises(MalformedMessage):
                handshake.decode_hello(sample[:size])


@pytest.mark.parametrize("bit", range(8 * HEADER_BYTES))
def test_every_flipped_header_bit(bit: int) -> None:
    turned_into_abort = bit == 41  # type 6 becomes 4, well-formed when empty
    for sample in SAMPLES:
        changed = bytearray(sample)
        changed[bit // 8] ^= 1 << (bit % 8)
        size = len(sample) - HEADER_BYTES
        exact = Expected(FrameType.BLOB, 0, NO_SESSION, 3, 9, size, size)
        with pytest.raises(PeerAborted if turned_into_abort and not size else MalformedMessage):
            feed(FrameReader(exact, transcript=Transcript()), bytes(changed))


@pytest.mark.parametrize("kind", [FrameType.BLOB, FrameType.DATA])
@pytest.mark.parametrize("length", LENGTHS)
def test_length_fields(kind: FrameType, length: int) -> None:
    reader = blob_reader() if kind is FrameType.BLOB else data_reader(CAP)
    want = length <= CAP if kind is FrameType.BLOB else length == CAP
    data = frame(kind, bytes(min(length, CAP)), length=length)
    tracemalloc.start()
    start = time.perf_counter()
    if want:
        feed(reader, data)
        assert reader.payload.nbytes == length
    else:
        with pytest.raises(MalformedMessage):
            feed(reader, data)
    seconds = time.perf_counter() - start
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert seconds < MAX_S
    assert peak < MAX_BYTES


def test_random_bytes(rng: np.random.Generator) -> None:
    valid = SAMPLES[3][:HEADER_BYTES]
    for number in range(20_000):
        data = bytearray(rng.bytes(HEADER_BYTES))
        keep = number % 8 * 4  # from pure noise to a header with one random field
        data[:keep] = valid[:keep]
        try:
            header = decode_header(data)
        except MalformedMessage:
            continue
        with pytest.raises(MalformedMessage):
            data_reader(3)._expected.check(header)


def test_random_hellos(rng: np.random.Generator) -> None:
    for _ in range(20_000):
        data = bytearray(HELLOS[rng.integers(len(HELLOS))])
        for _ in range(rng.integers(1, 4)):
            data[rng.integers(len(data))] = rng.integers(256)
        with contextlib.suppress(MalformedMessage):
            handshake.decode_hello(data)
    for size in (0, 1, 7, 64, 300, handshake.MAX_HELLO_BYTES):
        for _ in range(300):
            with pytest.raises(MalformedMessage):
                handshake.decode_hello(rng.bytes(size))


@pytest.mark.parametrize(
    "data",
    [
        b"\x91" * 10_000,  # nested arrays
        b"\x81" * 10_000,  # nested maps
        b"\xdd\xff\xff\xff\xff",  # array of 2^32 - 1 elements
        b"\xc6\xff\xff\xff\xff",  # 4 GiB of bytes
        b"\xdf\xff\xff\xff\xff" + b"\xa1a" * 100,
        bytes(handshake.MAX_HELLO_BYTES + 1),
    ],
    ids=["arrays", "maps", "array32", "bin32", "map32", "too long"],
)
def test_bombs(data: bytes) -> None:
    tracemalloc.start()
    start = time.perf_counter()
    with pytest.raises(MalformedMessage):
        handshake.decode_hello(data)
    assert time.perf_counter() - start < MAX_S
    assert tracemalloc.get_traced_memory()[1] < MAX_BYTES
    tracemalloc.stop()


@pytest.mark.parametrize(
    "changes",
    [
        {"rank": 2},
        {"version": -1},
        {"nonce": bytes(31)},
        {"nonce": bytes(33)},
        {"insecure": 1},
        {"binding": {"a": bytes(31)}},
        {"binding": {"": bytes(32)}},
        {"binding": {"UPPER": bytes(32)}},
        {"binding": {"a" * 65: bytes(32)}},
        {"binding": {f"n{i}": bytes(32) for i in range(65)}},
        {"offer": {"n": 2**63}},
        {"offer": {"n": 1.0}},
        {"offer": {"n": "5"}},
        {"offer": {"n\n": 5}},
        {"offer": {f"n{i}": i for i in range(65)}},
    ],
    ids=lambda c: "-".join(c),
)
def test_hello_values_out_of_range(changes: dict[str, object]) -> None:
    with pytest.raises(MalformedMessage):
        handshake.decode_hello(hello(**changes))
