"""Mutual TLS 1.3 between two parties that pinned each other's certificate.

1. Both sides send their certificate in a short clear preamble (a certificate is public) and
   check the peer's against the pinned SHA-256 fingerprint, its dates and its key type.
2. Each builds a TLS 1.3 context that trusts exactly that one certificate, requires it of the
   peer, and shakes hands; possession of the key is proved there.
3. The certificate of the TLS handshake is compared with the pinned one again.

A preamble is needed because the standard library verifies a client's certificate only against a
trust store, which pinning by fingerprint has no other way to fill. An observer of the link sees
both certificates, as with TLS 1.2; a replayed one fails in step 2.
"""

from __future__ import annotations

import contextlib
import hmac
import ssl
import struct
from collections.abc import Iterable
from types import TracebackType
from typing import Self

from privml._typing import Bytes, Fingerprint
from privml.errors import MalformedMessage, ParameterError, PeerAborted, UntrustedArtifact
from privml.party import is_pinned, parse_fingerprint
from privml.transport import sockets
from privml.transport.channel import Deadline
from privml.transport.identity import (
    MAX_CERTIFICATE_BYTES,
    Identity,
    check_certificate,
    fingerprint_of,
)
from privml.transport.sockets import SocketChannel
from privml.transport.tls_channel import TlsChannel

__all__ = ["Identity", "Listener", "TlsChannel", "dial", "listen"]

_PREAMBLE = struct.Struct("<4sHH")
_MAGIC = b"PVTC"
_VERSION = 1
_HANDSHAKE_S = 10.0


class Listener:
    """Waits for pinned peers; made by :func:`listen`."""

    def __init__(
        self, host: str, port: int, *, identity: Identity, pins: tuple[Fingerprint, ...]
    ) -> None:
        self._identity = identity
        self._pins = pins
        self._sock = sockets.open_listener(host, port)
        self.port = int(self._sock.getsockname()[1])

    def accept(self, deadline_s: float) -> TlsChannel:
        """Return the next authenticated channel.

        Parameters
        ----------
        deadline_s
            Seconds to wait for a peer. One that connects has at most 10 s to authenticate.

        Raises
        ------
        DeadlineExceeded
            Nobody came, or a peer stalled while authenticating.
        UntrustedArtifact, MalformedMessage, PeerAborted
            A peer came and was refused; call again to wait for the next one.
        """
        raw = sockets.accept(self._sock, Deadline.after(deadline_s))
        deadline = Deadline.after(min(deadline_s, _HANDSHAKE_S))
        return _secure(raw, self._identity, pins=self._pins, server=True, deadline=deadline)

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


def listen(host: str, port: int, *, identity: Identity, pins: Iterable[str]) -> Listener:
    """Listen for peers whose certificate is pinned; port 0 takes a free one.

    Parameters
    ----------
    host, port
        Address to bind; read the port from ``Listener.port``.
    identity
        Key and certificate of this side.
    pins
        SHA-256 fingerprints of the certificates that may connect, at least one.

    Raises
    ------
    ParameterError
        No pin, a malformed pin, or an unusable address.
    UntrustedArtifact
        The certificate of this side is out of date.
    """
    parsed = tuple(parse_fingerprint(pin) for pin in pins)
    if not parsed:
        raise ParameterError("pin at least one client fingerprint; nobody could connect")
    check_certificate(identity.certificate, owner="this side")
    return Listener(host, port, identity=identity, pins=parsed)


def dial(host: str, port: int, *, identity: Identity, pin: str, deadline_s: float) -> TlsChannel:
    """Connect to a listener and authenticate both sides.

    Parameters
    ----------
    host, port
        Address of the listener; refused connections are tried again until the deadline.
    identity
        Key and certificate of this side.
    pin
        SHA-256 fingerprint of the server's certificate.
    deadline_s
        Seconds for everything.

    Raises
    ------
    UntrustedArtifact
        The server's certificate is not the pinned one, or one side's is out of date.
    DeadlineExceeded, PeerAborted, MalformedMessage
        No server answered, it refused this side, or it is no privml server.
    ParameterError
        The pin or the address is unusable.
    """
    parsed = parse_fingerprint(pin)
    check_certificate(identity.certificate, owner="this side")
    deadline = Deadline.after(deadline_s)
    raw = sockets.connect(host, port, deadline)
    return _secure(raw, identity, pins=(parsed,), server=False, deadline=deadline)


def _secure(
    raw: SocketChannel,
    identity: Identity,
    *,
    pins: tuple[Fingerprint, ...],
    server: bool,
    deadline: Deadline,
) -> TlsChannel:
    try:
        peer = f"the peer at {raw.peer_host}"
        der = _swap_certificates(raw, identity.certificate, deadline)
        presented = fingerprint_of(der)
        if not is_pinned(presented, pins):
            raise UntrustedArtifact(
                f"{peer} presented the certificate with fingerprint {presented}, which is not "
                "pinned here; if its owner confirms this fingerprint over a way you trust, pin it"
            )
        check_certificate(der, owner=peer)
        context = _context(identity, der, server=server)
        channel = TlsChannel(raw, context, server=server)
        try:
            channel.shake_hands(deadline)
        except PeerAborted as error:
            raise PeerAborted(
                f"{peer} ended the connection during the TLS handshake; probably it does not pin "
                f"this side's certificate: give its operator the fingerprint {identity.fingerprint}"
            ) from error
        _check_result(channel, der)
        channel.local_fingerprint = identity.fingerprint
        channel.peer_fingerprint = presented
    except BaseException:
        raw.close()
        raise
    return channel


def _check_result(channel: TlsChannel, der: bytes) -> None:
    proved = channel.peer_certificate() or b""
    if channel.version() != "TLSv1.3" or not hmac.compare_digest(proved, der):
        raise UntrustedArtifact(
            "the TLS handshake ended with another certificate or version than announced"
        )


def _context(identity: Identity, peer_der: bytes, *, server: bool) -> ssl.SSLContext:
    protocol = ssl.PROTOCOL_TLS_SERVER if server else ssl.PROTOCOL_TLS_CLIENT
    context = ssl.SSLContext(protocol)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.maximum_version = ssl.TLSVersion.TLSv1_3
    context.check_hostname = False
    context.verify_mode = ssl.CERT_REQUIRED
    context.verify_flags = ssl.VERIFY_X509_TRUSTED_FIRST | ssl.VERIFY_X509_PARTIAL_CHAIN
    if server:
        context.num_tickets = 0
    try:
        context.load_verify_locations(cadata=peer_der)
        context.load_cert_chain(identity.certificate_path, identity.key_path)
    except (OSError, ValueError) as error:
        raise UntrustedArtifact(
            "a certificate or key cannot be loaded by the TLS library; make a new identity"
        ) from error
    return context


def _swap_certificates(raw: SocketChannel, mine: bytes, deadline: Deadline) -> bytes:
    """Send this side's certificate and return the peer's; at most 4096 bytes each."""
    _send_all(raw, _PREAMBLE.pack(_MAGIC, _VERSION, len(mine)) + mine, deadline)
    magic, version, length = _PREAMBLE.unpack(_recv_exactly(raw, _PREAMBLE.size, deadline))
    if magic != _MAGIC or version != _VERSION or not 0 < length <= MAX_CERTIFICATE_BYTES:
        raise MalformedMessage(
            f"{raw.peer_host} does not speak this version of the privml TLS preamble; check "
            "address and port, and that both sides run the same privml version"
        )
    return _recv_exactly(raw, length, deadline)


def _send_all(raw: SocketChannel, data: Bytes, deadline: Deadline) -> None:
    left = memoryview(data)
    while left.nbytes:
        count = raw.try_send(left)
        left = left[count:]
        if not count:
            deadline.check("announcing the certificate")
            raw.wait(read=False, write=True, timeout_s=deadline.remaining_s())


def _recv_exactly(raw: SocketChannel, nbytes: int, deadline: Deadline) -> bytes:
    data = memoryview(bytearray(nbytes))
    got = 0
    while got < nbytes:
        count = raw.try_recv_into(data[got:])
        got += count
        deadline.check("waiting for the peer's certificate")
        if not count:
            with contextlib.suppress(InterruptedError):
                raw.wait(read=True, write=False, timeout_s=deadline.remaining_s())
    return bytes(data)
