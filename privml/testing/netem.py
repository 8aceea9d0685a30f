"""Emulated links: one-way delay and a bandwidth limit over any channel, between real processes.

Each piece of the stream carries the time at which its last byte would come out of the emulated
link; the receiver holds it back until then. Both ends must be wrapped and must share one
monotonic clock, that is, run on one machine. No thread is needed, the transit time of the real
link is absorbed by the delay, and a sender that is ahead of the link is held back by the real
link's buffers, which should hold a round trip's worth of bytes.
"""

from __future__ import annotations

import struct
import time
from dataclasses import dataclass

from privml.errors import MalformedMessage, ParameterError
from privml.transport.channel import Channel, Counters

_STAMP = struct.Struct("<dI")
_PIECE_BYTES = 1 << 16
_SLEEP_SLACK_S = 80e-6


@dataclass(frozen=True, slots=True)
class Link:
    """A symmetric full-duplex link.

    Attributes
    ----------
    name
        For tables.
    bits_per_s
        Bandwidth of each direction.
    rtt_s
        Round-trip time in seconds.
    """

    name: str
    bits_per_s: float
    rtt_s: float

    def __post_init__(self) -> None:
        if not (self.bits_per_s > 0 and self.rtt_s >= 0):
            raise ParameterError("a link needs bits_per_s > 0 and rtt_s >= 0")

    def transfer_s(self, nbytes: int) -> float:
        """Return the seconds that `nbytes` occupy one direction."""
        return nbytes * 8 / self.bits_per_s


LAN = Link("LAN", 3e9, 0.8e-3)
WAN = Link("WAN", 200e6, 40e-3)


def modelled_seconds(compute_s: float, flights: int, *, nbytes: int, link: Link) -> float:
    """Return compute + flights x RTT / 2 + bytes / bandwidth.

    Parameters
    ----------
    compute_s
        Seconds of local work on the critical path.
    flights
        Flights one after another.
    nbytes
        Bytes that pass one after another: of exchanges the larger direction, of one-way messages
        the sum.
    link
        The link.
    """
    return compute_s + flights * link.rtt_s / 2 + link.transfer_s(nbytes)


class EmulatedChannel(Channel):
    """One end of an emulated link over `inner`; the peer wraps its end with the same `link`."""

    def __init__(self, inner: Channel, link: Link) -> None:
        self.secure = inner.secure
        self.local_fingerprint = inner.local_fingerprint
        self.peer_fingerprint = inner.peer_fingerprint
        self._inner = inner
        self._link = link
        self._free_s = 0.0
        self._queue = memoryview(b"")
        self._stamp = memoryview(bytearray(_STAMP.size))
        self._stamp_got = 0
        self._release_s = 0.0
        self._left = 0
        self._starved = False

    @property
    def counters(self) -> Counters:
        """Counters of the wrapped channel, time stamps included."""
        return self._inner.counters

    def try_send(self, data: memoryview) -> int:
        """Stamp and hand over one piece; see :meth:`Channel.try_send`."""
        if not self.flush():
            return 0
        piece = data[:_PIECE_BYTES]
        start = max(time.monotonic(), self._free_s)
        self._free_s = start + self._link.transfer_s(piece.nbytes)
        arrival_s = self._free_s + self._link.rtt_s / 2
        self._queue = memoryview(_STAMP.pack(arrival_s, piece.nbytes) + piece)
        self.flush()
        return piece.nbytes

    def try_recv_into(self, out: memoryview) -> int:
        """Deliver bytes whose time has come; see :meth:`Channel.try_recv_into`."""
        if not self._left and not self._read_stamp():
            return 0
        self._starved = False
        if time.monotonic() < self._release_s:
            return 0
        count = self._inner.try_recv_into(out[: self._left])
        self._starved = count == 0
        self._left -= count
        return count

    def flush(self) -> bool:
        """Push stamped bytes to the wrapped channel."""
        while self._queue.nbytes:
            count = self._inner.try_send(self._queue)
            if not count:
                return False
            self._queue = self._queue[count:]
        return self._inner.flush()

    def wait(self, *, read: bool, write: bool, timeout_s: float) -> None:
        """Wait for the wrapped channel or for the release of what is held back."""
        # Bytes that were held back may sit in the wrapped channel's own buffers, where waiting for
        # its socket would not see them: once their time has come the caller must look again.
        holding = read and self._left > 0 and not self._starved
        held_s = self._release_s - time.monotonic()
        if not holding:
            self._inner.wait(read=read, write=write, timeout_s=timeout_s)
        elif held_s <= 0.0:
            return
        elif write:
            self._inner.wait(read=False, write=True, timeout_s=min(held_s, timeout_s))
        elif held_s > _SLEEP_SLACK_S:
            time.sleep(min(held_s - _SLEEP_SLACK_S, timeout_s))

    def close(self) -> None:
        """Close the wrapped channel."""
        self._inner.close()

    def _read_stamp(self) -> bool:
        """Read the stamp of the next piece as far as it has arrived; True once it is whole."""
        self._stamp_got += self._inner.try_recv_into(self._stamp[self._stamp_got :])
        if self._stamp_got < _STAMP.size:
            return False
        self._release_s, self._left = _STAMP.unpack(self._stamp)
        self._stamp_got = 0
        if not 0 < self._left <= _PIECE_BYTES:
            raise MalformedMessage("the peer does not emulate a link; wrap both ends or none")
        return True
