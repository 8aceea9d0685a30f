"""Bundles of CKKS programs: signed folders for server and client, as those of TFHE programs.

=========  ======================================================================
folder     files besides ``index.json`` and ``signature.json``
=========  ======================================================================
server     ``ckks.json``, ``spec.json``, the network (two files), ``front.json`` if any
client     ``ckks.json``, ``spec.json``, ``front.json`` if any; no weights
=========  ======================================================================
"""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path
from typing import Final

from privml.errors import UntrustedArtifact
from privml.protocols.fhe import folders
from privml.protocols.fhe.folders import Kind, Layout
from privml.protocols.fhe.front.frequency_json import MAX_JSON_BYTES
from privml.protocols.he.classifier import PolynomialClassifier
from privml.protocols.he.contexts import MAX_SPEC_BYTES, ClientSpec
from privml.protocols.he.network_file import (
    DESCRIPTION,
    MAX_DESCRIPTION_BYTES,
    MAX_WEIGHT_BYTES,
    WEIGHTS,
    network_files,
)
from privml.protocols.he.plan import CkksPlan
from privml.protocols.he.program import MAX_MANIFEST_BYTES, CkksManifest, CkksPart, CkksServer
from privml.storage import fs
from privml.transport.identity import Identity

MANIFEST: Final = "ckks.json"
SPECIFICATION: Final = "spec.json"
FRONT: Final = "front.json"

_LAYOUT: Final = Layout(
    format="privml.ckks.index.1",
    needed={
        "server": frozenset({MANIFEST, SPECIFICATION, DESCRIPTION, WEIGHTS}),
        "client": frozenset({MANIFEST, SPECIFICATION}),
    },
    optional=frozenset({FRONT}),
    limits={
        MANIFEST: MAX_MANIFEST_BYTES, SPECIFICATION: MAX_SPEC_BYTES, FRONT: MAX_JSON_BYTES,
        DESCRIPTION: MAX_DESCRIPTION_BYTES, WEIGHTS: MAX_WEIGHT_BYTES,
    },
)  # fmt: skip


def is_bundle(folder: Path) -> bool:
    """Return whether a folder looks like a bundle of a CKKS program; nothing is checked yet."""
    return fs.exists(folder / MANIFEST)


def build(
    classifier: PolynomialClassifier, folder: Path | str, *, identity: Identity
) -> tuple[CkksManifest, CkksPlan]:
    """Plan a network and write both bundles; there is nothing to compile.

    Parameters
    ----------
    classifier
        Network, front end and names of classes.
    folder
        New folder for ``server`` and ``client``.
    identity
        The operator's; it signs the bundles.

    Raises
    ------
    FheRefused
        The network cannot run; the message names the layer.
    StorageError
        The folder exists or cannot be written; nothing is left half-written.
    """
    network, front = classifier.network, classifier.front
    plan = classifier.plan()
    manifest = CkksManifest.of(network, plan, front=front, labels=classifier.names)
    specification = ClientSpec.of(network, plan.parameters).to_json()
    files = network_files(network)
    raw = None if front is None else front.to_json()
    part = CkksPart(manifest, specification, raw)
    server = CkksServer(part, files[DESCRIPTION], files[WEIGHTS])  # checks that all belong together
    public = {MANIFEST: manifest.to_json(), SPECIFICATION: specification}
    if raw is not None:
        public[FRONT] = raw
    parts: dict[Kind, dict[str, bytes]] = {"server": {**public, **files}, "client": public}
    folders.write(Path(folder), parts, layout=_LAYOUT, program=server.id, identity=identity)
    return manifest, plan


def read_server(folder: Path, *, trusted: Collection[str]) -> CkksServer:
    """Read a server's bundle; errors as :func:`privml.protocols.fhe.bundle.read_server`."""
    part, files = _read(folder, "server", trusted)
    return CkksServer(part, files[DESCRIPTION], files[WEIGHTS])


def read_client(folder: Path, *, trusted: Collection[str]) -> CkksPart:
    """Read a client's bundle; errors as :func:`privml.protocols.fhe.bundle.read_client`."""
    return _read(folder, "client", trusted)[0]


def _read(folder: Path, kind: Kind, trusted: Collection[str]) -> tuple[CkksPart, dict[str, bytes]]:
    program, files = folders.read(folder, kind, layout=_LAYOUT, trusted=trusted)
    manifest = CkksManifest.from_json(files[MANIFEST])
    if manifest.id != program:
        raise UntrustedArtifact("the manifest is not the one that was signed")
    return CkksPart(manifest, files[SPECIFICATION], files.get(FRONT)), files
