"""Bounded reads of whole files."""

from __future__ import annotations

from pathlib import Path

from privml.errors import Corrupt
from privml.storage.fs import File


def read_file(path: Path | str, *, limit: int) -> bytes:
    """Return the content of a regular file of at most ``limit`` bytes.

    Raises
    ------
    StorageError
        The file is missing, not a regular file, or cannot be read.
    Corrupt
        It is larger than ``limit`` or changes while it is read.
    """
    with File.open(Path(path)) as file:
        size = file.size
        if size > limit:
            raise Corrupt(f"{path} has {size} bytes, more than the {limit} expected at most")
        data = file.read_at(0, size)
    if len(data) != size:
        raise Corrupt(f"{path} was cut short while it was read; write it anew")
    return data
