"""Folders for client and server: what each may hold, with digests, never a secret key.

``client/`` has the manifest, the head and the public parameters; ``server/`` has the manifest and
the compiled program, which is native code: load only what you compiled.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import msgspec

from privml.backbones.digests import canonical_json, sha256
from privml.errors import Corrupt, UntrustedArtifact
from privml.protocols.fhe.licence import NOTICE
from privml.protocols.fhe.parties import LIBRARY_FILE, PROGRAM_FILE
from privml.storage import fs
from privml.storage.files import read_file
from privml.storage.publish import atomic_write

FORMAT: Final = 1
MANIFEST: Final = "manifest.json"
HEAD: Final = "head.json"
PARAMETERS: Final = "parameters.json"
CLIENT_FILES: Final = (HEAD, PARAMETERS)
SERVER_FILES: Final = (PROGRAM_FILE, LIBRARY_FILE)
_LIMIT: Final = 1 << 28


class Manifest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What belongs together; its digest names the program.

    Attributes
    ----------
    format
        Version of the folders.
    family
        Family of the model.
    p_error
        Failure probability of one table.
    versions
        Versions that the program depends on.
    files
        Name and SHA-256 of every file of both folders.
    licence
        Notice of the encrypted back end.
    share_results
        Always ``forbidden``: decrypted results go to nobody else.
    """

    format: int
    family: str
    p_error: float
    versions: dict[str, str]
    files: dict[str, str]
    licence: str
    share_results: str

    def to_json(self) -> bytes:
        """Return the canonical JSON."""
        return canonical_json(msgspec.to_builtins(self))

    @property
    def digest(self) -> str:
        """SHA-256 of the canonical JSON: the name of the program."""
        return sha256(self.to_json())


@dataclass(frozen=True, eq=False)
class Bundle:
    """A compiled model: files of both sides and the manifest that binds them."""

    manifest: Manifest
    files: Mapping[str, bytes]

    @classmethod
    def make(
        cls, files: Mapping[str, bytes], *, family: str, p_error: float, versions: Mapping[str, str]
    ) -> Bundle:
        """Bind files by their digests."""
        manifest = Manifest(
            format=FORMAT,
            family=family,
            p_error=p_error,
            versions=dict(versions),
            files={name: sha256(data) for name, data in files.items()},
            licence=NOTICE,
            share_results="forbidden",
        )
        return cls(manifest, files)

    def save(self, folder: Path) -> None:
        """Write ``client`` and ``server`` below ``folder``, which may not have them yet.

        Raises
        ------
        StorageError
            There is something in the way, or it could not be written.
        """
        for side, names in (("client", CLIENT_FILES), ("server", SERVER_FILES)):
            fs.ensure_dir(folder / side)
            for name in names:
                atomic_write(folder / side / name, self.files[name], replace=False)
            # The manifest comes last: without it a folder counts as unfinished.
            atomic_write(folder / side / MANIFEST, self.manifest.to_json(), replace=False)


def load(folder: Path, names: tuple[str, ...], *, digest: str | None) -> Bundle:
    """Read the files of one side.

    Parameters
    ----------
    folder
        ``client`` or ``server`` as :meth:`Bundle.save` wrote it.
    names
        The files that this side has.
    digest
        The program's digest as it was recorded when it was compiled, or None to compare files
        with the manifest only.

    Raises
    ------
    UntrustedArtifact
        A file, or the manifest, is another one.
    Corrupt
        The manifest cannot be read, or the folder holds something else.
    """
    try:
        data = read_file(folder / MANIFEST, limit=_LIMIT)
        manifest = msgspec.json.decode(data, type=Manifest, strict=True)
    except (msgspec.DecodeError, RecursionError) as error:
        raise Corrupt(f"{folder} has no valid manifest; get it again") from error
    if manifest.format != FORMAT:
        raise Corrupt(f"{folder} has format {manifest.format}, this privml reads {FORMAT}")
    if digest is not None and manifest.digest != digest:
        raise UntrustedArtifact(f"{folder} holds another program than the one that was recorded")
    others = {path.name for path in folder.iterdir()} - {MANIFEST, *names}
    if others:
        raise Corrupt(f"{folder} holds {sorted(others)[0]!r}, which does not belong there")
    files = {name: read_file(folder / name, limit=_LIMIT) for name in names}
    changed = [name for name in names if sha256(files[name]) != manifest.files.get(name)]
    if changed:
        raise UntrustedArtifact(f"{folder / changed[0]} is not the file that was recorded")
    return Bundle(manifest, files)
