"""State of a training run in one safetensors file, written whole or not at all; torch-free.

Numbers are stored as tensors, the rest as canonical JSON in a tensor of bytes. A file names the
digest of everything its run depends on, and another run refuses it; a digest over tensors and plain
values finds damage. Nothing that is read runs code.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import safetensors
import safetensors.numpy
from numpy.typing import NDArray

from privml.backbones.digests import Json, canonical_json, sha256, tensor_digest
from privml.errors import Corrupt, ParameterError
from privml.storage import fs
from privml.storage.files import read_file
from privml.storage.publish import atomic_write

_STATE = "state"
_MAX_BYTES = 64 << 30

Arrays = Mapping[str, NDArray[np.generic]]


@dataclass(frozen=True, eq=False)
class Saved:
    """Content of a checkpoint: tensors, and plain values."""

    arrays: Arrays
    state: Mapping[str, object]


def save_run(path: Path, *, run: str, arrays: Arrays, state: Mapping[str, Json]) -> None:
    """Replace the checkpoint at ``path``; on a crash the old or the new one is there.

    Parameters
    ----------
    run
        Digest of all that the run depends on.
    arrays
        Tensors by name; none is called ``state``.
    state
        Plain values.
    """
    text = canonical_json({"run": run, "digest": _whole(arrays, state), "state": dict(state)})
    tensors = {**arrays, _STATE: np.frombuffer(text, np.uint8)}
    fs.ensure_dir(path.parent)
    atomic_write(path, safetensors.numpy.save(tensors))


def load_run(path: Path, *, run: str) -> Saved | None:
    """Return the checkpoint at ``path``, or nothing if there is none.

    Raises
    ------
    Corrupt
        The file is damaged.
    ParameterError
        It belongs to a run with other data, options or weights.
    """
    if not fs.exists(path):
        return None
    data = read_file(path, limit=_MAX_BYTES)
    try:
        arrays = dict(safetensors.numpy.load(data))
        tree = json.loads(arrays.pop(_STATE).tobytes())
        found, digest, state = tree["run"], tree["digest"], dict(tree["state"])
    except (
        safetensors.SafetensorError, KeyError, TypeError, ValueError, RecursionError,
    ) as error:  # fmt: skip
        raise Corrupt(f"{path} is no checkpoint: {error}; remove it to start again") from error
    if digest != _whole(arrays, state):
        raise Corrupt(f"{path} is damaged; remove it to start again")
    if found != run:
        raise ParameterError(
            f"{path} belongs to a run with other data, options or weights; choose another "
            "directory, or remove it to start again"
        )
    return Saved(arrays, state)


def arrays_digest(arrays: Arrays) -> str:
    """Return the digest of named arrays."""
    each = {name: tensor_digest(name, arrays[name]).sha256 for name in sorted(arrays)}
    return sha256(canonical_json(each))


def _whole(arrays: Arrays, state: Mapping[str, Json]) -> str:
    return sha256(canonical_json([arrays_digest(arrays), dict(state)]))
