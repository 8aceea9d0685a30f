"""Bundles: folders for server and client, made by one compilation, signed by the operator.

``privml fhe compile`` writes ``OUT/server`` and ``OUT/client``. Each holds a manifest, an index of
its files with sizes and digests, and a signature over the index by the operator's TLS identity.
Readers check the signature against fingerprints they trust, then every digest, before any byte
reaches a decoder of a library; unknown files, links and sub-folders are refused. The server's
program is native code: foreign bundles are never loaded, their operator's graph is compiled anew.

=========  ======================================================================
folder     files besides ``manifest.json``, ``index.json``, ``signature.json``
=========  ======================================================================
server     program (two files), ``graph.safetensors``, ``front.json`` if any; weights, never keys
client     ``parameters.json``, ``front.json`` if any; no weights
=========  ======================================================================
"""

from __future__ import annotations

import os
import struct
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Annotated, Final, Literal

import msgspec
import numpy as np
from msgspec import Meta

from privml.backbones.digests import Json, canonical_json, sha256
from privml.errors import Corrupt, MalformedMessage, StorageError, UntrustedArtifact
from privml.protocols.fhe import signature
from privml.protocols.fhe.codec import MAX_GRAPH_BYTES
from privml.protocols.fhe.entry import ImageSpec
from privml.protocols.fhe.frequency import Frequency
from privml.protocols.fhe.front.frequency_json import MAX_JSON_BYTES
from privml.protocols.fhe.manifest import MAX_MANIFEST_BYTES, Hex, Manifest
from privml.protocols.fhe.parties import LIBRARY_FILE, PROGRAM_FILE, Artefact, ClientSpec
from privml.protocols.fhe.program_info import MAX_BYTES, ProgramInfo
from privml.protocols.fhe.secrets_scan import file_holds_secret_keys, refuse_secrets
from privml.storage import fs
from privml.storage.files import read_file
from privml.storage.publish import atomic_write
from privml.transport.identity import Identity

Kind = Literal["server", "client"]

MANIFEST: Final = "manifest.json"
INDEX: Final = "index.json"
SIGNATURE: Final = "signature.json"
PARAMETERS: Final = "parameters.json"
FRONT: Final = "front.json"
GRAPH: Final = "graph.safetensors"
MAX_LIBRARY_BYTES: Final = 1 << 28
MAX_PART_BYTES: Final = MAX_MANIFEST_BYTES + MAX_BYTES + MAX_JSON_BYTES + 64
_MAX_INDEX_BYTES: Final = 1 << 14
_LIMITS: Final = {
    MANIFEST: MAX_MANIFEST_BYTES, PARAMETERS: MAX_BYTES, FRONT: MAX_JSON_BYTES,
    GRAPH: MAX_GRAPH_BYTES, PROGRAM_FILE: MAX_BYTES, LIBRARY_FILE: MAX_LIBRARY_BYTES,
}  # fmt: skip
_NEEDED: Final[Mapping[Kind, frozenset[str]]] = {
    "server": frozenset({MANIFEST, GRAPH, PROGRAM_FILE, LIBRARY_FILE}),
    "client": frozenset({MANIFEST, PARAMETERS}),
}
_SIZES: Final = struct.Struct("<III")


class _Entry(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    bytes: Annotated[int, Meta(ge=0)]
    sha256: Hex


class _Index(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    format: Literal["privml.fhe.index.1"]
    kind: Kind
    program: Hex
    files: Annotated[dict[str, _Entry], Meta(max_length=16)]


@dataclass(frozen=True, eq=False)
class ClientPart:
    """What a client needs of a program: no weights.

    Attributes
    ----------
    manifest
        Says what the other two are, by digest.
    parameters
        Public parameters of the compiled program, JSON.
    front
        Front-end specification, JSON; None if the client brings integers.

    Raises
    ------
    MalformedMessage
        The parts do not belong together.
    """

    manifest: Manifest
    parameters: bytes
    front: bytes | None

    def __post_init__(self) -> None:
        front = None if self.front is None else sha256(self.front)
        if (
            sha256(self.parameters) != self.manifest.parameters
            or front != self.manifest.input.front
        ):
            raise MalformedMessage("parameters or front end are not those that the manifest names")
        spec = self.spec
        sizes = (spec.info.key_bytes, spec.info.query_bytes, spec.info.answer_bytes)
        stated = self.manifest.sizes
        if sizes != (stated.keys, stated.query, stated.answer) or not spec.info.compressed:
            raise MalformedMessage("the manifest states other sizes than the program's parameters")
        if self.frontend is not None and self.frontend.shape != spec.image.shape:
            raise MalformedMessage("the front end gives another shape than the program takes")

    @cached_property
    def spec(self) -> ClientSpec:
        """What :class:`~privml.protocols.fhe.parties.Client` takes."""
        image, scores = self.manifest.input, self.manifest.output
        return ClientSpec(
            ProgramInfo(self.parameters),
            ImageSpec(image.shape, image.low, image.high),
            scores.low,
            np.array(scores.scale),
            np.array(scores.offset),
        )

    @cached_property
    def frontend(self) -> Frequency | None:
        """The front end, or None."""
        return None if self.front is None else Frequency.from_json(self.front)

    def to_bytes(self) -> bytes:
        """Return the part for the wire."""
        parts = (self.manifest.to_json(), self.parameters, self.front or b"")
        return _SIZES.pack(*map(len, parts)) + b"".join(parts)

    @classmethod
    def from_bytes(cls, data: bytes) -> ClientPart:
        """Read what a server sent.

        Raises
        ------
        MalformedMessage
            It is no such part.
        """
        if not _SIZES.size <= len(data) <= MAX_PART_BYTES:
            raise MalformedMessage("the client's part of the program has a wrong size")
        first, second, third = _SIZES.unpack_from(data)
        if _SIZES.size + first + second + third != len(data):
            raise MalformedMessage("the client's part of the program is cut or too long")
        rest = memoryview(data)[_SIZES.size :]
        manifest = Manifest.from_json(bytes(rest[:first]))
        front = bytes(rest[first + second :]) or None
        return cls(manifest, bytes(rest[first : first + second]), front)


@dataclass(frozen=True, eq=False)
class ServerPart:
    """What a server needs of a program: native code, weights and no key."""

    manifest: Manifest
    artefact: Artefact
    graph: bytes
    front: bytes | None

    def __post_init__(self) -> None:
        if self.artefact.digest != self.manifest.program:
            raise UntrustedArtifact("the compiled program is not the one that the manifest names")
        self.client  # noqa: B018 - checks that the parts belong together

    @cached_property
    def client(self) -> ClientPart:
        """What clients get."""
        return ClientPart(self.manifest, self.artefact.files[PROGRAM_FILE], self.front)


def write_bundles(folder: Path, part: ServerPart, *, identity: Identity) -> None:
    """Write ``folder/server`` and ``folder/client``, both or none.

    Parameters
    ----------
    folder
        Must not exist.
    part
        The compiled program.
    identity
        The operator's; it signs both.

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
    front = {} if part.front is None else {FRONT: part.front}
    common = {MANIFEST: part.manifest.to_json(), **front}
    try:
        server = {**common, **part.artefact.files, GRAPH: part.graph}
        _write(new / "server", "server", server, part.manifest.id, identity)
        client = {**common, PARAMETERS: part.client.parameters}
        _write(new / "client", "client", client, part.manifest.id, identity)
        fs.rename(new, folder)
        fs.sync_dir(folder.parent)
    except BaseException:
        fs.remove_tree(new)
        raise


def _write(
    folder: Path, kind: Kind, files: Mapping[str, bytes], program: str, identity: Identity
) -> None:
    fs.ensure_dir(folder)
    entries: dict[str, Json] = {
        name: {"bytes": len(data), "sha256": sha256(data)} for name, data in files.items()
    }
    tree: dict[str, Json] = {
        "format": "privml.fhe.index.1", "kind": kind, "program": program, "files": entries,
    }  # fmt: skip
    index = canonical_json(tree)
    signed = signature.sign(index, identity=identity)
    for name, data in {**files, INDEX: index, SIGNATURE: signed}.items():
        atomic_write(folder / name, data, replace=False)


def read_server(folder: Path, *, trusted: Collection[str]) -> ServerPart:
    """Read a server bundle that a trusted operator signed; loads nothing native.

    Parameters
    ----------
    trusted
        Fingerprints of certificates whose bundles may run here, as a rule the server's own.

    Raises
    ------
    UntrustedArtifact
        Nobody trusted signed it, a file differs from the index or is not in it, or it was compiled
        for other versions.
    SecurityError
        A secret key lies in the folder.
    MalformedMessage, StorageError
        It is no bundle.
    """
    manifest, files = _read(folder, "server", trusted)
    manifest.toolkit.require_here()
    artefact = Artefact({name: files[name] for name in (PROGRAM_FILE, LIBRARY_FILE)})
    return ServerPart(manifest, artefact, files[GRAPH], files.get(FRONT))


def read_client(folder: Path, *, trusted: Collection[str]) -> ClientPart:
    """Read a client bundle; errors as :func:`read_server`."""
    manifest, files = _read(folder, "client", trusted)
    return ClientPart(manifest, files[PARAMETERS], files.get(FRONT))


def _read(folder: Path, kind: Kind, trusted: Collection[str]) -> tuple[Manifest, dict[str, bytes]]:
    if not folder.is_dir():
        raise StorageError(f"{folder} is no bundle: there is no such folder")
    if not fs.exists(folder / INDEX):
        hint = f"; did you mean {folder / kind}?" if (folder / kind).is_dir() else ""
        raise StorageError(f"{folder} is no bundle: it has no {INDEX}{hint}")
    raw = read_file(folder / INDEX, limit=_MAX_INDEX_BYTES)
    document = read_file(folder / SIGNATURE, limit=signature.MAX_SIGNATURE_BYTES)
    signature.verify(document, raw, trusted=trusted)
    index = _index(raw)
    if index.kind != kind:
        raise UntrustedArtifact(
            f"{folder} is the {index.kind}'s bundle; this side takes the {kind}'s"
        )
    _refuse_others(folder, {*index.files, INDEX, SIGNATURE})
    files = {name: _checked(folder / name, entry) for name, entry in index.files.items()}
    manifest = Manifest.from_json(files[MANIFEST])
    if manifest.id != index.program:
        raise UntrustedArtifact("the manifest is not the one that was signed")
    return manifest, files


def _index(raw: bytes) -> _Index:
    try:
        index = msgspec.json.decode(raw, type=_Index, strict=True)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise MalformedMessage(f"the index of the bundle is not valid: {error}") from error
    names, needed = set(index.files), _NEEDED[index.kind]
    if not needed <= names <= needed | {FRONT}:
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


def _checked(path: Path, entry: _Entry) -> bytes:
    limit = min(_LIMITS[path.name], entry.bytes)
    try:
        data = read_file(path, limit=limit)
    except Corrupt as error:
        raise UntrustedArtifact(
            f"{path} is not the file that was signed: {error}; restore or compile it again"
        ) from error
    if len(data) != entry.bytes or sha256(data) != entry.sha256:
        raise UntrustedArtifact(
            f"{path} is not the file that was signed; restore it or compile it again"
        )
    return data
