"""Files of a quantised network: ``model.safetensors`` and ``model.json``, and training checkpoints.

Nothing that is read runs code. A checkpoint is one safetensors file, written whole or not at all;
it names the digest of everything its run depends on, and another run refuses it.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Final

import numpy as np
import safetensors
import safetensors.numpy
import torch
from numpy.typing import NDArray

from privml.backbones.cnn import Bits, Cnn
from privml.backbones.cnn_spec import CnnSpec
from privml.backbones.digests import Json
from privml.backbones.quant_model import QuantModel
from privml.backbones.run_state import Arrays, Saved, arrays_digest, load_run, save_run
from privml.errors import Corrupt, MalformedMessage, ParameterError
from privml.storage import fs
from privml.storage.files import read_file
from privml.storage.publish import atomic_write

WEIGHTS: Final = "model.safetensors"
DESCRIPTION: Final = "model.json"
CHECKPOINT: Final = "training.safetensors"

_FORMAT: Final = "privml quantised network 1"
_MAX_JSON, _MAX_WEIGHTS = 1 << 24, 4 << 30


def save_model(model: QuantModel, folder: Path | str, *, replace: bool = False) -> Path:
    """Write a model; the description is written last.

    Parameters
    ----------
    folder
        Made if it is missing.
    replace
        Replace the files of a model that is there already.

    Raises
    ------
    StorageError
        A file is there and ``replace`` is false, or the system failed.
    """
    folder = Path(folder)
    tensors = network_arrays(model.net)
    tree: dict[str, Json] = {
        "format": _FORMAT, "network": model.net.spec.to_json(), "bits": asdict(model.bits),
        "front": model.front, "weights": arrays_digest(tensors),
    }  # fmt: skip
    fs.ensure_dir(folder)
    atomic_write(folder / WEIGHTS, safetensors.numpy.save(dict(tensors)), replace=replace)
    text = json.dumps(tree, indent=1, ensure_ascii=False, allow_nan=False).encode() + b"\n"
    atomic_write(folder / DESCRIPTION, text, replace=replace)
    return folder


def load_model(folder: Path | str) -> QuantModel:
    """Read a model that :func:`save_model` wrote.

    Raises
    ------
    StorageError, Corrupt
        A file is missing, too large, damaged, or not that of this description.
    MalformedMessage
        The description is not one of a network.
    """
    folder = Path(folder)
    data = read_file(folder / DESCRIPTION, limit=_MAX_JSON)
    try:
        tree = json.loads(data)
        if tree["format"] != _FORMAT:
            raise ValueError(f"format {tree['format']!r} is not {_FORMAT!r}")
        spec, bits = CnnSpec.from_json(tree["network"]), _bits(tree["bits"])
        front, digest = dict(tree["front"]), str(tree["weights"])
    except (KeyError, TypeError, ValueError, RecursionError, ParameterError) as error:
        where = folder / DESCRIPTION
        raise MalformedMessage(f"{where} describes no quantised network: {error}") from error
    arrays = _tensors(folder / WEIGHTS, limit=_MAX_WEIGHTS)
    if arrays_digest(arrays) != digest:
        raise Corrupt(f"{folder / WEIGHTS} is not the file that {DESCRIPTION} names")
    net = Cnn(spec, bits=bits)
    set_network(net, arrays)
    return QuantModel(net.eval(), front=front)


def network_arrays(net: Cnn) -> dict[str, NDArray[np.generic]]:
    """Return parameters and statistics by name."""
    return {name: _array(tensor) for name, tensor in net.state_dict().items()}


def set_network(net: Cnn, arrays: Arrays) -> None:
    """Copy parameters and statistics into a network.

    Raises
    ------
    Corrupt
        Names, shapes or types differ, or a value is not finite.
    """
    own = net.state_dict()
    if own.keys() != arrays.keys():
        odd = sorted(own.keys() ^ arrays.keys())[0]
        raise Corrupt(f"the weights are not those of this network: see {odd}")
    for name, tensor in own.items():
        array = arrays[name]
        same = tuple(tensor.shape) == array.shape and _array(tensor).dtype == array.dtype
        if not same or not np.isfinite(array).all():
            raise Corrupt(f"weight {name} has another shape or type, or is not finite")
        tensor.copy_(torch.from_numpy(np.array(array)))


def save_checkpoint(folder: Path, *, run: str, arrays: Arrays, state: Mapping[str, Json]) -> None:
    """Replace the training checkpoint in ``folder``."""
    save_run(folder / CHECKPOINT, run=run, arrays=arrays, state=state)


def load_checkpoint(folder: Path, *, run: str) -> Saved | None:
    """Return the training checkpoint in ``folder``, or nothing if there is none."""
    return load_run(folder / CHECKPOINT, run=run)


def _tensors(path: Path, *, limit: int) -> dict[str, NDArray[np.generic]]:
    data = read_file(path, limit=limit)
    try:
        return dict(safetensors.numpy.load(data))
    except (safetensors.SafetensorError, KeyError, TypeError, ValueError) as error:
        raise Corrupt(f"{path} is no safetensors file: {error}") from error


def _bits(tree: object) -> Bits:
    if not isinstance(tree, Mapping):
        raise TypeError("bits are named integers")
    for name, value in tree.items():
        if value is not None and (not isinstance(value, int) or isinstance(value, bool)):
            raise TypeError(f"bits: {name} is no integer")
    return Bits(**tree)


def _array(tensor: torch.Tensor) -> NDArray[np.generic]:
    array: NDArray[np.generic] = tensor.detach().cpu().contiguous().numpy().copy()
    return array
