"""Starts, watches and restarts the child process in which a server computes.

Nothing native is loaded in the server's own process: programs, keys and ciphertexts go to the child
as bytes, and a client whose bytes end the child costs a restart and a refusal, not the server.
"""

from __future__ import annotations

import os
import select
import subprocess
import sys
import tempfile
import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Final, Self

import privml
from privml.errors import (
    DeadlineExceeded,
    MalformedMessage,
    ParameterError,
    ProtocolError,
    UnsupportedError,
    UntrustedArtifact,
    internal,
)
from privml.protocols.fhe import pipe
from privml.protocols.fhe.manifest import Manifest
from privml.protocols.fhe.parties import LIBRARY_FILE, PROGRAM_FILE, Artefact
from privml.protocols.fhe.program_info import ENVELOPE_BYTES
from privml.protocols.fhe.programs import Bounds, Traffic
from privml.storage import fs

_MODULE: Final = "privml.protocols.fhe.child"
_KEPT: Final = ("PATH", "LD_LIBRARY_PATH", "LANG", "LC_ALL")
_THREADS: Final = ("OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")
_CHUNK: Final = 1 << 20
_GIB: Final = 1 << 30


@dataclass(frozen=True)
class Limits:
    """What the child may use.

    Attributes
    ----------
    memory_bytes
        Address space.
    cpu_s, wall_s
        Processor time and time of one order; the start of the process has ``start_s``.
    loaded_keys
        Clients whose keys are in memory at once; those of the one served least recently leave.
    threads
        Threads of one computation.
    """

    memory_bytes: int
    cpu_s: int
    wall_s: float
    start_s: float = 120.0
    loaded_keys: int = 2
    threads: int = 1

    def __post_init__(self) -> None:
        if min(self.memory_bytes, self.cpu_s, self.loaded_keys, self.threads) < 1:
            raise ParameterError("limits of the computing process must be positive")
        if not (self.wall_s > 0 and self.start_s > 0):
            raise ParameterError("time limits of the computing process must be positive")

    @classmethod
    def of(cls, manifest: Manifest, *, threads: int = 1, loaded_keys: int = 2) -> Limits:
        """Return generous limits for one program.

        2 CPU seconds a bootstrap and 4 minutes; 8 GiB of addresses, and room for the keys, for the
        stacks of threads, and for the results of all tables at once.
        """
        sizes = manifest.sizes
        keys = (loaded_keys + 1) * (sizes.loaded_keys + sizes.keys)
        results = manifest.bootstraps * (sizes.answer // len(manifest.output.scale))
        cpu_s = 240 + 2 * manifest.bootstraps
        return cls(
            memory_bytes=8 * _GIB + threads * (_GIB >> 3) + 3 * keys + results, cpu_s=cpu_s,
            wall_s=4.0 * cpu_s, loaded_keys=loaded_keys, threads=threads,
        )  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class Duty:
    """What a child computes.

    Attributes
    ----------
    module
        Run as the child's main module.
    order, data
        The first order and its bytes: the program.
    traffic
        Sizes of the program's messages.
    """

    module: str
    order: pipe.Load
    data: bytes
    traffic: Traffic

    @property
    def longest(self) -> int:
        """Bytes of the longest message to the child."""
        return max(len(self.data), self.traffic.keys.most, self.traffic.query.most)


class ChildLauncher:
    """One child for one program; use it in a ``with`` block, from one thread at a time.

    Parameters
    ----------
    duty
        The program, already checked against a trusted signature; the digest is checked again in
        the child.
    limits
        See :class:`Limits`.
    """

    def __init__(self, duty: Duty, *, limits: Limits) -> None:
        self.limits = limits
        self.isolated = False
        self._duty = duty
        self._process: subprocess.Popen[bytes] | None = None
        self._log = self._alive = -1
        self._folder: Path | None = None
        self._slots: OrderedDict[str, int] = OrderedDict()

    def start(self) -> None:
        """Start the child and load the program, if that has not happened.

        Raises
        ------
        UnsupportedError
            concrete-python is missing or does not load here.
        UntrustedArtifact, MalformedMessage, ProtocolError
            The program does not load.
        """
        if self._process is not None and self._process.poll() is None:
            return
        self._stop()
        try:
            self._spawn()
            self._order(self._duty.order, self._duty.data, expect=0, limit_s=self.limits.start_s)
            self._remove_folder()  # the program is mapped: nothing is left however this ends
        except BaseException:
            self._stop()
            raise

    def run(self, query: bytes, *, owner: str, keys: Callable[[], bytes]) -> bytes:
        """Return the encrypted answer to one query.

        Parameters
        ----------
        query
            Ciphertext as the client sent it.
        owner
            Whose keys; equal owners have equal keys.
        keys
            Called for the evaluation keys if they are not in the child's memory.

        Raises
        ------
        MalformedMessage
            Keys or query are not of this program.
        DeadlineExceeded
            It took longer than allowed; the child was ended.
        ProtocolError
            The child ended; the next call starts another one.
        """
        self.start()
        if owner not in self._slots:
            self._load(owner, keys())
        self._slots.move_to_end(owner)
        most = self._duty.traffic.answer.most
        return self._order(pipe.Run(self._slots[owner]), query, expect=most)

    def forget(self, owner: str) -> None:
        """Drop the keys of an owner from the child's memory, if they are there."""
        slot = self._slots.pop(owner, None)
        if slot is not None and self._process is not None:
            self._order(pipe.Drop(slot), b"", expect=0)

    def interrupt(self) -> None:
        """End the child from another thread; the order in progress fails."""
        process = self._process
        if process is not None:
            process.kill()

    def close(self) -> None:
        """End the child."""
        self._stop()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def _load(self, owner: str, data: bytes) -> None:
        free = set(range(self.limits.loaded_keys)) - set(self._slots.values())
        slot = min(free) if free else self._slots.popitem(last=False)[1]
        self._order(pipe.Drop(slot), b"", expect=0)  # before the new ones need the memory
        self._order(pipe.Keys(slot), data, expect=0)
        self._slots[owner] = slot

    def _spawn(self) -> None:
        self._slots.clear()
        self._folder = Path(tempfile.mkdtemp(prefix="privml-fhe-"))
        self._log = os.memfd_create("fhe-log")
        theirs, self._alive = os.pipe()
        words = (self.limits.memory_bytes, self.limits.cpu_s, self._duty.longest, theirs)
        try:
            self._process = subprocess.Popen(
                [sys.executable, "-P", "-W", "ignore", "-m", self._duty.module, *map(str, words)],
                stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self._log, bufsize=0,
                env=self._environment(), cwd="/", start_new_session=True,
                pass_fds=(theirs,),
            )  # fmt: skip
        finally:
            os.close(theirs)
        for stream in (self._process.stdin, self._process.stdout):
            if stream is not None:
                os.set_blocking(stream.fileno(), False)

    def _environment(self) -> dict[str, str]:
        """Return a bare environment: the same privml first on the path, nothing private."""
        home = str(Path(privml.__file__).parent.parent)
        path = os.pathsep.join(p for p in (home, os.environ.get("PYTHONPATH", "")) if p)
        kept = {name: os.environ[name] for name in _KEPT if name in os.environ}
        return {
            **kept, **dict.fromkeys(_THREADS, "1"), "OMP_NUM_THREADS": str(self.limits.threads),
            "PYTHONPATH": path, "TMPDIR": str(self._folder), "HOME": str(self._folder),
        }  # fmt: skip

    def _order(
        self, order: pipe.Order, data: bytes, *, expect: int, limit_s: float | None = None
    ) -> bytes:
        """Give an order and return the bytes of the reply, at most ``expect``."""
        end = time.monotonic() + (self.limits.wall_s if limit_s is None else limit_s)
        try:
            self._send(pipe.encode(order, len(data)), end)
            self._send(data, end)
            reply, got = pipe.read_reply(lambda count: self._take(count, end), limit=expect)
        except BaseException:
            self._stop()  # half an answer must not be taken for the next one
            raise
        if isinstance(reply, pipe.Done):
            self.isolated = reply.isolated
            return got
        raise _ERRORS[reply.kind](reply.message)

    def _send(self, data: bytes, end: float) -> None:
        internal(self._process is not None, "the child was started")
        stream = None if self._process is None else self._process.stdin
        left = memoryview(data)
        while left and stream is not None:
            remaining = end - time.monotonic()
            if remaining <= 0 or not select.select([], [stream], [], remaining)[1]:
                raise DeadlineExceeded(f"the computing process took too long{self._stop()}")
            try:
                left = left[os.write(stream.fileno(), left[:_CHUNK]) :]
            except BlockingIOError:
                continue
            except BrokenPipeError as error:
                raise ProtocolError(f"the computing process ended{self._stop()}") from error

    def _take(self, count: int, end: float) -> bytes:
        """Read exactly ``count`` bytes of a reply before ``end``."""
        internal(self._process is not None, "the child was started")
        stream = None if self._process is None else self._process.stdout
        parts: list[bytes] = []
        while count and stream is not None:
            left = end - time.monotonic()
            if left <= 0 or not select.select([stream], [], [], left)[0]:
                raise DeadlineExceeded(f"the computing process took too long{self._stop()}")
            part = stream.read(min(count, _CHUNK))
            if not part:
                raise ProtocolError(f"the computing process ended{self._stop()}")
            parts.append(part)
            count -= len(part)
        return b"".join(parts)

    def _stop(self) -> str:
        """End the child, remove its folder, and return how it ended, for a message."""
        process, self._process = self._process, None
        self._slots.clear()
        said = ""
        if process is not None:
            process.kill()
            code = process.wait()
            for stream in (process.stdin, process.stdout):
                if stream is not None:
                    stream.close()
            size = os.fstat(self._log).st_size
            tail = _printable(os.pread(self._log, 200, max(size - 200, 0)))
            said = f" (code {code}{': ' + tail if tail else ''})"
        for fd in (self._log, self._alive):
            if fd >= 0:
                os.close(fd)
        self._log = self._alive = -1
        self._remove_folder()
        return said

    def _remove_folder(self) -> None:
        if self._folder is not None:
            fs.remove_tree(self._folder)
            self._folder = None


class Launcher(ChildLauncher):
    """The child of a TFHE program.

    Parameters
    ----------
    artefact, manifest
        The program.
    limits
        See :meth:`Limits.of` for the default.
    """

    def __init__(
        self, artefact: Artefact, manifest: Manifest, *, limits: Limits | None = None
    ) -> None:
        parameters, sizes = artefact.files[PROGRAM_FILE], manifest.sizes
        traffic = Traffic(
            *(Bounds(n, n + ENVELOPE_BYTES) for n in (sizes.keys, sizes.query, sizes.answer))
        )
        duty = Duty(
            module=_MODULE, order=pipe.Load(len(parameters), manifest.program),
            data=parameters + artefact.files[LIBRARY_FILE], traffic=traffic,
        )  # fmt: skip
        super().__init__(duty, limits=Limits.of(manifest) if limits is None else limits)


_ERRORS: Final = {
    "malformed": MalformedMessage,
    "untrusted": UntrustedArtifact,
    "unsupported": UnsupportedError,
    "bug": ProtocolError,
}


def _printable(raw: bytes) -> str:
    text = raw.decode("ascii", "replace").strip()
    return "".join(c if c.isprintable() else " " for c in text)[:200]
