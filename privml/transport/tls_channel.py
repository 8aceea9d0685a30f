"""TLS over a non-blocking socket, by way of memory buffers.

The TLS library encrypts into and decrypts from buffers; the socket is moved separately in large
pieces. So one thread serves both directions, and a full socket never leaves the TLS library in
the middle of a call. Cost: one extra copy each way, about 1 GB/s each way at once on one core.
"""

from __future__ import annotations

import contextlib
import ssl
from typing import cast

from privml.errors import MalformedMessage, PeerAborted
from privml.transport.channel import Channel, Counters, Deadline
from privml.transport.sockets import SocketChannel

_RECORD_BYTES = 1 << 14
_PIECE_BYTES = 1 << 18


class TlsChannel(Channel):
    """Encrypted channel; usable after :meth:`shake_hands`."""

    secure = True

    def __init__(self, raw: SocketChannel, context: ssl.SSLContext, *, server: bool) -> None:
        self._raw = raw
        self._in = ssl.MemoryBIO()
        self._out = ssl.MemoryBIO()
        self._tls = context.wrap_bio(self._in, self._out, server_side=server)
        self._buffer = memoryview(bytearray(_PIECE_BYTES))
        self._pending = memoryview(b"")

    @property
    def counters(self) -> Counters:
        """Bytes on the link, TLS records included."""
        return self._raw.counters

    def version(self) -> str | None:
        """Negotiated protocol, ``"TLSv1.3"``."""
        return self._tls.version()

    def peer_certificate(self) -> bytes | None:
        """DER certificate that the peer proved to own."""
        return self._tls.getpeercert(binary_form=True)

    def shake_hands(self, deadline: Deadline) -> None:
        """Run the TLS handshake.

        Raises
        ------
        PeerAborted, DeadlineExceeded, MalformedMessage
            The peer refused, stalled, or does not speak TLS 1.3 with the announced certificate.
        """
        while True:
            finished = True
            try:
                self._tls.do_handshake()
            except ssl.SSLWantReadError:
                finished = False
            except ssl.SSLError as error:
                self.flush()
                raise _refusal(error) from error
            self._flush_all(deadline)
            if finished:
                return
            while not self._pull():
                deadline.check("in the TLS handshake")
                self._raw.wait(read=True, write=False, timeout_s=deadline.remaining_s())

    def try_send(self, data: memoryview) -> int:
        """Encrypt and hand over one piece; see :meth:`Channel.try_send`."""
        if not self.flush():
            return 0
        end = min(data.nbytes, _PIECE_BYTES)
        done = 0
        try:
            while done < end:
                done += self._tls.write(data[done : min(end, done + _RECORD_BYTES)])
        except ssl.SSLError as error:
            raise _refusal(error) from error
        self.flush()
        return done

    def try_recv_into(self, out: memoryview) -> int:
        """Decrypt what is there, else look at the socket; see :meth:`Channel.try_recv_into`."""
        done = self._decrypt(out)
        if not done and self._pull():
            done = self._decrypt(out)
        return done

    def flush(self) -> bool:
        """Hand encrypted bytes to the socket; True once none are left."""
        if not self._pending.nbytes:
            if not self._out.pending:
                return True
            self._pending = memoryview(self._out.read())
        self._pending = self._pending[self._raw.try_send(self._pending) :]
        return not self._pending.nbytes and not self._out.pending

    def wait(self, *, read: bool, write: bool, timeout_s: float) -> None:
        """Wait for the socket; see :meth:`Channel.wait`."""
        self._raw.wait(read=read, write=write or self._pending.nbytes > 0, timeout_s=timeout_s)

    def close(self) -> None:
        """Say goodbye in TLS as far as possible and close the socket."""
        with contextlib.suppress(ssl.SSLError, PeerAborted, ValueError):
            self._tls.unwrap()
        with contextlib.suppress(PeerAborted):
            self.flush()
        self._raw.close()

    def _pull(self) -> bool:
        count = self._raw.try_recv_into(self._buffer)
        self._in.write(self._buffer[:count])
        return count > 0

    def _decrypt(self, out: memoryview) -> int:
        done, size = 0, out.nbytes
        try:
            while done < size:
                # With a buffer the call returns how many bytes it wrote there.
                count = cast("int", self._tls.read(size - done, out[done:]))
                if not count:
                    raise PeerAborted("the peer closed the TLS connection")
                done += count
        except ssl.SSLWantReadError:
            pass
        except ssl.SSLError as error:
            if not done:
                raise _refusal(error) from error
        return done

    def _flush_all(self, deadline: Deadline) -> None:
        while not self.flush():
            deadline.check("in the TLS handshake")
            self._raw.wait(read=False, write=True, timeout_s=deadline.remaining_s())


def _refusal(error: ssl.SSLError) -> PeerAborted | MalformedMessage:
    """Turn an error of the TLS library into ours: an alert or end by the peer, or bad bytes."""
    reason = error.reason or "unknown reason"
    if isinstance(error, ssl.SSLZeroReturnError | ssl.SSLEOFError) or "ALERT" in reason:
        return PeerAborted(f"the peer ended the TLS connection ({reason})")
    return MalformedMessage(
        f"the TLS layer refused what arrived ({reason}): the link altered it, or the peer does "
        "not own the certificate it announced"
    )
