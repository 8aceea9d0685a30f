"""A server and its clients over TLS: what goes well, and one clear error for what does not."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pytest

from privml.backbones.loader import load_encoder
from privml.errors import (
    CorrelationExhausted,
    Corrupt,
    DeadlineExceeded,
    HandshakeMismatch,
    MalformedMessage,
    ParameterError,
    PeerAborted,
    UntrustedArtifact,
)
from privml.protocols.mpc import endpoints
from privml.protocols.mpc.correlations.dealer import deal
from privml.protocols.mpc.correlations.pool import Pool, UsedLog
from privml.protocols.mpc.endpoints import Server, ServerEvent, connect, parse_peer
from privml.protocols.mpc.model import PrivateModel
from privml.protocols.mpc.plan import Plan
from privml.protocols.mpc.runtime import ClientRun
from privml.testing.checkpoints import write_checkpoint
from privml.transport.channel import Channel
from privml.transport.faulty import Fault, FaultyChannel
from privml.transport.identity import Identity

N, ROWS, RUNS = 24, 2, 4
TEXTS = ("some words to embed", "others")


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> PrivateModel:
    return PrivateModel(load_encoder(write_checkpoint(tmp_path_factory.mktemp("model") / "tiny")))


@pytest.fixture(scope="module")
def identities(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Identity]:
    folder = tmp_path_factory.mktemp("identities")
    return {name: Identity.generate(folder, name) for name in ("server", "client", "stranger")}


@dataclass
class Hosts:
    """Both ends of one plan, with what the server said."""

    folder: Path
    model: PrivateModel
    plan: Plan
    identities: dict[str, Identity]
    events: list[ServerEvent] = field(default_factory=list)
    ended: list[object] = field(default_factory=list)

    @contextmanager
    def server(self, max_runs: int | None = None) -> Iterator[Server]:
        """Serve in a thread until the block ends."""
        with Server(
            self.model, self.plan, self.folder / "s.pool", identity=self.identities["server"],
            pins=[self.identities["client"].fingerprint], used=self.folder / "used",
            deadline_s=10.0,
        ) as server:  # fmt: skip
            thread = threading.Thread(target=self._serve, args=(server, max_runs))
            thread.start()
            try:
                yield server
            finally:
                server.stop()
                thread.join(30)
                assert not thread.is_alive()

    def _serve(self, server: Server, max_runs: int | None) -> None:
        try:
            self.ended.append(server.serve(max_runs, on_event=self.events.append))
        except BaseException as error:  # noqa: BLE001 - looked at by the test
            self.ended.append(error)

    def client(self, server: Server, **changes: object) -> ClientRun:
        values = {
            "peer": f"127.0.0.1:{server.port}", "plan": self.plan, "pool": self.folder / "c.pool",
            "identity": self.identities["client"], "pin": self.identities["server"].fingerprint,
            "used": self.folder / "used", "connect_s": 5.0, "deadline_s": 10.0, **changes,
        }  # fmt: skip
        return connect(**values)  # type: ignore[arg-type, return-value]

    def remaining(self, side: str = "c") -> int:
        """Runs left in a pool file that nobody has open."""
        with Pool.open(
            self.folder / f"{side}.pool", plan_digest=None, used=UsedLog(self.folder / "used")
        ) as pool:
            return pool.remaining

    def batch(self) -> object:
        return self.model.encoder.tokenizer.encode(TEXTS, truncate=True, length=N)

    def works(self, server: Server) -> None:
        """Check that one more run goes well."""
        with self.client(server) as run:
            private = run.execute(self.batch())
        np.testing.assert_allclose(private, self.model(self.batch()), atol=0.02)

    def wait_for(self, kind: str, *, timeout_s: float = 10.0) -> ServerEvent:
        end = time.monotonic() + timeout_s
        while time.monotonic() < end:
            for event in self.events:
                if event.kind == kind:
                    return event
            time.sleep(0.01)
        raise AssertionError(f"no {kind} among {self.events}")


@pytest.fixture
def hosts(tmp_path: Path, model: PrivateModel, identities: dict[str, Identity]) -> Hosts:
    plan = model.plan(n=N, rows=ROWS)
    deal(plan, runs=RUNS, server=tmp_path / "s.pool", client=tmp_path / "c.pool")
    return Hosts(tmp_path, model, plan, identities)


def test_runs_agree_with_the_clear_model_and_the_second_needs_no_set_up(hosts: Hosts) -> None:
    cache = hosts.folder / "cache"
    bills = []
    with hosts.server() as server:
        for _ in range(2):
            with hosts.client(server, cache=cache) as run:
                private = run.execute(hosts.batch())
            bills.append(run.bill)
            np.testing.assert_allclose(private, hosts.model(hosts.batch()), atol=0.02)
        assert server.remaining == RUNS - 2
    assert hosts.ended == [2]
    assert bills[0].setup_bytes > 1000 > bills[1].setup_bytes
    assert [event.kind for event in hosts.events] == ["accepted", "finished"] * 2
    assert bills[0].flights == hosts.plan.cost.flights


def test_it_ends_after_the_runs_it_was_told(hosts: Hosts) -> None:
    with hosts.server(max_runs=1) as server:
        hosts.works(server)
        while not hosts.ended:
            time.sleep(0.01)
    assert hosts.ended == [1]


def test_plaintext_needs_the_flag_and_loopback(hosts: Hosts) -> None:
    with pytest.raises(ParameterError, match="identity"):
        Server(hosts.model, hosts.plan, hosts.folder / "s.pool", used=hosts.folder / "used")
    with pytest.raises(ParameterError, match="loopback"):
        Server(hosts.model, hosts.plan, hosts.folder / "s.pool", used=hosts.folder / "used",
               insecure_loopback=True, host="0.0.0.0")  # fmt: skip
    with Server(hosts.model, hosts.plan, hosts.folder / "s.pool", used=hosts.folder / "used",
                insecure_loopback=True) as server:  # fmt: skip
        thread = threading.Thread(target=hosts._serve, args=(server, 1))
        thread.start()
        with pytest.raises(ParameterError, match="identity"), hosts.client(server, pin=None):
            pass
        with hosts.client(server, identity=None, pin=None, insecure_loopback=True) as run:
            run.execute(hosts.batch())
        thread.join(30)
    assert hosts.ended == [1]


def refused(hosts: Hosts, kind: type[Exception], *, match: str, **changes: object) -> None:
    """Check that a client fails in this way, spends nothing, and that the server goes on."""
    with hosts.server() as server:
        with pytest.raises(kind, match=match), hosts.client(server, **changes) as run:
            run.execute(hosts.batch())
        hosts.works(server)
    assert hosts.remaining() == hosts.remaining("s") == RUNS - 1


def test_a_server_with_another_certificate_is_refused(hosts: Hosts) -> None:
    pin = hosts.identities["stranger"].fingerprint
    refused(hosts, UntrustedArtifact, match="not pinned", pin=pin)
    assert hosts.wait_for("failed").code


def test_a_client_that_is_not_pinned_is_refused(hosts: Hosts) -> None:
    stranger = hosts.identities["stranger"]
    refused(hosts, PeerAborted, match=stranger.fingerprint, identity=stranger)
    assert hosts.wait_for("failed").code == "security.untrusted"


def test_another_plan_is_refused_by_both_and_named(hosts: Hosts) -> None:
    other = hosts.model.plan(n=N, rows=1)
    deal(other, runs=1, server=hosts.folder / "s2.pool", client=hosts.folder / "c2.pool")
    refused(hosts, HandshakeMismatch, match="program", plan=other, pool=hosts.folder / "c2.pool")
    assert hosts.wait_for("failed").code == "protocol.handshake"


def test_pools_of_two_deals_are_refused(hosts: Hosts) -> None:
    deal(hosts.plan, runs=1, server=hosts.folder / "s2.pool", client=hosts.folder / "c2.pool")
    refused(hosts, HandshakeMismatch, match="pool", pool=hosts.folder / "c2.pool")


def test_a_pool_of_another_plan_is_refused_before_dialling(hosts: Hosts) -> None:
    other = hosts.model.plan(n=N, rows=1)
    refused(hosts, UntrustedArtifact, match="dealt for plan", plan=other)
    assert {event.kind for event in hosts.events} == {"accepted", "finished"}


def test_the_other_party_s_pool_is_refused(hosts: Hosts) -> None:
    deal(hosts.plan, runs=1, server=hosts.folder / "s2.pool", client=hosts.folder / "c2.pool")
    refused(hosts, ParameterError, match="server's pool", pool=hosts.folder / "s2.pool")


def test_a_batch_larger_than_the_plan_is_refused_unspent(hosts: Hosts) -> None:
    long = hosts.model.encoder.tokenizer.encode(["word " * 8])
    with hosts.server() as server:
        with pytest.raises(ParameterError, match="larger plan"), hosts.client(server) as run:
            run.execute(long)
        hosts.wait_for("failed")
        hosts.works(server)
    assert hosts.remaining() == RUNS - 1


def test_a_server_that_is_down_is_reported_in_time(hosts: Hosts) -> None:
    with hosts.server() as server:
        peer = f"127.0.0.1:{server.port}"
    began = time.monotonic()
    late = pytest.raises(DeadlineExceeded, match="no server answered")
    with late, hosts.client(server, peer=peer, connect_s=0.5):
        pass
    assert time.monotonic() - began < 5
    assert hosts.remaining() == RUNS


def test_an_empty_pool_ends_the_server_and_stops_the_client_before_dialling(
    hosts: Hosts,
) -> None:
    with hosts.server() as server:
        for _ in range(RUNS):
            hosts.works(server)
        assert "spent" in hosts.wait_for("exhausted").message
    assert hosts.ended == [RUNS]
    with pytest.raises(CorrelationExhausted, match="spent; deal a new pool"), hosts.client(server):
        pass
    with pytest.raises(CorrelationExhausted, match="spent; deal a new pool"), hosts.server():
        pass


def vanishing(patch: pytest.MonkeyPatch, at: int) -> None:
    """Let the client's link break at its `at`-th outgoing frame; the handshake takes two."""
    dial = endpoints.tls.dial

    def faulty(*place: object, **values: object) -> Channel:
        return FaultyChannel(dial(*place, **values), Fault.CUT, at=at)  # type: ignore[arg-type]

    patch.setattr(endpoints.tls, "dial", faulty)


@pytest.mark.parametrize("at", [2, 3, 12])
def test_a_client_that_vanishes_burns_its_run_and_no_other(
    hosts: Hosts, monkeypatch: pytest.MonkeyPatch, at: int
) -> None:
    with hosts.server() as server:
        with monkeypatch.context() as patch:
            vanishing(patch, at)
            with pytest.raises(PeerAborted), hosts.client(server) as run:
                run.execute(hosts.batch())
        assert hosts.wait_for("failed").code == "protocol.peer_aborted"
        assert server.remaining == RUNS - (at > 2)  # the server claims when the client begins
        hosts.works(server)
    assert hosts.remaining() == hosts.remaining("s") == RUNS - 2


def test_a_server_of_another_model_is_refused_at_once(hosts: Hosts) -> None:
    other = PrivateModel(load_encoder(write_checkpoint(hosts.folder / "other", seed=1)))
    with pytest.raises(UntrustedArtifact, match="other weights"):
        Server(other, hosts.plan, hosts.folder / "s.pool", insecure_loopback=True)


def test_a_damaged_pool_is_refused(hosts: Hosts) -> None:
    path = hosts.folder / "c.pool"
    data = bytearray(path.read_bytes())
    data[40] ^= 1
    path.write_bytes(data)
    with (
        pytest.raises(Corrupt, match="deal a new one"),
        connect(
            peer="127.0.0.1:9", plan=hosts.plan, pool=path, used=hosts.folder / "used",
            insecure_loopback=True,
        ),
    ):  # fmt: skip
        pass


@pytest.mark.parametrize(
    ("peer", "expected"),
    [("localhost:80", ("localhost", 80)), ("[::1]:7711", ("::1", 7711)), (" h:1 ", ("h", 1))],
)
def test_addresses(peer: str, expected: tuple[str, int]) -> None:
    assert parse_peer(peer) == expected


@pytest.mark.parametrize("peer", ["", "host", ":7", "host:", "host:0", "host:99999", "host:7x"])
def test_bad_addresses(peer: str) -> None:
    with pytest.raises(ParameterError, match="host:port"):
        parse_peer(peer)


def test_a_plan_that_was_touched_is_refused(hosts: Hosts) -> None:
    data = hosts.plan.to_json()
    for bad in (data[:-1], data.replace(b'"rows":2', b'"rows":3 '), b"{}", b"\xff"):
        with pytest.raises(MalformedMessage):
            Plan.from_json(bad)


def test_a_server_that_is_killed_ends_the_client_at_once(hosts: Hosts) -> None:
    """Kill -9 during the run: the client has one clear error, no output, and a burnt run."""
    hosts.plan.save(hosts.folder / "plan.json")
    checkpoint = write_checkpoint(hosts.folder / "tiny")
    arguments = ["serve", "--plan", "plan.json", "--model", str(checkpoint), "--pool", "s.pool",
                 "--insecure-loopback", "--port", "0", "--used", "used", "--json"]  # fmt: skip
    code = "from privml._cli import output, main; output.MODE.events = True; "
    code += f"main.main({arguments!r})"
    process = subprocess.Popen(
        [sys.executable, "-c", code],
        cwd=hosts.folder, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True,
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])},
    )  # fmt: skip
    try:
        port = _port(process)
        killed = []

        def kill(stage: str, fraction: float) -> None:
            if stage == "online" and fraction > 0.3 and not killed:
                killed.append(time.monotonic())
                os.kill(process.pid, signal.SIGKILL)

        link = connect(
            peer=f"127.0.0.1:{port}", plan=hosts.plan, pool=hosts.folder / "c.pool",
            used=hosts.folder / "used", insecure_loopback=True, progress=kill,
        )  # fmt: skip
        with pytest.raises(PeerAborted), link as run:
            run.execute(hosts.batch())
        assert killed
        assert time.monotonic() - killed[0] < 5
    finally:
        process.kill()
        process.wait()
        process.stderr.close()
    assert hosts.remaining() == RUNS - 1
    assert hosts.remaining("s") == RUNS - 1


def _port(process: subprocess.Popen[str]) -> int:
    for line in process.stderr:
        event = json.loads(line) if line.startswith("{") else {}
        if event.get("kind") == "listening":
            return int(event["port"])
    raise AssertionError("the server ended")
