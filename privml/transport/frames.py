"""One flight over a channel: send a frame and receive a frame at the same time, in one thread.

The transcript is hashed in pieces whenever the link would make the thread wait, so that on a
slow link it costs nothing and on a fast one it is bounded by the speed of SHA-256.
"""

from __future__ import annotations

import time

import numpy as np

from privml._typing import Buffer
from privml.errors import PeerAborted
from privml.transcript import Transcript
from privml.transport.channel import Channel, Deadline
from privml.wire import HEADER_BYTES, Expected, FrameType, Header, decode_header

_ALIGN = 64
_JOIN_BYTES = 1 << 16  # below this, header and payload leave in one piece
_HASH_BYTES = 1 << 17
_WAIT_S = 1.0


def as_bytes(data: Buffer) -> memoryview:
    """Return a flat byte view of `data`, any C-contiguous buffer, without a copy."""
    view = memoryview(data) if isinstance(data, bytes | bytearray | memoryview) else data.data
    return view.cast("B") if view.nbytes else memoryview(b"")


def frame_buffer(payload_bytes: int) -> memoryview:
    """Return an uninitialised frame of 32 + `payload_bytes`, its payload 64-byte aligned."""
    raw = np.empty(_ALIGN + HEADER_BYTES + payload_bytes, np.uint8)
    start = -(raw.ctypes.data + HEADER_BYTES) % _ALIGN
    return raw.data[start : start + HEADER_BYTES + payload_bytes]


class _Hashed:
    """The part of a frame that the transcript has not seen yet."""

    __slots__ = ("_done", "_sender", "_transcript")

    def __init__(self, transcript: Transcript, sender: int) -> None:
        self._transcript = transcript
        self._sender = sender
        self._done = 0

    def step(self, frame: memoryview, limit: int) -> bool:
        """Hash at most one piece of ``frame[:limit]``; return whether there was any."""
        end = min(limit, self._done + _HASH_BYTES)
        if end <= self._done:
            return False
        self._transcript.update(self._sender, frame[self._done : end])
        self._done = end
        return True


class FrameWriter:
    """An outgoing frame and how much of it has left."""

    __slots__ = ("_hashed", "_parts", "_payload", "_started", "pending", "wire_bytes")

    def __init__(self, header: Header, payload: memoryview, *, transcript: Transcript) -> None:
        head = header.encode()
        self.wire_bytes = HEADER_BYTES + payload.nbytes
        self._hashed = _Hashed(transcript, header.sender)
        transcript.update(header.sender, head)
        self._payload = payload
        self._started = False
        if payload.nbytes <= _JOIN_BYTES:
            self.pending, self._parts = memoryview(head + payload), memoryview(b"")
        else:
            self.pending, self._parts = memoryview(head), payload

    @property
    def cut(self) -> bool:
        """True if a part of the frame has left and a part has not."""
        return self._started and self.pending.nbytes > 0

    def push(self, channel: Channel) -> bool:
        """Hand bytes to `channel`; return whether it took any or has more to push itself."""
        if not self.pending.nbytes:
            return False
        count = channel.try_send(self.pending)
        self._started = self._started or count > 0
        self.pending = self.pending[count:]
        if not self.pending.nbytes:
            self.pending, self._parts = self._parts, memoryview(b"")
        return count > 0

    def hash_piece(self) -> bool:
        """Feed one piece of the payload to the transcript; False when nothing is left."""
        return self._hashed.step(self._payload, self._payload.nbytes)


class FrameReader:
    """An incoming frame; its header is checked before a byte of payload is accepted."""

    __slots__ = ("_expected", "_frame", "_got", "_hashed", "_header")

    def __init__(self, expected: Expected, *, transcript: Transcript) -> None:
        exact = expected.min_length == expected.max_length
        self._expected = expected
        self._frame = frame_buffer(expected.max_length if exact else 0)
        self._hashed = _Hashed(transcript, expected.sender)
        self._got = 0
        self._header: Header | None = None

    @property
    def complete(self) -> bool:
        """True once header and payload are in."""
        return self._header is not None and self._got == self._frame.nbytes

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
        if count and self._header is None and self._got >= HEADER_BYTES:
            self._open(decode_header(self._frame[:HEADER_BYTES]))
        return count > 0

    def _open(self, header: Header) -> None:
        if header.kind is FrameType.ABORT:
            raise PeerAborted("the peer aborted the session; its own message says why")
        if header.kind is FrameType.CLOSE:
            raise PeerAborted("the peer closed the session while a message was still due")
        self._expected.check(header)
        if header.length != self._frame.nbytes - HEADER_BYTES:
            grown = frame_buffer(header.length)
            grown[:HEADER_BYTES] = self._frame[:HEADER_BYTES]
            self._frame = grown
        self._header = header

    def hash_piece(self) -> bool:
        """Feed one piece of what arrived to the transcript; False when nothing is left."""
        return self._header is not None and self._hashed.step(self._frame, self._got)


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
        moved = False
        if writer is not None:
            moved = writer.push(channel)
        flushed = channel.flush() if writer is not None else True
        if reader is not None and not reader.complete:
            moved = reader.pull(channel) or moved
        sending = writer is not None and (writer.pending.nbytes > 0 or not flushed)
        receiving = reader is not None and not reader.complete
        if not sending and not receiving:
            break
        deadline.check(doing)
        if not moved and not _hash_piece(writer, reader):
            start = time.perf_counter()
            timeout_s = min(_WAIT_S, deadline.remaining_s())
            channel.wait(read=receiving, write=sending, timeout_s=timeout_s)
            wait_s += time.perf_counter() - start
    while _hash_piece(writer, reader):
        pass
    return wait_s


def _hash_piece(writer: FrameWriter | None, reader: FrameReader | None) -> bool:
    if writer is not None and writer.hash_piece():
        return True
    return reader is not None and reader.hash_piece()
