"""Plaintext channels between processes of one machine, for tests and benchmarks.

They need the explicit flag ``insecure_loopback=True`` and a loopback address.
"""

from __future__ import annotations

from types import TracebackType
from typing import Self

from privml.errors import ParameterError
from privml.transport import sockets
from privml.transport.channel import Deadline
from privml.transport.sockets import SocketChannel


class Listener:
    """Waits for plaintext connections on loopback; made by :func:`listen`."""

    def __init__(self, host: str, port: int) -> None:
        self._sock = sockets.open_listener(host, port)
        self.port = int(self._sock.getsockname()[1])

    def accept(self, deadline_s: float) -> SocketChannel:
        """Return the next channel, or raise ``DeadlineExceeded`` after `deadline_s` seconds."""
        return sockets.accept(self._sock, Deadline.after(deadline_s))

    def wait(self, timeout_s: float) -> bool:
        """Return whether a peer asks for a connection, after at most `timeout_s` seconds."""
        return sockets.somebody_waits(self._sock, timeout_s)

    def close(self) -> None:
        """Stop listening; channels already accepted stay open."""
        self._sock.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


def listen(host: str = "127.0.0.1", port: int = 0, *, insecure_loopback: bool = False) -> Listener:
    """Listen on a loopback address; port 0 takes a free one, see ``Listener.port``.

    Raises
    ------
    ParameterError
        Not loopback, the flag is missing, or the address is in use.
    """
    _check(host, insecure_loopback=insecure_loopback)
    return Listener(host, port)


def dial(
    host: str, port: int, *, deadline_s: float, insecure_loopback: bool = False
) -> SocketChannel:
    """Connect to a plaintext listener on loopback, trying again until the deadline.

    Raises
    ------
    ParameterError
        Not loopback, or the flag is missing.
    DeadlineExceeded
        Nobody listened in time.
    """
    _check(host, insecure_loopback=insecure_loopback)
    return sockets.connect(host, port, Deadline.after(deadline_s))


def _check(host: str, *, insecure_loopback: bool) -> None:
    if not insecure_loopback:
        raise ParameterError(
            "a plaintext link needs insecure_loopback=True; between two hosts use "
            "privml.transport.tls"
        )
    sockets.check_loopback(host)
