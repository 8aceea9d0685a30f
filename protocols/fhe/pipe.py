"""Messages between a server and its computing child: bounded JSON, then bounded bytes.

A message is ``<4sIQ``: magic, length of the JSON, length of the bytes. Both ends know beforehand
how long either may be and read nothing longer.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Annotated, Final, Literal

import msgspec
from msgspec import Meta

from privml.errors import MalformedMessage

MAGIC: Final = b"PFHE"
HEAD: Final = struct.Struct("<4sIQ")
MAX_JSON_BYTES: Final = 1 << 12

_Slot = Annotated[int, Meta(ge=0, le=1 << 16)]


class Load(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag="load"):
    """First of all: the compiled program; the bytes are the parameters, then the library."""

    parameters: Annotated[int, Meta(ge=0)]
    digest: str


class Keys(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag="keys"):
    """Evaluation keys for a slot; what was there is dropped."""

    slot: _Slot


class Run(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag="run"):
    """A query for the keys in a slot; answered by the ciphertext."""

    slot: _Slot


class Drop(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag="drop"):
    """Forget the keys in a slot."""

    slot: _Slot


class Done(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag="done"):
    """The order was carried out; ``isolated``: the process has no network."""

    isolated: bool = False


class Failed(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag="failed"):
    """It was not, and the process goes on."""

    kind: Literal["malformed", "untrusted", "unsupported", "bug"]
    message: Annotated[str, Meta(max_length=1000)]


Order = Load | Keys | Run | Drop
Reply = Done | Failed
Message = Order | Reply


def encode(message: Message, nbytes: int) -> bytes:
    """Return head and JSON of a message that ``nbytes`` bytes follow."""
    text = msgspec.json.encode(message)
    return HEAD.pack(MAGIC, len(text), nbytes) + text


def read_order(read: Callable[[int], bytes], *, limit: int) -> tuple[Order, bytes] | None:
    """Return the next order and its bytes, or None at the end of the input."""
    head = read(HEAD.size)
    if not head:
        return None
    text, size = _parts(head, limit)
    return _order(read(text)), read(size)


def read_reply(read: Callable[[int], bytes], *, limit: int) -> tuple[Reply, bytes]:
    """Return the reply and its bytes, at most ``limit``."""
    text, size = _parts(read(HEAD.size), limit)
    return _reply(read(text)), read(size)


def _parts(head: bytes, limit: int) -> tuple[int, int]:
    if len(head) != HEAD.size:
        raise MalformedMessage("a message between server and computing process was cut")
    magic, text, size = HEAD.unpack(head)
    if magic != MAGIC or text > MAX_JSON_BYTES or size > limit:
        raise MalformedMessage("a message between server and computing process is too long")
    return text, size


def _order(text: bytes) -> Order:
    try:
        return msgspec.json.decode(text, type=Order, strict=True)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise MalformedMessage(f"an order to the computing process: {error}") from error


def _reply(text: bytes) -> Reply:
    try:
        return msgspec.json.decode(text, type=Reply, strict=True)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise MalformedMessage(f"a reply of the computing process: {error}") from error
