"""Running SHA-256 over every frame of a session, in both directions.

Each direction has its own running hash, because a full-duplex exchange has no common order of
bytes; headers carry the sender and the round, so the pair of hashes fixes the whole sequence.
The digest combines them with the frames sent by rank 0 first, hence is equal at both parties
exactly if both saw the same frames.
"""

from __future__ import annotations

import hashlib
import hmac

from privml._typing import Bytes, Digest

_LABEL = b"privml transcript v1"


class Transcript:
    """Hash of all frames so far; one object per party and session."""

    __slots__ = ("_hashes",)

    def __init__(self) -> None:
        self._hashes = (
            hashlib.sha256(_LABEL + b" 0 to 1"),
            hashlib.sha256(_LABEL + b" 1 to 0"),
        )

    def update(self, sender: int, data: Bytes) -> None:
        """Append `data`, a piece of a frame sent by rank `sender` (0 or 1)."""
        self._hashes[sender].update(data)

    def digest(self) -> Digest:
        """Return 32 bytes over everything appended so far; the transcript can go on."""
        both = b"".join(h.digest() for h in self._hashes)
        return Digest(hashlib.sha256(_LABEL + both).digest())

    def matches(self, other: Bytes) -> bool:
        """Compare with the peer's digest in constant time."""
        return hmac.compare_digest(self.digest(), bytes(memoryview(other)))
