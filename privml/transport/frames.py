"""One flight over a channel: send a frame and receive a frame at the same time, in one thread.

The transcript is fed piece by piece as bytes leave and arrive, while they are in the cache.
"""

from __future__ import annotations

import time

import numpy as np

from privml._native import address
from privml._typing import Buffer
from privml.errors import PeerAborted
from privml.transcript import PayloadHash, Transcript
from privml.transport.channel import Channel, Deadline
from privml.wire import HEADER_BYTES, Expected, FrameType, Header, decode_header

_ALIGN = 64
_JOIN_BYTES = 1 << 16  # below this, header and payload leave in one piece
_WAIT_S = 1.0


def as_bytes(data: Buffer) -> memoryview:
    """Return a flat byte view of `data`, any C-contiguous buffer, without a copy."""
    view = memoryview(data) if isinstance(data, bytes | bytearray | memoryview) else data.data
    return view.cast("B") if view.nbytes else memoryview(b"")


def frame_buffer(payload_bytes: int) -> memoryview:
    """Return an uninitialised frame of 32 + `payload_bytes`, its payload 64-byte aligned."""
    raw = np.empty(_ALIGN + HEADER_BYTES + payload_bytes, np.uint8)
    start = -(address(raw) + HEADER_BYTES) % _ALIGN
    return raw.data[start : start + HEADER_BYTES + payload_bytes]


class FrameWriter:
    """An outgoing frame and how much of it has left."""

    __slots__ = ("_hash", "_left", "_rest", "_started", "pending", "wire_bytes")

    def __init__(self, header: Header, payload: memoryview, *, transcript: Transcript) -> None:
        head = header.encode()
        transcript.update(header.sender, head)
        self._hash = PayloadHash(transcript, header.sender, payload=payload)
        self.wire_bytes = HEADER_BYTES + payload.nbytes
        self._left = self.wire_bytes
        self._started = False
        if payload.nbytes <= _JOIN_BYTES:
            self.pending, self._rest = memoryview(head + payload), memoryview(b"")
        else:
            self.pending, self._rest = memoryview(head), payload

    @property
    def cut(self) -> bool:
        """True if a part of the frame has left and a part has not."""
        return self._started and self._left > 0

    def push(self, channel: Channel) -> bool:
        """Hand bytes to `channel`; return whether it took any."""
        if not self._left:
            return False
        count = channel.try_send(self.pending)
        self.pending = self.pending[count:]
        self._left -= count
        if not self.pending.nbytes:
            self.pending, self._rest = self._rest, memoryview(b"")
        if count:
            self._started = True
            self._hash.advance(self.wire_bytes - HEADER_BYTES - self._left)
        return count > 0


class FrameReader:
    """An incoming frame; its header is checked before a byte of payload is used."""

    __slots__ = ("_expected", "_frame", "_got", "_hash", "_transcript")

    def __init__(self, expected: Expected, *, transcript: Transcript) -> None:
        exact = expected.min_length == expected.max_length
        self._expected = expected
        self._transcript = transcript
        self._frame = frame_buffer(expected.max_length if exact else 0)
        self._hash: PayloadHash | None = None
        self._got = 0

    @property
    def complete(self) -> bool:
        """True once header and payload are in."""
        return self._hash is not None and self._got == self._frame.nbytes

    @property
    def payload(self) -> memoryview:
        """Payload, writable, 64-byte aligned; to be used only when complete."""
        return self._frame[HEADER_BYTES:]

    @property
    def wire_bytes(self) -> int:
        """Frame size in bytes."""
        return self._frame.nbytes

    def pull(self, channel: Channel) -> bool:
        """Take bytes from `channel`; return whether there were any.

        Raises
        ------
        MalformedMessage
            The header is not the expected one.
        PeerAborted
            The peer ended the session or the link.
        """
        count = channel.try_recv_into(self._frame[self._got :])
        self._got += count
        if self._hash is None and self._got >= HEADER_BYTES:
            self._open(decode_header(self._frame[:HEADER_BYTES]))
        if self._hash is not None and count:
            self._hash.advance(self._got - HEADER_BYTES)
        return count > 0

    def _open(self, header: Header) -> None:
        if header.kind is FrameType.ABORT:
            raise PeerAborted("the peer aborted the session; its own message says why")
        if header.kind is FrameType.CLOSE:
            raise PeerAborted("the peer closed the session while a message was still due")
        self._expected.check(header)
        head = bytes(self._frame[:HEADER_BYTES])
        if header.length != self._frame.nbytes - HEADER_BYTES:
            self._frame = frame_buffer(header.length)
            self._frame[:HEADER_BYTES] = head
        self._transcript.update(header.sender, head)
        self._hash = PayloadHash(self._transcript, header.sender, payload=self.payload)


def run_flight(
    channel: Channel,
    writer: FrameWriter | None,
    *,
    reader: FrameReader | None,
    deadline: Deadline,
    doing: str,
) -> float:
    """Send and receive until both frames are through.

    Parameters
    ----------
    channel
        The link.
    writer, reader
        Outgoing and incoming frame; None if there is none in that direction.
    deadline
        When to give up.
    doing
        What is going on, for the error text; no secrets.

    Returns
    -------
    float
        Seconds spent idle.

    Raises
    ------
    DeadlineExceeded, PeerAborted, MalformedMessage
        The run is over; the channel may be in the middle of a frame.
    """
    wait_s = 0.0
    while True:
        moved = writer is not None and writer.push(channel)
        sending = writer is not None and (writer.pending.nbytes > 0 or not channel.flush())
        receiving = reader is not None and not reader.complete
        if reader is not None and receiving:
            moved = reader.pull(channel) or moved
            receiving = not reader.complete
        if not sending and not receiving:
            return wait_s
        deadline.check(doing)
        if not moved:
            start = time.perf_counter()
            timeout_s = min(_WAIT_S, deadline.remaining_s())
            channel.wait(read=receiving, write=sending, timeout_s=timeout_s)
            wait_s += time.perf_counter() - start
