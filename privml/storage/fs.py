"""Durable files: the only module that writes, renames, syncs or unlinks.

Rules that callers can rely on. :meth:`File.sync` returns only after the data is on the device.
Every change is one numbered step of :mod:`privml.storage.failpoints`. Errors of the operating
system become ``Full`` (disk or quota full), ``Locked`` or ``StorageError``, with the path in the
message. Files are opened without following a symbolic link in the last component, and must be
regular. For new files that appear whole or not at all see :mod:`privml.storage.publish`.
"""

from __future__ import annotations

import ctypes
import errno
import fcntl
import functools
import mmap
import os
import shutil
import stat
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import TracebackType
from typing import Self, cast

from privml._typing import Buffer
from privml.errors import Corrupt, Full, Locked, StorageError
from privml.storage.failpoints import Kind, Op, step

_FULL = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})
_NO_PUNCH = frozenset({errno.EOPNOTSUPP, errno.ENOSYS, errno.ENODEV})
_NO_LINK = frozenset({errno.EPERM, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK})
_SAFE_OPEN = os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY
_ZERO_CHUNK = 1 << 20


@contextmanager
def _translated(path: Path) -> Iterator[None]:
    """Turn an ``OSError`` on ``path`` into our error with a message for people."""
    try:
        yield
    except OSError as error:
        reason = error.strerror or str(error)
        if error.errno in _FULL:
            raise Full(
                f"no space left while writing {path} ({reason}); free space and try again"
            ) from error
        if error.errno == errno.ELOOP:
            raise StorageError(
                f"{path} is a symbolic link; give the path of the file itself"
            ) from error
        raise StorageError(f"cannot use {path}: {reason}") from error


def byte_view(data: Buffer) -> memoryview:
    """Return a flat byte view of any C-contiguous buffer, without a copy."""
    view = memoryview(data) if isinstance(data, bytes | bytearray | memoryview) else data.data
    return view.cast("B") if view.nbytes else memoryview(b"")


class File:
    """An open regular file with positional reads and durable writes. Close it, or use ``with``.

    Not safe for concurrent use by several threads without a lock of the caller's.
    """

    def __init__(self, fd: int, path: Path) -> None:
        self._fd = fd
        self._locker = -1
        self.path = path

    @classmethod
    def open(cls, path: Path, *, writable: bool = False, create: bool = False) -> Self:
        """Open an existing regular file, or create it empty with mode 0600 if ``create``.

        Raises
        ------
        Corrupt
            The path is a directory, device, pipe or socket.
        StorageError
            The path is missing, a symbolic link, or not accessible.
        """
        flags = _SAFE_OPEN | (os.O_RDWR if writable or create else os.O_RDONLY)
        with _translated(path):
            if create and not os.path.lexists(path):
                step(Op(Kind.CREATE, path), lambda: _touch(path))
            try:
                fd = os.open(path, flags)
            except IsADirectoryError:
                raise Corrupt(f"{path} is a directory, not a file") from None
        file = cls(fd, path)
        if not stat.S_ISREG(os.fstat(fd).st_mode):
            file.close()
            raise Corrupt(f"{path} is not a regular file")
        return file

    @property
    def fd(self) -> int:
        """The descriptor; raises ``StorageError`` after :meth:`close`."""
        if self._fd < 0:
            raise StorageError(f"{self.path} is closed; open it again")
        return self._fd

    @property
    def size(self) -> int:
        """Length of the file in bytes."""
        return os.fstat(self.fd).st_size

    @property
    def inode(self) -> int:
        """Number that tells this file from a copy of it on the same file system."""
        return os.fstat(self.fd).st_ino

    def read_at(self, offset: int, nbytes: int) -> bytes:
        """Return up to ``nbytes`` bytes at ``offset``; fewer only at the end of the file."""
        buffer = bytearray(nbytes)
        return bytes(memoryview(buffer)[: self.read_into(offset, buffer)])

    def read_into(self, offset: int, out: Buffer) -> int:
        """Fill ``out`` from ``offset``; return the bytes read, fewer only at the end of file."""
        view = byte_view(out)
        done = 0
        with _translated(self.path):
            while done < len(view):
                count = os.preadv(self.fd, [view[done:]], offset + done)
                if count == 0:
                    break
                done += count
        return done

    def map(self, offset: int, nbytes: int) -> mmap.mmap:
        """Map a range read-only; ``offset`` is a multiple of the page size, ``nbytes`` positive.

        The map shows later changes of the file, holes included, and outlives :meth:`close`.

        Raises
        ------
        Corrupt
            The file ends before the range does.
        """
        if offset + nbytes > self.size:
            raise Corrupt(f"{self.path} was cut short; deal a new one")
        with _translated(self.path):
            return mmap.mmap(self.fd, nbytes, prot=mmap.PROT_READ, offset=offset)

    def will_read(self, offset: int, nbytes: int) -> None:
        """Ask the kernel to read ahead sequentially; a hint without effect on results."""
        if hasattr(os, "posix_fadvise"):
            with suppress(OSError):
                os.posix_fadvise(self.fd, offset, nbytes, os.POSIX_FADV_SEQUENTIAL)

    def write_at(self, offset: int, data: Buffer) -> None:
        """Overwrite at ``offset``; durable only after :meth:`sync`. One step."""
        view = byte_view(data)
        op = Op(Kind.WRITE, self.path, self.fd, offset, len(view), view)
        with _translated(self.path):
            step(op, lambda: write_all(self.fd, offset, view))

    def zero(self, offset: int, nbytes: int) -> None:
        """Overwrite a range with zero bytes in place, 1 MiB a step; sync is the caller's."""
        zeros = memoryview(bytes(min(nbytes, _ZERO_CHUNK)))
        for start in range(offset, offset + nbytes, _ZERO_CHUNK):
            self.write_at(start, zeros[: min(_ZERO_CHUNK, offset + nbytes - start)])

    def punch(self, offset: int, nbytes: int) -> None:
        """Drop a range: it reads as zeros and its blocks go back to the file system. One step.

        Where the file system cannot punch holes the range is overwritten with zeros instead.
        """
        if nbytes <= 0:
            return
        op = Op(Kind.PUNCH, self.path, self.fd, offset, nbytes)
        try:
            with _translated(self.path):
                step(op, lambda: _punch_hole(self.fd, offset, nbytes))
        except StorageError as error:
            cause = error.__cause__
            if not (isinstance(cause, OSError) and cause.errno in _NO_PUNCH):
                raise
            self.zero(offset, nbytes)

    def truncate(self, size: int) -> None:
        """Set the length of the file; new bytes read as zeros. One step."""
        op = Op(Kind.TRUNCATE, self.path, self.fd, size)
        with _translated(self.path):
            step(op, lambda: os.ftruncate(self.fd, size))

    def sync(self) -> None:
        """Return after data and length are on the device. One step."""
        with _translated(self.path):
            step(Op(Kind.FSYNC, self.path, self.fd), lambda: _sync_fd(self.fd))

    def lock(self, *, wait: bool = False) -> None:
        """Take the exclusive lock that lasts until :meth:`close`.

        Raises
        ------
        Locked
            Another open of the same file holds the lock and ``wait`` is false.
        """
        with _translated(self.path):
            try:
                fcntl.flock(self.fd, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
                self._locker = os.getpid()
            except BlockingIOError:
                raise Locked(
                    f"{self.path} is in use by another process; wait for it or stop it"
                ) from None

    def close(self) -> None:
        """Close the descriptor and release its lock; harmless when repeated.

        A map of the file, which somebody may still refer to, would hold the lock on; a forked child
        must not give up its parent's.
        """
        fd, self._fd = self._fd, -1
        if fd >= 0:
            if self._locker == os.getpid():
                fcntl.flock(fd, fcntl.LOCK_UN)
            os.close(fd)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        tb: TracebackType | None,
    ) -> None:
        self.close()


def durable_append(file: File, record: Buffer) -> None:
    """Append one fixed-size record on the grid of its size, and sync.

    A torn record of an earlier crash is completed to the grid by position, so it stays invalid
    by its own checksum and never shifts a later record. Hold the lock while calling.
    """
    nbytes = len(byte_view(record))
    file.write_at(-(-file.size // nbytes) * nbytes, record)
    file.sync()


def create_new(path: Path, *, mode: int = 0o600) -> File:
    """Create an empty file that must not exist yet. One step; named durably by `sync_dir`."""
    opened: list[int] = []
    flags = _SAFE_OPEN | os.O_RDWR | os.O_CREAT | os.O_EXCL
    with _translated(path):
        step(Op(Kind.CREATE, path), lambda: opened.append(os.open(path, flags, mode)))
    return File(opened[0], path)


def link_new(source: Path, target: Path) -> None:
    """Give ``source`` the second name ``target`` without ever replacing a file. One step.

    Raises
    ------
    StorageError
        ``target`` exists already, or the file system has no hard links.
    """
    op = Op(Kind.LINK, target, source=source)
    with _translated(target):
        try:
            step(op, lambda: os.link(source, target, follow_symlinks=False))
        except FileExistsError:
            raise StorageError(
                f"{target} exists already; choose another path or remove it first"
            ) from None
        except OSError as error:
            if error.errno not in _NO_LINK:
                raise
            raise StorageError(
                f"the file system of {target} has no hard links; choose another directory"
            ) from error


def rename(source: Path, target: Path) -> None:
    """Move ``source`` to ``target``, replacing what is there in one instant. One step."""
    op = Op(Kind.RENAME, target, source=source)
    with _translated(target):
        step(op, lambda: os.replace(source, target))


def unlink(path: Path) -> None:
    """Remove a name; no error if it is gone already. Durable after :func:`sync_dir`. One step."""
    with _translated(path):
        step(Op(Kind.UNLINK, path), lambda: path.unlink(missing_ok=True))


def remove_tree(path: Path) -> None:
    """Remove a directory and all in it as far as possible; not durable, not a failpoint."""
    shutil.rmtree(path, ignore_errors=True)


def sync_dir(path: Path) -> None:
    """Return after the names in directory ``path`` are on the device. One step."""
    with _translated(path):
        step(Op(Kind.DIRSYNC, path), lambda: _sync_directory(path))


def ensure_dir(path: Path, *, mode: int = 0o700) -> None:
    """Create ``path`` and its missing parents with ``mode``, each durable before the next."""
    if os.path.isdir(path):
        return
    if path.parent != path:
        ensure_dir(path.parent, mode=mode)
    with _translated(path):
        step(Op(Kind.MKDIR, path), lambda: path.mkdir(mode=mode, exist_ok=True))
    sync_dir(path.parent)


def sync_dirs(path: Path) -> None:
    """Sync directory ``path`` and its ancestors as far up as they belong to this user.

    Whatever :func:`ensure_dir` made on the way is durable then, even if an earlier call was
    cut short between making a directory and syncing its parent.
    """
    for folder in (path, *path.absolute().parents):
        with _translated(folder):
            mine = os.stat(folder).st_uid == os.geteuid()
        if folder != path and not mine:
            break
        sync_dir(folder)


def exists(path: Path) -> bool:
    """Return whether the name is taken, by a file of any kind or a broken symbolic link."""
    return os.path.lexists(path)


def free_bytes(directory: Path) -> int:
    """Return the bytes that this user may still write in ``directory``."""
    with _translated(directory):
        room = os.statvfs(directory)
    return room.f_bavail * room.f_frsize


def write_all(fd: int, offset: int, view: memoryview) -> None:
    """Write the whole view at ``offset``, over as many system calls as it takes."""
    done = 0
    while done < len(view):
        done += os.pwrite(fd, view[done:], offset + done)


def _touch(path: Path) -> None:
    with suppress(FileExistsError):
        os.close(os.open(path, _SAFE_OPEN | os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600))


def _sync_fd(fd: int) -> None:
    if sys.platform == "darwin":
        fcntl.fcntl(fd, fcntl.F_FULLFSYNC)
    else:
        os.fdatasync(fd)


def _sync_directory(path: Path) -> None:
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    except OSError as error:
        if error.errno != errno.EINVAL:  # a file system whose directories need no sync
            raise
    finally:
        os.close(fd)


@functools.cache
def _fallocate() -> Callable[[int, int, int, int], int] | None:
    """Return the C library's ``fallocate`` with 64-bit offsets where there is one."""
    library = ctypes.CDLL(None, use_errno=True)
    for name in ("fallocate64", "fallocate"):
        function = getattr(library, name, None)
        if function is not None:
            function.argtypes = [ctypes.c_int, ctypes.c_int, ctypes.c_int64, ctypes.c_int64]
            function.restype = ctypes.c_int
            return cast("Callable[[int, int, int, int], int]", function)
    return None


_KEEP_SIZE_PUNCH_HOLE = 0x01 | 0x02


def _punch_hole(fd: int, offset: int, nbytes: int) -> None:
    fallocate = _fallocate()
    if fallocate is None:
        raise OSError(errno.ENOSYS, os.strerror(errno.ENOSYS))
    while fallocate(fd, _KEEP_SIZE_PUNCH_HOLE, offset, nbytes) != 0:
        code = ctypes.get_errno()
        if code != errno.EINTR:
            raise OSError(code, os.strerror(code))
