"""New files that appear at their path complete and synced, or not at all."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Self

from privml._typing import Buffer
from privml.errors import StorageError
from privml.storage import fs


class NewFile:
    """A file under construction; use as a context manager.

    Until :meth:`commit` it lives beside ``path`` under a hidden temporary name. Leaving the
    ``with`` block without a commit removes it. A leftover of a killed writer is removed by the
    next writer of the same path.

    Parameters
    ----------
    path
        Final path; its directory must exist.
    mode
        Permission bits, before the umask.
    """

    def __init__(self, path: Path, *, mode: int = 0o600) -> None:
        self.path = path
        _sweep(path)
        temporary = path.with_name(f".{path.name}.{os.urandom(8).hex()}.part")
        self.file = fs.create_new(temporary, mode=mode)
        self._open = True
        self.file.lock()

    def commit(self, *, replace: bool = False) -> None:
        """Sync the file, give it its final name, sync the directory, close.

        Raises
        ------
        StorageError
            A file exists at the path and ``replace`` is false, or the system failed; then no
            file made by this writer is left (with ``replace``, the old or the new one is there).
        """
        try:
            self.file.sync()
            if replace:
                fs.rename(self.file.path, self.path)
            else:
                fs.link_new(self.file.path, self.path)
        except BaseException:
            self.discard()
            raise
        self._settle(replace=replace)

    def _settle(self, *, replace: bool) -> None:
        """Make the new name durable; take a new name back if that fails."""
        try:
            if not replace:
                fs.unlink(self.file.path)
            fs.sync_dir(self.path.parent)
        except BaseException:
            if not replace:
                self.discard()
                with suppress(StorageError):
                    fs.unlink(self.path)
            raise
        finally:
            self._open = False
            self.file.close()

    def discard(self) -> None:
        """Remove the temporary file and close; harmless after :meth:`commit`."""
        if not self._open:
            return
        self._open = False
        try:
            with suppress(StorageError):
                fs.unlink(self.file.path)
        finally:
            self.file.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        tb: TracebackType | None,
    ) -> None:
        self.discard()


def atomic_write(path: Path, data: Buffer, *, mode: int = 0o600, replace: bool = True) -> None:
    """Put ``data`` at ``path`` durably; at any instant the old or the new content is there, whole.

    Raises
    ------
    Full, StorageError
        The system failed, or the path exists and ``replace`` is false.
    """
    with NewFile(path, mode=mode) as new:
        new.file.write_at(0, data)
        new.commit(replace=replace)


def _sweep(path: Path) -> None:
    """Remove temporary files of ``path`` whose writer is gone: their lock is free."""
    prefix, suffix = f".{path.name}.", ".part"
    if not path.parent.is_dir():
        return
    for leftover in path.parent.iterdir():
        if leftover.name.startswith(prefix) and leftover.name.endswith(suffix):
            with suppress(StorageError), fs.File.open(leftover) as stale:
                stale.lock()
                fs.unlink(leftover)
