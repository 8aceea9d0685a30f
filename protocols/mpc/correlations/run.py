"""The material of one claimed run: a seed and a sequential stream of corrections."""

from __future__ import annotations

import mmap
from collections.abc import Callable
from types import TracebackType
from typing import Self

from privml.errors import CorrelationExhausted, Corrupt
from privml.storage import fs

_CHUNK_BYTES = 4 << 20


class RunMaterial:
    """Seed and corrections of one claimed run. Close it, or use ``with``: that destroys them.

    Made by ``Pool.claim`` only. Use it in one thread.

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
        self._offset = offset
        self._left = nbytes
        self._destroy = destroy
        self._chunk = memoryview(b"")
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
        return self._left + len(self._chunk)

    def read(self, nbytes: int) -> memoryview:
        """Return the next ``nbytes`` corrections.

        The view stays valid and unchanged as long as it is referenced; it may share a 4 MiB
        block with its neighbours. Its address is a multiple of 8 if all reads so far were.

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
        if nbytes > len(self._chunk):
            self._refill(nbytes)
        view, self._chunk = self._chunk[:nbytes], self._chunk[nbytes:]
        return view

    def _open_seed(self) -> bytearray:
        if self._seed is None:
            raise CorrelationExhausted(f"run {self.index} is closed; claim another one")
        return self._seed

    def _refill(self, nbytes: int) -> None:
        """Read a fresh chunk of at least ``nbytes`` that begins with the unread rest."""
        rest = self._chunk
        size = min(max(nbytes, _CHUNK_BYTES), self.remaining)
        fresh = _fresh(size)
        fresh[: len(rest)] = rest
        wanted = size - len(rest)
        if self._file.read_into(self._offset, fresh[len(rest) :]) != wanted:
            raise Corrupt(f"the pool {self._file.path} was cut short while in use; deal a new one")
        self._offset += wanted
        self._left -= wanted
        self._chunk = fresh

    def wipe(self) -> None:
        """Forget seed and corrections in memory; the material is unusable afterwards."""
        if self._seed is not None:
            self._seed[:] = bytes(len(self._seed))
        self._seed = None
        self._chunk = memoryview(b"")
        self._left = 0

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


def _fresh(nbytes: int) -> memoryview:
    """Return a new zeroed buffer; large ones in huge pages, which makes first use 5x faster."""
    if nbytes < _CHUNK_BYTES or not hasattr(mmap, "MADV_HUGEPAGE"):
        return memoryview(bytearray(nbytes))
    block = mmap.mmap(-1, nbytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    try:
        block.madvise(mmap.MADV_HUGEPAGE)
    except OSError:  # a kernel without huge pages: the block is as good, only slower to fill
        return memoryview(block)
    return memoryview(block)
