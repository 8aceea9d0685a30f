"""Evaluation keys of many clients on the server's disk, bounded in number and in bytes.

One file per client certificate and program, written whole or not at all, with the digest of the
keys in front. When a new client needs room, the keys that were used longest ago are evicted; the
event says whose. A client whose keys are gone is told and sends them again.
"""

from __future__ import annotations

import hashlib
import re
import threading
from collections import OrderedDict
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from privml.errors import Corrupt, Full, ParameterError, SecurityError, StorageError
from privml.protocols.fhe.secrets_scan import holds_secret_keys, refuse_secrets
from privml.storage import fs
from privml.storage.files import read_file
from privml.storage.publish import NewFile

_HEAD: Final = b"privml fhe evaluation keys 1\n"
_NAME: Final = re.compile(r"([0-9a-f]{64})-([0-9a-f]{64})\.keys")
_DIGEST_BYTES: Final = 32


@dataclass(frozen=True)
class Owner:
    """Whose keys, and for what.

    Attributes
    ----------
    client
        Fingerprint of the client's certificate.
    program
        Id of the program.
    """

    client: str
    program: str

    @property
    def file_name(self) -> str:
        """Name of the file that holds them."""
        return f"{self.client}-{self.program}.keys"


@dataclass
class _Stored:
    digest: str
    nbytes: int


class KeyStore:
    """Thread-safe store in one folder.

    Parameters
    ----------
    folder
        Made with mode 0700 if missing; only this store's files may be in it.
    max_clients, max_bytes
        Most files, and most bytes of all of them.

    Raises
    ------
    SecurityError
        A file in the folder holds a secret key.
    StorageError
        A file there is not the store's.
    """

    def __init__(self, folder: Path, *, max_clients: int = 64, max_bytes: int = 8 << 30) -> None:
        if max_clients < 1 or max_bytes < 1:
            raise ParameterError("the key store needs room for at least one client")
        self.folder, self.max_clients, self.max_bytes = folder, max_clients, max_bytes
        self._lock = threading.Lock()
        self._known: OrderedDict[Owner, _Stored] = OrderedDict()
        fs.ensure_dir(folder)
        for path in sorted(folder.iterdir(), key=lambda p: p.lstat().st_mtime):
            self._adopt(path)

    def digest(self, owner: Owner) -> str | None:
        """Return the SHA-256 of the owner's keys, or None."""
        with self._lock:
            stored = self._known.get(owner)
            return None if stored is None else stored.digest

    @property
    def used_bytes(self) -> int:
        """Bytes on disk."""
        with self._lock:
            return sum(one.nbytes for one in self._known.values())

    def __len__(self) -> int:
        with self._lock:
            return len(self._known)

    def put(self, owner: Owner, data: bytes, *, digest: str) -> list[Owner]:
        """Store keys durably in place of the owner's old ones; return whose were evicted.

        Raises
        ------
        ParameterError
            They are larger than the whole store, or not those of ``digest``.
        SecurityError
            They hold a secret key.
        """
        if hashlib.sha256(data).hexdigest() != digest:
            raise ParameterError("the evaluation keys are not those that were named; send again")
        if holds_secret_keys(data):
            raise SecurityError("these bytes hold a secret key; a server takes evaluation keys")
        nbytes = len(_HEAD) + _DIGEST_BYTES + len(data)
        if nbytes > self.max_bytes:
            raise ParameterError(
                f"evaluation keys of {nbytes} bytes exceed the store's {self.max_bytes}"
            )
        with self._lock:
            evicted = self._make_room(owner, nbytes)
            with NewFile(self.folder / owner.file_name) as new:
                new.file.write_at(0, _HEAD + bytes.fromhex(digest))
                new.file.write_at(len(_HEAD) + _DIGEST_BYTES, data)
                new.commit(replace=True)
            self._known[owner] = _Stored(digest, nbytes)
            self._known.move_to_end(owner)
        return evicted

    def get(self, owner: Owner) -> bytes | None:
        """Return the owner's keys, or None if they are not there or damaged; marks them as used."""
        with self._lock:
            stored = self._known.get(owner)
            if stored is None:
                return None
            self._known.move_to_end(owner)
            try:
                data = read_file(self.folder / owner.file_name, limit=stored.nbytes)
            except (Corrupt, StorageError):
                data = b""
            body = data[len(_HEAD) + _DIGEST_BYTES :]
            if hashlib.sha256(body).hexdigest() != stored.digest:
                self._remove(owner)
                return None
            return body

    def remove(self, owner: Owner) -> None:
        """Remove the owner's keys, if they are there."""
        with self._lock:
            if owner in self._known:
                self._remove(owner)

    def _adopt(self, path: Path) -> None:
        match = _NAME.fullmatch(path.name)
        if path.name.endswith(".part") and path.name.startswith("."):
            fs.unlink(path)  # of a writer that was killed
            return
        if match is None:
            refuse_secrets(path)
            raise StorageError(f"{path} is not a file of the key store; move it elsewhere")
        with fs.File.open(path) as file:
            head = file.read_at(0, len(_HEAD) + _DIGEST_BYTES)
            nbytes = file.size
        if not head.startswith(_HEAD) or len(head) < len(_HEAD) + _DIGEST_BYTES:
            fs.unlink(path)
            return
        digest = head[len(_HEAD) :].hex()
        self._known[Owner(match[1], match[2])] = _Stored(digest, nbytes)

    def _make_room(self, owner: Owner, nbytes: int) -> list[Owner]:
        evicted = []
        others = [one for one in self._known if one != owner]
        total = sum(self._known[one].nbytes for one in others)
        while others and (len(others) >= self.max_clients or total + nbytes > self.max_bytes):
            oldest = others.pop(0)
            total -= self._known[oldest].nbytes
            self._remove(oldest)
            evicted.append(oldest)
        if nbytes + (1 << 20) > fs.free_bytes(self.folder):
            raise Full(f"no room for evaluation keys in {self.folder}; free space")
        return evicted

    def _remove(self, owner: Owner) -> None:
        del self._known[owner]
        with suppress(StorageError):
            fs.unlink(self.folder / owner.file_name)
