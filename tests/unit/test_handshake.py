"""Handshake: both agree on every bound field, or the error names what differs."""

from __future__ import annotations

import msgspec
import pytest

from privml import handshake
from privml.errors import (
    HandshakeMismatch,
    InsecureRandomness,
    MalformedMessage,
    ParameterError,
    PeerAborted,
    ProtocolError,
)
from privml.session import Session
from privml.testing.parties import Outcome, run_parties, run_sessions
from privml.transport import memory
from privml.transport.faulty import Fault, FaultyChannel


def open_with(channel: memory.MemoryChannel, rank: int, **changes: object) -> Session:
    options = {"binding": {"program": "p"}, "offer": {}, "deadline_s": 5.0} | changes
    return Session.open(channel, rank=rank, **options)


def mismatch(server: dict[str, object], client: dict[str, object]) -> tuple[Outcome, Outcome]:
    a, b = memory.pair()
    return run_parties(
        lambda: open_with(a, **({"rank": 0} | server)),
        lambda: open_with(b, **({"rank": 1} | client)),
    )


def test_same_id_and_offers() -> None:
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


def test_two_sessions_differ() -> None:
    ids = {run_sessions(lambda s: s.id)[0].unwrap() for _ in range(20)}
    assert len(ids) == 20


@pytest.mark.parametrize("name", ["ring", "scales", "program", "source", "pool cursor"])
def test_each_altered_field_is_named(name: str) -> None:
    fields = dict.fromkeys(["ring", "scales", "program", "source", "pool cursor"], "same")
    first, second = mismatch({"binding": fields}, {"binding": fields | {name: "other"}})
    for outcome in (first, second):
        assert isinstance(outcome.error, HandshakeMismatch)
        assert f"digest of '{name}' differs" in str(outcome.error)
        assert str(outcome.error).count("digest of") == 1


def test_all_altered_fields_are_named_at_once() -> None:
    first, _ = mismatch(
        {"binding": {"a": "1", "b": "2", "c": "3"}}, {"binding": {"a": "x", "b": "y", "c": "3"}}
    )
    assert "'a'" in str(first.error)
    assert "'b'" in str(first.error)
    assert "'c'" not in str(first.error)


def test_missing_field() -> None:
    first, second = mismatch({"binding": {}}, {"binding": {"program": "p"}})
    assert "only the peer binds 'program'" in str(first.error)
    assert "the peer does not bind 'program'" in str(second.error)


def test_value_moved_to_another_name() -> None:
    first, _ = mismatch({"binding": {"a": "xy", "b": ""}}, {"binding": {"a": "x", "b": "y"}})
    assert isinstance(first.error, HandshakeMismatch)


def test_same_rank() -> None:
    first, second = mismatch({"rank": 1}, {"rank": 1})
    for outcome in (first, second):
        assert isinstance(outcome.error, HandshakeMismatch | MalformedMessage)


def test_reflected_or_equal_hello() -> None:
    hello = handshake.make_hello(memory.pair()[0], rank=1, binding={}, offer={}, insecure=False)
    with pytest.raises(HandshakeMismatch, match=r"'rank' is 1 on both sides.*reflects data"):
        handshake.compare(hello, hello)


def test_insecure_on_one_side_only() -> None:
    first, second = mismatch({"insecure": True}, {})
    for outcome in (first, second):
        assert isinstance(outcome.error, HandshakeMismatch)
        assert "'insecure' differs" in str(outcome.error)


def test_insecure_on_both_sides_in_process() -> None:
    first, _ = run_sessions(lambda s: s.insecure, insecure=True)
    assert first.unwrap() is True


def test_insecure_is_refused_on_a_secure_channel() -> None:
    a, b = memory.pair()
    a.secure = True
    first, second = run_parties(
        lambda: open_with(a, 0, insecure=True), lambda: open_with(b, 1, insecure=True)
    )
    assert isinstance(first.error, InsecureRandomness)
    assert isinstance(second.error, PeerAborted)


@pytest.mark.parametrize("bit", range(0, 8 * 40, 7))
def test_altered_hello(bit: int) -> None:
    a, b = memory.pair()
    channels = (FaultyChannel(a, Fault.FLIP, at=0, bit=bit), b)
    outcomes = run_sessions(lambda s: s.id, channels=channels)
    in_nonce = 16 <= bit < 16 + 8 * 32
    for outcome in outcomes:
        assert isinstance(outcome.error, HandshakeMismatch if in_nonce else ProtocolError)
    if in_nonce:
        assert "different hellos" in str(outcomes[0].error)


def test_other_version(monkeypatch: pytest.MonkeyPatch) -> None:
    real = handshake.make_hello

    def newer(channel: object, *, rank: int, **rest: object) -> handshake.Hello:
        hello = real(channel, rank=rank, **rest)
        return msgspec.structs.replace(hello, version=1 + rank)

    monkeypatch.setattr(handshake, "make_hello", newer)
    first, second = mismatch({}, {})
    assert "'protocol version' is 1 here, 2 at the peer" in str(first.error)
    assert "'protocol version' is 2 here, 1 at the peer" in str(second.error)


@pytest.mark.parametrize("kind", ["binding", "offer"])
@pytest.mark.parametrize("name", ["", "UPPER", "a/b", "é", "x" * 65])
def test_bad_names(kind: str, name: str) -> None:
    value = "v" if kind == "binding" else 1
    with pytest.raises(ParameterError, match="Names are"):
        open_with(memory.pair()[0], 0, **{kind: {name: value}})


def test_bad_offer_and_rank() -> None:
    with pytest.raises(ParameterError):
        open_with(memory.pair()[0], 0, offer={"n": 2**63})
    with pytest.raises(ParameterError, match="rank"):
        open_with(memory.pair()[0], 2)
