"""Recognises secret keys in bytes, so that a server can refuse a folder that holds one."""

from __future__ import annotations

from pathlib import Path
from typing import Final

import numpy as np

from privml.errors import SecurityError
from privml.storage.files import read_file

MAGIC: Final = b"privml fhe SECRET keys 1\n"
"""First bytes of a key ring's secret file."""

_WINDOW: Final = 128
_MAX_BYTES: Final = 1 << 34


def holds_secret_keys(data: bytes) -> bool:
    """Return whether ``data`` is a key ring's secret file or holds binary keys in words of 64 bits.

    The library writes a secret key as one word per bit: hundreds of words in a row that are 0 or 1.
    Ciphertexts, seeds and evaluation keys have no such run. Cost: one pass.
    """
    if data[: len(MAGIC)] == MAGIC:
        return True
    for shift in range(8):
        words = np.frombuffer(data[shift : shift + (len(data) - shift) // 8 * 8], "<u8")
        if len(words) >= _WINDOW and _has_key(words):
            return True
    return False


def file_holds_secret_keys(path: Path) -> bool:
    """Return whether a regular file holds secret keys; links and other things do not."""
    if path.is_symlink() or not path.is_file():
        return False
    return holds_secret_keys(read_file(path, limit=_MAX_BYTES))


def refuse_secrets(folder: Path) -> None:
    """Check that no file in ``folder``, or the file of that name, holds a secret key.

    Raises
    ------
    SecurityError
        One does; the message names it. A server that could decrypt must not start.
    """
    for path in [folder, *sorted(folder.rglob("*"))]:
        if path.suffix != ".so" and file_holds_secret_keys(path):
            raise SecurityError(
                f"{path} holds a secret key; a server must never have one: remove it from this "
                "machine, and have its owner generate new keys"
            )


def _has_key(words: np.ndarray[tuple[int], np.dtype[np.uint64]]) -> bool:
    small = np.concatenate([[0], (words <= 1).astype(np.int8), [0]])
    edges = np.flatnonzero(np.diff(small))
    for start, end in zip(edges[::2], edges[1::2], strict=True):
        if end - start >= _WINDOW and 0.2 < words[start:end].mean() < 0.8:
            return True
    return False
