"""Frame codec: golden bytes, round trips, and every field checked."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from privml.errors import MalformedMessage, ParameterError
from privml.wire import (
    HEADER_BYTES,
    MAX_LENGTH,
    MAX_ROUND,
    MAX_TAG,
    Expected,
    FrameType,
    Header,
    decode_header,
)

SESSION = bytes.fromhex("0011223344556677")
GOLDEN = Header(FrameType.DATA, 1, SESSION, 7, 0xDEADBEEF, 4096)
EMPTY = (FrameType.ABORT, FrameType.CLOSE)

headers = st.builds(
    Header,
    st.sampled_from([k for k in FrameType if k not in EMPTY]),
    st.sampled_from([0, 1]),
    st.binary(min_size=8, max_size=8),
    st.integers(0, MAX_ROUND),
    st.integers(0, MAX_TAG),
    st.integers(0, MAX_LENGTH),
)


def expecting(header: Header, **changes: object) -> Expected:
    expected = Expected(
        header.kind,
        header.sender,
        header.session,
        header.round,
        header.tag,
        header.length,
        header.length,
    )
    return msgspec.structs.replace(expected, **changes)


def test_golden_bytes_never_change() -> None:
    want = "50564d4c01010100001122334455667707000000efbeadde0010000000000000"
    assert GOLDEN.encode().hex() == want
    assert decode_header(bytes.fromhex(want)) == GOLDEN


@pytest.mark.parametrize("kind", FrameType)
def test_type_numbers_never_change(kind: FrameType) -> None:
    want = {"DATA": 1, "HANDSHAKE": 2, "CHECKPOINT": 3, "ABORT": 4, "CLOSE": 5, "BLOB": 6}
    assert kind == want[kind.name]


@given(headers)
def test_round_trip(header: Header) -> None:
    data = header.encode()
    assert len(data) == HEADER_BYTES == 32
    assert decode_header(data) == header
    assert decode_header(memoryview(bytearray(data))) == header
    expecting(header).check(header)


@given(headers, st.integers(0, 255))
def test_every_flipped_bit_is_noticed(header: Header, bit: int) -> None:
    data = bytearray(header.encode())
    data[bit // 8] ^= 1 << (bit % 8)
    with pytest.raises(MalformedMessage):
        expecting(header).check(decode_header(data))


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"session": bytes(8)}, "another session"),
        ({"sender": 0}, "reflects"),
        ({"round": 8}, "lost, repeated or reordered"),
        ({"kind": FrameType.BLOB}, "different programs"),
        ({"tag": 1}, "different programs"),
        ({"min_length": 0, "max_length": 4095}, "nothing was allocated"),
        ({"min_length": 4097, "max_length": 5000}, "nothing was allocated"),
    ],
)
def test_what_is_not_expected_is_named(change: dict[str, object], text: str) -> None:
    with pytest.raises(MalformedMessage, match=text):
        expecting(GOLDEN, **change).check(GOLDEN)


@pytest.mark.parametrize("size", [*range(HEADER_BYTES), HEADER_BYTES + 1])
def test_wrong_size(size: int) -> None:
    data = (GOLDEN.encode() + b"\0")[:size]
    with pytest.raises(MalformedMessage, match="32 bytes"):
        decode_header(data)


@pytest.mark.parametrize("kind", EMPTY)
def test_last_frames_carry_nothing(kind: FrameType) -> None:
    header = Header(kind, 0, SESSION, 0, 0, 1)
    with pytest.raises(MalformedMessage, match="no payload"):
        decode_header(header.encode())
    assert decode_header(Header(kind, 0, SESSION, 0, 0, 0).encode()).kind is kind


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("sender", 2),
        ("session", b"short"),
        ("round", -1),
        ("round", MAX_ROUND + 1),
        ("tag", MAX_TAG + 1),
        ("length", -1),
        ("length", MAX_LENGTH + 1),
    ],
)
def test_encode_refuses_fields_out_of_range(field: str, value: object) -> None:
    bad = msgspec.structs.replace(GOLDEN, **{field: value})
    with pytest.raises(ParameterError, match=field):
        bad.encode()


def test_encode_names_all_bad_fields_at_once() -> None:
    bad = msgspec.structs.replace(GOLDEN, sender=3, tag=-1)
    with pytest.raises(ParameterError, match="sender, tag"):
        bad.encode()
