"""Non-blocking TCP sockets as channels, and how to get one in time."""

from __future__ import annotations

import contextlib
import ipaddress
import select
import socket
import time

from privml.errors import DeadlineExceeded, ParameterError, PeerAborted
from privml.transport.channel import Channel, Counters, Deadline

_STEP_BYTES = 1 << 20
_RETRY_S = 0.1
_GONE = "the peer closed the connection; check its own message, then start a new session"


class SocketChannel(Channel):
    """A connected TCP socket; plaintext, so it is wrapped by TLS or stays on loopback."""

    def __init__(self, sock: socket.socket) -> None:
        sock.setblocking(False)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._sock = sock
        self._sent = 0
        self._received = 0

    @property
    def counters(self) -> Counters:
        """Bytes handed to and taken from the socket."""
        return Counters(self._sent, self._received)

    @property
    def peer_host(self) -> str:
        """Address of the peer, for messages."""
        with contextlib.suppress(OSError):
            return str(self._sock.getpeername()[0])
        return "an unknown address"

    def try_send(self, data: memoryview) -> int:
        """Hand bytes to the socket; see :meth:`Channel.try_send`."""
        try:
            count = self._sock.send(data[:_STEP_BYTES])
        except (BlockingIOError, InterruptedError):
            return 0
        except OSError as error:
            raise PeerAborted(_GONE) from error
        self._sent += count
        return count

    def try_recv_into(self, out: memoryview) -> int:
        """Take bytes from the socket; see :meth:`Channel.try_recv_into`."""
        try:
            count = self._sock.recv_into(out, min(out.nbytes, _STEP_BYTES))
        except (BlockingIOError, InterruptedError):
            return 0
        except OSError as error:
            raise PeerAborted(_GONE) from error
        if count == 0:
            raise PeerAborted(_GONE)
        self._received += count
        return count

    def wait(self, *, read: bool, write: bool, timeout_s: float) -> None:
        """Wait for the socket; see :meth:`Channel.wait`."""
        wanted = (select.POLLIN if read else 0) | (select.POLLOUT if write else 0)
        if self._sock.fileno() < 0:
            raise PeerAborted("the connection is closed")
        poller = select.poll()
        poller.register(self._sock, wanted)
        poller.poll(max(0.0, timeout_s) * 1000)

    def close(self) -> None:
        """Close the socket."""
        self._sock.close()


def check_loopback(host: str) -> None:
    """Refuse `host` unless it is a loopback address.

    Raises
    ------
    ParameterError
        `host` is a name or an address that is not loopback.
    """
    try:
        fine = ipaddress.ip_address(host).is_loopback
    except ValueError:
        fine = False
    if not fine:
        raise ParameterError(
            f"plaintext is allowed on loopback only and {host!r} is no loopback address; "
            "use 127.0.0.1 or ::1, or TLS"
        )


def open_listener(host: str, port: int) -> socket.socket:
    """Return a listening socket; port 0 takes a free one.

    Raises
    ------
    ParameterError
        The address cannot be used; the message says why.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    sock = socket.socket(family, socket.SOCK_STREAM)
    try:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        sock.bind((host, port))
        sock.listen(16)
        sock.setblocking(False)
    except (OSError, OverflowError) as error:
        sock.close()
        raise ParameterError(
            f"cannot listen on {host} port {port}: {error}; choose another address or port"
        ) from error
    return sock


def accept(listener: socket.socket, deadline: Deadline) -> SocketChannel:
    """Return the next connection.

    Raises
    ------
    DeadlineExceeded
        Nobody connected in time.
    """
    poller = select.poll()
    poller.register(listener, select.POLLIN)
    while True:
        try:
            sock, _ = listener.accept()
        except (BlockingIOError, InterruptedError, ConnectionAbortedError):
            deadline.check("waiting for a connection")
            poller.poll(deadline.remaining_s() * 1000 + 1)
            continue
        return SocketChannel(sock)


def somebody_waits(listener: socket.socket, timeout_s: float) -> bool:
    """Return whether a peer asks for a connection, after at most `timeout_s` seconds."""
    poller = select.poll()
    poller.register(listener, select.POLLIN)
    return bool(poller.poll(max(0.0, timeout_s) * 1000))


def connect(host: str, port: int, deadline: Deadline) -> SocketChannel:
    """Connect, trying again while nobody listens.

    Raises
    ------
    DeadlineExceeded
        No connection in time; the message holds the last reason.
    ParameterError
        The host name cannot be resolved or the port is out of range.
    """
    while True:
        try:
            left_s = max(0.001, deadline.remaining_s())
            return SocketChannel(socket.create_connection((host, port), timeout=left_s))
        except (socket.gaierror, OverflowError) as error:
            raise ParameterError(
                f"cannot use address {host!r} port {port}: {error}; check both"
            ) from error
        except OSError as error:
            if deadline.remaining_s() <= _RETRY_S:
                raise DeadlineExceeded(
                    f"no server answered at {host} port {port} in time ({error}); is `privml "
                    "serve` running there, and is the address right?"
                ) from error
            time.sleep(_RETRY_S)
