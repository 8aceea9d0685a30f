"""Names of tensors in Hugging Face checkpoints, and what the program calls them; torch-free."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

Family = Literal["bert", "gpt2"]

_NORM = {"weight": "gamma", "bias": "beta"}


@dataclass(frozen=True, kw_only=True)
class Layout:
    """How one family of models names its tensors, after a prefix that is common to the body.

    Parameters
    ----------
    title
        Name shown to people.
    anchor
        Tensor that every checkpoint of the family has once; what stands before it is the prefix.
    ignored
        Tensors without influence on the hidden states: buffers and heads for pre-training.
    tables
        Whole names of tensors that are neither matrix nor norm, to program names.
    top, layer
        Stems (names without ``.weight`` or ``.bias``) outside and inside a layer, to program names.
    layer_name
        Matches tensors of a layer; groups: number, stem, ``weight`` or ``bias``.
    norms
        Last part of the stems that are LayerNorms.
    transposed
        Stems of matrices that are stored as (in, out).
    """

    title: str
    anchor: str
    ignored: re.Pattern[str]
    tables: Mapping[str, str]
    top: Mapping[str, str]
    layer: Mapping[str, str]
    layer_name: re.Pattern[str]
    norms: frozenset[str]
    transposed: frozenset[str] = frozenset()

    def target(self, name: str) -> str | None:
        """Return the program's name of a tensor, or nothing if the family has no such tensor."""
        if name in self.tables:
            return self.tables[name]
        stem, _, kind = name.rpartition(".")
        layer = self.layer_name.fullmatch(name)
        target = self.top.get(stem)
        if layer is not None and layer[2] in self.layer:
            target = f"layer{int(layer[1])}.{self.layer[layer[2]]}"
        if target is None or kind not in _NORM:
            return None
        return f"{target}.{_NORM[kind] if stem.rpartition('.')[2] in self.norms else kind}"

    def is_transposed(self, name: str) -> bool:
        """Say whether a tensor is a matrix that is stored as (in, out)."""
        layer = self.layer_name.fullmatch(name)
        return layer is not None and layer[3] == "weight" and layer[2] in self.transposed


BERT = Layout(
    title="BERT encoder",
    anchor="embeddings.word_embeddings.weight",
    ignored=re.compile(r"embeddings\.(position_ids|token_type_ids)|cls\..*"),
    tables={
        "embeddings.word_embeddings.weight": "embed.word",
        "embeddings.position_embeddings.weight": "embed.position",
        "embeddings.token_type_embeddings.weight": "embed.segment",
    },
    top={
        "embeddings.LayerNorm": "embed.norm",
        "pooler.dense": "pooler",
        "classifier": "classifier",
    },
    layer={
        "attention.self.query": "q",
        "attention.self.key": "k",
        "attention.self.value": "v",
        "attention.output.dense": "attn_out",
        "attention.output.LayerNorm": "attn_norm",
        "intermediate.dense": "ffn_in",
        "output.dense": "ffn_out",
        "output.LayerNorm": "ffn_norm",
    },
    layer_name=re.compile(r"encoder\.layer\.(\d{1,4})\.(.+)\.(weight|bias)"),
    norms=frozenset({"LayerNorm"}),
)

GPT2 = Layout(
    title="GPT-2 decoder",
    anchor="wte.weight",
    ignored=re.compile(r"h\.\d{1,4}\.attn\.(bias|masked_bias)|lm_head\.weight"),
    tables={"wte.weight": "embed.word", "wpe.weight": "embed.position"},
    top={"ln_f": "final_norm", "score": "classifier"},
    layer={
        "ln_1": "attn_norm",
        "attn.c_attn": "qkv",
        "attn.c_proj": "attn_out",
        "ln_2": "ffn_norm",
        "mlp.c_fc": "ffn_in",
        "mlp.c_proj": "ffn_out",
    },
    layer_name=re.compile(r"h\.(\d{1,4})\.(.+)\.(weight|bias)"),
    norms=frozenset({"ln_1", "ln_2", "ln_f"}),
    transposed=frozenset({"attn.c_attn", "attn.c_proj", "mlp.c_fc", "mlp.c_proj"}),
)

LAYOUTS: Mapping[Family, Layout] = {"bert": BERT, "gpt2": GPT2}
