"""Three byte strings as one: their lengths, then the strings."""

from __future__ import annotations

import struct
from typing import Final

from privml.errors import MalformedMessage

_SIZES: Final = struct.Struct("<III")


def joined(first: bytes, second: bytes, third: bytes) -> bytes:
    """Return the strings as one."""
    parts = (first, second, third)
    return _SIZES.pack(*map(len, parts)) + b"".join(parts)


def split(data: bytes) -> tuple[bytes, bytes, bytes]:
    """Undo :func:`joined`.

    Raises
    ------
    MalformedMessage
        The lengths do not add up.
    """
    if len(data) < _SIZES.size:
        raise MalformedMessage("a part of the program is cut")
    first, second, third = _SIZES.unpack_from(data)
    if _SIZES.size + first + second + third != len(data):
        raise MalformedMessage("a part of the program is cut or too long")
    rest = memoryview(data)[_SIZES.size :]
    return bytes(rest[:first]), bytes(rest[first : first + second]), bytes(rest[first + second :])
