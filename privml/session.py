"""Session: one run of a two-party program over one channel, from handshake to close.

A session exists only after a matching handshake and is used once. Every error ends it: one
constant abort frame is sent as far as the link allows, registered secrets are overwritten, the
channel is closed, and each later call raises. A new attempt is a new session with fresh
randomness. All message sizes are fixed by the caller, who derives them from public data only.
"""

from __future__ import annotations

import enum
import hmac
from collections.abc import Mapping
from types import MappingProxyType, TracebackType
from typing import Self

from privml import handshake
from privml._typing import Buffer, Digest, SessionId
from privml.errors import ParameterError, PrivmlError, ProtocolError, TranscriptMismatch
from privml.meter import CostMeter, Measured, Tally
from privml.rounds import Rounds, check_arguments
from privml.transport.channel import Channel, Deadline
from privml.transport.frames import as_bytes
from privml.wire import FrameType

SERVER = 0
CLIENT = 1
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
        self._rounds = Rounds(channel, rank=rank)
        self._deadline_s = deadline_s
        self._state = State.OPEN
        self._reason = ""
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
            agreement = handshake.agree(session._rounds, hello, deadline_s=deadline_s)
        except BaseException as error:
            session._fail(error)
            raise
        session.id = agreement.session
        session.peer_offer = agreement.peer_offer
        session.meter.record(_as_setup(agreement.wire, flights=2))
        return session

    @property
    def state(self) -> State:
        """Where in its life the session is."""
        return self._state

    @property
    def transcript_digest(self) -> Digest:
        """SHA-256 over every frame so far in both directions; equal at both parties."""
        return self._rounds.transcript.digest()

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
        return self._data(tag, mine=as_bytes(mine), expect=expect)

    def send(self, tag: int, payload: Buffer) -> None:
        """Send one message; the peer calls :meth:`recv`. Cost: 1 flight; errors as exchange."""
        self._data(tag, mine=as_bytes(payload), expect=None)

    def recv(self, tag: int, *, expect: int) -> memoryview:
        """Receive one message of `expect` bytes. Cost: 1 flight; errors as exchange."""
        return self._data(tag, mine=None, expect=expect)

    def send_blob(self, tag: int, payload: Buffer, *, deadline_s: float | None = None) -> None:
        """Send one-off set-up data; the peer calls :meth:`recv_blob`.

        Metered as set-up. `deadline_s` replaces the session's for this call.
        """
        self._blob(tag, mine=as_bytes(payload), max_bytes=None, deadline_s=deadline_s)

    def recv_blob(self, tag: int, *, max_bytes: int, deadline_s: float | None = None) -> memoryview:
        """Receive set-up data of at most `max_bytes`; a longer claim is refused unallocated.

        Metered as set-up. `deadline_s` replaces the session's for this call.
        """
        return self._blob(tag, mine=None, max_bytes=max_bytes, deadline_s=deadline_s)

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
        digest = self._rounds.transcript.digest()
        got, wire = self._flight(
            FrameType.CHECKPOINT,
            0,
            mine=memoryview(digest),
            bounds=(_DIGEST_BYTES, _DIGEST_BYTES),
            deadline_s=deadline_s,
        )
        self.meter.record(wire + Tally(flights=1, checkpoints=1))
        if not hmac.compare_digest(got, digest):
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

    def _data(self, tag: int, *, mine: memoryview | None, expect: int | None) -> memoryview:
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
    ) -> memoryview:
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
    ) -> tuple[memoryview, Tally]:
        """Run one round; any error ends the session."""
        self._check_open()
        check_arguments(tag, bounds)
        limit_s = self._deadline_s if deadline_s is None else deadline_s
        try:
            return self._rounds.flight(kind, tag, mine=mine, bounds=bounds, deadline_s=limit_s)
        except BaseException as error:
            self._fail(error)
            raise

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
        self._rounds.end(kind)


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
