"""Mutual TLS 1.3 with pins: who gets in, who does not, and what the error says."""

from __future__ import annotations

import datetime
import socket
import ssl
import struct
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing, suppress
from pathlib import Path

import numpy as np
import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ed25519

from privml.errors import (
    DeadlineExceeded,
    HandshakeMismatch,
    InsecureRandomness,
    MalformedMessage,
    ParameterError,
    PeerAborted,
    PrivmlError,
    UntrustedArtifact,
)
from privml.session import Session
from privml.testing.parties import run_parties, run_sessions
from privml.transport import tls
from privml.transport.channel import Channel
from privml.transport.faulty import Fault, FaultyChannel
from privml.transport.identity import build_certificate, fingerprint_of
from privml.transport.tls import Identity

HOST = "127.0.0.1"
DAY = datetime.timedelta(days=1)


@pytest.fixture(scope="module")
def keys(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Identity]:
    folder = tmp_path_factory.mktemp("keys")
    return {name: Identity.generate(folder, name) for name in ("server", "client", "stranger")}


def dated(folder: Path, name: str, *, start: int, end: int) -> Identity:
    """Write an identity valid from `start` to `end` days from now, without any check."""
    key = ed25519.Ed25519PrivateKey.generate()
    now = datetime.datetime.now(datetime.UTC)
    certificate = build_certificate(key, name, start=now + start * DAY, end=now + end * DAY)
    pem = serialization.Encoding.PEM
    plain_key = (serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    (folder / f"{name}.key").write_bytes(key.private_bytes(pem, *plain_key))
    (folder / f"{name}.key").chmod(0o600)
    (folder / f"{name}.crt").write_bytes(certificate.public_bytes(pem))
    der = certificate.public_bytes(serialization.Encoding.DER)
    paths = (folder / f"{name}.crt", folder / f"{name}.key")
    return Identity(name, *paths, der, fingerprint_of(der))


def connect(
    server: Identity, client: Identity, *, server_pin: str | None = None, pins: list[str] | None
) -> tuple[Channel | PrivmlError, Channel | PrivmlError]:
    """Connect `client` to `server`; return what each side got."""
    with tls.listen(HOST, 0, identity=server, pins=pins or [client.fingerprint]) as listener:
        outcomes = run_parties(
            lambda: listener.accept(5.0),
            lambda: tls.dial(
                HOST,
                listener.port,
                identity=client,
                pin=server_pin or server.fingerprint,
                deadline_s=5.0,
            ),
        )
    for outcome in outcomes:
        if outcome.error is not None and not isinstance(outcome.error, PrivmlError):
            raise outcome.error
    return outcomes[0].value or outcomes[0].error, outcomes[1].value or outcomes[1].error


@pytest.fixture
def pair(keys: dict[str, Identity]) -> Iterator[tuple[tls.TlsChannel, tls.TlsChannel]]:
    both = connect(keys["server"], keys["client"], pins=None)
    yield both
    for channel in both:
        channel.close()


class TestLink:
    def test_both_sides_are_known(self, pair, keys) -> None:
        server, client = pair
        assert server.secure
        assert client.secure
        assert server.version() == client.version() == "TLSv1.3"
        assert server.peer_fingerprint == client.local_fingerprint == keys["client"].fingerprint
        assert client.peer_fingerprint == server.local_fingerprint == keys["server"].fingerprint

    def test_session_over_tls(self, pair) -> None:
        def program(session: Session) -> bytes:
            got = session.exchange(1, bytes([session.rank]) * 100_000, expect=100_000)
            session.checkpoint()
            return bytes(got[:2])

        first, second = run_sessions(program, channels=pair)
        assert (first.unwrap(), second.unwrap()) == (b"\1\1", b"\0\0")

    def test_64_mib_both_ways_at_once(self, pair) -> None:
        words = np.arange(8 << 20, dtype=np.uint64)

        def program(session: Session) -> bool:
            got = session.exchange(1, words, expect=words.nbytes)
            session.checkpoint()
            return bool(np.array_equal(np.frombuffer(got, np.uint64), words))

        assert all(outcome.unwrap() for outcome in run_sessions(program, channels=pair))
        sent, received = pair[0].counters.sent, pair[1].counters.received
        assert words.nbytes < received <= sent < words.nbytes * 1.01
        assert sent - received < 100  # the goodbye may cross the peer's

    def test_last_message_arrives_when_the_sender_leaves_at_once(self, pair) -> None:
        def program(session: Session) -> int:
            if session.rank == 0:
                session.send(1, bytes(1 << 20))
                return 1
            time.sleep(0.05)
            return session.recv(1, expect=1 << 20).nbytes

        assert run_sessions(program, channels=pair)[1].unwrap() == 1 << 20

    def test_p256(self, tmp_path: Path) -> None:
        identities = [Identity.generate(tmp_path, n, curve="p256") for n in ("a", "b")]
        for channel in connect(*identities, pins=None):
            assert isinstance(channel, tls.TlsChannel)
            channel.close()

    def test_fixed_seeds_are_refused(self, pair) -> None:
        outcomes = run_sessions(lambda s: 0, channels=pair, insecure=True)
        assert [type(o.error) for o in outcomes] == [InsecureRandomness] * 2

    @pytest.mark.parametrize("side", ["local_fingerprint", "peer_fingerprint"])
    def test_certificates_are_bound(self, pair, side: str) -> None:
        setattr(pair[1], side, "0" * 64)
        outcomes = run_sessions(lambda s: 0, channels=pair)
        who = "client" if side == "local_fingerprint" else "server"
        for outcome in outcomes:
            assert isinstance(outcome.error, HandshakeMismatch)
            assert f"'tls certificate of the {who}' differs" in str(outcome.error)

    @pytest.mark.parametrize("fault", list(Fault), ids=lambda f: f.value)
    def test_active_peer_inside_tls(self, pair, fault: Fault) -> None:
        def program(session: Session) -> int:
            for tag in range(4):
                session.exchange(tag, bytes(40_000), expect=40_000)
            session.checkpoint()
            return 1

        channels = (FaultyChannel(pair[0], fault, at=4), pair[1])
        bad, honest = run_sessions(program, channels=channels, deadline_s=0.4)
        assert honest.value is None
        assert isinstance(honest.error, PrivmlError)
        assert max(bad.seconds, honest.seconds) < 10  # without a deadline a stall would never end

    def test_stalled_peer(self, pair) -> None:
        def program(session: Session) -> int:
            if session.rank == 0:
                done.wait(30)
                return 0
            try:
                return session.exchange(1, bytes(32 << 20), expect=8).nbytes
            finally:
                done.set()

        done = threading.Event()
        second = run_sessions(program, channels=pair, deadline_s=0.3)[1]
        assert isinstance(second.error, DeadlineExceeded)
        assert second.seconds < 5

    def test_altered_ciphertext(self, pair) -> None:
        def program(session: Session) -> int:
            session.exchange(1, b"12345678", expect=8)
            if session.rank == 0:
                pair[0]._raw.try_send(memoryview(b"\x17\x03\x03\x00\x20" + bytes(32)))
            return session.recv(2, expect=8).nbytes

        second = run_sessions(program, channels=pair, deadline_s=2.0)[1]
        assert isinstance(second.error, MalformedMessage)
        assert "TLS layer refused" in str(second.error)


class TestPins:
    def test_wrong_server(self, keys) -> None:
        stranger = keys["stranger"].fingerprint
        server, client = connect(keys["server"], keys["client"], server_pin=stranger, pins=None)
        assert isinstance(client, UntrustedArtifact)
        assert keys["server"].fingerprint in str(client)
        assert "pin it" in str(client)
        assert isinstance(server, PeerAborted)

    def test_unpinned_client(self, keys) -> None:
        pins = [keys["stranger"].fingerprint]
        server, client = connect(keys["server"], keys["client"], pins=pins)
        assert isinstance(server, UntrustedArtifact)
        assert keys["client"].fingerprint in str(server)
        assert isinstance(client, PeerAborted)
        assert keys["client"].fingerprint in str(client)

    def test_one_of_several_pins(self, keys) -> None:
        pins = [keys["stranger"].fingerprint, keys["client"].fingerprint.upper()]
        for channel in connect(keys["server"], keys["client"], pins=pins):
            assert isinstance(channel, tls.TlsChannel)
            channel.close()

    def test_a_listener_outlives_refused_peers(self, keys) -> None:
        identity, pins = keys["server"], [keys["client"].fingerprint]
        with tls.listen(HOST, 0, identity=identity, pins=pins) as listener:
            pin = identity.fingerprint
            for name, error in (("stranger", UntrustedArtifact), ("client", type(None))):
                server, client = run_parties(
                    lambda: listener.accept(5.0),
                    lambda n=name: tls.dial(
                        HOST, listener.port, identity=keys[n], pin=pin, deadline_s=5.0
                    ),
                )
                assert isinstance(server.error, error)
            server.unwrap().close()
            client.unwrap().close()

    @pytest.mark.parametrize("pin", ["", "00", "g" * 64, "0" * 63, "0" * 65])
    def test_malformed_pin(self, keys, pin: str) -> None:
        with pytest.raises(ParameterError, match="64 hex digits"):
            tls.dial(HOST, 1, identity=keys["client"], pin=pin, deadline_s=1.0)
        with pytest.raises(ParameterError):
            tls.listen(HOST, 0, identity=keys["server"], pins=[pin])

    def test_no_pin(self, keys) -> None:
        with pytest.raises(ParameterError, match="at least one"):
            tls.listen(HOST, 0, identity=keys["server"], pins=[])


class TestKeys:
    def test_key_replaced_after_loading(self, tmp_path: Path, keys) -> None:
        made = Identity.generate(tmp_path, "alice")
        made.key_path.write_bytes(keys["stranger"].key_path.read_bytes())
        server, _ = connect(made, keys["client"], pins=None)
        assert isinstance(server, UntrustedArtifact)


class TestDates:
    @pytest.mark.parametrize(
        ("start", "end", "text"), [(-3, -1, "expired on"), (1, 3, "valid only from")]
    )
    def test_at_the_peer_and_here(self, keys, tmp_path, monkeypatch, start, end, text) -> None:
        late = dated(tmp_path, "late", start=start, end=end)
        with pytest.raises(UntrustedArtifact, match=text):
            Identity.load(tmp_path, "late")
        with pytest.raises(UntrustedArtifact, match=text):
            tls.listen(HOST, 0, identity=late, pins=[late.fingerprint])
        with pytest.raises(UntrustedArtifact, match=text):
            tls.dial(HOST, 1, identity=late, pin=late.fingerprint, deadline_s=1.0)
        real = tls.check_certificate

        def only_peers(der: bytes, *, owner: str) -> None:
            if owner != "this side":
                real(der, owner=owner)

        monkeypatch.setattr(tls, "check_certificate", only_peers)
        server, client = connect(late, keys["client"], pins=None)
        assert isinstance(client, UntrustedArtifact)
        assert text in str(client)
        assert late.fingerprint in str(client)
        server, client = connect(keys["server"], late, pins=None)
        assert isinstance(server, UntrustedArtifact)
        assert text in str(server)


def raw_client(
    keys: dict[str, Identity], attack: Callable[[socket.socket], object], *, wait_s: float = 5.0
) -> BaseException | None:
    """Let `attack` loose on a listener that pins the client; return the server's error if any."""
    pins = [keys["client"].fingerprint]
    with tls.listen(HOST, 0, identity=keys["server"], pins=pins) as listener:

        def attacker() -> int:
            with closing(socket.create_connection((HOST, listener.port), timeout=5)) as sock:
                with suppress(OSError):
                    attack(sock)
                with suppress(OSError):
                    while sock.recv(4096):
                        pass
            return 1

        def guard() -> int:
            listener.accept(wait_s).close()
            return 1

        server, client = run_parties(guard, attacker)
    client.unwrap()
    return server.error


def preamble(der: bytes) -> bytes:
    return struct.pack("<4sHH", b"PVTC", 1, len(der)) + der


def swap(sock: socket.socket, keys: dict[str, Identity]) -> None:
    """Play the clear part of the protocol with the pinned client's certificate."""
    sock.sendall(preamble(keys["client"].certificate))
    want = len(preamble(keys["server"].certificate))
    while want:
        want -= len(sock.recv(want))


def client_context(keys: dict[str, Identity], name: str | None) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.load_verify_locations(cadata=keys["server"].certificate)
    context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
    if name is not None:
        context.load_cert_chain(keys[name].certificate_path, keys[name].key_path)
    return context


class TestHostileClients:
    @pytest.mark.parametrize(
        "data",
        [
            b"GET / HTTP/1.1\r\n\r\n",
            bytes.fromhex("16030100c8010000c40303") + bytes(200),
            struct.pack("<4sHH", b"PVTC", 2, 500) + bytes(500),
            struct.pack("<4sHH", b"PVTC", 1, 0),
            struct.pack("<4sHH", b"PVTC", 1, 4097) + bytes(4097),
            struct.pack("<4sHH", b"PVTC", 1, 65535),
        ],
        ids=["http", "bare tls", "version", "empty", "large", "largest"],
    )
    def test_no_preamble(self, keys, data: bytes) -> None:
        error = raw_client(keys, lambda sock: sock.sendall(data))
        assert isinstance(error, MalformedMessage)
        assert "preamble" in str(error)

    def test_garbage_instead_of_a_certificate(self, keys, rng: np.random.Generator) -> None:
        error = raw_client(keys, lambda sock: sock.sendall(preamble(rng.bytes(300))))
        assert isinstance(error, UntrustedArtifact)

    def test_every_prefix_of_a_preamble_then_silence_or_end(self, keys) -> None:
        whole = preamble(keys["client"].certificate)
        for size in (0, 1, 7, 8, 9, len(whole) - 1):

            def cut(sock: socket.socket, size: int = size) -> None:
                sock.sendall(whole[:size])
                sock.shutdown(socket.SHUT_WR)

            assert isinstance(raw_client(keys, cut), PeerAborted)
        start = time.perf_counter()
        error = raw_client(keys, lambda sock: sock.sendall(whole[:20]), wait_s=0.3)
        assert isinstance(error, DeadlineExceeded)
        assert time.perf_counter() - start < 1.3

    def test_silence_after_the_preamble(self, keys) -> None:
        error = raw_client(keys, lambda sock: swap(sock, keys), wait_s=0.3)
        assert isinstance(error, DeadlineExceeded)

    def tls_attack(self, keys, context: ssl.SSLContext) -> BaseException | None:
        def attack(sock: socket.socket) -> None:
            swap(sock, keys)
            with context.wrap_socket(sock.dup()) as wrapped:
                wrapped.settimeout(5)
                wrapped.recv(1)

        return raw_client(keys, attack)

    def test_the_attack_itself_works_with_the_right_key(self, keys) -> None:
        assert self.tls_attack(keys, client_context(keys, "client")) is None

    def test_tls_1_2_is_refused(self, keys) -> None:
        context = client_context(keys, "client")
        context.maximum_version = ssl.TLSVersion.TLSv1_2
        error = self.tls_attack(keys, context)
        assert isinstance(error, MalformedMessage)
        assert "UNSUPPORTED_PROTOCOL" in str(error)

    def test_replayed_certificate_without_its_key(self, keys) -> None:
        error = self.tls_attack(keys, client_context(keys, "stranger"))
        assert isinstance(error, MalformedMessage)
        assert "does not own the certificate" in str(error)

    def test_no_certificate_in_the_tls_handshake(self, keys) -> None:
        error = self.tls_attack(keys, client_context(keys, None))
        assert isinstance(error, MalformedMessage)

    def test_plaintext_after_the_preamble(self, keys) -> None:
        def attack(sock: socket.socket) -> None:
            swap(sock, keys)
            sock.sendall(b"PVML" + bytes(100))

        assert isinstance(raw_client(keys, attack), MalformedMessage)
