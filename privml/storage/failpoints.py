"""Numbered steps of durable storage and the hook that lets a test stop at any one of them.

Every call of :mod:`privml.storage.fs` that changes what is on disk goes through :func:`step` as
one :class:`Op`. Without a hook a step just runs. A test installs a hook (``privml.testing`` is the
only caller of :func:`install`) that counts the steps and lets the k-th one fail, tear or kill.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path


class Kind(enum.StrEnum):
    """What a step does to the disk."""

    MKDIR = "mkdir"
    CREATE = "create"
    WRITE = "write"
    TRUNCATE = "truncate"
    PUNCH = "punch"
    FSYNC = "fsync"
    LINK = "link"
    RENAME = "rename"
    DIRSYNC = "dirsync"
    UNLINK = "unlink"


@dataclass(frozen=True)
class Op:
    """One step: its kind, the file it touches and, for data steps, descriptor and byte range.

    Attributes
    ----------
    kind
        What the step does.
    path
        File or directory that the step changes.
    fd
        Open descriptor of the file, or -1 where the step names only a path.
    offset, nbytes
        Byte range for ``write``, ``punch`` and ``truncate`` (there ``nbytes`` is 0).
    data
        The bytes of a ``write``; empty otherwise. Never shown.
    source
        The old name for ``link`` and ``rename``.
    """

    kind: Kind
    path: Path
    fd: int = -1
    offset: int = 0
    nbytes: int = 0
    data: memoryview | None = None
    source: Path | None = None

    def __repr__(self) -> str:
        return f"Op({self.kind} {self.path.name} [{self.offset}, +{self.nbytes}))"


Hook = Callable[[Op, Callable[[], None]], None]

_hook: Hook | None = None


def step(op: Op, do: Callable[[], None]) -> None:
    """Run ``do``, or hand it to the installed hook, which decides whether and how it runs."""
    if _hook is None:
        do()
    else:
        _hook(op, do)


@contextmanager
def install(hook: Hook) -> Iterator[None]:
    """Send every step of this process through ``hook`` inside the ``with`` block; tests only.

    Raises
    ------
    RuntimeError
        If a hook is installed already.
    """
    global _hook
    if _hook is not None:
        raise RuntimeError("a failpoint hook is installed already")
    _hook = hook
    try:
        yield
    finally:
        _hook = None
