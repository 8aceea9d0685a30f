"""Writes small BERT checkpoints with random weights, in the layout of Hugging Face."""

from __future__ import annotations

import json
import string
from pathlib import Path

import numpy as np
from safetensors.numpy import save_file

from privml.rng import ScienceSeed

HIDDEN, HEADS, FFN, POSITIONS = 32, 2, 64, 48
_SPECIAL = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
VOCABULARY = (
    *_SPECIAL, *string.ascii_lowercase, *(f"##{c}" for c in string.ascii_lowercase), ".", ",",
)  # fmt: skip


def write_checkpoint(
    directory: Path, *, seed: int = 0, layers: int = 1, classes: tuple[str, ...] = ()
) -> Path:
    """Write ``config.json``, ``model.safetensors`` and ``vocab.txt``; return the directory.

    The vocabulary spells every lower-case word letter by letter.

    Parameters
    ----------
    directory
        Made if missing.
    seed
        Equal seeds give equal weights.
    layers
        Encoder layers of width 32 with 2 heads, texts up to 48 tokens.
    classes
        Names of the classes of a classification head; none for an embedding model.
    """
    directory.mkdir(parents=True, exist_ok=True)
    config = {
        "model_type": "bert", "hidden_act": "gelu", "hidden_size": HIDDEN,
        "intermediate_size": FFN, "layer_norm_eps": 1e-5, "max_position_embeddings": POSITIONS,
        "num_attention_heads": HEADS, "num_hidden_layers": layers, "pad_token_id": 0,
        "type_vocab_size": 2, "vocab_size": len(VOCABULARY),
        "id2label": {str(k): name for k, name in enumerate(classes)},
    }  # fmt: skip
    (directory / "config.json").write_text(json.dumps(config), encoding="utf-8")
    (directory / "vocab.txt").write_text("\n".join(VOCABULARY) + "\n", encoding="utf-8")
    root = ScienceSeed(seed).child("testing", "checkpoint")
    tensors = {}
    for name, shape in _shapes(layers, len(classes)).items():
        array = root.child(name).generator().standard_normal(shape, dtype=np.float32)
        array *= np.float32(0.2)
        tensors[name] = array + 1 if name.endswith("LayerNorm.weight") else array
    save_file(tensors, directory / "model.safetensors")
    return directory


def _shapes(layers: int, classes: int) -> dict[str, tuple[int, ...]]:
    norms = {"embeddings.LayerNorm": HIDDEN}
    dense: dict[str, tuple[int, int]] = {}
    for i in range(layers):
        at = f"encoder.layer.{i}."
        square = ("attention.self.query", "attention.self.key", "attention.self.value",
                  "attention.output.dense")  # fmt: skip
        dense |= {at + stem: (HIDDEN, HIDDEN) for stem in square}
        dense |= {at + "intermediate.dense": (FFN, HIDDEN), at + "output.dense": (HIDDEN, FFN)}
        norms |= {at + stem: HIDDEN for stem in ("attention.output.LayerNorm", "output.LayerNorm")}
    if classes:
        dense |= {"pooler.dense": (HIDDEN, HIDDEN), "classifier": (classes, HIDDEN)}
    shapes: dict[str, tuple[int, ...]] = {
        "embeddings.word_embeddings.weight": (len(VOCABULARY), HIDDEN),
        "embeddings.position_embeddings.weight": (POSITIONS, HIDDEN),
        "embeddings.token_type_embeddings.weight": (2, HIDDEN),
    }
    for stem, width in norms.items():
        shapes |= {f"{stem}.weight": (width,), f"{stem}.bias": (width,)}
    for stem, size in dense.items():
        shapes |= {f"{stem}.weight": size, f"{stem}.bias": size[:1]}
    return shapes
