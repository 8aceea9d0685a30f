"""The material of one claimed run: a seed and a sequential stream of corrections."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from types import TracebackType
from typing import Self

from privml.errors import CorrelationExhausted, Corrupt
from privml.storage import fs

_WINDOW_BYTES = 32 << 20
_POPULATE_READ = 22  # madvise(2): fault pages in, and report errors


class RunMaterial:
    """Seed and corrections of one claimed run. Close it, or use ``with``: that destroys them.

    Made by ``Pool.claim`` only. Use it in one thread; a forked child cannot use it.

    Parameters
    ----------
    index
        Number of the run in its pool.
    seed
        32 secret bytes in a buffer that :meth:`close` wipes.
    file
        Open pool file.
    offset, nbytes
        Where the corrections lie in it.
    destroy
        Called once by :meth:`close`, to erase the corrections on disk.
    """

    def __init__(
        self,
        index: int,
        seed: bytearray,
        *,
        file: fs.File,
        offset: int,
        nbytes: int,
        destroy: Callable[[int], None],
    ) -> None:
        self.index = index
        self._seed: bytearray | None = seed
        self._file = file
        self._pid = os.getpid()
        self._destroy = destroy
        self._map = file.map(offset, nbytes) if nbytes else None
        self._rest = memoryview(b"") if self._map is None else memoryview(self._map)
        self._fetched = self._at = 0
        file.will_read(offset, nbytes)

    def __repr__(self) -> str:
        return f"RunMaterial(index={self.index}, seed and corrections hidden)"

    @property
    def seed(self) -> bytes:
        """The 32-byte seed of the run; raises ``CorrelationExhausted`` after :meth:`close`."""
        return bytes(self._open_seed())

    @property
    def remaining(self) -> int:
        """Correction bytes not read yet."""
        return len(self._rest)

    def read(self, nbytes: int) -> memoryview:
        """Return the next ``nbytes`` corrections.

        The view shows the pool file itself, without a copy: it stays unchanged until
        :meth:`close`, which erases it. Its address is a multiple of 8 if all reads so far were.

        Raises
        ------
        CorrelationExhausted
            Fewer than ``nbytes`` are left, or the run is closed.
        Corrupt
            The file was cut short meanwhile.
        """
        self._open_seed()
        if not 0 <= nbytes <= self.remaining:
            raise CorrelationExhausted(
                f"run {self.index} has {self.remaining} correction bytes left, {nbytes} were asked"
            )
        self._fetch(self._at + nbytes)
        view, self._rest = self._rest[:nbytes], self._rest[nbytes:]
        self._at += nbytes
        return view

    def _open_seed(self) -> bytearray:
        if self._seed is None:
            raise CorrelationExhausted(f"run {self.index} is closed; claim another one")
        if os.getpid() != self._pid:
            raise CorrelationExhausted(
                f"run {self.index} belongs to the process that claimed it; claim another here"
            )
        return self._seed

    def _fetch(self, end: int) -> None:
        """Bring the file's pages in ahead, so that a failing disk is an error, not a signal."""
        if self._map is None or end <= self._fetched:
            return
        end = min(-(-end // _WINDOW_BYTES) * _WINDOW_BYTES, len(self._map))
        try:
            self._map.madvise(_POPULATE_READ, self._fetched, end - self._fetched)
        except OSError as error:
            if error.errno != errno.EINVAL:  # a kernel before 5.14 does not know the request
                raise Corrupt(
                    f"the pool {self._file.path} was cut short while in use, or its disk fails; "
                    "deal a new one"
                ) from error
        self._fetched = end

    def wipe(self) -> None:
        """Forget seed and corrections in memory; the material is unusable afterwards."""
        if self._seed is not None:
            self._seed[:] = bytes(len(self._seed))
        self._seed = None
        self._rest = memoryview(b"")
        self._map = None

    def close(self) -> None:
        """Wipe the seed and destroy the corrections on disk; harmless when repeated.

        Raises
        ------
        StorageError
            The corrections could not be erased now; the next opening of the pool does it.
        """
        if self._seed is not None:
            self.wipe()
            self._destroy(self.index)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        tb: TracebackType | None,
    ) -> None:
        self.close()
