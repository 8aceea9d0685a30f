"""Durable pools of correlated randomness: each run's material is handed out once, ever.

A dealer writes one pool file per party (:class:`PoolWriter`) and exits. A party opens its file
(:class:`Pool`), claims one run per inference and reads its seed and corrections.

How "once" survives a crash at any point. :meth:`Pool.claim` first appends to the used-log of the
host and syncs it; then advances the cursor in the file and overwrites the seed with zeros, and
syncs; only then returns. So whoever holds a seed knows that the log, the cursor and the erased
seed are on the device. A crash before the first sync has handed out nothing; a crash between
leaves the log ahead of the file, and the next :meth:`Pool.open` completes the erasure. Cursor
slots alternate, so a torn write leaves the older one. Overwriting in place erases on disks and
file systems that write in place; copy-on-write ones and flash may keep old blocks.
"""

from __future__ import annotations

import hashlib
import hmac
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Self

from privml.errors import (
    CorrelationExhausted,
    Corrupt,
    Locked,
    ParameterError,
    StorageError,
    UntrustedArtifact,
)
from privml.protocols.mpc.correlations import layout
from privml.protocols.mpc.correlations.layout import PoolHeader
from privml.protocols.mpc.correlations.run import RunMaterial
from privml.protocols.mpc.correlations.used import PoolKey, UsedLog
from privml.protocols.mpc.correlations.writer import PoolWriter
from privml.storage import fs

__all__ = ["Pool", "PoolHeader", "PoolWriter", "RunMaterial", "UsedLog", "read_header"]


def read_header(path: Path | str) -> PoolHeader:
    """Return the header of a pool without locking, binding or changing anything.

    Raises
    ------
    Corrupt, StorageError
        Not a pool, or not accessible.
    """
    with fs.File.open(Path(path)) as file, _explained(file.path):
        return layout.decode_header(file.read_at(0, layout.HEADER_BYTES))[0]


@contextmanager
def _explained(path: Path) -> Iterator[None]:
    """Add the path and what to do to what a decoder found wrong."""
    try:
        yield
    except Corrupt as error:
        raise Corrupt(f"cannot use the pool {path}: {error}; deal a new one") from error


class Pool:
    """One party's pool, locked against other processes while open. Close it, or use ``with``.

    Not usable in a forked child. Calls from several threads are serialised.

    Attributes
    ----------
    header
        What the dealer promised.
    """

    header: PoolHeader

    def __init__(self, file: fs.File, used: UsedLog) -> None:
        self._file = file
        self._used = used
        self._pid = os.getpid()
        self._guard = threading.RLock()
        self._live: dict[int, RunMaterial] = {}
        self._failed = False
        self.header, self._digest = layout.decode_header(file.read_at(0, layout.HEADER_BYTES))
        self._layout = layout.Layout(self.header.runs, self.header.correction_bytes)
        self._key = PoolKey(self.header.pool_id, self.header.rank, file.inode)
        self._seal = layout.decode_seal(
            file.read_at(layout.SEAL_OFFSET, layout.BLOCK), self._digest
        )
        expected = self._layout.setup + self._seal.nbytes
        if file.size != expected:
            raise Corrupt(f"it has {file.size} bytes, its header gives {expected}")
        self._slot = self._newest_slot()
        self._cursor = self._slot.cursor
        self._erased = self._slot.destroyed

    @classmethod
    def open(
        cls, path: Path | str, *, plan_digest: str | None, used: UsedLog, rank: int | None = None
    ) -> Pool:
        """Open, lock and check a pool; complete the erasure that a crash interrupted.

        Parameters
        ----------
        path
            The pool file: regular, not a symbolic link.
        plan_digest
            64 hex digits the pool must have been dealt for; ``None`` to accept any.
        used
            Log of used pools of this host.
        rank
            Party that the pool must be for; ``None`` to accept either. The log of another party's
            host must not learn of the pool: it would then be refused where it belongs.

        Raises
        ------
        ParameterError
            The other party's pool.
        Corrupt, StorageError
            Not a pool, damaged, or not accessible.
        Locked
            Another process has it open.
        UntrustedArtifact
            Dealt for another plan.
        CorrelationExhausted
            A copy of a pool that was used before.
        """
        path = Path(path)
        file = fs.File.open(path, writable=True)
        try:
            file.lock()
            with _explained(path):
                pool = cls(file, used)
            pool._admit(plan_digest, rank)
        except BaseException:
            file.close()
            raise
        return pool

    def _newest_slot(self) -> layout.Slot:
        blocks = (self._file.read_at(offset, layout.BLOCK) for offset in layout.SLOT_OFFSETS)
        slots = [layout.decode_slot(b, self._digest, runs=self.header.runs) for b in blocks]
        valid = [slot for slot in slots if slot is not None]
        if not valid:
            raise Corrupt("both of its cursor slots are damaged")
        return max(valid, key=lambda slot: slot.sequence)

    def _admit(self, plan_digest: str | None, rank: int | None) -> None:
        """Check party, plan and used-log, then erase what a crash left of spent runs."""
        if rank not in (None, self.header.rank):
            mine, other = ("client", "server") if rank else ("server", "client")
            raise ParameterError(
                f"{self._file.path} is the {other}'s pool; this side needs the {mine}'s"
            )
        dealt = self.header.plan_digest
        if plan_digest is not None and not hmac.compare_digest(dealt, plan_digest):
            raise UntrustedArtifact(
                f"the pool {self._file.path} was dealt for plan {dealt[:12]}, this run has plan "
                f"{plan_digest[:12]}; deal a pool for this plan (another version of this program "
                "deals other pools for one plan file)"
            )
        old = self._slot
        logged = self._used.bind(self._key, opened_before=old.sequence > 0)
        self._cursor = min(max(old.cursor, logged), self.header.runs)
        if old.sequence == 0 or old.destroyed < self._cursor:
            self._erase_seeds(old.destroyed, self._cursor)
            self._erase_corrections(old.destroyed, self._cursor)
            self._file.sync()
            self._erased = self._cursor
            self._write_slot()

    @property
    def cursor(self) -> int:
        """Index of the first run that is not spent."""
        return self._cursor

    @property
    def remaining(self) -> int:
        """Number of runs that are not spent."""
        return self.header.runs - self._cursor

    @property
    def setup_bytes(self) -> int:
        """Length of the once-per-pool material in the file."""
        return self._seal.nbytes

    def read_setup(self, *, expect: int) -> memoryview:
        """Return the once-per-pool material, checked against its SHA-256.

        Parameters
        ----------
        expect
            Length in bytes that the plan gives; a file that differs is refused.

        Raises
        ------
        Corrupt
            Length or digest differ.
        """
        if expect != self._seal.nbytes:
            raise Corrupt(
                f"the pool {self._file.path} holds {self._seal.nbytes} bytes of setup material, "
                f"the plan needs {expect}; deal a new one"
            )
        out = bytearray(expect)
        got = self._file.read_into(self._layout.setup, out)
        if got != expect or not hmac.compare_digest(
            hashlib.sha256(out).digest(), self._seal.digest
        ):
            raise Corrupt(f"the setup material of {self._file.path} is damaged; deal a new pool")
        return memoryview(out)

    def pin(self, name: bytes) -> None:
        """Tie the pool to the weights called ``name``, see :meth:`UsedLog.pin`."""
        self._check_usable()
        self._used.pin(self._key, name)

    def claim(self, index: int) -> RunMaterial:
        """Spend run ``index`` and every run below it for ever, and return its material.

        Two syncs to the device happen before the return.

        Raises
        ------
        CorrelationExhausted
            The run is spent, or the pool has no such run.
        Corrupt, StorageError
            The seed is damaged (other runs stay usable), or the system failed: then the run
            counts as spent, and the pool must be opened again.
        """
        with self._guard:
            self._check_usable()
            self._check_index(index)
            entry = self._file.read_at(self._layout.entry(index), layout.ENTRY_BYTES)
            seed = layout.decode_entry(entry, self._digest, index)
            if seed is None:
                raise CorrelationExhausted(
                    f"the seed of run {index} in {self._file.path} was erased; claim a later run"
                )
            try:
                self._spend(index)
            except BaseException:
                self._failed = True
                seed[:] = bytes(len(seed))
                raise
            self._live[index] = RunMaterial(
                index,
                seed,
                file=self._file,
                offset=self._layout.run(index),
                nbytes=self.header.correction_bytes,
                destroy=self._destroy,
            )
            return self._live[index]

    def _spend(self, index: int) -> None:
        """Make it durable that all runs up to ``index`` are spent: the log, then this file."""
        self._used.spend(self._key, index + 1)
        first, self._cursor = self._cursor, index + 1
        self._erase_seeds(first, index + 1)
        self._erase_corrections(first, index)
        self._write_slot()
        self._erased = min(self._live, default=index)

    def _check_usable(self) -> None:
        if not self._mine():
            raise Locked("this pool belongs to the process that opened it; open it in this one")
        if self._failed:
            raise StorageError(
                f"the pool {self._file.path} is closed, or an earlier step on it failed half-way; "
                "close it and open it again"
            )

    def _mine(self) -> bool:
        """Return whether this process opened the pool, and is not a forked child of that one."""
        return os.getpid() == self._pid

    def _check_index(self, index: int) -> None:
        if isinstance(index, bool) or index < 0:
            raise ParameterError(f"a run index is an integer from 0 on, not {index!r}")
        if index >= self.header.runs:
            raise CorrelationExhausted(
                f"the pool {self._file.path} has {self.header.runs} runs and no run {index}; "
                "deal a new pool"
            )
        if index < self._cursor:
            raise CorrelationExhausted(
                f"run {index} of {self._file.path} is spent; the next one is {self._cursor}"
            )

    def _erase_seeds(self, start: int, stop: int) -> None:
        first = self._layout.entry(start)
        self._file.zero(first, self._layout.entry(stop) - first)

    def _erase_corrections(self, start: int, stop: int) -> None:
        first = self._layout.run(start)
        self._file.punch(first, self._layout.run(stop) - first)

    def _write_slot(self) -> None:
        """Write cursor and erasure mark to the older slot and sync the file.

        The mark covers only what an earlier sync has erased: the device may keep the slot and
        lose an erasure that is still on its way.
        """
        sequence = self._slot.sequence + 1
        slot = layout.Slot(sequence, self._cursor, self._erased)
        offset = layout.SLOT_OFFSETS[sequence % 2]
        self._file.write_at(offset, layout.encode_slot(slot, self._digest))
        self._file.sync()
        self._slot = slot

    def _destroy(self, index: int) -> None:
        """Erase the corrections of a claimed run; called once per run, by its material."""
        with self._guard:
            self._live.pop(index, None)
            if self._failed or not self._mine():
                return
            self._failed = True
            self._erase_corrections(index, index + 1)
            self._file.sync()
            self._failed = False
            self._erased = min(self._live, default=self._cursor)

    def close(self) -> None:
        """Destroy what is still claimed and release the lock; harmless when repeated.

        Raises
        ------
        StorageError
            Corrections could not be erased now; the next opening of the pool does it.
        """
        with self._guard:
            try:
                for run in list(self._live.values()):
                    run.close()
                if self._erased > self._slot.destroyed and not self._failed and self._mine():
                    self._write_slot()
            finally:
                for run in list(self._live.values()):
                    run.wipe()
                self._live.clear()
                self._failed = True
                self._file.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        tb: TracebackType | None,
    ) -> None:
        self.close()
