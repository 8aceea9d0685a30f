"""The two ends of a run on two hosts: a server that accepts clients, a client that connects."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Literal, Self

from privml.errors import CorrelationExhausted, ParameterError, PrivmlError, StorageError
from privml.protocols.mpc.cache import ClientCache
from privml.protocols.mpc.correlations.pool import Pool, UsedLog
from privml.protocols.mpc.plan import Plan
from privml.protocols.mpc.runtime import (
    DEADLINE_S,
    Bill,
    ClientRun,
    Progress,
    ServerRun,
    pin_weights,
)
from privml.transport import plain, tls
from privml.transport.channel import Channel
from privml.transport.identity import Identity

if TYPE_CHECKING:
    from privml.protocols.mpc.model import PrivateModel

#: Seconds a client waits for a server to answer at all.
CONNECT_S = 30.0
#: Seconds a server gives one caller to authenticate; longer would let idle callers block others.
_ACCEPT_S, _POLL_S = 3.0, 0.25


def _silent(stage: str, fraction: float) -> None:
    """Report nothing."""


def parse_peer(peer: str) -> tuple[str, int]:
    """Split ``host:port`` or ``[address]:port``.

    Raises
    ------
    ParameterError
        Not of that form.
    """
    host, colon, port = peer.strip().rpartition(":")
    host = host.removeprefix("[").removesuffix("]")
    if not (colon and host and port.isascii() and port.isdigit() and 0 < int(port) < 1 << 16):
        raise ParameterError(
            f"the peer {peer!r} is no address: write host:port, for instance 127.0.0.1:7711"
        )
    return host, int(port)


@contextmanager
def connect(
    *,
    peer: str,
    plan: Plan,
    pool: Path | str,
    identity: Identity | None = None,
    pin: str | None = None,
    cache: Path | str | None = None,
    used: Path | str | None = None,
    insecure_loopback: bool = False,
    role: Literal["client"] = "client",
    connect_s: float = CONNECT_S,
    deadline_s: float = DEADLINE_S,
    progress: Progress = _silent,
) -> Iterator[ClientRun]:
    """Open the client's side of one run; use it in a ``with`` block and execute it once.

    The pool is opened and checked before anything is sent, and released afterwards.

    Parameters
    ----------
    peer
        Address of the server, ``host:port``.
    plan
        The plan both parties hold.
    pool
        The client's pool, dealt for this plan.
    identity, pin
        Certificate of this side and SHA-256 fingerprint of the server's; needed unless
        ``insecure_loopback``.
    cache
        Directory for what the server sends once: the public part, and W - B of each pool.
    used
        Directory of the log of used pools; the user's state directory if absent.
    insecure_loopback
        Plaintext, between processes of one machine only.
    role
        This function opens the client's side; see :class:`Server` for the other one.
    connect_s
        Seconds for connecting and authenticating.
    deadline_s
        Seconds that the peer may take for one step.
    progress
        Called with the stage and the fraction done.

    Yields
    ------
    ClientRun
        After the handshake and, on a first run, the set-up.

    Raises
    ------
    ParameterError
        Address, identity or pin are missing or malformed.
    CorrelationExhausted
        All runs of the pool are spent.
    UntrustedArtifact
        The pool is of another plan, or the certificate is not the pinned one.
    HandshakeMismatch
        The server has another plan, model or pool.
    ProtocolError
        The server did not answer, or went away.
    """
    if role != "client":
        raise ParameterError(f"role {role!r}: connect opens the client's side, Server the other")
    host, port = parse_peer(peer)
    with ExitStack() as stack:
        opened = _open_pool(Path(pool), plan, 1, used)
        stack.callback(opened.close)
        if insecure_loopback:
            channel: Channel = plain.dial(
                host, port, deadline_s=connect_s, insecure_loopback=insecure_loopback
            )
        elif identity is None or pin is None:
            raise ParameterError(_NO_TLS.format(what="the server's fingerprint"))
        else:
            channel = tls.dial(host, port, identity=identity, pin=pin, deadline_s=connect_s)
        stack.callback(channel.close)
        store = ClientCache(Path(cache) if cache is not None else None)
        run = ClientRun(channel, plan, opened, cache=store, deadline_s=deadline_s,
                        progress=progress)  # fmt: skip
        yield stack.enter_context(run)


_NO_TLS = (
    "mutual TLS needs this side's identity and {what}; make an identity with `privml cert`, or use "
    "insecure_loopback between processes of one machine"
)


def _open_pool(path: Path, plan: Plan, rank: int, used: Path | str | None) -> Pool:
    """Open a pool that belongs to this plan and party and has a run left."""
    pool = Pool.open(path, plan_digest=plan.digest, used=UsedLog(used), rank=rank)
    if not pool.remaining:
        message = _spent(pool)
        pool.close()
        raise CorrelationExhausted(message)
    return pool


def _spent(pool: Pool) -> str:
    return (
        f"all {pool.header.runs} runs of pool {pool.header.pool_id[:8]} are spent; deal a new pool "
        "for both parties"
    )


@dataclass(frozen=True)
class ServerEvent:
    """Something an operator wants to know.

    Attributes
    ----------
    kind
        ``accepted``: a client authenticated. ``finished``: its run succeeded. ``failed``: it did
        not; the server goes on. ``exhausted``: the pool has no run left, the server ends.
    message
        One line for people; no private data.
    bill
        Cost of a finished run.
    code
        Code of the error of a failed one.
    """

    kind: Literal["accepted", "finished", "failed", "exhausted"]
    message: str
    bill: Bill | None = None
    code: str = ""


def _unheard(event: ServerEvent) -> None:
    """Drop an event."""


class Server:
    """Serves one plan from one pool to pinned clients, one after the other.

    Use as a context manager; each client gets one fresh run, whatever became of the one before.

    Parameters
    ----------
    model
        The private model the plan was made from.
    plan
        The plan both parties hold.
    pool
        The server's pool, dealt for this plan.
    host, port
        Address to listen on; port 0 takes a free one.
    identity, pins
        Certificate of this side and fingerprints of the clients that may connect; needed unless
        ``insecure_loopback``.
    used
        Directory of the log of used pools; the user's state directory if absent.
    insecure_loopback
        Plaintext, between processes of one machine only.
    deadline_s
        Seconds that a client may take for one step.

    Attributes
    ----------
    port
        Port it listens on.

    Raises
    ------
    UntrustedArtifact
        The plan is of another model, or the pool of another plan.
    CorrelationExhausted
        All runs of the pool are spent.
    ParameterError
        Identity or pins are missing, or the address cannot be used.
    """

    def __init__(
        self,
        model: PrivateModel,
        plan: Plan,
        pool: Path | str,
        *,
        host: str = "127.0.0.1",
        port: int = 0,
        identity: Identity | None = None,
        pins: Iterable[str] = (),
        insecure_loopback: bool = False,
        used: Path | str | None = None,
        deadline_s: float = DEADLINE_S,
    ) -> None:
        self.plan, self._deadline_s, self._stopping = plan, deadline_s, False
        self._params, self._public = model.weights(plan), model.public_bytes
        with ExitStack() as stack:
            self._pool = _open_pool(Path(pool), plan, 0, used)
            stack.callback(self._pool.close)
            pin_weights(self._pool, self._params)
            if insecure_loopback:
                self._listener: plain.Listener | tls.Listener = plain.listen(
                    host, port, insecure_loopback=insecure_loopback
                )
            elif identity is None:
                raise ParameterError(_NO_TLS.format(what="the clients' fingerprints"))
            else:
                self._listener = tls.listen(host, port, identity=identity, pins=pins)
            stack.callback(self._listener.close)
            self._resources = stack.pop_all()
        self.port = self._listener.port

    @property
    def remaining(self) -> int:
        """Runs left in the pool."""
        return self._pool.remaining

    def serve(
        self,
        max_runs: int | None = None,
        *,
        on_event: Callable[[ServerEvent], None] = _unheard,
        progress: Progress = _silent,
    ) -> int:
        """Serve clients until the pool is empty; return how many runs finished.

        Parameters
        ----------
        max_runs
            Return after so many finished runs.
        on_event
            Called with what happens, in this thread.
        progress
            Called with the stage and the fraction of the present run.

        Raises
        ------
        StorageError
            The pool can no longer be used safely; failures of clients are never raised.
        """
        done = 0
        while not self._stopping and (max_runs is None or done < max_runs):
            if not self.remaining:
                on_event(ServerEvent("exhausted", _spent(self._pool)))
                break
            if self._listener.wait(_POLL_S):
                done += self._attend(on_event, progress)
        return done

    def stop(self) -> None:
        """Let :meth:`serve` return before the next client; callable from any thread."""
        self._stopping = True

    def _attend(self, on_event: Callable[[ServerEvent], None], progress: Progress) -> bool:
        """Serve one client; return whether its run finished."""
        try:
            bill = self._one(on_event, progress)
        except StorageError:
            raise
        except PrivmlError as error:
            on_event(ServerEvent("failed", f"{error}; {self._left()}", code=error.code))
        except Exception as error:  # noqa: BLE001 - no client may stop the server
            text = f"internal error, please report: {type(error).__name__}: {error}; {self._left()}"
            on_event(ServerEvent("failed", text, code="bug"))
        else:
            text = f"{bill.online_s:.2f} s, {bill.flights} flights; {self._left()}"
            on_event(ServerEvent("finished", text, bill=bill))
            return True
        return False

    def _left(self) -> str:
        return f"runs left: {self.remaining}"

    def _one(self, on_event: Callable[[ServerEvent], None], progress: Progress) -> Bill:
        channel = self._listener.accept(_ACCEPT_S)
        with ExitStack() as stack:
            stack.callback(channel.close)
            pin = channel.peer_fingerprint
            who = f"client {pin[:16]}" if pin else "a client without a certificate"
            on_event(ServerEvent("accepted", who))
            run = ServerRun(channel, self.plan, self._pool, params=self._params,
                            public=self._public, deadline_s=self._deadline_s,
                            progress=progress)  # fmt: skip
            return stack.enter_context(run).serve()

    def close(self) -> None:
        """Stop listening and release the pool; harmless when repeated."""
        self._resources.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()
