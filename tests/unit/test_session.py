"""Session: one flight per call, one use per session, and every disagreement named."""

from __future__ import annotations

import threading
from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from privml.errors import (
    DeadlineExceeded,
    MalformedMessage,
    ParameterError,
    PeerAborted,
    ProtocolError,
    TranscriptMismatch,
)
from privml.meter import Tally
from privml.session import Session, State
from privml.testing.parties import run_parties, run_sessions
from privml.transport import memory
from privml.transport.faulty import Fault, FaultyChannel
from privml.wire import HEADER_BYTES


def open_with(channel: memory.MemoryChannel, rank: int, **changes: object) -> Session:
    options = {"binding": {"program": "p"}, "offer": {}, "deadline_s": 5.0} | changes
    return Session.open(channel, rank=rank, **options)


class TestExchange:
    @settings(max_examples=25)
    @given(
        sizes=st.lists(st.tuples(st.integers(0, 3000), st.integers(0, 3000)), max_size=4),
        capacity=st.integers(1, 700),
        one_byte=st.booleans(),
    )
    def test_both_get_what_the_other_sent(self, sizes, capacity, one_byte) -> None:
        def program(session: Session) -> list[bytes]:
            got = []
            for tag, size in enumerate(sizes):
                mine = bytes([tag + 1 + session.rank]) * size[session.rank]
                got.append(bytes(session.exchange(tag, mine, expect=size[1 - session.rank])))
            session.checkpoint()
            return got

        channels = memory.pair(capacity_bytes=capacity, one_byte=one_byte)
        for rank, outcome in enumerate(run_sessions(program, channels=channels)):
            want = [bytes([t + 2 - rank]) * size[1 - rank] for t, size in enumerate(sizes)]
            assert outcome.unwrap() == want

    def test_large_both_ways_at_once_does_not_deadlock(self) -> None:
        words = np.arange(8 << 20, dtype=np.uint64)  # 64 MiB through a buffer of 1 MiB

        def program(session: Session) -> bool:
            got = session.exchange(1, words + np.uint64(session.rank), expect=words.nbytes)
            session.checkpoint()
            view = np.frombuffer(got, np.uint64)
            return bool(np.array_equal(view, words + np.uint64(1 - session.rank)))

        assert all(outcome.unwrap() for outcome in run_sessions(program))

    def test_send_and_recv(self) -> None:
        def program(session: Session) -> bytes:
            if session.rank == 0:
                session.send(1, np.arange(3, dtype=np.uint32))
                return bytes(session.recv(2, expect=0)) + b"-"
            got = session.recv(1, expect=12)
            session.send(2, b"")
            return bytes(got)

        first, second = run_sessions(program)
        assert (first.unwrap(), second.unwrap()) == (
            b"-",
            bytes.fromhex("000000000100000002000000"),
        )

    def test_received_words_are_writable_and_aligned(self) -> None:
        def program(session: Session) -> bool:
            got = [
                session.exchange(t, bytes(8 * n), expect=8 * n) for t, n in enumerate((1, 9, 99))
            ]
            views = [np.frombuffer(g, np.uint64) for g in got]
            for view in views:
                view += np.uint64(1)
            return all(v.ctypes.data % 64 == 0 and v.flags.writeable for v in views)

        assert all(outcome.unwrap() for outcome in run_sessions(program))

    def test_accepts_any_contiguous_array_and_refuses_others(self) -> None:
        matrix = np.arange(6, dtype=np.uint64).reshape(2, 3)

        def program(session: Session) -> bool:
            same = session.exchange(0, matrix, expect=48) == matrix.tobytes()
            session.exchange(1, np.zeros((0, 3), np.uint64), expect=0)
            session.exchange(2, np.uint64(7).reshape(()), expect=8)
            return same

        assert all(outcome.unwrap() for outcome in run_sessions(program))
        with pytest.raises(TypeError):
            run_sessions(lambda s: s.exchange(0, matrix.T, expect=48))[0].unwrap()

    @pytest.mark.parametrize(("tag", "expect"), [(-1, 0), (2**32, 0), (0, -1), (0, 2**48)])
    def test_arguments_out_of_range(self, tag: int, expect: int) -> None:
        first, second = run_sessions(lambda s: s.exchange(tag, b"", expect=expect))
        assert isinstance(first.error, ParameterError)
        assert isinstance(second.error, ParameterError)

    def test_different_sizes_tags_and_programs_are_refused(self) -> None:
        programs: list[Callable[[Session], object]] = [
            lambda s: s.exchange(1, bytes(8), expect=8 + s.rank),
            lambda s: s.exchange(s.rank, bytes(8), expect=8),
            lambda s: s.checkpoint() if s.rank else s.exchange(0, bytes(32), expect=32),
            lambda s: s.send_blob(0, bytes(4)) if s.rank else s.recv(0, expect=4),
        ]
        for program in programs:
            first, second = run_sessions(lambda s, p=program: (p(s), s.checkpoint()))
            errors = (first.error, second.error)
            assert any(isinstance(e, MalformedMessage) for e in errors), errors
            assert all(isinstance(e, MalformedMessage | PeerAborted) for e in errors), errors


class TestEnd:
    def test_used_once(self) -> None:
        def program(session: Session) -> Session:
            session.exchange(1, b"x", expect=1)
            return session

        calls: list[Callable[[Session], object]] = [
            lambda s: s.exchange(1, b"", expect=0),
            lambda s: s.send(1, b""),
            lambda s: s.recv(1, expect=0),
            lambda s: s.send_blob(1, b""),
            lambda s: s.recv_blob(1, max_bytes=1),
            lambda s: s.checkpoint(),
            lambda s: s.own(bytearray(1)),
        ]
        for outcome in run_sessions(program):
            session = outcome.unwrap()
            assert session.state is State.CLOSED
            for call in calls:
                with pytest.raises(ProtocolError, match="used once"):
                    call(session)
            session.close()
            session.abort("late")
            assert session.state is State.CLOSED
            assert session.measured().total.flights == 1

    def test_an_exception_aborts_both_and_wipes(self) -> None:
        secret = bytearray(b"\xaa" * 32)

        def program(session: Session) -> object:
            if session.rank == 0:
                session.own(secret)
                raise ValueError("boom")
            return session.recv(1, expect=8)

        first, second = run_sessions(program)
        assert isinstance(first.error, ValueError)
        assert isinstance(second.error, PeerAborted)
        assert secret == bytes(32)

    def test_close_wipes(self) -> None:
        secrets = [bytearray(b"\x55" * 16) for _ in range(2)]
        for outcome in run_sessions(lambda s: s.own(secrets[s.rank])):
            outcome.unwrap()
        assert secrets == [bytes(16)] * 2

    def test_peer_that_closes_early(self) -> None:
        def program(session: Session) -> object:
            return 0 if session.rank == 0 else session.recv(1, expect=8)

        second = run_sessions(program)[1]
        assert isinstance(second.error, PeerAborted)
        assert "still due" in str(second.error)

    def test_abort_reason_stays_here(self) -> None:
        def program(session: Session) -> object:
            if session.rank == 0:
                session.abort("the disk is full")
            return session.exchange(1, b"", expect=0)

        first, second = run_sessions(program)
        assert "the disk is full" in str(first.error)
        assert isinstance(second.error, PeerAborted)
        assert "disk" not in str(second.error)

    def test_all_abort_frames_are_the_same_but_for_the_session(self) -> None:
        def last_bytes(program: Callable[[Session], object]) -> bytes:
            a, b = memory.pair()
            seen: list[bytes] = []

            def observer() -> int:
                session = open_with(b, 1)
                data = bytearray(4096)
                b.wait(read=True, write=False, timeout_s=5)
                seen.append(bytes(data[: b.try_recv_into(memoryview(data))]))
                tag = session.id[:8]
                assert seen[0][8:16] == tag
                return 0

            def party() -> int:
                with open_with(a, 0) as session:
                    program(session)
                return 0

            run_parties(party, observer)
            return seen[0][:8] + seen[0][16:]

        def fail(session: Session) -> None:
            raise KeyError("secret-dependent")

        frames = {
            last_bytes(lambda s: s.abort("one")),
            last_bytes(lambda s: s.abort("another, longer reason")),
            last_bytes(fail),
        }
        assert frames == {bytes.fromhex("50564d4c01040000") + bytes(16)}

    def test_deadline_with_a_silent_peer(self) -> None:
        def program(session: Session) -> object:
            if session.rank == 0:
                done.wait(30)
                return 0
            try:
                return session.recv(1, expect=8)
            finally:
                done.set()

        done = threading.Event()
        second = run_sessions(program, deadline_s=0.3)[1]
        assert isinstance(second.error, DeadlineExceeded)
        assert 0.3 <= second.seconds < 5  # the peer stays silent for 30 s

    def test_deadline_in_the_handshake(self) -> None:
        a, _ = memory.pair()
        first, _ = run_parties(lambda: open_with(a, 0, deadline_s=0.2), lambda: 0)
        assert isinstance(first.error, DeadlineExceeded)
        assert first.seconds < 5  # the peer never answers

    @pytest.mark.parametrize("seconds", [0.0, -1.0, float("inf"), float("nan")])
    def test_deadline_must_be_positive_and_finite(self, seconds: float) -> None:
        with pytest.raises(ParameterError, match="deadline"):
            open_with(memory.pair()[0], 0, deadline_s=seconds)


class TestBlob:
    def test_blob_is_set_up_not_on_line(self) -> None:
        data = np.arange(100_000, dtype=np.uint64)

        def program(session: Session) -> Tally:
            if session.rank == 0:
                session.send_blob(7, data)
            else:
                got = session.recv_blob(7, max_bytes=1 << 20, deadline_s=30)
                assert np.array_equal(np.frombuffer(got, np.uint64), data)
            session.checkpoint()
            return session.measured().total

        first, second = (o.unwrap() for o in run_sessions(program))
        assert first.payload_sent == second.payload_received == 0
        assert first.setup_sent == second.setup_received
        assert first.setup_sent >= data.nbytes + HEADER_BYTES
        assert (first.flights, first.checkpoints, first.setup_flights) == (1, 1, 3)

    @pytest.mark.parametrize(("size", "fits"), [(0, True), (99, True), (100, True), (101, False)])
    def test_cap(self, size: int, fits: bool) -> None:
        def program(session: Session) -> int:
            if session.rank == 0:
                session.send_blob(1, bytes(size))
                session.checkpoint()
                return size
            got = session.recv_blob(1, max_bytes=100).nbytes
            session.checkpoint()
            return got

        first, second = run_sessions(program)
        if fits:
            assert second.unwrap() == first.unwrap() == size
        else:
            assert isinstance(second.error, MalformedMessage)
            assert "claims 101 bytes" in str(second.error)


class TestCheckpoint:
    def test_equal_transcripts(self) -> None:
        def program(session: Session) -> bytes:
            for tag in range(5):
                session.exchange(tag, bytes([session.rank]) * tag * 50_000, expect=tag * 50_000)
                session.checkpoint()
            return session.transcript_digest

        first, second = run_sessions(program)
        assert first.unwrap() == second.unwrap()

    @pytest.mark.parametrize("size", [1, 1000, 20_000, 300_000])
    def test_altered_payload_is_noticed_by_both(self, size: int) -> None:
        def program(session: Session) -> int:
            session.exchange(1, bytes(size), expect=size)
            session.checkpoint()
            return 1

        a, b = memory.pair()
        outcomes = run_sessions(program, channels=(FaultyChannel(a, Fault.FLIP, at=2), b))
        assert [type(o.error) for o in outcomes] == [TranscriptMismatch] * 2
