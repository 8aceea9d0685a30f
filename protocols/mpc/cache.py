"""Files a client keeps between runs: the public part, and each pool's set-up message W - B."""

from __future__ import annotations

import hashlib
import hmac
from pathlib import Path

import numpy as np

from privml.errors import Corrupt
from privml.protocols.mpc.primitive import Words
from privml.storage import fs
from privml.storage.files import read_file
from privml.storage.publish import atomic_write

_DIGEST_BYTES = 32
_PUBLIC_LIMIT = 4 << 30


class ClientCache:
    """Directory of what a server sends once; everything is checked again when it is read.

    Parameters
    ----------
    directory
        Created with mode 0700 on the first write; ``None`` keeps nothing.
    """

    def __init__(self, directory: Path | None) -> None:
        self.directory = directory

    def public(self, digest: str) -> bytes | None:
        """Return the stored public part of that digest, or ``None``; the caller verifies it."""
        path = self._path(f"public-{digest[:32]}.safetensors")
        return None if path is None else read_file(path, limit=_PUBLIC_LIMIT)

    def keep_public(self, digest: str, data: bytes) -> None:
        """Store a public part."""
        self._write(f"public-{digest[:32]}.safetensors", data)

    def setup(self, pool_id: str, size: int) -> tuple[Words, bytes] | None:
        """Return a pool's set-up message of ``size`` bytes and its weights' name, or ``None``.

        Raises
        ------
        Corrupt
            The file is damaged; the message names it and says what to do.
        """
        path = self._path(f"setup-{pool_id}.bin")
        if path is None:
            return None
        data = read_file(path, limit=size + 2 * _DIGEST_BYTES)
        body, check = memoryview(data)[:-_DIGEST_BYTES], data[-_DIGEST_BYTES:]
        whole = len(data) == size + 2 * _DIGEST_BYTES
        if not (whole and hmac.compare_digest(hashlib.sha256(body).digest(), check)):
            raise Corrupt(f"{path} is damaged; remove it and the server will send it again")
        return np.frombuffer(body[:size], np.uint64), bytes(body[size:])

    def keep_setup(self, pool_id: str, data: memoryview, *, name: bytes) -> None:
        """Store a pool's set-up message, the name of its weights, and a digest of both."""
        body = b"".join((data, name))
        self._write(f"setup-{pool_id}.bin", body + hashlib.sha256(body).digest())

    def forget(self, pool_id: str) -> None:
        """Remove the set-up message of a pool that is spent."""
        path = self._path(f"setup-{pool_id}.bin")
        if path is not None:
            fs.unlink(path)

    def _path(self, name: str) -> Path | None:
        """Return the file if it exists."""
        if self.directory is None or not fs.exists(self.directory / name):
            return None
        return self.directory / name

    def _write(self, name: str, data: bytes) -> None:
        if self.directory is not None:
            fs.ensure_dir(self.directory)
            atomic_write(self.directory / name, data)
