"""Models, images and trusted signers from the command line, checked before anything starts."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from io import BytesIO
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from privml._cli import cert
from privml._cli.output import UsageError
from privml.errors import Corrupt, MalformedMessage, ParameterError, UnsupportedError
from privml.party import parse_fingerprint
from privml.protocols.fhe.binding import described
from privml.protocols.fhe.building import Frontend
from privml.protocols.fhe.codec import MAX_GRAPH_BYTES
from privml.protocols.fhe.frequency import Photo
from privml.protocols.fhe.graph import Graph
from privml.protocols.fhe.inputs import quantise
from privml.protocols.fhe.licence import require_licence
from privml.protocols.fhe.messages import MAX_IMAGES
from privml.protocols.fhe.nodes import Ints, Table
from privml.protocols.he.network_file import DESCRIPTION
from privml.storage import fs
from privml.storage.files import read_file
from privml.transport.identity import Identity

MAX_IMAGE_BYTES = 64 << 20
JPEG = (".jpg", ".jpeg")
Result = TypeVar("Result")


@dataclass(frozen=True)
class Loaded:
    """A model to plan or compile: integer graph, front end if any, and names of the classes."""

    graph: Graph
    frontend: Frontend | None
    labels: tuple[str, ...]

    def prepare(self, photos: Sequence[Photo]) -> Ints:
        """Return the integers of images."""
        node = self.graph.input
        if self.frontend is None:
            return _integers(photos)
        return quantise(
            self.frontend.front.batch(photos), scale=self.frontend.scale, low=node.low,
            high=node.high,
        )  # fmt: skip


def load(path: Path, *, exact: bool, labels: str = "") -> Loaded:
    """Read a model folder, or an integer graph from a file."""
    names = labels_of(labels)
    if path.is_file():
        graph = Graph.from_bytes(read_file(path, limit=MAX_GRAPH_BYTES))
        return Loaded(_exactly(graph) if exact else graph, None, names)
    from privml.backbones.cnn_saving import load_model
    from privml.protocols.fhe.lower import lower

    model = load_model(path)
    graph = lower(model, exact=exact)
    front, own = described(model.front)
    if front is None:
        return Loaded(graph, None, names or own)
    scale = float(model.net.start.scale().detach())
    return Loaded(graph, Frontend(front=front, scale=scale), names or own)


def p_error_of(p_error: float | None, *, exact: bool) -> float:
    """Return the failure probability of a table that was asked for, or the default."""
    if p_error is not None:
        return p_error
    return 2.0**-40 if exact else 1e-2


def _exactly(graph: Graph) -> Graph:
    return Graph(tuple(replace(n, exact=True) if isinstance(n, Table) else n for n in graph.nodes))


def labels_of(text: str) -> tuple[str, ...]:
    """Return the labels of a list with commas; none if it is empty."""
    names = tuple(name.strip() for name in text.split(",")) if text.strip() else ()
    if any(not name for name in names) or len(set(names)) != len(names):
        raise UsageError("a label is empty or repeats; separate labels by single commas")
    return names


def read_photos(paths: Sequence[Path]) -> tuple[list[str], list[Photo]]:
    """Return names and contents of images; folders stand for the images in them, sorted."""
    files = [file for path in paths for file in _files(path)]
    if not files:
        raise UsageError("no image was given")
    if len(files) > MAX_IMAGES:
        raise UsageError(f"{len(files)} images are too many for one call; at most {MAX_IMAGES}")
    return [file.name for file in files], [read_photo(file) for file in files]


def _files(path: Path) -> list[Path]:
    if not path.is_dir():
        return [path]
    found = sorted(p for p in path.iterdir() if p.suffix.lower() in (*JPEG, ".npy"))
    if not found:
        raise UsageError(f"{path} holds no .jpg, .jpeg or .npy file")
    return found


def read_photo(path: Path) -> Photo:
    """Return the bytes of a JPEG file, or the array of a .npy file."""
    data = read_file(path, limit=MAX_IMAGE_BYTES)
    if path.suffix.lower() != ".npy":
        return data
    try:
        array: np.ndarray[Any, np.dtype[Any]] = np.load(BytesIO(data), allow_pickle=False)
    except (ValueError, EOFError, OSError) as error:
        raise Corrupt(f"{path} holds no array: {error}") from error
    return array


def _integers(photos: Sequence[Photo]) -> Ints:
    if not all(isinstance(one, np.ndarray) for one in photos):
        raise UsageError("this model has no front end: give its integers as .npy files")
    return np.stack([np.asarray(one) for one in photos])


def is_polynomial(path: Path) -> bool:
    """Return whether a model folder holds a polynomial network, which runs under CKKS."""
    return path.is_dir() and fs.exists(path / DESCRIPTION)


def prepared(
    names: Sequence[str], photos: Sequence[Photo], prepare: Callable[[Sequence[Photo]], Result]
) -> Result:
    """Return what ``prepare`` makes of images; an error names the image that it is about."""
    try:
        return prepare(photos)
    except (ParameterError, MalformedMessage, UnsupportedError) as error:
        for name, one in zip(names, photos, strict=True):
            try:
                prepare([one])
            except type(error) as single:
                raise type(error)(f"{name}: {single}") from error
        raise


def identity_of(text: str | None, *, why: str) -> Identity:
    """Read the identity ``DIR/NAME``, which must be given."""
    identity = cert.load(text)
    if identity is None:
        raise UsageError(f"name this side's --identity DIR/NAME: {why}")
    return identity


def trusted(signers: Sequence[str], identity: str | None, *, also: str | None = None) -> set[str]:
    """Return whose bundles are trusted, by fingerprint: named, own and pinned ones."""
    found = {str(parse_fingerprint(signer)) for signer in signers}
    own = cert.load(identity)
    if own is not None:
        found.add(str(own.fingerprint))
    if also is not None:
        found.add(str(parse_fingerprint(also)))
    if not found:
        raise UsageError(
            "say whose bundles are trusted: --signer SHA256 of the operator who compiled them, or "
            "--identity DIR/NAME if that is you"
        )
    return found


def acknowledge(accepted: bool) -> None:
    """Refuse to go on before the licence notice was acknowledged."""
    require_licence(acknowledged=accepted, how="pass --accept-licence")
