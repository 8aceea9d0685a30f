"""A worker process: started in the concrete-ml environment, spoken to in frames, ended on trouble.

Every call has a time-out; every process limits its own memory and processor time, cannot open a
network connection (Linux), and ends with its parent. After a time-out, a crash or an answer that
is no frame the process is ended, and a later call starts a new, empty one.
"""

from __future__ import annotations

import json
import os
import select
import subprocess
import tempfile
import time
import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from types import TracebackType
from typing import IO, Any, Final, Self, TypeAlias

from privml.errors import (
    DeadlineExceeded,
    MalformedMessage,
    MemoryExceeded,
    ParameterError,
    PeerAborted,
    PrivmlError,
    ProtocolError,
    UnsupportedError,
    internal,
)
from privml.protocols.fhe.calibration import available_memory
from privml.protocols.fhe.concrete_ml.environment import Environment, find
from privml.protocols.fhe.concrete_ml.worker.frames import Array, Frame, FrameError, decode, encode
from privml.protocols.fhe.licence import NOTICE
from privml.protocols.fhe.toolkit import LicenceNotice
from privml.storage import fs

Fields: TypeAlias = Mapping[str, Any]

_KEPT: Final = ("LANG", "LC_ALL", "SYSTEMROOT")
_THREADS: Final = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")
_PATH: Final = os.pathsep.join(("/usr/local/bin", "/usr/bin", "/bin"))
_SAID: Final = 300
_CHUNK: Final = 1 << 20
_ERRORS: Final[Mapping[str, type[PrivmlError]]] = {
    "parameter": ParameterError,
    "unsupported": UnsupportedError,
    "memory": MemoryExceeded,
    "malformed": MalformedMessage,
    "library": ProtocolError,
}


class Role(StrEnum):
    """What a process may do; it has one role for its life."""

    BUILDER = "builder"
    """Sees the model; quantises, compiles, evaluates in the clear."""
    CLIENT = "client"
    """Holds the secret key; sees no model."""
    SERVER = "server"
    """Computes on ciphertexts; sees no secret key."""


@dataclass(frozen=True)
class Limits:
    """What one worker process may take.

    Attributes
    ----------
    start_s
        Longest wait for the process to load its libraries.
    call_s
        Longest wait for an answer.
    cpu_s
        Processor time of one call, all threads together.
    memory_bytes
        Private memory; by default what is available now.
    frame_bytes
        Largest frame in either direction.
    """

    start_s: float = 120.0
    call_s: float = 600.0
    cpu_s: float = 2400.0
    memory_bytes: int | None = None
    frame_bytes: int = 1 << 30

    def __post_init__(self) -> None:
        times = min(self.start_s, self.call_s, self.cpu_s) > 0
        sizes = self.frame_bytes > 0 and (self.memory_bytes is None or self.memory_bytes > 0)
        if not (times and sizes):
            raise ParameterError("the limits of a worker are positive")


class Worker:
    """One process of one role; use it in a ``with`` block, from one thread.

    Parameters
    ----------
    role
        What it may do.
    environment
        Where it runs; by default the one that was installed.
    limits
        What it may take.

    Raises
    ------
    UnsupportedError
        The environment is not there, or the process does not start in it.
    """

    def __init__(
        self, role: Role, *, environment: Environment | None = None, limits: Limits | None = None
    ) -> None:
        self.role = role
        self.versions: Mapping[str, str] = {}
        self.offline = False
        self._environment = environment or find()
        self._limits = limits or Limits()
        self._process: subprocess.Popen[bytes] | None = None
        self._log: IO[bytes] | None = None
        self._home: Path | None = None
        warnings.warn(NOTICE, LicenceNotice, stacklevel=2)
        self._start()

    def __repr__(self) -> str:
        state = "ended" if self._process is None else f"process {self._process.pid}"
        return f"Worker({self.role.value}, {state})"

    @property
    def folder(self) -> Path:
        """A private folder for files of this process; gone when it ends."""
        if self._home is None:
            raise ProtocolError(f"the {self.role.value} process has ended; make a new one")
        return self._home

    def call(
        self,
        verb: str,
        fields: Fields | None = None,
        arrays: Mapping[str, Array] | None = None,
    ) -> Frame:
        """Send one request and return the answer.

        Raises
        ------
        ParameterError, UnsupportedError, MemoryExceeded, MalformedMessage, ProtocolError
            The worker refused; the message is its own. It goes on.
        DeadlineExceeded, PeerAborted, MalformedMessage
            It took too long, crashed, or sent what is no frame. It was ended.
        """
        process = self._process
        if process is None:
            raise ProtocolError(f"the {self.role.value} process has ended; make a new one")
        request = Frame({**(fields or {}), "verb": verb}, arrays or {})
        end = time.monotonic() + self._limits.call_s
        try:
            self._send(process, request, end)
            answer = self._receive(process, end, verb)
        except BaseException:
            self.close()  # half an answer must not be taken for the next one
            raise
        kind = answer.fields.get("error")
        if kind is None:
            return answer
        text = _printable(str(answer.fields.get("text", "")))
        raise _ERRORS.get(str(kind), ProtocolError)(f"{verb}: {text}")

    def close(self) -> None:
        """End the process and remove its folder; harmless when repeated."""
        process, self._process = self._process, None
        if process is not None:
            process.kill()
            process.wait()
            for stream in (process.stdin, process.stdout):
                if stream is not None:
                    stream.close()
        if self._log is not None:
            self._log.close()
            self._log = None
        home, self._home = self._home, None
        if home is not None:
            fs.remove_tree(home)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def _start(self) -> None:
        self._home = Path(tempfile.mkdtemp(prefix="privml-worker-"))
        self._log = tempfile.TemporaryFile()  # noqa: SIM115 (closed with the process)
        limits = {
            "memory_bytes": self._limits.memory_bytes or max(available_memory(), 1 << 30),
            "cpu_s": self._limits.cpu_s,
            "frame_bytes": self._limits.frame_bytes,
        }
        self._process = process = subprocess.Popen(
            [str(self._environment.python), "-s", "-P", "-m", "worker",
             self.role.value, json.dumps(limits)],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self._log, bufsize=0,
            cwd=self._home, env=_environment(self._home), start_new_session=True,
        )  # fmt: skip
        for stream in (process.stdin, process.stdout):
            internal(stream is not None, "the worker has pipes")
            if stream is not None:
                os.set_blocking(stream.fileno(), False)
        try:
            ready = self._receive(process, time.monotonic() + self._limits.start_s, "the start")
        except ProtocolError as error:
            self.close()
            raise UnsupportedError(
                f"the {self.role.value} process of concrete-ml does not start: {error}; remove "
                f"{self._environment.folder} and build it again"
            ) from error
        except BaseException:
            self.close()
            raise
        self.offline = ready.fields.get("offline") is True
        versions = ready.fields.get("versions", {})
        self.versions = {str(name): str(value) for name, value in dict(versions).items()}

    def _send(self, process: subprocess.Popen[bytes], request: Frame, end: float) -> None:
        try:
            buffers = encode(request)
        except FrameError as error:
            raise ParameterError(f"this cannot be sent to the worker: {error}") from error
        stream = process.stdin
        internal(stream is not None, "the worker has an input")
        for buffer in buffers:
            left = memoryview(buffer)
            while left and stream is not None:
                self._wait(end, stream, writing=True)
                try:
                    left = left[os.write(stream.fileno(), left[:_CHUNK]) :]
                except BlockingIOError:
                    continue
                except BrokenPipeError as error:
                    raise PeerAborted(self._ended("it took no request")) from error

    def _receive(self, process: subprocess.Popen[bytes], end: float, what: str) -> Frame:
        stream = process.stdout
        internal(stream is not None, "the worker has an output")

        def read(count: int) -> bytes:
            parts = []
            while count and stream is not None:
                self._wait(end, stream, writing=False)
                try:
                    part = os.read(stream.fileno(), min(count, _CHUNK))
                except BlockingIOError:
                    continue
                if not part:
                    raise PeerAborted(self._ended(f"it did not answer {what}"))
                parts.append(part)
                count -= len(part)
            return b"".join(parts)

        try:
            return decode(read, limit=self._limits.frame_bytes)
        except FrameError as error:
            raise MalformedMessage(f"the worker's answer to {what} is no frame: {error}") from error

    def _wait(self, end: float, stream: IO[bytes], *, writing: bool) -> None:
        left = end - time.monotonic()
        reading: list[IO[bytes]] = [] if writing else [stream]
        if left <= 0 or not any(select.select(reading, [stream] if writing else [], [], left)):
            raise DeadlineExceeded(
                f"the {self.role.value} process took longer than its limit and was ended; use a "
                "smaller model or fewer bits, or raise Limits(call_s=...)"
            )

    def _ended(self, what: str) -> str:
        """Say how the process ended, with the end of what its libraries printed."""
        code, said = None, ""
        if self._process is not None:
            try:
                code = self._process.wait(timeout=1)
            except subprocess.TimeoutExpired:
                code = None
        if self._log is not None:
            size = os.fstat(self._log.fileno()).st_size
            raw = os.pread(self._log.fileno(), _SAID, max(size - _SAID, 0))
            said = _printable(raw.decode("utf-8", "replace"))
        how = "without a code" if code is None else _meaning(code)
        return f"the {self.role.value} process ended {how}; {what}{': ' + said if said else ''}"


def _meaning(code: int) -> str:
    known = {-9: "killed, perhaps for memory", -24: "at its limit of processor time"}
    return known.get(code, f"with code {code}" if code >= 0 else f"by signal {-code}")


def _printable(text: str) -> str:
    return "".join(c if c.isprintable() else " " for c in text).strip()[:500]


def _environment(home: Path) -> dict[str, str]:
    """Return a small environment: the worker's own program on the path, its folder for files."""
    kept = {name: os.environ[name] for name in _KEPT if name in os.environ}
    threads = {name: os.environ[name] for name in _THREADS if name in os.environ}
    return {
        **kept,
        **threads,
        "PATH": _PATH,
        "HOME": str(home),
        "TMPDIR": str(home),
        "PYTHONPATH": str(Path(__file__).resolve().parent),
        "PYTHONDONTWRITEBYTECODE": "1",
    }
