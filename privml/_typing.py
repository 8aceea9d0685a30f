"""Shared types without weight: importing this module never imports numpy or torch."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, NewType, TypeAlias

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

Bytes: TypeAlias = bytes | bytearray | memoryview
"""Raw bytes."""

Buffer: TypeAlias = "Bytes | NDArray[np.generic]"
"""C-contiguous data that can be sent as it lies in memory: bytes or a numpy array."""

Digest = NewType("Digest", bytes)
"""32 bytes of SHA-256."""

Fingerprint = NewType("Fingerprint", str)
"""SHA-256 of a DER certificate, 64 lower-case hex digits."""

SessionId = NewType("SessionId", bytes)
"""32 bytes that name one session; equal at both parties, never repeated."""

Tag = NewType("Tag", int)
"""Message tag, 0 to 2^32 - 1: which step of the program a message belongs to."""

RecordId = NewType("RecordId", str)
"""Identifier of one training or evaluation record."""

Shape: TypeAlias = tuple[int, ...]
"""Array shape."""

Event: TypeAlias = Mapping[str, str | int | float | bool]
"""One progress or audit event; never holds shares, keys or personal data."""

EventSink: TypeAlias = Callable[[Event], None]
"""Receiver of events."""

__all__ = [
    "Buffer",
    "Bytes",
    "Digest",
    "Event",
    "EventSink",
    "Fingerprint",
    "RecordId",
    "SessionId",
    "Shape",
    "Tag",
]
