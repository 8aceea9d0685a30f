"""A channel that misbehaves on purpose: an active attacker or a broken link, for tests.

It wraps any channel, cuts the outgoing stream back into frames, and harms one of them.
"""

from __future__ import annotations

import enum

from privml.transport.channel import Channel, Counters
from privml.wire import HEADER_BYTES, decode_header

_LENGTH_AT = 24


class Fault(enum.Enum):
    """What happens to the chosen frame."""

    DROP = "drop"
    DUPLICATE = "duplicate"
    REORDER = "reorder"
    FLIP = "flip"
    TRUNCATE = "truncate"
    REPLAY = "replay"
    OVERSIZE = "oversize"
    STALL = "stall"
    CUT = "cut"


class FaultyChannel(Channel):
    """Harm one outgoing frame of `inner`.

    Parameters
    ----------
    inner
        Channel to wrap.
    fault
        What to do.
    at
        Number of the outgoing frame, from 0; the handshake takes two.
    bit
        For ``FLIP``: which bit, counted from the end of the frame and wrapping round.
    """

    def __init__(self, inner: Channel, fault: Fault, *, at: int, bit: int = 5) -> None:
        self.secure = inner.secure
        self.local_fingerprint = inner.local_fingerprint
        self.peer_fingerprint = inner.peer_fingerprint
        self._inner = inner
        self._fault = fault
        self._at = at
        self._bit = bit
        self._count = 0
        self._partial = bytearray()
        self._queue = bytearray()
        self._last = b""
        self._held = b""
        self._dead = False

    @property
    def counters(self) -> Counters:
        """Counters of the wrapped channel."""
        return self._inner.counters

    def try_send(self, data: memoryview) -> int:
        """Collect whole frames, harm the chosen one, queue the result."""
        self._partial += data
        while (size := self._frame_size()) is not None:
            frame = bytes(self._partial[:size])
            del self._partial[:size]
            self._emit(frame)
        self.flush()
        return data.nbytes

    def try_recv_into(self, out: memoryview) -> int:
        """Read from the wrapped channel."""
        return self._inner.try_recv_into(out)

    def flush(self) -> bool:
        """Push what is queued."""
        while self._queue:
            with memoryview(bytes(self._queue[: 1 << 20])) as piece:
                count = self._inner.try_send(piece)
            if not count:
                return False
            del self._queue[:count]
        return self._inner.flush()

    def wait(self, *, read: bool, write: bool, timeout_s: float) -> None:
        """Wait on the wrapped channel."""
        self._inner.wait(read=read, write=write, timeout_s=timeout_s)

    def close(self) -> None:
        """Close the wrapped channel."""
        self._inner.close()

    def _frame_size(self) -> int | None:
        if len(self._partial) < HEADER_BYTES:
            return None
        size = HEADER_BYTES + decode_header(bytes(self._partial[:HEADER_BYTES])).length
        return size if len(self._partial) >= size else None

    def _emit(self, frame: bytes) -> None:
        hit = self._count == self._at
        self._count += 1
        pieces = self._harm(frame) if hit else [frame, self._held]
        if not hit:
            self._held = b""
        if not self._dead:
            for piece in pieces:
                self._queue += piece
        self._last = frame

    def _harm(self, frame: bytes) -> list[bytes]:
        match self._fault:
            case Fault.DROP:
                return []
            case Fault.DUPLICATE:
                return [frame, frame]
            case Fault.REORDER:
                self._held = frame
                return []
            case Fault.FLIP:
                return [flip_bit(frame, self._bit)]
            case Fault.TRUNCATE:
                return [frame[: max(1, len(frame) // 2)]]
            case Fault.REPLAY:
                return [self._last]
            case Fault.OVERSIZE:
                return [_oversize(frame)]
            case Fault.STALL:
                self._dead = True
                return []
            case Fault.CUT:
                self._dead = True
                self._inner.close()
                return []


def flip_bit(frame: bytes, bit: int) -> bytes:
    """Return `frame` with one bit inverted, counted from its end and wrapping round."""
    changed = bytearray(frame)
    at = bit % (8 * len(changed))
    changed[-1 - at // 8] ^= 1 << (at % 8)
    return bytes(changed)


def _oversize(frame: bytes) -> bytes:
    """Return `frame` with 64 bytes more than the receiver expects, and a header that says so."""
    length = int.from_bytes(frame[_LENGTH_AT:HEADER_BYTES], "little") + 64
    head = frame[:_LENGTH_AT] + length.to_bytes(8, "little")
    return head + frame[HEADER_BYTES:] + bytes(64)
