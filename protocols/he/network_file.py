"""Files of a polynomial network: safetensors and JSON; nothing that is read runs code."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Final

import numpy as np
import safetensors
from safetensors.numpy import load, save

from privml.errors import Corrupt, MalformedMessage, ParameterError
from privml.protocols.he.network import MAX_LAYERS, Layer, PolynomialNetwork
from privml.storage import fs
from privml.storage.files import read_file
from privml.storage.publish import atomic_write

WEIGHTS: Final = "network.safetensors"
DESCRIPTION: Final = "network.json"
MAX_DESCRIPTION_BYTES: Final = 1 << 20
MAX_WEIGHT_BYTES: Final = 2 << 30


def network_files(network: PolynomialNetwork) -> dict[str, bytes]:
    """Return the files of a network by name; the description comes last."""
    arrays = {}
    for number, layer in enumerate(network.layers):
        arrays[f"{number}/weight"], arrays[f"{number}/bias"] = layer.weight, layer.bias
    text = json.dumps(network.description(), indent=1, allow_nan=False).encode() + b"\n"
    return {WEIGHTS: save(arrays), DESCRIPTION: text}


def save_network(network: PolynomialNetwork, folder: Path | str, *, replace: bool = False) -> Path:
    """Write a network; the description is written last.

    Raises
    ------
    StorageError
        A file is there and ``replace`` is false, or the system failed.
    """
    folder = Path(folder)
    fs.ensure_dir(folder)
    for name, data in network_files(network).items():
        atomic_write(folder / name, data, replace=replace)
    return folder


def load_network(folder: Path | str) -> PolynomialNetwork:
    """Read a network that :func:`save_network` wrote.

    Raises
    ------
    StorageError, Corrupt
        A file is missing, too large, damaged, or not that of this description.
    MalformedMessage
        The description is not one of a network.
    """
    folder = Path(folder)
    text = read_file(folder / DESCRIPTION, limit=MAX_DESCRIPTION_BYTES)
    return network_of(text, read_file(folder / WEIGHTS, limit=MAX_WEIGHT_BYTES), where=str(folder))


def network_of(text: bytes, weights: bytes, *, where: str) -> PolynomialNetwork:
    """Return the network of a description and its weights; errors as :func:`load_network`."""
    try:
        tree = json.loads(text)
        names = [str(entry["name"]) for entry in tree["layers"]]
        limit, front = float(tree["limit"]), str(tree["front"])
        shape = tuple(_side(side) for side in tree["shape"])
        if not names or len(names) > MAX_LAYERS:
            raise ValueError(f"{len(names)} layers")
    except (KeyError, TypeError, ValueError, RecursionError) as error:
        raise MalformedMessage(f"{where} describes no polynomial network: {error}") from error
    arrays = _arrays(weights, len(names), where)
    try:
        layers = tuple(
            Layer(name, arrays[f"{number}/weight"], arrays[f"{number}/bias"])
            for number, name in enumerate(names)
        )
        network = PolynomialNetwork(layers, limit, shape, front)
    except ParameterError as error:
        raise MalformedMessage(f"{where} describes no polynomial network: {error}") from error
    if network.description() != tree:
        raise Corrupt(f"the weights of {where} are not those that its {DESCRIPTION} names")
    return network


def _arrays(data: bytes, layers: int, where: str) -> dict[str, np.ndarray]:
    try:
        arrays = load(data)
    except (safetensors.SafetensorError, KeyError, TypeError, ValueError) as error:
        raise Corrupt(f"{where}: {WEIGHTS} is no safetensors file: {error}") from error
    wanted = {f"{number}/{what}" for number in range(layers) for what in ("weight", "bias")}
    if arrays.keys() != wanted or any(a.dtype != np.float64 for a in arrays.values()):
        raise Corrupt(
            f"{where}: {WEIGHTS} does not hold float64 weights and biases of {layers} layers"
        )
    return arrays


def _side(value: object) -> int:
    if type(value) is not int or not 1 <= value <= 1 << 13:
        raise ValueError(f"{value!r} is no side of an image")
    return value
