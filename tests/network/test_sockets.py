"""Listening, dialling, and plaintext on loopback only."""

from __future__ import annotations

import socket
import time
from contextlib import closing

import pytest

from privml.errors import DeadlineExceeded, ParameterError
from privml.testing.parties import run_parties, run_sessions
from privml.transport import plain, tls
from privml.transport.channel import Channel
from privml.transport.tls import Identity

HOST = "127.0.0.1"


@pytest.fixture(scope="module")
def keys(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Identity]:
    folder = tmp_path_factory.mktemp("keys")
    return {name: Identity.generate(folder, name) for name in ("server", "client", "stranger")}


class TestDial:
    def test_nobody_listens(self, keys) -> None:
        with closing(socket.socket()) as free:
            free.bind((HOST, 0))
            port = free.getsockname()[1]
            start = time.perf_counter()
            with pytest.raises(DeadlineExceeded, match="no server answered"):
                tls.dial(HOST, port, identity=keys["client"], pin="0" * 64, deadline_s=0.3)
            assert time.perf_counter() - start < 1.3

    def test_waits_for_a_late_listener(self) -> None:
        with closing(socket.socket()) as free:
            free.bind((HOST, 0))
            port = free.getsockname()[1]

        def late() -> Channel:
            time.sleep(0.3)
            with plain.listen(port=port, insecure_loopback=True) as listener:
                return listener.accept(5.0)

        server, client = run_parties(
            late, lambda: plain.dial(HOST, port, deadline_s=5.0, insecure_loopback=True)
        )
        server.unwrap().close()
        client.unwrap().close()

    def test_nobody_connects(self, keys) -> None:
        pins = [keys["client"].fingerprint]
        with (
            tls.listen(HOST, 0, identity=keys["server"], pins=pins) as listener,
            pytest.raises(DeadlineExceeded, match="waiting for a connection"),
        ):
            listener.accept(0.1)

    def test_port_in_use_and_bad_address(self, keys) -> None:
        with (
            plain.listen(insecure_loopback=True) as first,
            pytest.raises(ParameterError, match="cannot listen"),
        ):
            plain.listen(port=first.port, insecure_loopback=True)
        with pytest.raises(ParameterError, match="cannot"):
            plain.listen(port=70_000, insecure_loopback=True)


class TestPlain:
    def test_exchange(self) -> None:
        with plain.listen(insecure_loopback=True) as listener:
            channels = [
                outcome.unwrap()
                for outcome in run_parties(
                    lambda: listener.accept(5.0),
                    lambda: plain.dial(HOST, listener.port, deadline_s=5.0, insecure_loopback=True),
                )
            ]
        big = bytes(16 << 20)
        outcomes = run_sessions(
            lambda s: s.exchange(1, big, expect=len(big)).nbytes, channels=tuple(channels)
        )
        assert [outcome.unwrap() for outcome in outcomes] == [len(big)] * 2

    @pytest.mark.parametrize("host", ["0.0.0.0", "192.0.2.1", "localhost", "example.org", "::"])
    def test_off_loopback_is_refused(self, host: str) -> None:
        with pytest.raises(ParameterError, match="loopback"):
            plain.listen(host, insecure_loopback=True)
        with pytest.raises(ParameterError, match="loopback"):
            plain.dial(host, 1, deadline_s=1.0, insecure_loopback=True)

    def test_the_flag_is_needed(self) -> None:
        with pytest.raises(ParameterError, match="insecure_loopback=True"):
            plain.listen()
        with pytest.raises(ParameterError, match="insecure_loopback=True"):
            plain.dial(HOST, 1, deadline_s=1.0)
