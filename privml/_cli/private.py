"""The private directory of one `infer`: texts, pools and keys that must not outlive it."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from privml.errors import StorageError
from privml.storage import fs

PRIVATE_PREFIX = "privml-run-"
PRIVATE_VARIABLE = "PRIVML_PRIVATE_DIRECTORY"
_LOCK = "owner.lock"


@contextmanager
def hold_private(folder: Path) -> Iterator[None]:
    """Mark the directory as in use; the mark ends with this process, however it ends."""
    with fs.File.open(folder / _LOCK, create=True) as mark:
        mark.lock()
        yield


def remove_private(folder: str | None) -> None:
    """Remove the directory of a parent that is gone; nothing else is ever removed."""
    if folder and Path(folder).name.startswith(PRIVATE_PREFIX):
        fs.remove_tree(Path(folder))


def sweep_private(place: Path) -> None:
    """Remove directories of this user whose owner is gone."""
    for folder in place.glob(f"{PRIVATE_PREFIX}*"):
        with suppress(StorageError, OSError):
            if folder.is_symlink() or folder.stat().st_uid != os.getuid():
                continue
            with fs.File.open(folder / _LOCK, writable=True) as mark:
                mark.lock()
                fs.remove_tree(folder)
