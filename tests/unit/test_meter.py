"""Cost meter: what a session used, as a whole and by scope."""

from __future__ import annotations

import json

import pytest

from privml.errors import ParameterError
from privml.meter import CostMeter, Tally
from privml.session import Session
from privml.testing.parties import run_sessions
from privml.transport import memory
from privml.wire import HEADER_BYTES


def test_flights_and_bytes() -> None:
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


def test_bytes_equal_those_on_the_link() -> None:
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


def test_scopes_nest_and_add_up() -> None:
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


def test_a_failing_scope_is_left() -> None:
    meter = CostMeter()
    with pytest.raises(RuntimeError), meter.scope("a"):
        raise RuntimeError
    meter.record(Tally(flights=1))
    assert meter.measured().scopes[""].flights == 1


@pytest.mark.parametrize("name", ["", "a/b"])
def test_bad_scope_name(name: str) -> None:
    with pytest.raises(ParameterError), CostMeter().scope(name):
        pass
