"""In-process channel pair: bounded, ordered, and honest about the end of the stream."""

from __future__ import annotations

import pytest

from privml.errors import ParameterError, PeerAborted
from privml.transport import memory


def test_capacity_must_be_positive() -> None:
    with pytest.raises(ParameterError):
        memory.pair(capacity_bytes=0)


def test_what_was_sent_before_closing_arrives() -> None:
    a, b = memory.pair()
    a.try_send(memoryview(b"last words"))
    a.close()
    out = bytearray(20)
    assert b.try_recv_into(memoryview(out)) == 10
    with pytest.raises(PeerAborted):
        b.try_recv_into(memoryview(out))
    with pytest.raises(PeerAborted):
        b.try_send(memoryview(b"x"))


def test_ring_wraps() -> None:
    a, b = memory.pair(capacity_bytes=7)
    sent, got = bytes(range(100)), b""
    left = memoryview(sent)
    for _ in range(200):
        if left.nbytes:
            left = left[a.try_send(left[:5]) :]
        piece = bytearray(3)
        got += bytes(piece[: b.try_recv_into(memoryview(piece))])
    assert got == sent
