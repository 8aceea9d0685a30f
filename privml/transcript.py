"""Running hash over every frame of a session, in both directions.

Each direction has its own running SHA-256, because a full-duplex exchange has no common order of
bytes; headers carry the sender and the round, so the pair of hashes fixes the whole sequence.
The digest combines them with the frames sent by rank 0 first, hence is equal at both parties
exactly if both saw the same frames.

Headers, payloads up to 1 KiB and all that precedes the session's key enter SHA-256 as they are. A
larger payload is cut into pieces of 128 KiB, and of each piece its AES-128-GMAC under that key
enters instead, which takes a tenth of the time. What that proves: whoever alters pieces on the link
without knowing the key, which is derived from nonces that travel inside TLS, is noticed except with
probability 2^-113 for each piece. The parties know the key; as with any hash they could compare,
the digest is no evidence of one against the other.
"""

from __future__ import annotations

import hashlib
import hmac

from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from privml._typing import Bytes, Digest
from privml.errors import unreachable

SMALL_BYTES = 1 << 10  # hashing costs about as much as a tag; a protocol constant
PIECE_BYTES = 1 << 17
KEY_BYTES = 16
_LABEL = b"privml transcript v1"


class Transcript:
    """Hash of all frames so far; one object per party and session."""

    def __init__(self) -> None:
        self._hashes = (
            hashlib.sha256(_LABEL + b" 0 to 1"),
            hashlib.sha256(_LABEL + b" 1 to 0"),
        )
        self._mac: AESGCM | None = None
        self._pieces = [0, 0]

    def set_key(self, key: bytes) -> None:
        """Start to use the session's 16-byte key, between two payloads."""
        self._mac = AESGCM(key)

    def forget_key(self) -> None:
        """Drop the key; the digest can still be read."""
        self._mac = None

    @property
    def keyed(self) -> bool:
        """Whether large payloads enter as tags."""
        return self._mac is not None

    def update(self, sender: int, data: Bytes) -> None:
        """Append `data`, a header or small payload sent by rank `sender` (0 or 1)."""
        self._hashes[sender].update(data)

    def update_piece(self, sender: int, piece: Bytes) -> None:
        """Append the next piece of a large payload sent by rank `sender`."""
        if self._mac is None:
            unreachable("a tag without the session's key")
        self._pieces[sender] += 1
        nonce = bytes([sender, 0, 0, 0]) + self._pieces[sender].to_bytes(8, "little")
        self._hashes[sender].update(self._mac.encrypt(nonce, b"", piece))

    def digest(self) -> Digest:
        """Return 32 bytes over everything appended so far; the transcript can go on."""
        both = b"".join(h.digest() for h in self._hashes)
        return Digest(hashlib.sha256(_LABEL + both).digest())

    def matches(self, other: Bytes) -> bool:
        """Compare with the peer's digest in constant time."""
        return hmac.compare_digest(self.digest(), bytes(memoryview(other)))


class PayloadHash:
    """Feeds one payload to a transcript while it is on its way."""

    __slots__ = ("_add", "_done", "_payload", "_sender")

    def __init__(self, transcript: Transcript, sender: int, *, payload: memoryview) -> None:
        large = transcript.keyed and payload.nbytes > SMALL_BYTES
        self._add = transcript.update_piece if large else transcript.update
        self._sender = sender
        self._payload = payload
        self._done = 0

    def advance(self, arrived: int) -> None:
        """Feed every piece that lies whole within the first `arrived` bytes."""
        total = self._payload.nbytes
        while self._done < total:
            end = min(self._done + PIECE_BYTES, total)
            if end > arrived:
                return
            self._add(self._sender, self._payload[self._done : end])
            self._done = end
