"""Reads the weights of a Hugging Face checkpoint and renames them for the program."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors import SafetensorError, safe_open
from torch import Tensor

from privml.backbones.config import EncoderConfig
from privml.backbones.hf_config import read_json
from privml.backbones.layouts import BERT, Layout
from privml.errors import Corrupt, ParameterError, UnsupportedError

WEIGHTS = "model.safetensors"
INDEX = "model.safetensors.index.json"

_LEGACY = {"gamma": "weight", "beta": "bias"}  # LayerNorm names of the first BERT release

Params = dict[str, NDArray[np.float32]]


def weight_files(directory: Path) -> tuple[Path, ...]:
    """Return the safetensors files of a checkpoint: one, or the shards its index names.

    Raises
    ------
    ParameterError
        If there are none, or the index is not readable or names files elsewhere.
    """
    single, index = directory / WEIGHTS, directory / INDEX
    if single.is_file():
        return (single,)
    if not index.is_file():
        raise ParameterError(
            f"no {WEIGHTS} and no {INDEX} in the model directory; convert the checkpoint to "
            "safetensors first"
        )
    table = read_json(index).get("weight_map")
    if not isinstance(table, dict) or not table:
        raise ParameterError(f"{INDEX} has no weight_map")
    names = sorted({str(name) for name in table.values()})
    if any(Path(name).name != name or not name.endswith(".safetensors") for name in names):
        raise ParameterError(f"{INDEX} must name safetensors files in its own directory")
    return tuple(directory / name for name in names)


def read_weights(files: tuple[Path, ...], layout: Layout = BERT) -> Params:
    """Read all tensors and rename them; BERT's queries, keys and values stay apart as ``q, k, v``.

    Parameters
    ----------
    files
        Safetensors files that make up the checkpoint.
    layout
        How the model's family names its tensors.

    Returns
    -------
    dict
        Program names to float32 arrays, matrices as (out, in); half precision is widened exactly.

    Raises
    ------
    Corrupt
        If a file is not a safetensors file.
    UnsupportedError
        If there are tensors such a model does not have, or no such model at all.
    """
    tensors: dict[str, Tensor] = {}
    for path in files:
        try:
            with safe_open(path, framework="pt") as handle:
                for name in handle.keys():  # noqa: SIM118  (a handle is no mapping)
                    tensors[name] = handle.get_tensor(name)
        except (OSError, SafetensorError) as error:
            raise Corrupt(f"cannot read the weights in {path.name}: {error}") from error
    prefix = _prefix(tensors, layout)
    params: Params = {}
    strangers = []
    for name, tensor in tensors.items():
        plain = _modern(name.removeprefix(prefix))
        if layout.ignored.fullmatch(plain):
            continue
        target = layout.target(plain)
        if target is None or not tensor.is_floating_point():
            strangers.append(name)
        else:
            params[target] = _array(tensor, transpose=layout.is_transposed(plain))
    if strangers:
        raise UnsupportedError(
            f"the checkpoint has tensors that a {layout.title} does not use: "
            f"{sorted(strangers)[:8]}"
        )
    return params


def complete(config: EncoderConfig, weights: Params) -> Params:
    """Return the parameters of a GPT-2 program: zeros for segments and a classifier's bias.

    GPT-2 has no segments, which is the same as one segment whose row is zero.
    """
    segment = np.zeros((config.type_vocab, config.hidden), np.float32)
    zeros: Params = {"embed.segment": segment}
    if config.labels:
        zeros["classifier.bias"] = np.zeros(len(config.labels), np.float32)
    return {**zeros, **weights}


def fuse(config: EncoderConfig, weights: Params) -> Params:
    """Return the parameters of a BERT program: q, k, v stacked, an unused pooler left out.

    Raises
    ------
    ParameterError
        If a tensor is missing, or there are more layers than the configuration has.
    """
    params = dict(weights)
    for layer in range(config.layers):
        for kind in ("weight", "bias"):
            names = [f"layer{layer}.{part}.{kind}" for part in "qkv"]
            missing = [name for name in names if name not in params]
            if missing:
                raise ParameterError(f"the checkpoint lacks {missing}")
            parts = [params.pop(name) for name in names]
            params[f"layer{layer}.qkv.{kind}"] = np.concatenate(parts)
    if config.pooling != "pooler":
        params = {name: a for name, a in params.items() if not name.startswith("pooler.")}
    return params


def _prefix(tensors: Mapping[str, Tensor], layout: Layout) -> str:
    """Find what stands before the model's tensor names, often ``bert.``, ``transformer.`` or ""."""
    anchor = layout.anchor
    anchors = [name for name in tensors if name == anchor or name.endswith("." + anchor)]
    if len(anchors) != 1:
        raise UnsupportedError(
            f"the checkpoint holds {len(anchors)} {layout.title}s (tensors named {anchor}); "
            "exactly one is supported"
        )
    return anchors[0].removesuffix(anchor)


def _modern(name: str) -> str:
    """Return a tensor's name with the present names of LayerNorm's parameters."""
    stem, _, kind = name.rpartition(".")
    return f"{stem}.{_LEGACY.get(kind, kind)}" if stem.endswith("LayerNorm") else name


def _array(tensor: Tensor, *, transpose: bool) -> NDArray[np.float32]:
    array: NDArray[np.float32] = tensor.to(torch.float32).numpy()
    return np.ascontiguousarray(array.T) if transpose else array
