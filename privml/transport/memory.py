"""In-process channel pair for two threads of one process.

Bytes are copied once in and once out, under one lock per pair. The buffer each way is bounded,
as a socket's is, so a program that would deadlock on a network deadlocks here as well.
"""

from __future__ import annotations

import threading

from privml.errors import ParameterError, PeerAborted
from privml.transport.channel import Channel, Counters

_CAPACITY_BYTES = 1 << 20


class _Ring:
    """Byte queue of fixed capacity; guarded by the lock of its pair."""

    __slots__ = ("_data", "_start", "closed", "size")

    def __init__(self, capacity: int) -> None:
        self._data = memoryview(bytearray(capacity))
        self._start = 0
        self.size = 0
        self.closed = False

    @property
    def space(self) -> int:
        return len(self._data) - self.size

    def push(self, source: memoryview) -> int:
        capacity = len(self._data)
        count = min(len(source), self.space)
        at = (self._start + self.size) % capacity
        head = min(count, capacity - at)
        self._data[at : at + head] = source[:head]
        self._data[: count - head] = source[head:count]
        self.size += count
        return count

    def pop(self, target: memoryview) -> int:
        capacity = len(self._data)
        count = min(len(target), self.size)
        head = min(count, capacity - self._start)
        target[:head] = self._data[self._start : self._start + head]
        target[head:count] = self._data[: count - head]
        self._start = (self._start + count) % capacity
        self.size -= count
        return count


class MemoryChannel(Channel):
    """One end of a pair made by :func:`pair`."""

    def __init__(
        self, inbox: _Ring, outbox: _Ring, *, changed: threading.Condition, step: int | None
    ) -> None:
        self._inbox = inbox
        self._outbox = outbox
        self._changed = changed
        self._step = step
        self._sent = 0
        self._received = 0

    @property
    def counters(self) -> Counters:
        """Bytes copied so far, each way."""
        return Counters(self._sent, self._received)

    def try_send(self, data: memoryview) -> int:
        """Copy what fits; see :meth:`Channel.try_send`."""
        with self._changed:
            if self._outbox.closed or self._inbox.closed:
                raise PeerAborted("the other end of the in-process channel is closed")
            count = self._outbox.push(data[: self._step])
            if count:
                self._changed.notify_all()
        self._sent += count
        return count

    def try_recv_into(self, out: memoryview) -> int:
        """Copy what is there; see :meth:`Channel.try_recv_into`."""
        with self._changed:
            count = self._inbox.pop(out[: self._step])
            if count:
                self._changed.notify_all()
            elif self._inbox.closed:
                raise PeerAborted("the other end of the in-process channel is closed")
        self._received += count
        return count

    def wait(self, *, read: bool, write: bool, timeout_s: float) -> None:
        """Sleep until the other thread moved bytes; see :meth:`Channel.wait`."""

        def ready() -> bool:
            ends = self._inbox.closed or self._outbox.closed
            return ends or bool((read and self._inbox.size) or (write and self._outbox.space))

        with self._changed:
            self._changed.wait_for(ready, timeout_s)

    def close(self) -> None:
        """Close both directions; bytes already sent can still be read by the peer."""
        with self._changed:
            self._outbox.closed = True
            self._inbox.closed = True
            self._changed.notify_all()


def pair(
    *, capacity_bytes: int = _CAPACITY_BYTES, one_byte: bool = False
) -> tuple[MemoryChannel, MemoryChannel]:
    """Return two connected channels for two threads of this process.

    Parameters
    ----------
    capacity_bytes
        Bytes buffered each way before a sender has to wait, at least 1.
    one_byte
        Move one byte per step, to exercise every boundary of a decoder.

    Raises
    ------
    ParameterError
        `capacity_bytes` is below 1.
    """
    if capacity_bytes < 1:
        raise ParameterError(f"capacity_bytes must be at least 1, got {capacity_bytes}")
    changed = threading.Condition()
    one, two = _Ring(capacity_bytes), _Ring(capacity_bytes)
    step = 1 if one_byte else None
    return (
        MemoryChannel(one, two, changed=changed, step=step),
        MemoryChannel(two, one, changed=changed, step=step),
    )
