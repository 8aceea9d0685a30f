"""Reads the weights of a Hugging Face BERT checkpoint and renames them for the program."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors import SafetensorError, safe_open
from torch import Tensor

from privml.backbones.config import EncoderConfig
from privml.backbones.hf_config import read_json
from privml.errors import Corrupt, ParameterError, UnsupportedError

WEIGHTS = "model.safetensors"
INDEX = "model.safetensors.index.json"

_ANCHOR = "embeddings.word_embeddings.weight"
_IGNORED = re.compile(r"(embeddings\.(position_ids|token_type_ids)|cls\..*)$")
_LEGACY = {"gamma": "weight", "beta": "bias"}  # LayerNorm names of the first BERT release
_NORM = {"weight": "gamma", "bias": "beta"}
_TOP: Mapping[str, str] = {
    "embeddings.word_embeddings.weight": "embed.word",
    "embeddings.position_embeddings.weight": "embed.position",
    "embeddings.token_type_embeddings.weight": "embed.segment",
    "embeddings.LayerNorm": "embed.norm",
    "pooler.dense": "pooler",
    "classifier": "classifier",
}
_LAYER: Mapping[str, str] = {
    "attention.self.query": "q",
    "attention.self.key": "k",
    "attention.self.value": "v",
    "attention.output.dense": "attn_out",
    "attention.output.LayerNorm": "attn_norm",
    "intermediate.dense": "ffn_in",
    "output.dense": "ffn_out",
    "output.LayerNorm": "ffn_norm",
}
_LAYER_NAME = re.compile(r"encoder\.layer\.(\d{1,4})\.(.+)\.(weight|bias)$")

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


def read_weights(files: tuple[Path, ...]) -> Params:
    """Read all tensors and rename them; queries, keys and values stay apart as ``q, k, v``.

    Returns
    -------
    dict
        Program names to float32 arrays; half precision is widened exactly.

    Raises
    ------
    Corrupt
        If a file is not a safetensors file.
    UnsupportedError
        If there are tensors a BERT encoder does not have, or no BERT encoder at all.
    """
    tensors: dict[str, Tensor] = {}
    for path in files:
        try:
            with safe_open(path, framework="pt") as handle:
                for name in handle.keys():  # noqa: SIM118  (a handle is no mapping)
                    tensors[name] = handle.get_tensor(name)
        except (OSError, SafetensorError) as error:
            raise Corrupt(f"cannot read the weights in {path.name}: {error}") from error
    prefix = _prefix(tensors)
    params: Params = {}
    strangers = []
    for name, tensor in tensors.items():
        plain = name.removeprefix(prefix)
        if _IGNORED.fullmatch(plain):
            continue
        target = _rename(plain)
        if target is None or not tensor.is_floating_point():
            strangers.append(name)
        else:
            params[target] = tensor.to(torch.float32).numpy()
    if strangers:
        raise UnsupportedError(
            f"the checkpoint has tensors that a BERT encoder does not use: {sorted(strangers)[:8]}"
        )
    return params


def fuse(config: EncoderConfig, weights: Params) -> Params:
    """Return the parameters of the program: q, k, v stacked, an unused pooler left out.

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


def _prefix(tensors: Mapping[str, Tensor]) -> str:
    """Find what stands before the encoder's tensor names, often ``bert.`` or nothing."""
    anchors = [name for name in tensors if name == _ANCHOR or name.endswith("." + _ANCHOR)]
    if len(anchors) != 1:
        raise UnsupportedError(
            f"the checkpoint holds {len(anchors)} BERT encoders (tensors named {_ANCHOR}); "
            "exactly one is supported"
        )
    return anchors[0].removesuffix(_ANCHOR)


def _rename(name: str) -> str | None:
    """Return the program's name of a tensor, or nothing if BERT has no such tensor."""
    stem, _, kind = name.rpartition(".")
    if stem.endswith("LayerNorm"):
        kind = _LEGACY.get(kind, kind)
        name = f"{stem}.{kind}"
    if name in _TOP:
        return _TOP[name]
    layer = _LAYER_NAME.fullmatch(name)
    target = _TOP.get(stem)
    if layer is not None and layer[2] in _LAYER:
        target = f"layer{int(layer[1])}.{_LAYER[layer[2]]}"
    if target is None or kind not in _NORM:
        return None
    return f"{target}.{_NORM[kind] if stem.endswith('LayerNorm') else kind}"
