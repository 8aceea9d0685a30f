"""Handshake: two parties agree on everything that must be equal, or no share leaves.

1. Both send a hello at once: format version, rank, a fresh 32-byte nonce, the digest of each
   bound field, and offers (integers that the other side may read).
2. Each compares. The local error names every field that differs; the peer gets the one uniform
   abort frame.
3. The session id is the hash of both hellos; each proves with a digest of it that it saw the
   same two hellos.

Cost: 2 flights. Over TLS the certificates of both sides are bound as fields of their own.
"""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Annotated

import msgspec
from msgspec import Meta

from privml._typing import Bytes, Digest, SessionId
from privml.errors import (
    HandshakeMismatch,
    InsecureRandomness,
    MalformedMessage,
    ParameterError,
    PeerAborted,
)
from privml.meter import Tally
from privml.rng import Csprng
from privml.rounds import Rounds
from privml.transcript import KEY_BYTES
from privml.transport.channel import Channel
from privml.wire import TAG_BYTES, FrameType

PROTOCOL_VERSION = 3
NONCE_BYTES = 32
MAX_HELLO_BYTES = 1 << 14
_MAX_NAME = 64
_MAX_FIELDS = 64

_Name = Annotated[str, Meta(min_length=1, max_length=_MAX_NAME, pattern=r"\A[a-z0-9_. -]+\Z")]
_Bytes32 = Annotated[bytes, Meta(min_length=32, max_length=32)]
_Int64 = Annotated[int, Meta(ge=-(2**63), le=2**63 - 1)]


class Hello(msgspec.Struct, frozen=True, forbid_unknown_fields=True, array_like=True):
    """First message of a party; public values only.

    Attributes
    ----------
    version
        Version of the handshake and frame format.
    rank
        0 server, 1 client.
    insecure
        True if secrets come from a fixed test seed.
    nonce
        32 fresh bytes.
    binding
        Digest of each bound field.
    offer
        Integers for the other side to read.
    """

    version: Annotated[int, Meta(ge=0, le=2**16 - 1)]
    rank: Annotated[int, Meta(ge=0, le=1)]
    insecure: bool
    nonce: _Bytes32
    binding: Annotated[dict[_Name, _Bytes32], Meta(max_length=_MAX_FIELDS)]
    offer: Annotated[dict[_Name, _Int64], Meta(max_length=_MAX_FIELDS)]


@dataclass(frozen=True, slots=True)
class Agreement:
    """Outcome of a handshake.

    Attributes
    ----------
    session
        Id of the session, equal at both parties.
    peer_offer
        The peer's integers.
    wire
        Bytes on the wire and seconds spent idle.
    """

    session: SessionId
    peer_offer: Mapping[str, int]
    wire: Tally


def agree(rounds: Rounds, hello: Hello, *, deadline_s: float) -> Agreement:
    """Shake hands; `rounds` then carries the session's tag and transcript key.

    Parameters
    ----------
    rounds
        Fresh rounds over a fresh channel.
    hello
        What this side says, see :func:`make_hello`.
    deadline_s
        Seconds for each of the two flights.

    Raises
    ------
    HandshakeMismatch
        The parties disagree; the message names the fields.
    MalformedMessage, PeerAborted, DeadlineExceeded
        The peer does not follow the protocol, went away, or is silent.
    """
    mine = encode_hello(hello)
    bounds = (1, MAX_HELLO_BYTES)
    payload, wire = rounds.flight(
        FrameType.HANDSHAKE, 0, mine=memoryview(mine), bounds=bounds, deadline_s=deadline_s
    )
    theirs = bytes(payload)
    peer = decode_hello(theirs)
    compare(hello, peer)
    hellos = (mine, theirs) if hello.rank == 0 else (theirs, mine)
    session = session_id(*hellos)
    wire += _confirm(rounds, session, deadline_s=deadline_s)
    rounds.tag = session[:TAG_BYTES]
    rounds.transcript.set_key(transcript_key(*hellos))
    return Agreement(session, MappingProxyType(peer.offer), wire)


def _confirm(rounds: Rounds, session: SessionId, *, deadline_s: float) -> Tally:
    """Prove that this side saw both hellos, and check the peer's proof."""
    proof = confirmation(session, rounds.rank)
    size = len(proof)
    try:
        payload, wire = rounds.flight(
            FrameType.HANDSHAKE,
            1,
            mine=memoryview(proof),
            bounds=(size, size),
            deadline_s=deadline_s,
        )
    except PeerAborted as error:
        raise HandshakeMismatch(
            "the peer refused the session, nothing was shared; its own message says why"
        ) from error
    if not hmac.compare_digest(payload, confirmation(session, 1 - rounds.rank)):
        raise HandshakeMismatch("the parties saw different hellos: the link altered one")
    return wire


def make_hello(
    channel: Channel,
    *,
    rank: int,
    binding: Mapping[str, str],
    offer: Mapping[str, int],
    insecure: bool,
) -> Hello:
    """Build this side's hello.

    Raises
    ------
    InsecureRandomness
        `insecure` over an encrypted channel: fixed seeds are for tests on one machine.
    ParameterError
        Rank, names or values are out of range.
    """
    if insecure and channel.secure:
        raise InsecureRandomness(
            "a session with a fixed seed was asked for over TLS; drop the seed, or run the test "
            "over an in-process channel"
        )
    fields = {name: _field_digest(name, value) for name, value in binding.items()}
    fields |= _certificate_fields(channel, rank)
    hello = Hello(
        PROTOCOL_VERSION,
        rank,
        insecure,
        Csprng.fresh().token(NONCE_BYTES),
        fields,
        dict(offer),
    )
    try:
        decode_hello(encode_hello(hello))
    except MalformedMessage as error:
        raise ParameterError(
            f"handshake values out of range: {error}. Names are 1 to {_MAX_NAME} of a-z 0-9 _ . - "
            f"and space, at most {_MAX_FIELDS} of each kind, offers are 64-bit integers"
        ) from error
    return hello


def encode_hello(hello: Hello) -> bytes:
    """Return the wire form of `hello`."""
    return msgspec.msgpack.encode(hello)


def decode_hello(data: Bytes) -> Hello:
    """Decode a hello from the peer.

    Raises
    ------
    MalformedMessage
        `data` is longer than 16 KiB or not a hello.
    """
    view = memoryview(data)
    if view.nbytes > MAX_HELLO_BYTES:
        raise MalformedMessage(f"a hello of {view.nbytes} bytes exceeds {MAX_HELLO_BYTES}")
    try:
        return msgspec.msgpack.decode(view, type=Hello)
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        raise MalformedMessage(f"not a valid hello: {error}") from error


def compare(mine: Hello, theirs: Hello) -> None:
    """Check that both hellos fit together.

    Raises
    ------
    HandshakeMismatch
        Names every field that differs, with the first 8 hex digits of both digests.
    """
    problems: list[str] = []
    if theirs.version != mine.version:
        problems.append(f"'protocol version' is {mine.version} here, {theirs.version} at the peer")
    if theirs.rank == mine.rank:
        problems.append(f"'rank' is {mine.rank} on both sides; one must be 0 (server), one 1")
    if theirs.insecure != mine.insecure:
        problems.append("'insecure' differs: one side runs with a fixed test seed")
    if hmac.compare_digest(theirs.nonce, mine.nonce):
        problems.append("'nonce' is equal on both sides: the link reflects data")
    problems += [
        _difference(name, mine.binding.get(name), theirs.binding.get(name))
        for name in sorted(mine.binding.keys() | theirs.binding.keys())
        if mine.binding.get(name) != theirs.binding.get(name)
    ]
    if problems:
        raise HandshakeMismatch(
            f"the peer disagrees, nothing was shared: {'; '.join(problems)}. Start both sides "
            "with one plan, the model it was made from, and the two pools of one `privml deal`"
        )


def session_id(hello0: bytes, hello1: bytes) -> SessionId:
    """Return the id of the session that began with these hellos of rank 0 and rank 1."""
    lengths = len(hello0).to_bytes(8, "little") + len(hello1).to_bytes(8, "little")
    return SessionId(hashlib.sha256(b"privml session v1" + lengths + hello0 + hello1).digest())


def transcript_key(hello0: bytes, hello1: bytes) -> bytes:
    """Return the 16-byte key of the transcript; the public session id does not reveal it."""
    lengths = len(hello0).to_bytes(8, "little") + len(hello1).to_bytes(8, "little")
    digest = hashlib.sha256(b"privml transcript key v1" + lengths + hello0 + hello1).digest()
    return digest[:KEY_BYTES]


def confirmation(session: SessionId, rank: int) -> Digest:
    """Return the 32 bytes by which `rank` proves that it saw both hellos."""
    return Digest(hashlib.sha256(b"privml confirm v1" + bytes([rank]) + session).digest())


def _field_digest(name: str, value: str) -> bytes:
    text = b"privml binding v1\0" + name.encode() + b"\0" + value.encode()
    return hashlib.sha256(text).digest()


def _certificate_fields(channel: Channel, rank: int) -> dict[str, bytes]:
    seen = {rank: channel.local_fingerprint, 1 - rank: channel.peer_fingerprint}
    names = {0: "tls certificate of the server", 1: "tls certificate of the client"}
    return {
        names[who]: _field_digest(names[who], fingerprint)
        for who, fingerprint in seen.items()
        if fingerprint is not None and who in names
    }


def _difference(name: str, mine: bytes | None, theirs: bytes | None) -> str:
    if mine is None:
        return f"only the peer binds '{name}'"
    if theirs is None:
        return f"the peer does not bind '{name}'"
    return f"digest of '{name}' differs (here {mine.hex()[:8]}, peer {theirs.hex()[:8]})"
