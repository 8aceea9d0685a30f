"""Child processes of a verb: started with one thread each, watched, and never left behind."""

from __future__ import annotations

import json
import os
import queue
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import IO, Any, Self

import privml
from privml._cli.output import MODE, Failure
from privml._cli.private import PRIVATE_VARIABLE
from privml.errors import internal

Event = Mapping[str, Any]
_THREADS = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1")
_GRACE_S, _SETTLE_S, _POLL_S = 3.0, 1.0, 0.2
_SECONDARY = "protocol.peer_aborted"


class Child:
    """One verb in a process of its own; made by :meth:`Children.start`."""

    def __init__(self, name: str, process: subprocess.Popen[bytes], alive_fd: int) -> None:
        self.name, self.process = name, process
        self.document: Event | None = None
        self.port: int | None = None
        self.error: Failure | None = None
        self.ended = False
        self._alive_fd = alive_fd
        self._tail: deque[str] = deque(maxlen=5)
        self._stdout = b""
        self._threads: list[threading.Thread] = []

    def listen(self, events: queue.Queue[tuple[Child, Event | None]]) -> None:
        """Start to read both streams; ``None`` is queued once the process has ended."""
        self._threads = [
            threading.Thread(target=self._read_stdout, daemon=True),
            threading.Thread(target=self._read_stderr, args=(events,), daemon=True),
        ]
        for thread in self._threads:
            thread.start()

    def feed(self, data: bytes) -> None:
        """Write to the child's stdin and close it; a child that died says why elsewhere."""
        stream = _present(self.process.stdin)
        try:
            stream.write(data)
            stream.close()
        except OSError:
            self._tail.append("it closed its input")

    def stop(self, *, kill: bool = False) -> None:
        """Ask the process to end, or kill it."""
        if self.process.poll() is None:
            self.process.kill() if kill else self.process.terminate()

    def reap(self) -> None:
        """Wait for the end and release pipes."""
        self.process.wait()
        for thread in self._threads:
            if thread.ident is not None:  # an interrupt may arrive before it was started
                thread.join(_GRACE_S)
        if self._alive_fd >= 0:
            os.close(self._alive_fd)
            self._alive_fd = -1
        for stream in (self.process.stdin, self.process.stdout, self.process.stderr):
            if stream is not None and not stream.closed:
                _close(stream)

    def _read_stdout(self) -> None:
        self._stdout = b"".join(_lines(_present(self.process.stdout)))

    def _read_stderr(self, events: queue.Queue[tuple[Child, Event | None]]) -> None:
        for raw in _lines(_present(self.process.stderr)):
            line = raw.decode("utf-8", "replace").strip()
            event = _parse(line)
            if event is None:
                self._tail.append(line)
                if MODE.debug:
                    sys.stderr.write(f"{self.name}: {raw.decode('utf-8', 'replace')}")
            elif event.get("event") == "error":
                self.error = Failure(
                    str(event["code"]), str(event["message"]), int(event["exit_code"])
                )
            else:
                events.put((self, event))
        code = self.process.wait()
        self._threads[0].join()
        self._conclude(code)
        events.put((self, None))

    def _conclude(self, code: int) -> None:
        """Take the document, or find words for an end without one."""
        self.document = _parse(self._stdout.decode("utf-8", "replace"))
        if code != 0 and self.error is None:
            how = f"was killed by signal {-code}" if code < 0 else f"ended with code {code}"
            said = f" ({' | '.join(self._tail)})" if self._tail else ""
            self.error = Failure("protocol.child", f"the {self.name} process {how}{said}", 4)
        if code == 0 and self.document is None and self.error is None:
            self.error = Failure("bug", f"the {self.name} process gave no result", 70)
        self.ended = True


class Children:
    """All child processes of one verb; leaving the ``with`` block stops every one of them."""

    def __init__(
        self, on_event: Callable[[Child, Event], None], *, private: Path | None = None
    ) -> None:
        self._on_event, self._private = on_event, private
        self._queue: queue.Queue[tuple[Child, Event | None]] = queue.Queue()
        self._all: list[Child] = []

    def start(self, name: str, arguments: Sequence[str | Path], *, stdin: bool = False) -> Child:
        """Start a verb; it ends when this process does, however that happens."""
        theirs, ours = os.pipe()
        try:
            process = subprocess.Popen(
                [sys.executable, "-P", "-m", "privml._cli.child", str(theirs),
                 *(str(a) for a in arguments), "--json", *(["--debug"] if MODE.debug else [])],
                stdin=subprocess.PIPE if stdin else subprocess.DEVNULL,
                stdout=subprocess.PIPE, stderr=subprocess.PIPE, pass_fds=(theirs,),
                env=_environment(self._private), start_new_session=True,
            )  # fmt: skip
        except BaseException as error:
            os.close(ours)
            if not isinstance(error, OSError):
                raise
            raise Failure("child", f"cannot start the {name} process: {error}", 3) from error
        finally:
            os.close(theirs)
        child = Child(name, process, ours)
        self._all.append(child)
        child.listen(self._queue)
        return child

    def until(self, ready: Callable[[], bool], *, limit_s: float, what: str) -> None:
        """Handle events until ``ready()``; any child that fails, or the limit, ends it.

        Raises
        ------
        Failure
            A child failed, with its error; or the limit passed.
        """
        end = time.monotonic() + limit_s
        while True:
            done = ready()  # before the errors: a child sets its error, then that it ended
            if any(child.error is not None for child in self._all):
                raise self._root_cause()
            if done:
                return
            self._handle(_POLL_S)
            if time.monotonic() > end:
                raise Failure("protocol.deadline", f"{what} took longer than {limit_s:.0f} s", 4)

    def check(self) -> None:
        """Wait a moment for news of a child that failed, and raise its error if there is one.

        Raises
        ------
        Failure
            As :meth:`until`.
        """
        end = time.monotonic() + _SETTLE_S
        while time.monotonic() < end:
            if any(child.error is not None for child in self._all):
                raise self._root_cause()
            self._handle(_POLL_S)

    def result(self, child: Child, *, limit_s: float) -> Event:
        """Wait for the end of a child and return its document."""
        self.until(lambda: child.ended, limit_s=limit_s, what=f"the {child.name} process")
        document = child.document
        internal(document is not None, "a child without an error has a document")
        return document or {}

    def _handle(self, timeout_s: float) -> None:
        try:
            child, event = self._queue.get(timeout=timeout_s)
        except queue.Empty:
            return
        if event is not None:
            self._on_event(child, event)

    def _root_cause(self) -> Failure:
        """Return the error that explains the others: a peer that vanished is a consequence."""
        end = time.monotonic() + _SETTLE_S
        while time.monotonic() < end:
            errors = [child.error for child in self._all if child.error is not None]
            primary = [error for error in errors if error.code != _SECONDARY]
            if primary:
                return primary[0]
            self._handle(_POLL_S)
        return errors[0]

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for child in self._all:
            child.stop()
        end = time.monotonic() + _GRACE_S
        while time.monotonic() < end and any(c.process.poll() is None for c in self._all):
            time.sleep(0.02)
        for child in self._all:
            child.stop(kill=True)
            child.reap()


def _environment(private: Path | None) -> dict[str, str]:
    """Return the children's environment: one thread each, the same privml first on the path."""
    home = str(Path(privml.__file__).parent.parent)
    path = os.pathsep.join(p for p in (home, os.environ.get("PYTHONPATH", "")) if p)
    own = {} if private is None else {PRIVATE_VARIABLE: str(private)}
    return {**os.environ, **_THREADS, **own, "PYTHONPATH": path, "PYTHONUNBUFFERED": "1"}


def _parse(text: str) -> Event | None:
    try:
        value = json.loads(text)
    except ValueError:
        return None
    return value if isinstance(value, dict) else None


def _present(stream: IO[bytes] | None) -> IO[bytes]:
    internal(stream is not None, "the stream was asked for")
    if stream is None:
        raise AssertionError
    return stream


def _lines(stream: IO[bytes]) -> Iterator[bytes]:
    """Read until the end, or until an interrupted caller has closed the stream."""
    try:
        yield from stream
    except (OSError, ValueError):
        return


def _close(stream: IO[bytes]) -> None:
    try:
        stream.close()
    except OSError:
        return
