"""A disk that stops, tears, fails or forgets at the k-th step of ``privml.storage.fs``.

:class:`CrashFs` is a failpoint hook. It counts the steps of a workload and injects one
:class:`Fault` at one of them. A stop is :class:`Crashed`, a ``BaseException`` that no handler for
errors catches; after it every further step stops too, as nothing runs after a power cut. Then
:meth:`CrashFs.lose` undoes what was never synced: all of it, or a seeded part of it, which covers
writes that reach the disk out of order. Data lives until the next sync of its file, a name until
the next sync of its directory. A sync that failed has marked its pages clean, so a later sync
saves them only where they were written again.
"""

from __future__ import annotations

import enum
import errno
import hashlib
import os
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NoReturn

from privml.storage import failpoints, fs
from privml.storage.failpoints import Kind, Op

_PAGE = 4096


class Crashed(BaseException):
    """The simulated machine stopped; only the test harness catches this."""


class Fault(enum.StrEnum):
    """What happens at the chosen step."""

    STOP_BEFORE = "stop-before"
    STOP_AFTER = "stop-after"
    TORN = "torn"
    EIO = "eio"
    ENOSPC = "enospc"
    KILL_BEFORE = "kill-before"
    KILL_AFTER = "kill-after"


class Loss(enum.StrEnum):
    """Which unsynced changes a crash undoes."""

    NONE = "none"
    ALL = "all"
    PART = "part"


@dataclass(frozen=True)
class _Undo:
    """How to take one unsynced change back, and which sync makes it permanent.

    ``pages`` are those of the file that a data change touches; ``clean`` says that a failed sync
    has marked them clean.
    """

    scope: tuple[str, str]
    restore: Callable[[], None]
    forget: Callable[[], None]
    pages: frozenset[int] = frozenset()
    clean: bool = False


class CrashFs:
    """Counts steps and injects one fault. Syncs are simulated: they touch no device.

    Parameters
    ----------
    scratch
        Empty directory on the same file system, for what must be kept in order to undo.
    at
        Number of the step to hit, from 1; 0 for none: count only.
    fault
        What happens there.
    loss
        What :meth:`lose` undoes after a stop.
    salt
        Chooses the part that ``Loss.PART`` undoes, and the cut of a torn write.
    """

    def __init__(
        self,
        scratch: Path,
        *,
        at: int = 0,
        fault: Fault = Fault.STOP_BEFORE,
        loss: Loss = Loss.NONE,
        salt: int = 0,
    ) -> None:
        self.ops: list[Op] = []
        self.crashed = False
        self._scratch = scratch
        self._at, self._fault, self._loss, self._salt = at, fault, loss, salt
        self._undo: list[_Undo] = []

    @property
    def count(self) -> int:
        """Number of steps seen so far."""
        return len(self.ops)

    @contextmanager
    def running(self) -> Iterator[CrashFs]:
        """Install the hook, run the workload, swallow the crash and lose what was not synced."""
        try:
            with failpoints.install(self):
                yield self
        except Crashed:
            pass
        finally:
            self.lose()

    def __call__(self, op: Op, do: Callable[[], None]) -> None:
        """Run, fail or tear one step; called by ``privml.storage.failpoints``."""
        if self.crashed:
            raise Crashed
        self.ops.append(replace(op, data=None))  # keeps no buffer of the caller alive
        if self.count == self._at:
            self._inject(op, do)
        else:
            self._apply(op, do)

    def _inject(self, op: Op, do: Callable[[], None]) -> None:
        match self._fault:
            case Fault.STOP_BEFORE:
                self._stop()
            case Fault.STOP_AFTER:
                self._apply(op, do)
                self._stop()
            case Fault.TORN:
                self._tear(op)
                self._stop()
            case Fault.EIO:
                if op.kind is Kind.FSYNC:
                    self._mark_clean(_data(op.fd))
                raise OSError(errno.EIO, os.strerror(errno.EIO))
            case Fault.ENOSPC:
                self._tear(op)
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            case Fault.KILL_BEFORE:
                os.kill(os.getpid(), signal.SIGKILL)
            case Fault.KILL_AFTER:
                do()
                os.kill(os.getpid(), signal.SIGKILL)

    def _stop(self) -> NoReturn:
        self.crashed = True
        raise Crashed

    def power_off(self) -> NoReturn:
        """Stop here, between two steps."""
        self._stop()

    def _apply(self, op: Op, do: Callable[[], None]) -> None:
        """Run the step, keeping what is needed to undo it; a sync only ends that need."""
        if op.kind is Kind.FSYNC:
            self._permanent(_data(op.fd))
        elif op.kind is Kind.DIRSYNC:
            self._permanent(("names", str(op.path.resolve())))
        else:
            if self._loss is not Loss.NONE:
                self._undo.append(self._remember(op))
            do()

    def _tear(self, op: Op) -> None:
        """Write only a part of the data: some prefix, or some suffix."""
        if op.kind is not Kind.WRITE or op.data is None:
            return
        cut = self._bits("cut", self.count) % (op.nbytes + 1)
        part = op.data[:cut] if self._salt % 2 == 0 else op.data[cut:]
        start = op.offset if self._salt % 2 == 0 else op.offset + cut
        self._apply(op, lambda: fs.write_all(op.fd, start, part))

    def _mark_clean(self, scope: tuple[str, str]) -> None:
        self._undo = [
            replace(undo, clean=True) if undo.scope == scope else undo for undo in self._undo
        ]

    def _permanent(self, scope: tuple[str, str]) -> None:
        """End the need to undo what a sync saves: all dirty changes and what shares their pages."""
        mine = [undo for undo in self._undo if undo.scope == scope]
        dirty = frozenset[int]().union(*(undo.pages for undo in mine if not undo.clean))
        saved = [undo for undo in mine if not undo.clean or undo.pages <= dirty]
        for undo in saved:
            undo.forget()
        self._undo = [undo for undo in self._undo if undo not in saved]

    def lose(self) -> None:
        """Undo unsynced changes, newest first, if a stop happened; then forget them all."""
        for number, undo in reversed(list(enumerate(self._undo))):
            if self.crashed and (self._loss is Loss.ALL or self._bits("lose", number) % 2):
                undo.restore()
            undo.forget()
        self._undo.clear()

    def _bits(self, label: str, number: int) -> int:
        digest = hashlib.sha256(f"{label}|{self._salt}|{self._at}|{number}".encode()).digest()
        return int.from_bytes(digest[:4], "little")

    def _remember(self, op: Op) -> _Undo:
        if op.kind in (Kind.WRITE, Kind.PUNCH, Kind.TRUNCATE):
            return self._remember_data(op)
        return self._remember_name(op)

    def _remember_data(self, op: Op) -> _Undo:
        """Keep the old bytes. In part mode a longer file keeps its length, with zeros."""
        file = fs.File.open(op.path, writable=True)  # a description of its own, without the lock
        size, old = file.size, file.read_at(op.offset, op.nbytes)

        def restore() -> None:
            file.write_at(op.offset, old.ljust(op.nbytes, b"\0"))
            if self._loss is Loss.ALL:
                file.truncate(size)

        pages = frozenset(range(op.offset // _PAGE, (op.offset + op.nbytes) // _PAGE + 1))
        return _Undo(_data(file.fd), restore, file.close, pages)

    def _remember_name(self, op: Op) -> _Undo:
        """Keep a second name of what a link, rename or unlink could make unreachable."""
        aside = self._scratch / f"aside-{self.count}"
        if op.kind in (Kind.RENAME, Kind.UNLINK) and op.path.exists():
            os.link(op.path, aside)

        def restore() -> None:
            if op.kind in (Kind.CREATE, Kind.LINK):
                fs.unlink(op.path)
            if op.kind is Kind.MKDIR and op.path.exists():
                fs.rename(op.path, aside.with_suffix(".lost"))
            if op.kind is Kind.RENAME and op.source is not None and op.path.exists():
                fs.rename(op.path, op.source)
            if aside.exists() and not op.path.exists():
                fs.rename(aside, op.path)

        scope = ("names", str(op.path.parent.resolve()))
        return _Undo(scope, restore, lambda: None)  # the harness owns and removes scratch


def _data(fd: int) -> tuple[str, str]:
    """Name the data of an open file, whatever it is called."""
    return ("data", str(os.fstat(fd).st_ino))
