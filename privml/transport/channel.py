"""Channel: a duplex byte stream with non-blocking steps, and deadlines.

A channel moves bytes and knows nothing of frames. Its steps never block; the one call that
waits is :meth:`Channel.wait`, so a single thread can send and receive at the same time.
"""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from dataclasses import dataclass

from privml._typing import Fingerprint
from privml.errors import DeadlineExceeded, ParameterError


@dataclass(frozen=True, slots=True)
class Deadline:
    """A point in time after which waiting for the peer is given up.

    Attributes
    ----------
    at_s
        Seconds on the clock of :func:`time.monotonic`.
    """

    at_s: float

    @classmethod
    def after(cls, seconds: float) -> Deadline:
        """Return the deadline `seconds` (> 0, finite) from now.

        Raises
        ------
        ParameterError
            `seconds` is not a positive finite number.
        """
        if not 0.0 < seconds < float("inf"):
            raise ParameterError(f"a deadline must be a positive number of seconds, got {seconds}")
        return cls(time.monotonic() + seconds)

    def remaining_s(self) -> float:
        """Return the seconds left, 0.0 when expired."""
        return max(0.0, self.at_s - time.monotonic())

    def check(self, doing: str) -> None:
        """Raise :class:`DeadlineExceeded` naming `doing` if no time is left."""
        if time.monotonic() >= self.at_s:
            raise DeadlineExceeded(
                f"no answer in time while {doing}; check that the peer still runs and that "
                "the link is up, or allow a longer deadline"
            )


@dataclass(frozen=True, slots=True)
class Counters:
    """Bytes that a channel put on and took from its link, headers of lower layers included.

    Attributes
    ----------
    sent, received
        Bytes since the channel was made.
    """

    sent: int = 0
    received: int = 0


class Channel(ABC):
    """Duplex byte stream to one peer.

    Attributes
    ----------
    secure
        True if the peer is authenticated and the bytes are encrypted.
    local_fingerprint, peer_fingerprint
        SHA-256 of the TLS certificates of this side and of the peer, or None.
    """

    secure: bool = False
    local_fingerprint: Fingerprint | None = None
    peer_fingerprint: Fingerprint | None = None

    @property
    @abstractmethod
    def counters(self) -> Counters:
        """Bytes on the link so far, each way."""

    @abstractmethod
    def try_send(self, data: memoryview) -> int:
        """Take bytes from the front of `data` without blocking.

        Parameters
        ----------
        data
            Non-empty view of bytes. The bytes that were taken may be reused at once.

        Returns
        -------
        int
            How many bytes were taken; 0 if the link accepts none now.

        Raises
        ------
        PeerAborted
            The peer closed the stream.
        """

    @abstractmethod
    def try_recv_into(self, out: memoryview) -> int:
        """Fill the front of `out` without blocking.

        Parameters
        ----------
        out
            Non-empty writable view of bytes.

        Returns
        -------
        int
            How many bytes were written; 0 if none have arrived.

        Raises
        ------
        PeerAborted
            The peer closed the stream.
        """

    def flush(self) -> bool:
        """Push bytes already taken; return True once the link has them all."""
        return True

    @abstractmethod
    def wait(self, *, read: bool, write: bool, timeout_s: float) -> None:
        """Return when a wanted step may make progress, or after `timeout_s` seconds.

        Returning early is allowed; callers loop. Unflushed bytes count as a wanted write.
        """

    @abstractmethod
    def close(self) -> None:
        """Close the stream; harmless when repeated."""
