"""Authentication tags on the dealer's corrections: a damaged pool ends a run, not its result.

AES-GMAC under a key from the client's run seed, one tag behind every correction, nonces counted in
the order of writing. The dealer and the client make the same tags; nobody else knows the key.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final

import numpy as np
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from privml.errors import internal
from privml.protocols.mpc.fields import Array
from privml.rng import Csprng

TAG_BYTES: Final = 16
_PIECE: Final = 1 << 30


class Tagger:
    """Tags in the order of the corrections; each is used for one of them."""

    def __init__(self, run: Csprng | None) -> None:
        internal(run is not None, "tags need the client's run key")
        self._cipher = AESGCM((run or Csprng.fresh()).child("tags").token(16))
        self._count = 0

    def next(self, data: memoryview) -> bytes:
        """Return the tag of the next correction; pieces of 1 GiB are chained."""
        tag = b""
        for start in range(0, max(len(data), 1), _PIECE):
            nonce = self._count.to_bytes(12, "big")
            tag = self._cipher.encrypt(nonce, tag, data[start : start + _PIECE])[-TAG_BYTES:]
            self._count += 1
        return tag


def tagged(parts: Iterable[Array], tags: Tagger) -> Iterator[memoryview | bytes]:
    """Yield the bytes of each correction and the tag that stands behind it."""
    for part in parts:
        data = np.ascontiguousarray(part).reshape(-1).view(np.uint8).data
        yield data
        yield tags.next(data)
