"""Child process that computes on ciphertexts; started by :mod:`.launcher`, never by hand.

It alone loads the native program and decodes what clients sent, because malformed objects may
print without end or abort the library. Before that it limits itself: memory, file sizes, open
files, no core dumps, no new privileges, no network where the kernel lets it; each order has its own
processor time. It ends with its parent: the kernel signals the end of a pipe that only the parent
holds. The environment is bare, the working folder private, and no secret is within reach: it gets
evaluation keys and ciphertexts, nothing else.

Arguments: bytes of memory, seconds of processor time per order, bytes of the longest message,
descriptor of the parent's pipe.
"""

from __future__ import annotations

import ctypes
import fcntl
import math
import os
import resource
import signal
import sys
from typing import TYPE_CHECKING, Any, Final, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable

    from privml.protocols.fhe.pipe import Load, Order

_OPEN_FILES: Final = 128
_LARGEST_FILE: Final = 1 << 29
_MESSAGE_CHARACTERS: Final = 500
_NEW_NETWORK, _NEW_USER = 0x40000000, 0x10000000
_SET_DUMPABLE, _NO_NEW_PRIVILEGES = 4, 38


class Engine(Protocol):
    """What computes: the server side of one scheme, with a program."""

    def load_keys(self, data: bytes, /) -> Any:  # noqa: ANN401 (the scheme's own type)
        """Return a client's evaluation keys."""

    def run(self, query: bytes, keys: Any, /) -> bytes:  # noqa: ANN401 (the scheme's own type)
        """Return the answer to one query."""


def main(load: Callable[[Load, bytes], Engine]) -> None:
    """Carry out orders until the input ends; ``load`` makes the program of the first one."""
    memory, cpu_s, limit, parent = map(int, sys.argv[1:5])
    _end_with(parent)
    isolated = _isolate()
    _limit(memory, limit)
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # what a library prints must not become part of an answer
    from privml.protocols.fhe import pipe

    worker = _Worker(load, isolated=isolated)
    with os.fdopen(os.dup(0), "rb") as orders, answers:
        while (order := pipe.read_order(orders.read, limit=limit)) is not None:
            _allow_cpu(cpu_s)
            for part in worker.answer(*order):
                answers.write(part)
            answers.flush()


class _Worker:
    """The loaded program and the keys in its slots."""

    def __init__(self, load: Callable[[Load, bytes], Engine], *, isolated: bool) -> None:
        self._load, self._isolated = load, isolated
        self._server: Engine | None = None
        self._keys: dict[int, object] = {}

    def answer(self, order: Order, data: bytes) -> tuple[bytes, bytes]:
        """Return reply and bytes; no error leaves."""
        from privml.errors import MalformedMessage, UnsupportedError, UntrustedArtifact
        from privml.protocols.fhe import pipe

        try:
            result = self._carry_out(order, data)
        except MalformedMessage as error:
            failure = pipe.Failed("malformed", _short(error))
        except UntrustedArtifact as error:
            failure = pipe.Failed("untrusted", _short(error))
        except UnsupportedError as error:
            failure = pipe.Failed("unsupported", _short(error))
        except Exception as error:  # noqa: BLE001 - the server decides what becomes of it
            failure = pipe.Failed("bug", _short(error))
        else:
            return pipe.encode(pipe.Done(self._isolated), len(result)), result
        return pipe.encode(failure, 0), b""

    def _carry_out(self, order: Order, data: bytes) -> bytes:
        from privml.errors import MalformedMessage
        from privml.protocols.fhe import pipe

        if isinstance(order, pipe.Load):
            self._server = self._load(order, data)
            return b""
        if self._server is None:
            raise MalformedMessage("an order came before the program")
        if isinstance(order, pipe.Drop):
            self._keys.pop(order.slot, None)
        elif isinstance(order, pipe.Keys):
            self._keys.pop(order.slot, None)
            self._keys[order.slot] = self._server.load_keys(data)
        elif order.slot in self._keys:
            return self._server.run(data, self._keys[order.slot])
        else:
            raise MalformedMessage("a query came before its keys")
        return b""


def _short(error: Exception) -> str:
    return f"{type(error).__name__}: {error}"[:_MESSAGE_CHARACTERS]


def _end_with(parent: int) -> None:
    """Have the kernel end this process when the parent's end of the pipe closes."""
    signal.signal(signal.SIGIO, signal.SIG_DFL)
    fcntl.fcntl(parent, fcntl.F_SETOWN, os.getpid())
    flags = fcntl.fcntl(parent, fcntl.F_GETFL)
    fcntl.fcntl(parent, fcntl.F_SETFL, flags | os.O_ASYNC)


def _isolate() -> bool:
    """Leave the network and give up new privileges; return whether the network is gone."""
    library = ctypes.CDLL(None, use_errno=True)
    library.prctl(_SET_DUMPABLE, 0, 0, 0, 0)
    library.prctl(_NO_NEW_PRIVILEGES, 1, 0, 0, 0)
    unshare = getattr(library, "unshare", None)
    return unshare is not None and unshare(_NEW_NETWORK | _NEW_USER) == 0


def _limit(memory: int, longest: int) -> None:
    for name, most in (
        (resource.RLIMIT_CORE, 0),
        (resource.RLIMIT_FSIZE, max(_LARGEST_FILE, longest)),
        (resource.RLIMIT_AS, memory),
        (resource.RLIMIT_NOFILE, _OPEN_FILES),
    ):
        resource.setrlimit(name, (most, most))


def _allow_cpu(cpu_s: int) -> None:
    """Give one order its own processor time; beyond it the kernel ends this process."""
    usage = resource.getrusage(resource.RUSAGE_SELF)
    used = math.ceil(usage.ru_utime + usage.ru_stime)
    resource.setrlimit(resource.RLIMIT_CPU, (used + cpu_s, resource.RLIM_INFINITY))


def _tfhe(order: Load, data: bytes) -> Engine:
    from privml.protocols.fhe import parties

    files = {
        parties.PROGRAM_FILE: data[: order.parameters],
        parties.LIBRARY_FILE: data[order.parameters :],
    }
    return parties.Server(parties.Artefact(files), digest=order.digest)


if __name__ == "__main__":
    main(_tfhe)
