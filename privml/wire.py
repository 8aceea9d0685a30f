"""Frame codec: a fixed 32-byte header, then raw little-endian payload.

=======  =====  =====================================================================
offset   bytes  field
=======  =====  =====================================================================
0        4      magic ``PVML``
4        1      format version, 1
5        1      frame type (:class:`FrameType`)
6        1      rank of the sender, 0 or 1
7        1      reserved, 0
8        8      session tag, the first 8 bytes of the session id (zero before there is one)
16       4      round, counted by both parties
20       4      message tag, chosen by the program
24       8      payload length in bytes
=======  =====  =====================================================================

All integers are little-endian. No field names code, types or objects. A receiver knows every
header field in advance (:class:`Expected`); the length of a data frame must equal the expected
length, and that of a blob or handshake frame must not exceed a cap, before anything is
allocated for it. Decoding raises only :class:`~privml.errors.MalformedMessage`.
"""

from __future__ import annotations

import enum
import struct

import msgspec

from privml._typing import Bytes
from privml.errors import MalformedMessage, ParameterError

MAGIC = b"PVML"
VERSION = 1
TAG_BYTES = 8
MAX_ROUND = 2**32 - 1
MAX_TAG = 2**32 - 1
MAX_LENGTH = 2**48
NO_SESSION = bytes(TAG_BYTES)

_HEADER = struct.Struct("<4sBBBB8sIIQ")
HEADER_BYTES = _HEADER.size


class FrameType(enum.IntEnum):
    """Purpose of a frame."""

    DATA = 1
    HANDSHAKE = 2
    CHECKPOINT = 3
    ABORT = 4
    CLOSE = 5
    BLOB = 6


_TYPES = {int(kind): kind for kind in FrameType}
_EMPTY = frozenset({FrameType.ABORT, FrameType.CLOSE})


class Header(msgspec.Struct, frozen=True, gc=False):
    """Decoded frame header.

    Attributes
    ----------
    kind
        Frame type.
    sender
        Rank of the sender, 0 or 1.
    session
        Session tag, 8 bytes.
    round
        Round counter, 0 to 2^32 - 1.
    tag
        Message tag, 0 to 2^32 - 1.
    length
        Payload length in bytes, 0 to 2^48.
    """

    kind: FrameType
    sender: int
    session: bytes
    round: int
    tag: int
    length: int

    def encode(self) -> bytes:
        """Return the 32 header bytes.

        Raises
        ------
        ParameterError
            A field is out of range.
        """
        _check_fields(self)
        return _HEADER.pack(
            MAGIC,
            VERSION,
            self.kind,
            self.sender,
            0,
            self.session,
            self.round,
            self.tag,
            self.length,
        )


def _check_fields(header: Header) -> None:
    fits = (
        header.sender in (0, 1),
        len(header.session) == TAG_BYTES,
        0 <= header.round <= MAX_ROUND,
        0 <= header.tag <= MAX_TAG,
        0 <= header.length <= MAX_LENGTH,
    )
    if not all(fits):
        names = ("sender", "session", "round", "tag", "length")
        bad = [name for name, ok in zip(names, fits, strict=True) if not ok]
        raise ParameterError(
            f"frame header fields out of range: {', '.join(bad)}; "
            "rounds and tags are 32-bit, a payload is at most 2^48 bytes"
        )


def decode_header(data: Bytes) -> Header:
    """Decode exactly 32 header bytes.

    Parameters
    ----------
    data
        32 bytes.

    Raises
    ------
    MalformedMessage
        Wrong size, magic, version, type, sender, reserved byte or length; or an abort or close
        frame that claims a payload.
    """
    view = memoryview(data).cast("B")
    if view.nbytes != HEADER_BYTES:
        raise MalformedMessage(
            f"a frame header has {HEADER_BYTES} bytes, got {view.nbytes}: the stream was cut"
        )
    magic, version, kind, sender, reserved, session, number, tag, length = _HEADER.unpack(view)
    if magic != MAGIC:
        raise MalformedMessage("not a privml frame (wrong magic): is the peer a privml party?")
    if version != VERSION:
        raise MalformedMessage(
            f"frame format version {version}, this side speaks {VERSION}: "
            "install the same privml version on both sides"
        )
    if kind not in _TYPES or sender > 1 or reserved != 0 or length > MAX_LENGTH:
        raise MalformedMessage("frame header holds a value outside its range")
    if kind in _EMPTY and length != 0:
        raise MalformedMessage("an abort or close frame carries no payload, this one claims some")
    return Header(_TYPES[kind], sender, session, number, tag, length)


class Expected(msgspec.Struct, frozen=True, gc=False):
    """What the next frame from the peer must be.

    Attributes
    ----------
    kind, sender, session, round, tag
        Must equal the header's.
    min_length, max_length
        Inclusive bounds of the payload length in bytes; equal for data frames.
    """

    kind: FrameType
    sender: int
    session: bytes
    round: int
    tag: int
    min_length: int
    max_length: int

    def check(self, header: Header) -> None:
        """Raise :class:`MalformedMessage` unless `header` is what is expected here."""
        if header.session != self.session:
            raise MalformedMessage("a frame of another session arrived; it was not used")
        if header.sender != self.sender:
            raise MalformedMessage("a frame came back to its own sender: the link reflects data")
        if header.round != self.round:
            raise MalformedMessage(
                f"a message of round {header.round} arrived in round {self.round}: "
                "one was lost, repeated or reordered"
            )
        if header.kind is not self.kind or header.tag != self.tag:
            raise MalformedMessage(
                f"expected {self.kind.name.lower()} message {self.tag}, got "
                f"{header.kind.name.lower()} message {header.tag}: the parties run "
                "different programs"
            )
        if not self.min_length <= header.length <= self.max_length:
            raise MalformedMessage(
                f"message {self.tag} claims {header.length} bytes, allowed here are "
                f"{self.min_length} to {self.max_length}; nothing was allocated"
            )
