"""Many clients at one server over mutual TLS: progress, dropped connections, eviction, refusals.

The computation is replaced by a copy of the image, so that these tests need no concrete-python;
real ciphertexts are in ``test_fhe_encrypted.py``.
"""

from __future__ import annotations

import hashlib
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
import pytest

from privml.errors import (
    DeadlineExceeded,
    HandshakeMismatch,
    MalformedMessage,
    ParameterError,
    PeerAborted,
    PrivmlError,
    SecurityError,
    UntrustedArtifact,
)
from privml.protocols.fhe import bundle, messages
from privml.protocols.fhe import client as remote
from privml.protocols.fhe.bundle import ServerPart
from privml.protocols.fhe.client import Address, Work, connect, describe, new_job
from privml.protocols.fhe.key_ring import KeyRing
from privml.protocols.fhe.key_store import Owner
from privml.protocols.fhe.messages import Refused
from privml.protocols.fhe.service import Quota, Service, ServiceEvent
from privml.testing.fhe_parts import FakeClient, fake_answer, fake_part
from privml.transport.channel import Channel
from privml.transport.faulty import Fault, FaultyChannel
from privml.transport.identity import Identity

IMAGES = np.arange(18).reshape(6, 3) % 4


class FakeLauncher:
    """Stands for the child process: copies the image; waits for ``gate``; counts."""

    gate = threading.Event()
    computed: list[bytes]
    fails: dict[int, Exception]

    def __init__(self, artefact: object, manifest: object, *, limits: object = None) -> None:
        self.isolated = True
        self.held: dict[str, bytes] = {}

    def start(self) -> None: ...

    def close(self) -> None: ...

    def interrupt(self) -> None:
        self.gate.set()

    def forget(self, owner: str) -> None:
        self.held.pop(owner, None)

    def run(self, query: bytes, *, owner: str, keys: Callable[[], bytes]) -> bytes:
        self.gate.wait(20)
        if owner not in self.held:
            self.held[owner] = keys()
        self.computed.append(query)
        error = self.fails.pop(len(self.computed), None)
        if error is not None:
            raise error
        return fake_answer(query, self.held[owner])


@pytest.fixture(autouse=True)
def _pipes_break_softly() -> None:
    """Undo what tests of the bare library leave in this process: a handler that ends it."""
    signal.signal(signal.SIGPIPE, signal.SIG_IGN)


@pytest.fixture(autouse=True)
def launcher(monkeypatch: pytest.MonkeyPatch) -> type[FakeLauncher]:
    monkeypatch.setattr(bundle, "Launcher", FakeLauncher)
    FakeLauncher.computed, FakeLauncher.fails = [], {}
    FakeLauncher.gate.set()
    return FakeLauncher


@pytest.fixture(scope="module")
def identities(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Identity]:
    folder = tmp_path_factory.mktemp("identities")
    return {n: Identity.generate(folder, n) for n in ("server", "ann", "bob", "eve")}


@dataclass
class Host:
    part: ServerPart
    identities: dict[str, Identity]
    state: Path
    events: list[ServiceEvent] = field(default_factory=list)
    service: Service | None = None

    @contextmanager
    def serving(self, **quota: float) -> Iterator[Service]:
        pins = [self.identities[n].fingerprint for n in ("ann", "bob")]
        with Service(
            [self.part], identity=self.identities["server"], pins=pins, state=self.state,
            quota=replace(Quota(), **quota), on_event=self.events.append,  # type: ignore[arg-type]
        ) as running:  # fmt: skip
            running.start()
            self.service = running
            yield running

    def address(self, name: str, **more: float) -> Address:
        assert self.service is not None
        pin = str(self.identities["server"].fingerprint)
        given = {"connect_s": 5.0, "reply_s": 20.0, "patience_s": 20.0, **more}
        return Address("127.0.0.1", self.service.port, self.identities[name], pin, **given)

    def work(self, name: str, images: np.ndarray = IMAGES, seed: int = 0, **more: object) -> Work:  # type: ignore[type-arg]
        client = FakeClient(self.part, seed)
        return Work(self.address(name), self.part.client, client, client.keys, images,  # type: ignore[arg-type]
                    **more)  # type: ignore[arg-type]  # fmt: skip

    def kinds(self) -> list[str]:
        return [event.kind for event in self.events]


@pytest.fixture
def host(tmp_path: Path, identities: dict[str, Identity]) -> Host:
    return Host(fake_part(), identities, tmp_path / "state")


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(remote, "_PAUSES_S", (0.01, 0.05))


def test_many_images_come_back_with_progress(host: Host) -> None:
    seen: list[tuple[int, int]] = []
    with host.serving():
        work = host.work("ann", progress=lambda i, n: seen.append((i, n)))
        answer = work.run()
    assert (answer.integers == IMAGES).all()
    assert seen == [(i, 6) for i in range(1, 7)]
    assert (work.connections, work.uploads, work.resumed) == (1, 1, 0)
    assert host.kinds().count("image") == 6
    assert host.kinds()[-1] == "closed"
    assert "goodbye" in host.events[-1].message


def test_clients_with_different_keys_do_not_mix(host: Host) -> None:
    works = {}
    with host.serving() as running:
        works = {n: host.work(n, IMAGES + 0, seed) for seed, n in enumerate(("ann", "bob"))}
        threads = [threading.Thread(target=work.run) for work in works.values()]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert len(running.keys) == 2
    for work in works.values():
        assert len(work._answers) == 6
        digest = hashlib.sha256(work.keys).digest()
        assert all(digest in answer for answer in work._answers.values())


def test_keys_are_sent_once_also_over_a_restart(host: Host) -> None:
    with host.serving():
        first = host.work("ann")
        first.run()
    with host.serving():
        second = host.work("ann")
        second.run()
    assert (first.uploads, second.uploads) == (1, 0)
    (file,) = host.state.iterdir()
    assert first.keys in file.read_bytes()


def test_new_keys_replace_the_old_ones(host: Host) -> None:
    with host.serving() as running:
        host.work("ann", seed=1).run()
        work = host.work("ann", seed=2)
        work.run()
        assert len(running.keys) == 1
    assert hashlib.sha256(work.keys).digest() in work._answers[0]


@pytest.mark.parametrize("at", range(2, 16))
def test_a_dropped_connection_costs_no_finished_image(host: Host, at: int) -> None:
    cut = [True]

    def dial() -> Channel:
        channel = host.address("ann").dial()
        return FaultyChannel(channel, Fault.CUT, at=at) if cut and cut.pop() else channel

    with host.serving() as running:
        work = host.work("ann", dial=dial)
        answer = work.run()
        assert running.board.used_bytes[0] == 0
    assert (answer.integers == IMAGES).all()
    assert len(FakeLauncher.computed) == 6
    assert work.client.encrypted == 6  # type: ignore[attr-defined]


def test_another_process_goes_on_with_the_job(host: Host) -> None:
    job = new_job()
    with host.serving() as running:
        dead = host.work("ann", job=job)
        with connect(dead.address) as link:
            dead._open(link)
            dead._submit(link, [0, 1, 2])
        while running.board.unfinished:
            time.sleep(0.01)
        assert len(FakeLauncher.computed) == 3
        work = host.work("ann", job=job)
        assert (work.run().integers == IMAGES).all()
        assert work.resumed == 3
    assert len(FakeLauncher.computed) == 6


def test_answers_are_fetched_again(host: Host) -> None:
    with host.serving():
        work = host.work("ann", job=new_job())
        with connect(work.address) as link:
            work._open(link)
            work._submit(link, [0])
            while not link.call(messages.Watch(work.job, 0)).finished:  # type: ignore[union-attr]
                continue
        for _ in range(3):
            with connect(work.address) as link:
                work._open(link)
                work._answers.clear()
                work._fetch(link, [0])
                assert 0 in work._answers


def test_a_server_that_restarts_is_waited_for(host: Host) -> None:
    notes: list[str] = []
    FakeLauncher.gate.clear()
    with host.serving() as running:
        port = running.port
        work = host.work("ann", note=notes.append)
        results: list[object] = []
        thread = threading.Thread(target=lambda: results.append(work.run()))
        thread.start()
        while not running.board.unfinished:
            time.sleep(0.01)
    FakeLauncher.gate.set()
    pins = [host.identities["ann"].fingerprint]
    with Service(
        [host.part], identity=host.identities["server"], pins=pins, state=host.state, port=port
    ) as again:
        again.start()
        thread.join(20)
    assert len(results) == 1
    assert work.uploads == 1  # the keys lie on disk
    assert any("connection lost" in note for note in notes)


def test_a_handshake_cut_short_is_tried_again_after_a_first_connection_only(
    host: Host, monkeypatch: pytest.MonkeyPatch
) -> None:
    with host.serving():
        work, once = host.work("ann"), Work._once
        cuts: list[int] = []

        def cut(self: Work) -> None:
            cuts.append(self.connections)
            if len(cuts) == 1:
                self.connections = 1
                raise HandshakeMismatch("cut")
            once(self)

        monkeypatch.setattr(Work, "_once", cut)
        work.run()
        assert cuts == [0, 1]

        def refused(self: Work) -> None:
            raise HandshakeMismatch("refused")

        monkeypatch.setattr(Work, "_once", refused)
        with pytest.raises(HandshakeMismatch, match="refused"):
            host.work("ann").run()


def test_evicted_keys_are_sent_again(host: Host) -> None:
    with host.serving(key_clients=1):
        ann, bob = host.work("ann"), host.work("bob")
        ann.run()
        bob.run()
        again = host.work("ann")
        again.run()
    assert [w.uploads for w in (ann, bob, again)] == [1, 1, 1]
    evicted = [e for e in host.events if e.kind == "evicted"]
    assert [e.client for e in evicted] == [host.identities[n].fingerprint for n in ("ann", "bob")]
    assert "used longest ago" in evicted[0].message


def test_keys_evicted_while_images_wait_are_sent_again(host: Host) -> None:
    FakeLauncher.gate.clear()
    with host.serving() as running:
        work = host.work("ann")
        thread = threading.Thread(target=work.run)
        thread.start()
        while running.board.unfinished < 6:
            time.sleep(0.01)
        fingerprint = str(host.identities["ann"].fingerprint)
        running.keys.remove(Owner(fingerprint, host.part.manifest.id))
        FakeLauncher.gate.set()
        thread.join(20)
        assert not thread.is_alive()
    assert work.uploads == 2
    assert len(work._answers) == 6
    assert len(FakeLauncher.computed) == 6


def test_a_batch_beyond_the_window_goes_through(host: Host) -> None:
    images = np.arange(60).reshape(20, 3) % 4
    with host.serving(window=3):
        assert (host.work("ann", images).run().integers == images).all()


def test_answers_beyond_the_servers_room_go_through(host: Host) -> None:
    with host.serving(board_bytes=400):
        assert (host.work("ann").run().integers == IMAGES).all()


def test_a_failed_image_is_named(host: Host) -> None:
    FakeLauncher.fails = {3: MalformedMessage("bad ciphertext")}
    with host.serving():
        with pytest.raises(Refused, match="image 2 was not computed"):
            host.work("ann").run()
        assert "failed" in host.kinds()
        assert (host.work("bob").run().integers == IMAGES).all()  # the server goes on


def test_strangers_and_wrong_servers_are_refused(host: Host) -> None:
    with host.serving():
        with pytest.raises(PrivmlError):
            describe(host.address("eve"))
        wrong = replace(host.address("ann"), pin=str(host.identities["bob"].fingerprint))
        with pytest.raises(UntrustedArtifact, match="not pinned"):
            describe(wrong)
        assert describe(host.address("ann")).manifest == host.part.manifest
        assert "refused" in host.kinds()


def test_the_program_that_was_asked_for_or_none(host: Host) -> None:
    with host.serving():
        assert describe(host.address("ann"), host.part.manifest.id).manifest == host.part.manifest
        with pytest.raises(Refused, match="programs served here") as caught:
            describe(host.address("ann"), "0" * 64)
        assert caught.value.reason == "unknown"


def test_several_programs_at_one_server(host: Host, tmp_path: Path) -> None:
    other = fake_part(b"another library")
    with Service(
        [host.part, other], identity=host.identities["server"],
        pins=[host.identities["ann"].fingerprint], state=tmp_path / "more",
    ) as running:  # fmt: skip
        running.start()
        host.service = running
        with pytest.raises(Refused, match="name one"):
            describe(host.address("ann"))
        for part in (host.part, other):
            assert describe(host.address("ann"), part.manifest.id).manifest == part.manifest
            work = Host(part, host.identities, tmp_path, service=running).work("ann")
            assert (work.run().integers == IMAGES).all()
        assert len(running.keys) == 2


@pytest.mark.parametrize(
    ("request_", "upload", "words"),
    [
        (messages.SendKeys(10), b"", "little more"),
        (messages.SendKeys(1 << 35), b"", "little more"),
        (messages.Submit("1" * 32, (0,), (5,)), b"", "queries of this program"),
        (messages.Submit("1" * 32, (0, 1), (80,)), b"", "do not fit"),
        (messages.Submit("1" * 32, (0,), (80,)), b"", "send the evaluation keys"),
    ],
)
def test_bad_requests_are_refused_before_their_bytes(
    host: Host, request_: messages.Request, upload: bytes, words: str
) -> None:
    with host.serving(), connect(host.address("ann")) as link:
        with pytest.raises(Refused, match="first"):
            link.call(request_, upload)
        link.call(messages.Open(host.part.manifest.id, "0" * 64))
        with pytest.raises(Refused, match=words):
            link.call(request_, upload)
        assert isinstance(link.call(messages.Watch("1" * 32, 0)), messages.State)  # still usable


def test_keys_of_another_digest_are_refused(host: Host) -> None:
    with host.serving() as running, connect(host.address("ann")) as link:
        keys = FakeClient(host.part).keys
        link.call(messages.Open(host.part.manifest.id, "0" * 64))
        with pytest.raises(Refused, match="not those that were named"):
            link.call(messages.SendKeys(len(keys)), keys)
        assert len(running.keys) == 0


def test_an_oversized_frame_ends_only_that_connection(host: Host) -> None:
    with host.serving():
        work = replace_patience(host.work("ann"), 0.5)
        work.dial = lambda: FaultyChannel(work.address.dial(), Fault.OVERSIZE, at=2)
        with pytest.raises((PeerAborted, DeadlineExceeded)):
            work.run()
        assert "refused" in host.kinds()
        assert (host.work("bob").run().integers == IMAGES).all()


def replace_patience(work: Work, seconds: float) -> Work:
    work.address = replace(work.address, patience_s=seconds, reply_s=3.0)
    return work


def test_no_server_is_said_after_patience(host: Host) -> None:
    with host.serving():
        work = replace_patience(host.work("ann"), 0.1)
    work.address = replace(work.address, connect_s=0.3)
    with pytest.raises(DeadlineExceeded, match="no server answered"):
        work.run()


def test_an_idle_client_is_dropped(host: Host) -> None:
    with host.serving(idle_s=0.3), connect(host.address("ann")) as link:
        time.sleep(0.8)
        with pytest.raises(PeerAborted):
            link.call(messages.Describe(None))
        with pytest.raises(PrivmlError):  # the link is over
            link.call(messages.Describe(None))


def test_the_service_checks_its_folder_and_its_programs(host: Host) -> None:
    host.state.mkdir()
    KeyRing("0" * 64, b"s" * 50, b"e" * 50).save(host.state / "ring")
    with pytest.raises(SecurityError, match="secret key"), host.serving():
        pass
    with pytest.raises(ParameterError, match="at least one program"):
        Service([], identity=host.identities["server"], pins=["0" * 64], state=host.state / "x")


def test_stopping_does_not_wait_for_clients(host: Host) -> None:
    FakeLauncher.gate.clear()
    with host.serving() as running:
        work = replace_patience(host.work("ann"), 0.05)

        def run() -> None:
            with pytest.raises(PrivmlError):
                work.run()

        thread = threading.Thread(target=run)
        thread.start()
        while not running.board.unfinished:
            time.sleep(0.01)
        start = time.monotonic()
    assert time.monotonic() - start < 5
    thread.join(20)


def test_batches_have_bounds(host: Host) -> None:
    with host.serving():
        for count in (0, 4097):
            with pytest.raises(MalformedMessage, match="1 to 4096"):
                host.work("ann", np.zeros((count, 3), np.int64))
        with pytest.raises(ParameterError, match=r"\[0, 3\]"):
            host.work("ann", np.full((1, 3), 9)).run()
