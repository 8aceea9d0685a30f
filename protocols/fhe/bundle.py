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

from collections.abc import Collection
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Final

import numpy as np

from privml.backbones.digests import sha256
from privml.errors import MalformedMessage, UntrustedArtifact
from privml.protocols.fhe import folders
from privml.protocols.fhe.codec import MAX_GRAPH_BYTES
from privml.protocols.fhe.entry import ImageSpec
from privml.protocols.fhe.folders import INDEX, SIGNATURE, Kind, Layout
from privml.protocols.fhe.frequency import Frequency
from privml.protocols.fhe.front.frequency_json import MAX_JSON_BYTES
from privml.protocols.fhe.launcher import Launcher, Limits
from privml.protocols.fhe.manifest import MAX_MANIFEST_BYTES, Manifest
from privml.protocols.fhe.nodes import Ints
from privml.protocols.fhe.parties import LIBRARY_FILE, PROGRAM_FILE, Artefact, ClientSpec
from privml.protocols.fhe.parts import joined, split
from privml.protocols.fhe.program_info import ENVELOPE_BYTES, MAX_BYTES, ProgramInfo
from privml.protocols.fhe.programs import Bounds, Computer, Traffic
from privml.transport.identity import Identity

__all__ = [
    "INDEX",
    "SIGNATURE",
    "ClientPart",
    "ServerPart",
    "read_client",
    "read_server",
    "write_bundles",
]

MANIFEST: Final = "manifest.json"
PARAMETERS: Final = "parameters.json"
FRONT: Final = "front.json"
GRAPH: Final = "graph.safetensors"
MAX_LIBRARY_BYTES: Final = 1 << 28
MAX_PART_BYTES: Final = MAX_MANIFEST_BYTES + MAX_BYTES + MAX_JSON_BYTES + 64
_LAYOUT: Final = Layout(
    format="privml.fhe.index.1",
    needed={
        "server": frozenset({MANIFEST, GRAPH, PROGRAM_FILE, LIBRARY_FILE}),
        "client": frozenset({MANIFEST, PARAMETERS}),
    },
    optional=frozenset({FRONT}),
    limits={
        MANIFEST: MAX_MANIFEST_BYTES, PARAMETERS: MAX_BYTES, FRONT: MAX_JSON_BYTES,
        GRAPH: MAX_GRAPH_BYTES, PROGRAM_FILE: MAX_BYTES, LIBRARY_FILE: MAX_LIBRARY_BYTES,
    },
)  # fmt: skip


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

    @property
    def id(self) -> str:
        """Id of the program."""
        return self.manifest.id

    @property
    def traffic(self) -> Traffic:
        """Sizes of the program's messages."""
        sizes = self.manifest.sizes
        keys, query, answer = (
            Bounds(size, size + ENVELOPE_BYTES) for size in (sizes.keys, sizes.query, sizes.answer)
        )
        return Traffic(keys, query, answer)

    def check(self, units: Ints) -> Ints:
        """Return images as they may be encrypted; see :meth:`ImageSpec.check`."""
        return self.spec.image.check(units)

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
        return joined(self.manifest.to_json(), self.parameters, self.front or b"")

    @classmethod
    def from_bytes(cls, data: bytes) -> ClientPart:
        """Read what a server sent.

        Raises
        ------
        MalformedMessage
            It is no such part.
        """
        if len(data) > MAX_PART_BYTES:
            raise MalformedMessage("the client's part of the program is too long")
        manifest, parameters, front = split(data)
        return cls(Manifest.from_json(manifest), parameters, front or None)


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

    @property
    def id(self) -> str:
        """Id of the program."""
        return self.manifest.id

    @property
    def traffic(self) -> Traffic:
        """Sizes of the program's messages."""
        return self.client.traffic

    def public(self) -> bytes:
        """Return the client's part for the wire."""
        return self.client.to_bytes()

    def computer(self, limits: Limits | None) -> Computer:
        """Return the process that computes, not yet started."""
        return Launcher(self.artefact, self.manifest, limits=limits)


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
    front = {} if part.front is None else {FRONT: part.front}
    common = {MANIFEST: part.manifest.to_json(), **front}
    parts: dict[Kind, dict[str, bytes]] = {
        "server": {**common, **part.artefact.files, GRAPH: part.graph},
        "client": {**common, PARAMETERS: part.client.parameters},
    }
    folders.write(folder, parts, layout=_LAYOUT, program=part.manifest.id, identity=identity)


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
    program, files = folders.read(folder, kind, layout=_LAYOUT, trusted=trusted)
    manifest = Manifest.from_json(files[MANIFEST])
    if manifest.id != program:
        raise UntrustedArtifact("the manifest is not the one that was signed")
    return manifest, files
