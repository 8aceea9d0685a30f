"""Emulated links: what is measured is what the model says, also between two processes."""

from __future__ import annotations

import subprocess
import sys
import threading
import time

import pytest

from privml.errors import MalformedMessage, ParameterError
from privml.session import Session
from privml.testing.netem import LAN, WAN, EmulatedChannel, Link, modelled_seconds
from privml.testing.parties import run_sessions
from privml.transport import memory, plain
from privml.transport.channel import Channel, Counters

FLIGHTS = 10
LARGE = 1 << 20

CLIENT = """
import sys
from privml.session import Session
from privml.testing.netem import WAN, EmulatedChannel
from privml.transport import plain
raw = plain.dial("127.0.0.1", int(sys.argv[1]), deadline_s=20, insecure_loopback=True)
with Session.open(EmulatedChannel(raw, WAN), rank=1, binding={}, offer={}, deadline_s=20) as s:
    for tag in range(10):
        s.exchange(tag, bytes(8), expect=8)
    s.exchange(10, bytes(1 << 20), expect=1 << 20)
    s.send(11, bytes(1 << 20))
    s.recv(12, expect=8)
    s.checkpoint()
"""


def program(session: Session) -> float:
    start = time.perf_counter()
    for tag in range(FLIGHTS):
        session.exchange(tag, bytes(8), expect=8)
    session.exchange(FLIGHTS, bytes(LARGE), expect=LARGE)
    if session.rank == 1:
        session.send(11, bytes(LARGE))
        session.recv(12, expect=8)
    else:
        session.recv(11, expect=LARGE)
        session.send(12, bytes(8))
    session.checkpoint()
    return time.perf_counter() - start


def test_model() -> None:
    assert modelled_seconds(1.0, 100, nbytes=25_000_000, link=WAN) == pytest.approx(4.0)
    assert modelled_seconds(0.0, 10, nbytes=0, link=LAN) == pytest.approx(0.004)


@pytest.mark.parametrize(("rate", "rtt"), [(0.0, 0.1), (-1.0, 0.1), (1.0, -0.1)])
def test_impossible_links(rate: float, rtt: float) -> None:
    with pytest.raises(ParameterError):
        Link("bad", rate, rtt)


def over_a_wan() -> float:
    """Run the program between two processes; return this side's seconds over modelled ones."""
    model = modelled_seconds(0.0, FLIGHTS + 4, nbytes=2 * LARGE, link=WAN)
    with plain.listen(insecure_loopback=True) as listener:
        peer = subprocess.Popen([sys.executable, "-c", CLIENT, str(listener.port)])
        channel = EmulatedChannel(listener.accept(20.0), WAN)
        with Session.open(channel, rank=0, binding={}, offer={}, deadline_s=20.0) as session:
            seconds = program(session)
    assert peer.wait(20) == 0
    return seconds / model


def test_two_processes_over_a_wan() -> None:
    assert over_a_wan() > 0.999


@pytest.mark.nightly
def test_two_processes_over_a_wan_are_not_much_slower_than_the_model() -> None:
    assert min(over_a_wan() for _ in range(5)) < 1.15  # a busy machine only ever adds


def test_lan_in_one_process() -> None:
    a, b = memory.pair()
    links = (EmulatedChannel(a, LAN), EmulatedChannel(b, LAN))
    model = modelled_seconds(0.0, FLIGHTS + 4, nbytes=2 * LARGE, link=LAN)
    for outcome in run_sessions(program, channels=links):
        assert outcome.unwrap() > model * 0.9


def test_content_survives_a_narrow_buffer() -> None:
    a, b = memory.pair(capacity_bytes=333)
    fast = Link("fast", 1e10, 1e-4)
    data = bytes(range(256)) * 1000

    def swap(session: Session) -> bool:
        return session.exchange(1, data, expect=len(data)) == data

    links = (EmulatedChannel(a, fast), EmulatedChannel(b, fast))
    assert all(outcome.unwrap() for outcome in run_sessions(swap, channels=links))


def test_one_end_alone_is_noticed() -> None:
    a, b = memory.pair()
    outcomes = run_sessions(lambda s: 1, channels=(EmulatedChannel(a, LAN), b), deadline_s=1.0)
    assert any(isinstance(outcome.error, MalformedMessage) for outcome in outcomes)


def test_waiting_costs_no_processor_time() -> None:
    a, b = memory.pair()
    slow = Link("slow", 1e9, 0.4)
    used = {}

    def wait(session: Session) -> int:
        start = time.thread_time()
        session.exchange(1, bytes(8), expect=8)
        used[threading.get_ident()] = time.thread_time() - start
        return 1

    links = (EmulatedChannel(a, slow), EmulatedChannel(b, slow))
    assert all(outcome.unwrap() for outcome in run_sessions(wait, channels=links))
    assert max(used.values()) < 0.05


class Buffering(Channel):
    """A channel that takes bytes off its link early, as TLS does."""

    def __init__(self, inner: Channel) -> None:
        self.inner, self.kept = inner, bytearray()

    @property
    def counters(self) -> Counters:
        return self.inner.counters

    def try_send(self, data: memoryview) -> int:
        return self.inner.try_send(data)

    def try_recv_into(self, out: memoryview) -> int:
        piece = memoryview(bytearray(1 << 16))
        self.kept += piece[: self.inner.try_recv_into(piece)]
        taken = bytes(self.kept[: out.nbytes])
        del self.kept[: len(taken)]
        out[: len(taken)] = taken
        return len(taken)

    def wait(self, *, read: bool, write: bool, timeout_s: float) -> None:
        self.inner.wait(read=read, write=write, timeout_s=timeout_s)

    def close(self) -> None:
        self.inner.close()


def test_bytes_that_became_due_inside_the_wrapped_channel_are_not_waited_for() -> None:
    a, b = memory.pair()
    link = Link("short", 1e9, 0.02)
    sender, receiver = EmulatedChannel(a, link), EmulatedChannel(Buffering(b), link)
    out = memoryview(bytearray(8))
    sender.try_send(memoryview(b"12345678"))
    assert receiver.try_recv_into(out) == 0  # on its way, but already off the wrapped link
    time.sleep(2 * link.rtt_s)
    start = time.perf_counter()
    receiver.wait(read=True, write=False, timeout_s=5.0)
    assert time.perf_counter() - start < 1.0
    assert (receiver.try_recv_into(out), bytes(out)) == (8, b"12345678")
