"""Server of encrypted images: many pinned clients with keys of their own, one or more programs.

Connections are served by a few threads that only move bytes; one thread gives images to the child
processes that compute (:mod:`.launcher`), client by client in turn. An image that was accepted is
computed even if its client vanishes, and the answer waits for it (:mod:`.board`); evaluation keys
lie on disk (:mod:`.key_store`). No type here can hold or decode a secret key, and a folder that
holds one is refused at the start.
"""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Final, Literal, Self

from privml.errors import (
    DeadlineExceeded,
    MalformedMessage,
    ParameterError,
    PeerAborted,
    PrivmlError,
)
from privml.protocols.fhe.board import Board, Task
from privml.protocols.fhe.conversation import Conversation
from privml.protocols.fhe.key_store import KeyStore, Owner
from privml.protocols.fhe.launcher import Limits
from privml.protocols.fhe.messages import BINDING
from privml.protocols.fhe.programs import Program
from privml.session import Session
from privml.transport import tls
from privml.transport.channel import Channel, Counters
from privml.transport.identity import Identity

_ACCEPT_S: Final = 3.0
_POLL_S: Final = 0.25
_HANDSHAKE_S: Final = 20.0

Kind = Literal["accepted", "keys", "evicted", "image", "failed", "refused", "closed"]


@dataclass(frozen=True)
class ServiceEvent:
    """Something an operator wants to know.

    Attributes
    ----------
    kind
        ``accepted``, ``closed``: a client came and went. ``keys``, ``evicted``: keys were stored,
        or removed for others. ``image``: one was computed, ``failed``: it could not be.
        ``refused``: a connection or request.
    message
        One line for people; no private data.
    client
        Fingerprint, or an empty text.
    seconds
        Of an image.
    """

    kind: Kind
    message: str
    client: str = ""
    seconds: float = 0.0


def _unheard(event: ServiceEvent) -> None:
    """Drop an event."""


@dataclass(frozen=True, kw_only=True)
class Quota:
    """Bounds of a service.

    Attributes
    ----------
    key_clients, key_bytes
        Evaluation keys on disk; the least recently used are evicted.
    window
        Unfinished images of one client.
    board_bytes, keep_s
        Queries and answers in memory, each; answers are kept for so long.
    connections
        Clients served at once.
    idle_s
        A silent client is dropped after so long.
    """

    key_clients: int = 64
    key_bytes: int = 8 << 30
    window: int = 256
    board_bytes: int = 256 << 20
    keep_s: float = 3600.0
    connections: int = 8
    idle_s: float = 60.0


class Service:
    """Serves programs over mutual TLS; use it in a ``with`` block.

    Parameters
    ----------
    parts
        Programs, read by :func:`~privml.protocols.fhe.bundle.read_server` or
        :func:`privml.protocols.he.bundle.read_server`.
    identity, pins
        Certificate of this side, and fingerprints of the clients that may connect.
    state
        Folder for evaluation keys; made if missing, nothing else may be in it.
    host, port
        Address to listen on; port 0 takes a free one.
    limits
        Of the child of a program, by its id; see :meth:`Limits.of` for the default.
    quota
        See :class:`Quota`.
    on_event
        Called from several threads with what happens.

    Attributes
    ----------
    port
        Port it listens on.

    Raises
    ------
    SecurityError
        A secret key lies in ``state``.
    ParameterError
        No program, no pin, or an unusable address.
    """

    def __init__(
        self,
        parts: Sequence[Program],
        *,
        identity: Identity,
        pins: Iterable[str],
        state: Path,
        host: str = "127.0.0.1",
        port: int = 0,
        limits: Mapping[str, Limits] | None = None,
        quota: Quota | None = None,
        on_event: Callable[[ServiceEvent], None] = _unheard,
    ) -> None:
        self.parts = {part.id: part for part in parts}
        if not self.parts:
            raise ParameterError("give at least one program to serve")
        self.quota = Quota() if quota is None else quota
        self.on_event = on_event
        self.keys = KeyStore(
            state, max_clients=self.quota.key_clients, max_bytes=self.quota.key_bytes
        )
        self.board = Board(
            window=self.quota.window, max_bytes=self.quota.board_bytes, keep_s=self.quota.keep_s
        )
        self.stopping = threading.Event()
        self._launchers = {
            name: part.computer((limits or {}).get(name)) for name, part in self.parts.items()
        }
        self._stale: set[Owner] = set()
        self._digests: dict[Owner, str] = {}
        self._threads: list[threading.Thread] = []
        self._connected, self._counting = 0, threading.Lock()
        self._free = threading.Semaphore(self.quota.connections)
        self._arrived: queue.Queue[tls.TlsChannel] = queue.Queue()
        self._listener = tls.listen(host, port, identity=identity, pins=pins)
        self.port = self._listener.port

    def start(self) -> None:
        """Start all programs, which shows that they load here, then serve in threads.

        Raises
        ------
        UnsupportedError, UntrustedArtifact, MalformedMessage, ProtocolError
            A program does not load.
        """
        for launcher in self._launchers.values():
            launcher.start()
        work = [self._serve] * self.quota.connections
        for target in (self._accept, *work, self._compute):
            self._threads.append(threading.Thread(target=target, daemon=True))
            self._threads[-1].start()

    @property
    def isolated(self) -> bool:
        """Whether all computing processes are without network."""
        return all(launcher.isolated for launcher in self._launchers.values())

    @property
    def busy(self) -> bool:
        """Whether a client is connected or an image unfinished."""
        with self._counting:
            return self._connected > 0 or self.board.unfinished > 0

    def wait(self, timeout_s: float | None = None) -> bool:
        """Return True once :meth:`stop` was called, False after ``timeout_s`` seconds."""
        return self.stopping.wait(timeout_s)

    def stop(self) -> None:
        """Serve no more; callable from any thread."""
        self.stopping.set()
        self.board.close()

    def close(self) -> None:
        """Stop, end all connections and child processes."""
        self.stop()
        for thread in self._threads[:-1]:
            thread.join()
        for launcher in self._launchers.values():
            launcher.interrupt()
        for thread in self._threads[-1:]:
            thread.join()
        for launcher in self._launchers.values():
            launcher.close()
        while not self._arrived.empty():
            self._arrived.get_nowait().close()
        self._listener.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def changed_keys(self, owner: Owner, digest: str) -> None:
        """Forget what depends on the owner's former keys, unless the same came again."""
        if self._digests.get(owner) != digest:
            self._digests[owner] = digest
            self.board.drop(owner)
            self._stale.add(owner)

    def _accept(self) -> None:
        """Authenticate clients one after the other and hand them to the threads that serve."""
        while not self.stopping.is_set():
            if not self._free.acquire(timeout=_POLL_S):
                continue
            channel = None
            try:
                if self._listener.wait(_POLL_S):
                    channel = self._listener.accept(_ACCEPT_S)
            except PrivmlError as error:
                self._end("refused", f"{error} [{error.code}]", "")
            if channel is None:
                self._free.release()
            else:
                with self._counting:
                    self._connected += 1
                self._arrived.put(channel)

    def _serve(self) -> None:
        """Serve one client after the other; one of several threads."""
        while not self.stopping.is_set():
            try:
                channel = self._arrived.get(timeout=_POLL_S)
            except queue.Empty:
                continue
            client = str(channel.peer_fingerprint)
            try:
                self._attend(channel, client)
            except PrivmlError as error:
                self._end("refused", f"client {client[:16]}: {error} [{error.code}]", client)
            except Exception as error:  # noqa: BLE001 - no client may stop the server
                self._end("refused", f"internal error: {type(error).__name__}: {error}", client)
            finally:
                channel.close()
                with self._counting:
                    self._connected -= 1
                self._free.release()

    def _attend(self, channel: Channel, client: str) -> None:
        self.on_event(ServiceEvent("accepted", f"client {client[:16]}", client))
        stoppable = _Stoppable(channel, self.stopping)
        with Session.open(
            stoppable, rank=0, binding=BINDING, offer={}, deadline_s=_HANDSHAKE_S
        ) as session:
            try:
                Conversation(self, session, client=client).run()
                said = f"client {client[:16]} said goodbye"
            except (PeerAborted, DeadlineExceeded):
                said = f"the connection of client {client[:16]} ended"
        self._end("closed", said, client)

    def _end(self, kind: Kind, message: str, client: str) -> None:
        self.on_event(ServiceEvent(kind, message, client))

    def _compute(self) -> None:
        """Compute image by image until stopped."""
        while not self.stopping.is_set():
            task = self.board.take(_POLL_S)
            if task is not None:
                self._one(task)

    def _one(self, task: Task) -> None:
        launcher, owner = self._launchers[task.owner.program], task.owner
        start = time.monotonic()

        def keys() -> bytes:
            found = self.keys.get(owner)
            if found is None:
                raise _NoKeys
            return found

        try:
            if owner in self._stale:
                self._stale.discard(owner)
                launcher.forget(owner.client)
            answer = launcher.run(task.query, owner=owner.client, keys=keys)
        except _NoKeys:
            self.board.fail(task, "no-keys")
        except Exception as error:  # noqa: BLE001 - no client may stop the server
            reason = "malformed" if isinstance(error, MalformedMessage) else "failed"
            self.board.fail(task, reason)
            text = f"image {task.image} of client {owner.client[:16]}: {error}"
            self.on_event(ServiceEvent("failed", text, owner.client))
        else:
            seconds = time.monotonic() - start
            self.board.finish(task, answer)
            text = f"image {task.image} of client {owner.client[:16]}: {seconds:.2f} s"
            self.on_event(ServiceEvent("image", text, owner.client, seconds))


class _NoKeys(Exception):
    """The client's keys were evicted."""


class _Stoppable(Channel):
    """A channel whose waits end when the server stops."""

    def __init__(self, inner: Channel, stopping: threading.Event) -> None:
        self._inner, self._stopping = inner, stopping
        self.secure = inner.secure
        self.local_fingerprint = inner.local_fingerprint
        self.peer_fingerprint = inner.peer_fingerprint

    @property
    def counters(self) -> Counters:
        return self._inner.counters

    def try_send(self, data: memoryview) -> int:
        return self._inner.try_send(data)

    def try_recv_into(self, out: memoryview) -> int:
        return self._inner.try_recv_into(out)

    def flush(self) -> bool:
        return self._inner.flush()

    def wait(self, *, read: bool, write: bool, timeout_s: float) -> None:
        if self._stopping.is_set():
            raise PeerAborted("this server is stopping")
        self._inner.wait(read=read, write=write, timeout_s=min(timeout_s, _POLL_S))

    def close(self) -> None:
        self._inner.close()
