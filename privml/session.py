"""Session: one run of a two-party program over one channel, from handshake to close.

A session exists only after a matching handshake and is used once. Every error ends it: one
constant abort frame is sent as far as the link allows, registered secrets are overwritten, the
channel is closed, and each later call raises. A new attempt is a new session with fresh
randomness. All message sizes are fixed by the caller, who derives them from public data only.
"""

from __future__ import annotations

import contextlib
import enum
import hmac
from collections.abc import Mapping
from types import MappingProxyType, TracebackType
from typing import Self

from privml import handshake
from privml._typing import Buffer, Digest, SessionId
from privml.errors import (
    HandshakeMismatch,
    ParameterError,
    PeerAborted,
    PrivmlError,
    ProtocolError,
    TranscriptMismatch,
    internal,
)
from privml.meter import CostMeter, Measured, Tally
from privml.transcript import Transcript
from privml.transport.channel import Channel, Deadline
from privml.transport.frames import FrameReader, FrameWriter, as_bytes, run_flight
from privml.wire import (
    HEADER_BYTES,
    MAX_LENGTH,
    MAX_TAG,
    NO_SESSION,
    TAG_BYTES,
    Expected,
    FrameType,
    Header,
)

SERVER = 0
CLIENT = 1
_GOODBYE_S = 0.25
_DIGEST_BYTES = 32


class State(enum.Enum):
    """Life of a session."""

    OPEN = "open"
    CLOSED = "closed"
    ABORTED = "aborted"


class Session:
    """One-shot two-party session; made by :meth:`open`, used by one thread.

    Attributes
    ----------
    rank
        0 server, 1 client.
    id
        32 bytes, equal at both parties, never repeated.
    peer_offer
        Integers the peer offered in the handshake.
    insecure
        True if secrets come from a fixed test seed.
    meter
        Running cost of this party.
    """

    def __init__(self, channel: Channel, *, rank: int, deadline_s: float, insecure: bool) -> None:
        if rank not in (SERVER, CLIENT):
            raise ParameterError(f"rank must be 0 (server) or 1 (client), got {rank}")
        Deadline.after(deadline_s)
        self.rank = rank
        self.insecure = insecure
        self.meter = CostMeter()
        self.id = SessionId(b"")
        self.peer_offer: Mapping[str, int] = MappingProxyType({})
        self._channel = channel
        self._deadline_s = deadline_s
        self._tag = NO_SESSION
        self._round = 0
        self._transcript = Transcript()
        self._state = State.OPEN
        self._reason = ""
        self._cut = False
        self._secrets: list[bytearray] = []

    @classmethod
    def open(
        cls,
        channel: Channel,
        *,
        rank: int,
        binding: Mapping[str, str],
        offer: Mapping[str, int],
        deadline_s: float,
        insecure: bool = False,
    ) -> Session:
        """Shake hands over `channel` and return the session.

        Parameters
        ----------
        channel
            Fresh link to the peer; the session owns it from here and closes it.
        rank
            0 server, 1 client; the peer must use the other.
        binding
            Public facts that must be equal on both sides, by name: ring, scales, digest of the
            program, source of correlations, pool and cursor, and so on.
        offer
            Public integers for the peer to read, by name; they need not be equal.
        deadline_s
            Seconds that any single call may take, handshake included.
        insecure
            Secrets come from a fixed test seed; refused over TLS.

        Raises
        ------
        HandshakeMismatch
            The parties disagree; the message names the fields.
        InsecureRandomness
            `insecure` over TLS.
        ParameterError
            An argument is out of range.
        MalformedMessage, PeerAborted, DeadlineExceeded
            The peer does not follow the protocol, went away, or is silent.

        Notes
        -----
        Cost: 2 flights, counted as set-up.
        """
        session = cls(channel, rank=rank, deadline_s=deadline_s, insecure=insecure)
        try:
            hello = handshake.make_hello(
                channel, rank=rank, binding=binding, offer=offer, insecure=insecure
            )
            session._shake_hands(hello)
        except BaseException as error:
            session._fail(error)
            raise
        return session

    @property
    def state(self) -> State:
        """Where in its life the session is."""
        return self._state

    @property
    def transcript_digest(self) -> Digest:
        """SHA-256 over every frame so far in both directions; equal at both parties."""
        return self._transcript.digest()

    def measured(self) -> Measured:
        """Return a frozen reading of the meter; also allowed after the end."""
        return self.meter.measured()

    def own(self, secret: bytearray) -> bytearray:
        """Have `secret` overwritten with zeros when the session ends; return it."""
        self._check_open()
        self._secrets.append(secret)
        return secret

    def exchange(self, tag: int, mine: Buffer, *, expect: int) -> memoryview:
        """Send `mine` and receive the peer's message of the same step, both at once.

        Parameters
        ----------
        tag
            Message tag of the step, 0 to 2^32 - 1, equal on both sides.
        mine
            C-contiguous buffer; may be empty.
        expect
            Size of the peer's message in bytes; any other size ends the session.

        Returns
        -------
        memoryview
            `expect` bytes, writable, 64-byte aligned, owned by the caller.

        Raises
        ------
        MalformedMessage, PeerAborted, DeadlineExceeded
            The session is over.
        ProtocolError
            The session was over before.

        Notes
        -----
        Cost: 1 flight. One thread; no deadlock at any size.
        """
        return _present(self._data(tag, mine=as_bytes(mine), expect=expect))

    def send(self, tag: int, payload: Buffer) -> None:
        """Send one message; the peer calls :meth:`recv`. Cost: 1 flight; errors as exchange."""
        self._data(tag, mine=as_bytes(payload), expect=None)

    def recv(self, tag: int, *, expect: int) -> memoryview:
        """Receive one message of `expect` bytes. Cost: 1 flight; errors as exchange."""
        return _present(self._data(tag, mine=None, expect=expect))

    def send_blob(self, tag: int, payload: Buffer, *, deadline_s: float | None = None) -> None:
        """Send one-off set-up data; the peer calls :meth:`recv_blob`.

        Metered as set-up. `deadline_s` replaces the session's for this call.
        """
        self._blob(tag, mine=as_bytes(payload), max_bytes=None, deadline_s=deadline_s)

    def recv_blob(self, tag: int, *, max_bytes: int, deadline_s: float | None = None) -> memoryview:
        """Receive set-up data of at most `max_bytes`; a longer claim is refused unallocated.

        Metered as set-up. `deadline_s` replaces the session's for this call.
        """
        return _present(self._blob(tag, mine=None, max_bytes=max_bytes, deadline_s=deadline_s))

    def checkpoint(self, *, deadline_s: float | None = None) -> None:
        """Compare transcripts with the peer; `deadline_s` replaces the session's for this call.

        Raises
        ------
        TranscriptMismatch
            The parties saw different messages; the session is over.

        Notes
        -----
        Cost: 1 flight, no payload.
        """
        digest = self._transcript.digest()
        got, wire = self._flight(
            FrameType.CHECKPOINT,
            0,
            mine=memoryview(digest),
            bounds=(_DIGEST_BYTES, _DIGEST_BYTES),
            deadline_s=deadline_s,
        )
        self.meter.record(wire + Tally(flights=1, checkpoints=1))
        if not hmac.compare_digest(_present(got), digest):
            error = TranscriptMismatch(
                "the parties saw different messages: the link or the peer altered one. No output "
                "was produced; start a new session"
            )
            self._fail(error)
            raise error

    def close(self) -> None:
        """End a session that went well; harmless when repeated or after an abort."""
        if self._state is State.OPEN:
            self._end(State.CLOSED, FrameType.CLOSE, reason="it was closed")

    def abort(self, reason: str) -> None:
        """End the session early; the peer gets one constant frame, `reason` stays here."""
        if self._state is State.OPEN:
            self._end(State.ABORTED, FrameType.ABORT, reason=reason)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if error is None:
            self.close()
        else:
            self.abort(_reason(error))

    def __repr__(self) -> str:
        return f"Session(rank={self.rank}, id={self.id.hex()[:8]}, state={self._state.value})"

    def _shake_hands(self, hello: handshake.Hello) -> None:
        mine = handshake.encode_hello(hello)
        got, wire = self._flight(
            FrameType.HANDSHAKE, 0, mine=memoryview(mine), bounds=(1, handshake.MAX_HELLO_BYTES)
        )
        theirs = bytes(_present(got))
        peer = handshake.decode_hello(theirs)
        handshake.compare(hello, peer)
        hellos = (mine, theirs) if self.rank == SERVER else (theirs, mine)
        self.id = handshake.session_id(*hellos)
        self._confirm(wire)
        self._tag = self.id[:TAG_BYTES]
        self.peer_offer = MappingProxyType(peer.offer)

    def _confirm(self, hello_wire: Tally) -> None:
        proof = handshake.confirmation(self.id, self.rank)
        try:
            got, wire = self._flight(
                FrameType.HANDSHAKE, 1, mine=memoryview(proof), bounds=(_DIGEST_BYTES,) * 2
            )
        except PeerAborted as error:
            raise HandshakeMismatch(
                "the peer refused the session, nothing was shared; its own message says why"
            ) from error
        if not hmac.compare_digest(_present(got), handshake.confirmation(self.id, 1 - self.rank)):
            raise HandshakeMismatch("the parties saw different hellos: the link altered one")
        self.meter.record(_as_setup(hello_wire + wire, flights=2))

    def _data(self, tag: int, *, mine: memoryview | None, expect: int | None) -> memoryview | None:
        bounds = None if expect is None else (expect, expect)
        got, wire = self._flight(FrameType.DATA, tag, mine=mine, bounds=bounds)
        sent = 0 if mine is None else mine.nbytes
        self.meter.record(wire + Tally(flights=1, payload_sent=sent, payload_received=expect or 0))
        return got

    def _blob(
        self,
        tag: int,
        *,
        mine: memoryview | None,
        max_bytes: int | None,
        deadline_s: float | None,
    ) -> memoryview | None:
        bounds = None if max_bytes is None else (0, max_bytes)
        got, wire = self._flight(
            FrameType.BLOB, tag, mine=mine, bounds=bounds, deadline_s=deadline_s
        )
        self.meter.record(_as_setup(wire, flights=1))
        return got

    def _flight(
        self,
        kind: FrameType,
        tag: int,
        *,
        mine: memoryview | None,
        bounds: tuple[int, int] | None,
        deadline_s: float | None = None,
    ) -> tuple[memoryview | None, Tally]:
        """Run one round; return the payload and the bytes on the wire. Any error ends it all."""
        self._check_open()
        _check_arguments(tag, mine, bounds)
        deadline = Deadline.after(self._deadline_s if deadline_s is None else deadline_s)
        writer = reader = None
        try:
            if mine is not None:
                header = Header(kind, self.rank, self._tag, self._round, tag, mine.nbytes)
                writer = FrameWriter(header, mine, transcript=self._transcript)
            if bounds is not None:
                expected = Expected(kind, 1 - self.rank, self._tag, self._round, tag, *bounds)
                reader = FrameReader(expected, transcript=self._transcript)
            wait_s = run_flight(
                self._channel,
                writer,
                reader=reader,
                deadline=deadline,
                doing=f"in round {self._round} ({kind.name.lower()} message {tag})",
            )
        except BaseException as error:
            self._cut = writer is not None and writer.cut
            self._fail(error)
            raise
        self._round += 1
        wire = Tally(
            wire_sent=writer.wire_bytes if writer else 0,
            wire_received=reader.wire_bytes if reader else 0,
            wait_s=wait_s,
        )
        return (reader.payload if reader else None), wire

    def _check_open(self) -> None:
        if self._state is not State.OPEN:
            raise ProtocolError(
                f"this session is over ({self._reason}); sessions are used once, open a new one"
            )

    def _fail(self, error: BaseException) -> None:
        self.abort(_reason(error))

    def _end(self, state: State, kind: FrameType, *, reason: str) -> None:
        self._state = state
        self._reason = reason
        for secret in self._secrets:
            secret[:] = bytes(len(secret))
        self._secrets.clear()
        try:
            if not self._cut:
                self._say_goodbye(kind)
        finally:
            self._channel.close()

    def _say_goodbye(self, kind: FrameType) -> None:
        """Send the last frame as far as the link takes it in a moment; errors do not matter."""
        header = Header(kind, self.rank, self._tag, 0, 0, 0)
        with contextlib.suppress(PrivmlError, OSError):
            run_flight(
                self._channel,
                FrameWriter(header, memoryview(b""), transcript=Transcript()),
                reader=None,
                deadline=Deadline.after(_GOODBYE_S),
                doing="ending the session",
            )


def _present(payload: memoryview | None) -> memoryview:
    internal(payload is not None, "a flight with a reader has a payload")
    return memoryview(b"") if payload is None else payload


def _reason(error: BaseException) -> str:
    code = error.code if isinstance(error, PrivmlError) else type(error).__name__
    return f"it was aborted: {code}"


def _as_setup(wire: Tally, *, flights: int) -> Tally:
    return Tally(
        setup_flights=flights,
        setup_sent=wire.wire_sent,
        setup_received=wire.wire_received,
        wait_s=wire.wait_s,
    )


def _check_arguments(tag: int, mine: memoryview | None, bounds: tuple[int, int] | None) -> None:
    if not 0 <= tag <= MAX_TAG:
        raise ParameterError(f"a message tag lies in [0, 2^32), got {tag}")
    if mine is not None and mine.nbytes > MAX_LENGTH:
        raise ParameterError("a message is at most 2^48 bytes")
    if bounds is not None and not 0 <= bounds[0] <= bounds[1] <= MAX_LENGTH - HEADER_BYTES:
        raise ParameterError(f"an expected size must lie in [0, 2^48), got {bounds[1]}")
