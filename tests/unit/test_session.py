"""Session: one flight per call, one use per session, and every disagreement named."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from privml.errors import (
    DeadlineExceeded,
    HandshakeMismatch,
    InsecureRandomness,
    MalformedMessage,
    ParameterError,
    PeerAborted,
    ProtocolError,
    TranscriptMismatch,
)
from privml.meter import CostMeter, Tally
from privml.session import Session, State
from privml.testing.parties import Outcome, run_parties, run_sessions
from privml.transport import memory
from privml.wire import HEADER_BYTES


def open_with(channel: memory.MemoryChannel, rank: int, **changes: object) -> Session:
    options = {"binding": {"program": "p"}, "offer": {}, "deadline_s": 5.0} | changes
    return Session.open(channel, rank=rank, **options)


def mismatch(server: dict[str, object], client: dict[str, object]) -> tuple[Outcome, Outcome]:
    a, b = memory.pair()
    return run_parties(
        lambda: open_with(a, **({"rank": 0} | server)),
        lambda: open_with(b, **({"rank": 1} | client)),
    )


def altering_pair(size: int) -> tuple[memory.MemoryChannel, memory.MemoryChannel]:
    """Return a pair whose second end alters the last byte of each whole read of `size` bytes."""
    a, b = memory.pair()
    original = b.try_recv_into

    def altering(out: memoryview) -> int:
        count = original(out)
        if out.nbytes == count == size:
            out[-1] ^= 1
        return count

    b.try_recv_into = altering  # type: ignore[method-assign]
    return a, b


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
                done.wait(10)
                return 0
            try:
                return session.recv(1, expect=8)
            finally:
                done.set()

        done = threading.Event()
        second = run_sessions(program, deadline_s=0.3)[1]
        assert isinstance(second.error, DeadlineExceeded)
        assert 0.3 <= second.seconds < 1.3

    def test_deadline_in_the_handshake(self) -> None:
        a, _ = memory.pair()
        first, _ = run_parties(lambda: open_with(a, 0, deadline_s=0.2), lambda: 0)
        assert isinstance(first.error, DeadlineExceeded)
        assert first.seconds < 1.2

    @pytest.mark.parametrize("seconds", [0.0, -1.0, float("inf"), float("nan")])
    def test_deadline_must_be_positive_and_finite(self, seconds: float) -> None:
        with pytest.raises(ParameterError, match="deadline"):
            open_with(memory.pair()[0], 0, deadline_s=seconds)


class TestHandshake:
    def test_same_id_and_offers(self) -> None:
        a, b = memory.pair()
        first, second = run_parties(
            lambda: open_with(a, 0, offer={"max tokens": 128, "low": -(2**63)}),
            lambda: open_with(b, 1, offer={"tokens": 23}),
        )
        one, two = first.unwrap(), second.unwrap()
        assert one.id == two.id
        assert len(one.id) == 32
        assert one.peer_offer == {"tokens": 23}
        assert two.peer_offer == {"max tokens": 128, "low": -(2**63)}
        assert one.transcript_digest == two.transcript_digest
        total = one.measured().total
        assert (total.flights, total.payload_sent, total.setup_flights) == (0, 0, 2)
        assert one.id.hex() not in repr(one)

    def test_two_sessions_differ(self) -> None:
        ids = {run_sessions(lambda s: s.id)[0].unwrap() for _ in range(20)}
        assert len(ids) == 20

    @pytest.mark.parametrize("name", ["ring", "scales", "program", "source", "pool cursor"])
    def test_each_altered_field_is_named(self, name: str) -> None:
        fields = dict.fromkeys(["ring", "scales", "program", "source", "pool cursor"], "same")
        first, second = mismatch({"binding": fields}, {"binding": fields | {name: "other"}})
        for outcome in (first, second):
            assert isinstance(outcome.error, HandshakeMismatch)
            assert f"digest of '{name}' differs" in str(outcome.error)
            assert str(outcome.error).count("digest of") == 1

    def test_all_altered_fields_are_named_at_once(self) -> None:
        first, _ = mismatch(
            {"binding": {"a": "1", "b": "2", "c": "3"}}, {"binding": {"a": "x", "b": "y", "c": "3"}}
        )
        assert "'a'" in str(first.error)
        assert "'b'" in str(first.error)
        assert "'c'" not in str(first.error)

    def test_missing_field(self) -> None:
        first, second = mismatch({"binding": {}}, {"binding": {"program": "p"}})
        assert "only the peer binds 'program'" in str(first.error)
        assert "the peer does not bind 'program'" in str(second.error)

    def test_value_moved_to_another_name(self) -> None:
        first, _ = mismatch({"binding": {"a": "xy", "b": ""}}, {"binding": {"a": "x", "b": "y"}})
        assert isinstance(first.error, HandshakeMismatch)

    def test_same_rank(self) -> None:
        first, second = mismatch({"rank": 1}, {"rank": 1})
        for outcome in (first, second):
            assert isinstance(outcome.error, HandshakeMismatch | MalformedMessage)

    def test_insecure_on_one_side_only(self) -> None:
        first, second = mismatch({"insecure": True}, {})
        for outcome in (first, second):
            assert isinstance(outcome.error, HandshakeMismatch)
            assert "'insecure' differs" in str(outcome.error)

    def test_insecure_on_both_sides_in_process(self) -> None:
        first, _ = run_sessions(lambda s: s.insecure, insecure=True)
        assert first.unwrap() is True

    def test_insecure_is_refused_on_a_secure_channel(self) -> None:
        a, b = memory.pair()
        a.secure = True
        first, second = run_parties(
            lambda: open_with(a, 0, insecure=True), lambda: open_with(b, 1, insecure=True)
        )
        assert isinstance(first.error, InsecureRandomness)
        assert isinstance(second.error, PeerAborted)

    def test_altered_hello(self) -> None:
        channels = altering_pair(40)
        outcomes = run_sessions(lambda s: s.id, channels=channels)
        assert all(isinstance(o.error, ProtocolError) for o in outcomes)

    def test_altered_nonce(self) -> None:
        channels = altering_pair(40)
        alter_last = channels[1].try_recv_into

        def alter_nonce(out: memoryview) -> int:
            count = alter_last(out)
            if out.nbytes == count == 40:
                out[-1] ^= 1
                out[20] ^= 1
            return count

        channels[1].try_recv_into = alter_nonce  # type: ignore[method-assign]
        outcomes = run_sessions(lambda s: s.id, channels=channels)
        assert [type(o.error) for o in outcomes] == [HandshakeMismatch] * 2
        assert "different hellos" in str(outcomes[0].error)

    def test_other_version(self, monkeypatch: pytest.MonkeyPatch) -> None:
        import privml.handshake as module

        real = module.make_hello

        def newer(channel: object, *, rank: int, **rest: object) -> module.Hello:
            hello = real(channel, rank=rank, **rest)
            return module.msgspec.structs.replace(hello, version=1 + rank)

        monkeypatch.setattr(module, "make_hello", newer)
        first, second = mismatch({}, {})
        assert "'protocol version' is 1 here, 2 at the peer" in str(first.error)
        assert "'protocol version' is 2 here, 1 at the peer" in str(second.error)

    @pytest.mark.parametrize("kind", ["binding", "offer"])
    @pytest.mark.parametrize("name", ["", "UPPER", "a/b", "é", "x" * 65])
    def test_bad_names(self, kind: str, name: str) -> None:
        value = "v" if kind == "binding" else 1
        with pytest.raises(ParameterError, match="Names are"):
            open_with(memory.pair()[0], 0, **{kind: {name: value}})

    def test_bad_offer_and_rank(self) -> None:
        with pytest.raises(ParameterError):
            open_with(memory.pair()[0], 0, offer={"n": 2**63})
        with pytest.raises(ParameterError, match="rank"):
            open_with(memory.pair()[0], 2)


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

    def test_altered_payload_is_noticed_by_both(self) -> None:
        def program(session: Session) -> int:
            session.exchange(1, bytes(1000), expect=1000)
            session.checkpoint()
            return 1

        outcomes = run_sessions(program, channels=altering_pair(HEADER_BYTES + 1000))
        assert [type(o.error) for o in outcomes] == [TranscriptMismatch] * 2


class TestMeter:
    def test_flights_and_bytes(self) -> None:
        def program(session: Session) -> Tally:
            session.exchange(1, bytes(100), expect=100)
            if session.rank == 0:
                session.send(2, bytes(10))
            else:
                session.recv(2, expect=10)
            session.checkpoint()
            return session.measured().total

        first, second = (o.unwrap() for o in run_sessions(program))
        assert first.flights == second.flights == 3
        assert (first.payload_sent, first.payload_received) == (110, 100)
        assert (second.payload_sent, second.payload_received) == (100, 110)
        assert first.wire_sent == second.wire_received == 110 + 32 + 3 * HEADER_BYTES
        assert first.wire_received == second.wire_sent == 100 + 32 + 2 * HEADER_BYTES
        assert first.checkpoints == 1
        assert first.seconds > 0

    def test_bytes_equal_those_on_the_link(self) -> None:
        channels = memory.pair()

        def program(session: Session) -> Tally:
            session.exchange(1, bytes(1000), expect=1000)
            session.send_blob(2, b"abc") if session.rank else session.recv_blob(2, max_bytes=3)
            session.checkpoint()
            return session.measured().total

        tallies = [o.unwrap() for o in run_sessions(program, channels=channels)]
        for tally, channel in zip(tallies, channels, strict=True):
            goodbye = HEADER_BYTES
            assert tally.wire_sent + tally.setup_sent + goodbye >= channel.counters.sent
            assert tally.wire_sent + tally.setup_sent <= channel.counters.sent

    def test_scopes_nest_and_add_up(self) -> None:
        def program(session: Session) -> dict[str, object]:
            for layer in range(2):
                with session.meter.scope(f"layer{layer}"):
                    with session.meter.scope("gelu"):
                        session.exchange(1, bytes(8), expect=8)
                        session.exchange(2, bytes(8), expect=8)
                    with session.meter.scope("softmax"):
                        session.exchange(3, bytes(16), expect=16)
                    session.exchange(4, bytes(1), expect=1)
            measured = session.measured()
            assert measured.inclusive("layer0").flights == 4
            assert measured.inclusive("layer0").payload_sent == 33
            assert measured.scopes["layer0"].flights == 1
            names = measured.by_name()
            assert (names["gelu"].flights, names["gelu"].calls) == (4, 2)
            assert names["softmax"].payload_received == 32
            assert measured.total == sum(measured.scopes.values(), Tally())
            assert session.meter.flights == measured.total.flights == 8
            assert session.meter.payload_sent == session.meter.payload_received == 66
            return session.meter.as_dict()

        first, _ = run_sessions(program)
        document = json.loads(json.dumps(first.unwrap()))
        assert document["by_name"]["gelu"]["payload_sent"] == 32
        assert document["total"]["flights"] == 8

    def test_a_failing_scope_is_left(self) -> None:
        meter = CostMeter()
        with pytest.raises(RuntimeError), meter.scope("a"):
            raise RuntimeError
        meter.record(Tally(flights=1))
        assert meter.measured().scopes[""].flights == 1

    @pytest.mark.parametrize("name", ["", "a/b"])
    def test_bad_scope_name(self, name: str) -> None:
        with pytest.raises(ParameterError), CostMeter().scope(name):
            pass


class TestMemory:
    def test_capacity_must_be_positive(self) -> None:
        with pytest.raises(ParameterError):
            memory.pair(capacity_bytes=0)

    def test_what_was_sent_before_closing_arrives(self) -> None:
        a, b = memory.pair()
        a.try_send(memoryview(b"last words"))
        a.close()
        out = bytearray(20)
        assert b.try_recv_into(memoryview(out)) == 10
        with pytest.raises(PeerAborted):
            b.try_recv_into(memoryview(out))
        with pytest.raises(PeerAborted):
            b.try_send(memoryview(b"x"))

    def test_ring_wraps(self) -> None:
        a, b = memory.pair(capacity_bytes=7)
        sent, got = bytes(range(100)), b""
        left = memoryview(sent)
        for _ in range(200):
            if left.nbytes:
                left = left[a.try_send(left[:5]) :]
            piece = bytearray(3)
            got += bytes(piece[: b.try_recv_into(memoryview(piece))])
        assert got == sent
