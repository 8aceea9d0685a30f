"""An active peer harms one message of a 50-message program: the honest party stops in time.

Pass means: the honest party raises an error of ours within deadline + 1 s and has no output, and
the misbehaving side does not hang either (when it harms its last message it may be done).
"""

from __future__ import annotations

import numpy as np
import pytest

from privml.errors import (
    DeadlineExceeded,
    MalformedMessage,
    PeerAborted,
    ProtocolError,
    TranscriptMismatch,
)
from privml.session import Session
from privml.testing.parties import Outcome, run_sessions
from privml.transport import memory
from privml.transport.channel import Channel
from privml.transport.faulty import Fault, FaultyChannel

MESSAGES = 50
HANDSHAKE_FRAMES = 2
DEADLINE_S = 0.25
WORK_S = 1.0  # the program itself, on a busy machine
SAMPLED = (0, 1, 7, 24, 48, 49)
WAITS = {Fault.DROP, Fault.REORDER, Fault.TRUNCATE, Fault.STALL}
EVERYWHERE = [pytest.param(at, marks=pytest.mark.nightly) for at in range(MESSAGES)]


def size_of(step: int, rank: int) -> int:
    return (step * 37 + 11 * rank) % 200 + 1


def program(session: Session) -> int:
    """50 messages from the server: one-way runs, replies and exchanges; then a checked output."""
    total = 0
    for step in range(MESSAGES):
        mine, theirs = size_of(step, session.rank), size_of(step, 1 - session.rank)
        if step % 5 == 0 and session.rank == 1:
            session.send(1000 + step, bytes(mine))
        elif step % 5 == 0:
            total += sum(session.recv(1000 + step, expect=theirs))
        if step % 3 == 0:
            total += sum(session.exchange(step, bytes([step] * mine), expect=theirs))
        elif session.rank == 0:
            session.send(step, bytes([step] * mine))
        else:
            total += sum(session.recv(step, expect=theirs))
    session.checkpoint()
    return total + 1


def attack(fault: Fault, at: int, *, bit: int = 5) -> tuple[Outcome[int], Outcome[int]]:
    """Run the program with a server whose message `at` is harmed."""
    a, b = memory.pair()
    bad = FaultyChannel(a, fault, at=HANDSHAKE_FRAMES + at, bit=bit)
    return run_sessions(program, channels=(bad, b), deadline_s=DEADLINE_S)


def check(outcomes: tuple[Outcome[int], Outcome[int]], allowed: tuple[type, ...]) -> None:
    bad, honest = outcomes
    assert honest.value is None
    assert isinstance(honest.error, allowed), repr(honest.error)
    assert bad.error is None or isinstance(bad.error, ProtocolError), repr(bad.error)
    for outcome in outcomes:
        assert outcome.seconds < WORK_S + DEADLINE_S + 1


def test_without_a_fault_there_is_an_output() -> None:
    for outcome in attack(Fault.DROP, 10_000):
        assert outcome.unwrap() > 0


@pytest.mark.parametrize("at", [*SAMPLED, *EVERYWHERE])
@pytest.mark.parametrize("fault", [f for f in Fault if f is not Fault.CUT], ids=lambda f: f.value)
def test_eight_faults(fault: Fault, at: int) -> None:
    noticed = (DeadlineExceeded, MalformedMessage, TranscriptMismatch)
    # Where both sides wait for each other, the faulty one may give up first and hang up.
    check(attack(fault, at), (*noticed, PeerAborted) if fault in WAITS else noticed)


@pytest.mark.parametrize("at", range(MESSAGES))
def test_end_of_stream_at_every_message(at: int) -> None:
    check(attack(Fault.CUT, at), (PeerAborted,))


@pytest.mark.parametrize("at", range(0, MESSAGES, 7))
def test_any_bit_of_a_message(at: int, rng: np.random.Generator) -> None:
    for bit in rng.integers(0, 8 * (32 + size_of(at, 0)), size=10):
        outcomes = attack(Fault.FLIP, at, bit=int(bit))
        check(outcomes, (MalformedMessage, TranscriptMismatch, PeerAborted))


@pytest.mark.parametrize("fault", [Fault.FLIP, Fault.OVERSIZE, Fault.DUPLICATE, Fault.REPLAY])
def test_what_arrives_is_refused_without_waiting(fault: Fault) -> None:
    honest = attack(fault, 20)[1]
    assert not isinstance(honest.error, DeadlineExceeded)


@pytest.mark.parametrize("fault", list(Fault), ids=lambda f: f.value)
def test_faults_in_the_handshake(fault: Fault) -> None:
    for at in range(-HANDSHAKE_FRAMES, 0):
        bad, honest = attack(fault, at)
        assert honest.value is None
        assert isinstance(honest.error, ProtocolError), repr(honest.error)
        assert isinstance(bad.error, ProtocolError), repr(bad.error)


def test_stall_in_the_middle_of_a_frame() -> None:
    a, b = memory.pair(capacity_bytes=4096)

    def large(session: Session) -> int:
        session.exchange(1, bytes(100_000), expect=100_000)
        return 1

    class Sluggish(FaultyChannel):
        def flush(self) -> bool:
            del self._queue[5_000:]
            return super().flush()

        def close(self) -> None:
            """Stay connected and silent."""

    channels: tuple[Channel, Channel] = (Sluggish(a, Fault.DROP, at=99), b)
    outcomes = run_sessions(large, channels=channels, deadline_s=DEADLINE_S)
    assert isinstance(outcomes[1].error, DeadlineExceeded)
    assert outcomes[1].seconds < DEADLINE_S + 1


def test_trickle_does_not_extend_the_deadline() -> None:
    a, b = memory.pair(one_byte=True)
    done = {"count": 0}
    original = b.try_recv_into

    def slow(out: memoryview) -> int:
        done["count"] += 1
        return original(out) if done["count"] < 2_000 or done["count"] % 5_000 == 0 else 0

    b.try_recv_into = slow  # type: ignore[method-assign]
    b.wait = lambda **_: None  # type: ignore[method-assign]
    outcomes = run_sessions(
        lambda s: len(s.exchange(1, bytes(50_000), expect=50_000)),
        channels=(a, b),
        deadline_s=0.4,
    )
    errors = [outcome.error for outcome in outcomes]
    assert all(isinstance(error, DeadlineExceeded | PeerAborted) for error in errors), errors
    assert any(isinstance(error, DeadlineExceeded) for error in errors), errors
    assert outcomes[1].seconds < 20  # the deadline; the trickle itself would take minutes
