"""Requests and replies between client and server of encrypted images.

The client asks, the server replies, in lock step over one session (frames, transcript and TLS are
those of :mod:`privml.session`). A request may announce bytes; the server then says ``Go`` or
refuses before they are sent. A reply may announce bytes; the client knows the most they can be.
Structure is MessagePack, read strictly; nothing names code or types.
"""

from __future__ import annotations

from typing import Annotated, Final

import msgspec
from msgspec import Meta

from privml.errors import MalformedMessage, ProtocolError
from privml.protocols.fhe.manifest import Hex

BINDING: Final = {"protocol": "privml encrypted images 1"}
MAX_IMAGES: Final = 4096
MAX_MESSAGE_BYTES: Final = 1 << 18
MAX_PAYLOAD_BYTES: Final = 1 << 24
"""Most bytes of queries or answers in one message; keys have their own limit."""

REQUEST, REPLY, UPLOAD, DOWNLOAD = 1, 2, 3, 4

JobId = Annotated[str, Meta(pattern=r"\A[0-9a-f]{32}\Z")]
_Index = Annotated[int, Meta(ge=0, lt=MAX_IMAGES)]
_Size = Annotated[int, Meta(ge=0, le=1 << 40)]
_Indices = Annotated[tuple[_Index, ...], Meta(max_length=MAX_IMAGES)]
_Sizes = Annotated[tuple[_Size, ...], Meta(max_length=MAX_IMAGES)]
_Text = Annotated[str, Meta(max_length=500)]


class Refused(ProtocolError):
    """The server refused a request and goes on; the message is the server's.

    Attributes
    ----------
    reason
        Stable word for programs: ``busy``, ``no-keys``, ``quota``, ``unknown``, ``malformed`` or
        ``failed``.
    text
        The server's words.
    """

    code = "protocol.refused"
    remedy = "read the server's reason; ask its operator if it is no error of this side"

    def __init__(self, reason: str, message: str) -> None:
        super().__init__(f"the server refused: {_printable(message)} [{_printable(reason)}]")
        self.reason, self.text = reason, message


class _Message(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag=True):
    """Base of all messages."""


class Describe(_Message, frozen=True, tag="describe"):
    """Ask for the client's part of a program, or of the only one."""

    program: Hex | None


class Open(_Message, frozen=True, tag="open"):
    """Name program and own evaluation keys, by SHA-256; precedes all further requests."""

    program: Hex
    keys: Hex


class SendKeys(_Message, frozen=True, tag="keys"):
    """Announce the evaluation keys."""

    nbytes: _Size


class Submit(_Message, frozen=True, tag="submit"):
    """Announce queries of a job; known images are ignored."""

    job: JobId
    images: _Indices
    sizes: _Sizes


class Watch(_Message, frozen=True, tag="watch"):
    """Ask what became of a job, once more than ``finished`` images are, or after a while."""

    job: JobId
    finished: _Size


class Fetch(_Message, frozen=True, tag="fetch"):
    """Ask for answers; they stay at the server until the job is dropped or they expire."""

    job: JobId
    images: _Indices


class Drop(_Message, frozen=True, tag="drop"):
    """The job is no longer needed."""

    job: JobId


class Bye(_Message, frozen=True, tag="bye"):
    """The client has all it wants."""


class Go(_Message, frozen=True, tag="go"):
    """Send the bytes that were announced."""


class Done(_Message, frozen=True, tag="done"):
    """It was done; ``nbytes`` follow."""

    nbytes: _Size = 0


class Opened(_Message, frozen=True, tag="opened"):
    """``keys``: the server holds these keys. ``window``: most unfinished images of a client."""

    keys: bool
    window: Annotated[int, Meta(ge=1, le=MAX_IMAGES)]


class State(_Message, frozen=True, tag="state"):
    """State of a job by image; images that are not named are unknown to the server."""

    waiting: _Indices
    finished: _Indices
    failed: Annotated[dict[_Index, _Text], Meta(max_length=MAX_IMAGES)]
    ahead: _Size
    """Images of others that come before the next one of this client."""


class Answers(_Message, frozen=True, tag="answers"):
    """Answers follow in the order asked for; size 0: not there."""

    sizes: _Sizes


class Refusal(_Message, frozen=True, tag="refusal"):
    """The request was not carried out."""

    reason: Annotated[str, Meta(max_length=40)]
    message: _Text


Request = Describe | Open | SendKeys | Submit | Watch | Fetch | Drop | Bye
Reply = Go | Done | Opened | State | Answers | Refusal


def encode(message: Request | Reply) -> bytes:
    """Return the wire form."""
    return msgspec.msgpack.encode(message)


def decode_request(data: memoryview) -> Request:
    """Read a request; raises only :class:`MalformedMessage`."""
    try:
        return msgspec.msgpack.decode(data, type=Request, strict=True)
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        raise MalformedMessage(f"not a valid request: {error}") from error


def decode_reply(data: memoryview) -> Reply:
    """Read a reply; raises only :class:`MalformedMessage`."""
    try:
        return msgspec.msgpack.decode(data, type=Reply, strict=True)
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        raise MalformedMessage(f"not a valid reply: {error}") from error


def split(data: memoryview, sizes: tuple[int, ...]) -> list[bytes]:
    """Cut bytes into parts of the announced sizes.

    Raises
    ------
    MalformedMessage
        They do not add up.
    """
    if sum(sizes) != len(data):
        raise MalformedMessage("the bytes are not as many as were announced")
    parts, at = [], 0
    for size in sizes:
        parts.append(bytes(data[at : at + size]))
        at += size
    return parts


def _printable(text: str) -> str:
    return "".join(c if c.isprintable() else " " for c in text)[:500]
