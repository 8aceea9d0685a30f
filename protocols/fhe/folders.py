"""Signed folders: an index of files with sizes and digests, signed by an operator's TLS identity.

Readers check the signature against fingerprints they trust, then every size and digest, before any
byte reaches a decoder; unknown files, links and sub-folders are refused.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Final, Literal

import msgspec
from msgspec import Meta

from privml.backbones.digests import Json, canonical_json, sha256
from privml.errors import Corrupt, MalformedMessage, StorageError, UntrustedArtifact
from privml.protocols.fhe import signature
from privml.protocols.fhe.manifest import Hex
from privml.protocols.fhe.secrets_scan import file_holds_secret_keys, refuse_secrets
from privml.storage import fs
from privml.storage.files import read_file
from privml.storage.publish import atomic_write
from privml.transport.identity import Identity

Kind = Literal["server", "client"]

INDEX: Final = "index.json"
SIGNATURE: Final = "signature.json"
_MAX_INDEX_BYTES: Final = 1 << 14


class _Entry(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    bytes: Annotated[int, Meta(ge=0)]
    sha256: Hex


class _Index(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    format: Literal["privml.fhe.index.1", "privml.ckks.index.1"]
    kind: Kind
    program: Hex
    files: Annotated[dict[str, _Entry], Meta(max_length=16)]


@dataclass(frozen=True)
class Layout:
    """What the two folders of one scheme hold.

    Attributes
    ----------
    format
        Name in the index.
    needed, optional
        File names, besides index and signature.
    limits
        Most bytes of each file.
    """

    format: str
    needed: Mapping[Kind, frozenset[str]]
    optional: frozenset[str]
    limits: Mapping[str, int]


def write(
    folder: Path, parts: Mapping[Kind, Mapping[str, bytes]], *, layout: Layout, program: str,
    identity: Identity,
) -> None:  # fmt: skip
    """Write a sub-folder for each part, all or none; the identity signs each.

    Raises
    ------
    StorageError
        The folder exists, or the system failed; then nothing is left.
    """
    folder = folder.absolute()
    if fs.exists(folder):
        raise StorageError(f"{folder} exists already; choose another folder or remove it first")
    fs.ensure_dir(folder.parent)
    new = folder.with_name(f".{folder.name}.{os.urandom(8).hex()}.part")
    try:
        for kind, files in parts.items():
            _write(new / kind, _index_of(kind, files, layout, program), files, identity)
        fs.rename(new, folder)
        fs.sync_dir(folder.parent)
    except BaseException:
        fs.remove_tree(new)
        raise


def read(
    folder: Path, kind: Kind, *, layout: Layout, trusted: Collection[str]
) -> tuple[str, dict[str, bytes]]:
    """Return the program's id and the files of a folder that a trusted operator signed.

    Raises
    ------
    UntrustedArtifact
        Nobody trusted signed it, or a file differs from the index or is not in it.
    SecurityError
        A secret key lies in the folder.
    MalformedMessage, StorageError
        It is no such folder.
    """
    if not folder.is_dir():
        raise StorageError(f"{folder} is no bundle: there is no such folder")
    if not fs.exists(folder / INDEX):
        hint = f"; did you mean {folder / kind}?" if (folder / kind).is_dir() else ""
        raise StorageError(f"{folder} is no bundle: it has no {INDEX}{hint}")
    raw = read_file(folder / INDEX, limit=_MAX_INDEX_BYTES)
    document = read_file(folder / SIGNATURE, limit=signature.MAX_SIGNATURE_BYTES)
    signature.verify(document, raw, trusted=trusted)
    index = _index(raw, layout)
    if index.kind != kind:
        raise UntrustedArtifact(
            f"{folder} is the {index.kind}'s bundle; this side takes the {kind}'s"
        )
    _refuse_others(folder, {*index.files, INDEX, SIGNATURE})
    files = {
        name: _checked(folder / name, entry, layout.limits[name])
        for name, entry in index.files.items()
    }
    return index.program, files


def _index_of(kind: Kind, files: Mapping[str, bytes], layout: Layout, program: str) -> bytes:
    entries: dict[str, Json] = {
        name: {"bytes": len(data), "sha256": sha256(data)} for name, data in files.items()
    }
    tree: dict[str, Json] = {
        "format": layout.format, "kind": kind, "program": program, "files": entries,
    }  # fmt: skip
    return canonical_json(tree)


def _write(folder: Path, index: bytes, files: Mapping[str, bytes], identity: Identity) -> None:
    fs.ensure_dir(folder)
    signed = signature.sign(index, identity=identity)
    for name, data in {**files, INDEX: index, SIGNATURE: signed}.items():
        atomic_write(folder / name, data, replace=False)


def _index(raw: bytes, layout: Layout) -> _Index:
    try:
        index = msgspec.json.decode(raw, type=_Index, strict=True)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise MalformedMessage(f"the index of the bundle is not valid: {error}") from error
    if index.format != layout.format:
        raise MalformedMessage("the bundle is of a program under another scheme")
    names, needed = set(index.files), layout.needed[index.kind]
    if not needed <= names <= needed | layout.optional:
        raise MalformedMessage("the index of the bundle names other files than a bundle has")
    return index


def _refuse_others(folder: Path, known: set[str]) -> None:
    for path in sorted(folder.iterdir()):
        if path.name in known:
            continue
        if file_holds_secret_keys(path):
            refuse_secrets(folder)
        raise UntrustedArtifact(
            f"{path} does not belong to the bundle; remove it, or compile the bundle again"
        )


def _checked(path: Path, entry: _Entry, most: int) -> bytes:
    try:
        data = read_file(path, limit=min(most, entry.bytes))
    except Corrupt as error:
        raise UntrustedArtifact(
            f"{path} is not the file that was signed: {error}; restore or compile it again"
        ) from error
    if len(data) != entry.bytes or sha256(data) != entry.sha256:
        raise UntrustedArtifact(
            f"{path} is not the file that was signed; restore it or compile it again"
        )
    return data
