"""Reads the JSON files of a Hugging Face checkpoint directory; torch-free."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias, cast

from privml.backbones.config import MAX_JSON_BYTES, Activation, EncoderConfig, Pooling
from privml.backbones.layouts import LAYOUTS, Family
from privml.errors import ParameterError, UnsupportedError

Tree: TypeAlias = Mapping[str, object]

_ACTIVATIONS: Mapping[str, Activation] = {
    "gelu": "gelu",
    "gelu_new": "gelu_tanh",
    "gelu_pytorch_tanh": "gelu_tanh",
}
_POOLING: Mapping[str, Pooling] = {
    "pooling_mode_mean_tokens": "mean",
    "pooling_mode_cls_token": "cls",
    "pooling_mode_lasttoken": "last",
}
#: Options that must have their default value: what else they say changes the model's function.
_BERT_FIXED: Tree = {
    "position_embedding_type": "absolute", "is_decoder": False, "add_cross_attention": False,
}  # fmt: skip
_GPT2_FIXED: Tree = {
    "add_cross_attention": False, "scale_attn_weights": True,
    "scale_attn_by_inverse_layer_idx": False,
}  # fmt: skip


@dataclass(frozen=True)
class Pipeline:
    """What stands after the layers according to ``modules.json``."""

    pooling: Pooling | None
    normalize: bool


def read_config(
    directory: Path, *, name: str, pooling: Pooling | None, has_classifier: bool
) -> EncoderConfig:
    """Read the configuration of a checkpoint directory.

    Parameters
    ----------
    directory
        Folder with ``config.json`` and optionally the sentence-transformers files
        ``modules.json``, ``1_Pooling/config.json`` and ``sentence_bert_config.json``.
    name
        Name given to the model.
    pooling
        Overrides the pooling found in the files.
    has_classifier
        Whether the weights hold a classification head.

    Raises
    ------
    ParameterError
        If a file is missing, unreadable or holds values out of range.
    UnsupportedError
        If the model is no plain BERT encoder or GPT-2; the message names the option that differs.
    """
    tree = read_json(directory / "config.json")
    read = {"bert": _bert, "gpt2": _gpt2}[family_of(tree)]
    return read(tree, directory, name, pooling, has_classifier)


def family_of(tree: Tree) -> Family:
    """Return the family a ``config.json`` names; BERT if it names none.

    Raises
    ------
    UnsupportedError
        If the family is not supported.
    """
    kind = tree.get("model_type", "bert")
    if kind not in LAYOUTS:
        raise UnsupportedError(f"model_type {kind!r} is not supported; 'bert' and 'gpt2' are")
    return cast("Family", kind)


def _bert(
    tree: Tree, directory: Path, name: str, pooling: Pooling | None, has_classifier: bool
) -> EncoderConfig:
    _check_fixed(tree, _BERT_FIXED)
    pipeline = _read_pipeline(directory)
    positions = _whole(tree, "max_position_embeddings")
    default: Pooling = "pooler" if has_classifier else pipeline.pooling or "mean"
    return EncoderConfig(
        name=name,
        layers=_whole(tree, "num_hidden_layers"),
        hidden=_whole(tree, "hidden_size"),
        heads=_whole(tree, "num_attention_heads"),
        ffn=_whole(tree, "intermediate_size"),
        vocab=_whole(tree, "vocab_size"),
        max_positions=positions,
        type_vocab=_whole(tree, "type_vocab_size", default=2),
        eps=_real(tree, "layer_norm_eps", default=1e-12),
        activation=_activation(tree, "hidden_act", default="gelu"),
        pooling=pooling or default,
        normalize=pipeline.normalize and not has_classifier,
        labels=_labels(tree) if has_classifier else (),
        max_length=_max_length(directory, positions),
        pad_id=_whole(tree, "pad_token_id", default=0),
    )


def _gpt2(
    tree: Tree, directory: Path, name: str, pooling: Pooling | None, has_classifier: bool
) -> EncoderConfig:
    _check_fixed(tree, _GPT2_FIXED)
    pipeline = _read_pipeline(directory)
    hidden, positions = _whole(tree, "n_embd"), _whole(tree, "n_positions")
    default: Pooling = "last" if has_classifier else pipeline.pooling or "last"
    end = _whole(tree, "eos_token_id", default=0)
    return EncoderConfig(
        name=name,
        layers=_whole(tree, "n_layer"),
        hidden=hidden,
        heads=_whole(tree, "n_head"),
        ffn=_whole(tree, "n_inner", default=4 * hidden),
        vocab=_whole(tree, "vocab_size"),
        max_positions=positions,
        type_vocab=1,
        eps=_real(tree, "layer_norm_epsilon", default=1e-5),
        activation=_activation(tree, "activation_function", default="gelu_new"),
        pooling=pooling or default,
        normalize=pipeline.normalize and not has_classifier,
        labels=_labels(tree) if has_classifier else (),
        max_length=_max_length(directory, positions),
        pad_id=_whole(tree, "pad_token_id", default=end),
        causal=True,
        pre_norm=True,
    )


def read_json(path: Path) -> Tree:
    """Read a JSON object from a file of at most 1 MiB.

    Raises
    ------
    ParameterError
        If the file cannot be read or is not a JSON object.
    """
    try:
        if path.stat().st_size > MAX_JSON_BYTES:
            raise ParameterError(f"{path.name} is larger than 1 MiB")
        tree = json.loads(path.read_bytes())
    except (OSError, ValueError, RecursionError) as error:
        raise ParameterError(f"cannot read {path.name} of the model: {error}") from error
    if not isinstance(tree, dict):
        raise ParameterError(f"{path.name} of the model is not a JSON object")
    return tree


def lowercases(directory: Path) -> bool:
    """Say whether ``tokenizer_config.json`` asks for lower-casing; yes if it does not say."""
    path = directory / "tokenizer_config.json"
    return bool(read_json(path).get("do_lower_case", True)) if path.is_file() else True


def _check_fixed(tree: Tree, fixed: Tree) -> None:
    """Refuse options that would make the model compute something else."""
    for option, expected in fixed.items():
        value = tree.get(option, expected)
        if value != expected and not (value is None and expected is False):
            raise UnsupportedError(f"{option} = {value!r} is not supported; {expected!r} is")


def _activation(tree: Tree, key: str, *, default: str) -> Activation:
    value = tree.get(key, default)
    if not isinstance(value, str) or value not in _ACTIVATIONS:
        raise UnsupportedError(
            f"{key} {value!r} is not supported; supported are {sorted(_ACTIVATIONS)}"
        )
    return _ACTIVATIONS[value]


def _read_pipeline(directory: Path) -> Pipeline:
    path = directory / "modules.json"
    if not path.is_file():
        return Pipeline(pooling=None, normalize=False)
    try:
        modules = json.loads(path.read_bytes())
        kinds = [str(module["type"]).rsplit(".", 1)[-1] for module in modules]
        paths = {kind: str(m["path"]) for kind, m in zip(kinds, modules, strict=True)}
    except (OSError, ValueError, TypeError, KeyError) as error:
        raise ParameterError("modules.json of the model is not readable") from error
    if kinds not in (["Transformer", "Pooling"], ["Transformer", "Pooling", "Normalize"]):
        raise UnsupportedError(
            f"modules {kinds} are not supported; Transformer, Pooling and Normalize in this order "
            "are"
        )
    if Path(paths["Pooling"]).name != paths["Pooling"]:
        raise ParameterError("modules.json: the path of Pooling must be a plain folder name")
    pooling = _read_pooling(read_json(directory / paths["Pooling"] / "config.json"))
    return Pipeline(pooling=pooling, normalize="Normalize" in kinds)


def _read_pooling(tree: Tree) -> Pooling:
    modes = [key for key, on in tree.items() if key.startswith("pooling_mode") and on is True]
    if len(modes) != 1 or modes[0] not in _POOLING:
        raise UnsupportedError(
            f"pooling {modes} is not supported; one of mean, cls and last token is"
        )
    return _POOLING[modes[0]]


def _max_length(directory: Path, positions: int) -> int:
    """Return the text limit: what the files say, but at most the number of positions."""
    for name, key in (
        ("sentence_bert_config.json", "max_seq_length"),
        ("tokenizer_config.json", "model_max_length"),
    ):
        path = directory / name
        value = read_json(path).get(key) if path.is_file() else None
        if isinstance(value, int) and value > 0:
            return min(value, positions)
    return positions


def _labels(tree: Tree) -> tuple[str, ...]:
    names = tree.get("id2label")
    if not isinstance(names, dict) or not names:
        return ("LABEL_0", "LABEL_1")
    try:
        return tuple(str(names[str(number)]) for number in range(len(names)))
    except KeyError as error:
        raise ParameterError("config.json: id2label must number the labels 0, 1, 2") from error


def _whole(tree: Tree, key: str, *, default: int | None = None) -> int:
    value = tree.get(key, default)
    if value is None and default is not None:
        return default
    if type(value) is not int:
        raise ParameterError(f"config.json: {key} must be a whole number")
    return value


def _real(tree: Tree, key: str, *, default: float) -> float:
    value = tree.get(key, default)
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise ParameterError(f"config.json: {key} must be a number")
    return float(value)
