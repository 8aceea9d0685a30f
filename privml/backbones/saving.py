"""Writes a model as a Hugging Face checkpoint directory that ``load_encoder`` reads back.

What is written holds weights, names and options only: safetensors and JSON.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Protocol

import numpy as np
import safetensors.numpy
from numpy.typing import NDArray

from privml.backbones.config import EncoderConfig
from privml.backbones.layouts import LAYOUTS, Family, Layout
from privml.backbones.tokenizer import Tokenizer
from privml.errors import UnsupportedError
from privml.storage import fs
from privml.storage.publish import atomic_write

_ACTIVATIONS = {"gelu": "gelu", "gelu_tanh": "gelu_pytorch_tanh"}
_POOLING = {
    "mean": "pooling_mode_mean_tokens",
    "cls": "pooling_mode_cls_token",
    "last": "pooling_mode_lasttoken",
}


class Savable(Protocol):
    """What saving asks of a model."""

    config: EncoderConfig
    tokenizer: Tokenizer | None

    def params(self) -> Mapping[str, NDArray[np.float32]]:
        """Return the parameters by program name."""
        ...


def save_encoder(encoder: Savable, directory: Path | str, *, replace: bool = False) -> Path:
    """Write weights, options and tokenizer of a model.

    Parameters
    ----------
    encoder
        A BERT-type encoder or a GPT-2-type decoder.
    directory
        Made if it is missing. The model that is read back has the directory's name and otherwise
        the same configuration; a model that pools through ``pooler`` and has no classifier is to
        be read with ``load_encoder(directory, pooling="pooler")``.
    replace
        Replace the files of a model that is there already.

    Returns
    -------
    Path
        The directory. ``config.json`` is written last.

    Raises
    ------
    UnsupportedError
        The format has no place for the model: a mixture of BERT and GPT-2, or a GPT-2 with
        segment embeddings.
    StorageError
        A file is there and ``replace`` is false, or the system failed.
    """
    config, folder = encoder.config, Path(directory)
    family = _family(config)
    tensors = _named(config, encoder.params(), LAYOUTS[family])
    files = {"model.safetensors": safetensors.numpy.save(tensors)}
    if encoder.tokenizer is not None:
        files["tokenizer.json"] = encoder.tokenizer.to_json()
    files["tokenizer_config.json"] = _json({"model_max_length": config.max_length})
    if config.pooling in _POOLING and not config.labels:
        files |= _pipeline(config)
    files["config.json"] = _json(_bert(config) if family == "bert" else _gpt2(config))
    for name, data in files.items():
        path = folder / name
        fs.ensure_dir(path.parent)
        atomic_write(path, data, replace=replace)
    return folder


def _family(config: EncoderConfig) -> Family:
    families: Mapping[tuple[bool, bool], Family] = {(False, False): "bert", (True, True): "gpt2"}
    family = families.get((config.causal, config.pre_norm))
    if family is None:
        raise UnsupportedError(
            f"a {config.architecture} has no checkpoint format; BERT encoders (post-norm) and "
            "GPT-2 decoders (pre-norm, causal) can be saved"
        )
    return family


def _named(
    config: EncoderConfig, params: Mapping[str, NDArray[np.float32]], layout: Layout
) -> dict[str, NDArray[np.float32]]:
    """Return the tensors under the names and in the orientation of the family."""
    whole = {target: name for name, target in layout.tables.items()}
    stems = {target: stem for stem, target in layout.top.items()}
    inner = {target: stem for stem, target in layout.layer.items()}
    split = "q" in inner
    body = "bert." if split else "transformer."
    numbered = "encoder.layer" if split else "h"
    tensors: dict[str, NDArray[np.float32]] = {}
    for name, array in params.items():
        stem, _, kind = name.rpartition(".")
        kind = {"gamma": "weight", "beta": "bias"}.get(kind, kind)
        layer, _, part = stem.partition(".")
        if name in whole:
            tensors[body + whole[name]] = array
        elif name == "embed.segment":
            if array.any():
                raise UnsupportedError("GPT-2 checkpoints have no segment embeddings")
        elif stem in stems:
            tensors[f"{'' if stem == 'classifier' else body}{stems[stem]}.{kind}"] = array
        else:
            parts = {part: array}
            if split and part == "qkv":
                parts = dict(zip("qkv", np.split(array, 3), strict=True))
            for key, value in parts.items():
                at = f"{numbered}.{layer.removeprefix('layer')}.{inner[key]}.{kind}"
                turned = value.T if layout.is_transposed(at) else value
                tensors[body + at] = np.ascontiguousarray(turned)
    return tensors


def _bert(config: EncoderConfig) -> dict[str, object]:
    return {
        "model_type": "bert", "num_hidden_layers": config.layers, "hidden_size": config.hidden,
        "num_attention_heads": config.heads, "intermediate_size": config.ffn,
        "vocab_size": config.vocab, "max_position_embeddings": config.max_positions,
        "type_vocab_size": config.type_vocab, "layer_norm_eps": config.eps,
        "hidden_act": _ACTIVATIONS[config.activation], "pad_token_id": config.pad_id,
        **_labels(config),
    }  # fmt: skip


def _gpt2(config: EncoderConfig) -> dict[str, object]:
    return {
        "model_type": "gpt2", "n_layer": config.layers, "n_embd": config.hidden,
        "n_head": config.heads, "n_inner": config.ffn, "vocab_size": config.vocab,
        "n_positions": config.max_positions, "layer_norm_epsilon": config.eps,
        "activation_function": _ACTIVATIONS[config.activation], "pad_token_id": config.pad_id,
        **_labels(config),
    }  # fmt: skip


def _labels(config: EncoderConfig) -> dict[str, object]:
    if not config.labels:
        return {}
    return {"id2label": {str(number): label for number, label in enumerate(config.labels)}}


def _pipeline(config: EncoderConfig) -> dict[str, bytes]:
    kinds = ["Transformer", "Pooling", *(["Normalize"] if config.normalize else [])]
    modules = [
        {"idx": number, "name": str(number), "type": f"sentence_transformers.models.{kind}",
         "path": "" if number == 0 else f"{number}_{kind}"}
        for number, kind in enumerate(kinds)
    ]  # fmt: skip
    pooling = {"word_embedding_dimension": config.hidden, _POOLING[config.pooling]: True}
    return {"modules.json": _json(modules), "1_Pooling/config.json": _json(pooling)}


def _json(tree: object) -> bytes:
    return json.dumps(tree, indent=1, ensure_ascii=False).encode() + b"\n"
