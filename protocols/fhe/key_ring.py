"""A client's keys on its own disk: a secret file that only the user can read, and a public one.

The secret file begins with words by which servers recognise and refuse it. It is written only when
the user asks for it; without it the keys die with the process.
"""

from __future__ import annotations

import hashlib
import os
import stat
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Protocol

from privml.errors import Corrupt, StorageError, UntrustedArtifact
from privml.protocols.fhe.secrets_scan import MAGIC
from privml.storage import fs
from privml.storage.files import read_file
from privml.storage.publish import atomic_write

PRIVATE: Final = "secret.keys"
EVALUATION: Final = "evaluation.keys"
_PUBLIC: Final = b"privml fhe public keys 1\n"
_MAX_BYTES: Final = 1 << 34


class Keyed(Protocol):
    """A client of any scheme."""

    def use_secret_keys(self, data: bytes) -> None:
        """Take secret keys of its program."""


@dataclass(frozen=True, eq=False, repr=False)
class KeyRing:
    """Keys of one client for one program.

    Attributes
    ----------
    program
        Id of the program, the digest of its manifest.
    secret
        As :meth:`Client.secret_keys` returns them. Never send them.
    evaluation
        What the server gets.
    """

    program: str
    secret: bytes
    evaluation: bytes

    def save(self, folder: Path) -> None:
        """Write both files into a new folder, both or none; the secret one has mode 0600.

        Raises
        ------
        StorageError
            The folder exists, or the system failed.
        """
        folder = folder.absolute()
        if fs.exists(folder):
            raise StorageError(f"{folder} exists already; keys are never overwritten")
        fs.ensure_dir(folder.parent)
        new = folder.with_name(f".{folder.name}.{os.urandom(8).hex()}.part")
        try:
            fs.ensure_dir(new)
            atomic_write(new / PRIVATE, self._file(MAGIC, self.secret), mode=0o600, replace=False)
            public = self._file(_PUBLIC, self.evaluation)
            atomic_write(new / EVALUATION, public, mode=0o600, replace=False)
            fs.rename(new, folder)
            fs.sync_dir(folder.parent)
        except BaseException:
            fs.remove_tree(new)
            raise

    @classmethod
    def load(cls, folder: Path) -> KeyRing:
        """Read what :meth:`save` wrote.

        Raises
        ------
        UntrustedArtifact
            Others can read the secret file, or the two files belong to different programs.
        Corrupt, StorageError
            A file is damaged or missing.
        """
        with fs.File.open(folder / PRIVATE) as file:
            mode = stat.S_IMODE(os.fstat(file.fd).st_mode)
        if mode & 0o077:
            raise UntrustedArtifact(
                f"the secret key {folder / PRIVATE} can be read by other users (mode {mode:04o}); "
                "if no one else had access, chmod 600 it; else generate new keys"
            )
        program, secret = _content(folder / PRIVATE, MAGIC)
        other, evaluation = _content(folder / EVALUATION, _PUBLIC)
        if program != other:
            raise UntrustedArtifact(f"the files of {folder} belong to different programs")
        return cls(program, secret, evaluation)

    def use_in(self, client: Keyed, *, program: str) -> None:
        """Give the secret keys to a client of ``program``.

        Raises
        ------
        UntrustedArtifact
            They are keys for another program.
        """
        if self.program != program:
            raise UntrustedArtifact(
                f"these keys belong to program {self.program[:16]}, not to {program[:16]}; "
                "generate keys for this one"
            )
        client.use_secret_keys(self.secret)

    def _file(self, magic: bytes, data: bytes) -> bytes:
        body = bytes.fromhex(self.program) + data
        return magic + hashlib.sha256(body).digest() + body

    def __repr__(self) -> str:
        return f"KeyRing(program {self.program[:16]})"


def load_evaluation(path: Path) -> tuple[str, bytes]:
    """Return program id and evaluation keys of a file; the secret file is not needed for it."""
    return _content(path, _PUBLIC)


def _content(path: Path, magic: bytes) -> tuple[str, bytes]:
    data = read_file(path, limit=_MAX_BYTES)
    start = len(magic) + 32
    body = memoryview(data)[start:]
    whole = data.startswith(magic) and len(body) > 32
    if not whole or hashlib.sha256(body).digest() != data[len(magic) : start]:
        raise Corrupt(f"{path} is damaged or no such file of keys; restore it from a copy")
    return bytes(body[:32]).hex(), bytes(body[32:])
