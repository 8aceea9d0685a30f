"""The typed program of a BERT-type encoder, from its configuration alone; torch-free.

Values of layer ``i``: ``layer{i}.qkv`` (queries, keys and values side by side), ``.context``,
``.attn_out``, ``.attn_sum``, ``.attn_norm``, ``.ffn_in``, ``.ffn_act``, ``.ffn_out``, ``.ffn_sum``
and ``.ffn_norm``, the layer's output. Before them ``embed`` and ``embed.norm``, after them
``pool`` and, where the model has them, ``pooler``, ``pooler.tanh`` and ``classifier``.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from privml.backbones.base import Dim, Op, OpNode, ValueSpec
from privml.backbones.config import EncoderConfig

GELU_SUBSTITUTES = ("ring4", "bolt4")
EXP_SUBSTITUTES = ("digit20",)
TANH_SUBSTITUTES = ("exp",)

IDS = ValueSpec("ids", ("B", "n"))
TYPE_IDS = ValueSpec("type_ids", ("B", "n"))
MASK = ValueSpec("mask", ("B", "n"))

SUPPORTED_OPS = frozenset(Op)
NORM_FLOOR = 1e-12
"""Smallest divisor in the final normalisation."""


def encoder_ops(config: EncoderConfig) -> tuple[OpNode, ...]:
    """Return the program of an encoder, in execution order.

    The program reads ``ids``, ``type_ids`` and ``mask`` of a batch and ends with the pooled
    embedding before normalisation, or with the logits; :func:`finish_output` is what the holder of
    the result does to it in the clear.
    """
    nodes = list(_embedding_nodes(config))
    for index in range(config.layers):
        nodes += _layer_nodes(config, index, nodes[-1].output)
    nodes += _head_nodes(config, nodes[-1].output)
    return tuple(nodes)


def parameter_shapes(config: EncoderConfig) -> dict[str, tuple[int, ...]]:
    """Return the shape of every parameter the program names, in program order."""
    d, ffn = config.hidden, config.ffn
    shapes: dict[str, tuple[int, ...]] = {
        "embed.word": (config.vocab, d),
        "embed.position": (config.max_positions, d),
        "embed.segment": (config.type_vocab, d),
        **_norm_shapes("embed.norm", d),
    }
    for index in range(config.layers):
        name = f"layer{index}"
        shapes |= _linear_shapes(f"{name}.qkv", d, 3 * d)
        shapes |= _linear_shapes(f"{name}.attn_out", d, d)
        shapes |= _norm_shapes(f"{name}.attn_norm", d)
        shapes |= _linear_shapes(f"{name}.ffn_in", d, ffn)
        shapes |= _linear_shapes(f"{name}.ffn_out", ffn, d)
        shapes |= _norm_shapes(f"{name}.ffn_norm", d)
    if config.pooling == "pooler":
        shapes |= _linear_shapes("pooler", d, d)
    if config.labels:
        shapes |= _linear_shapes("classifier", d, len(config.labels))
    return shapes


def multiply_adds(config: EncoderConfig, *, length: int) -> int:
    """Return the multiply-adds of all matrix products for one row of ``length`` positions."""
    d, n = config.hidden, length
    per_layer = n * d * (4 * d + 2 * config.ffn) + 2 * n * n * d
    head = (d * d if config.pooling == "pooler" else 0) + d * len(config.labels)
    return config.layers * per_layer + head


def finish_output(config: EncoderConfig, raw: NDArray[np.floating]) -> NDArray[np.floating]:
    """Do what is left to do in the clear with the program's result.

    Parameters
    ----------
    raw
        Last value of the program, shape ``(B, output_dim)``, any float dtype.

    Returns
    -------
    ndarray
        Rows divided by their Euclidean norm if the configuration says so, else ``raw``.
    """
    if not config.normalize:
        return raw
    norms = np.sqrt(np.square(raw).sum(axis=-1, keepdims=True))
    result: NDArray[np.floating] = raw / np.maximum(norms, NORM_FLOOR)
    return result


def _embedding_nodes(config: EncoderConfig) -> tuple[OpNode, OpNode]:
    summed = OpNode(
        kind=Op.EMBED,
        inputs=(IDS, TYPE_IDS),
        output=ValueSpec("embed", ("B", "n", config.hidden)),
        params=(
            ("word", "embed.word"),
            ("position", "embed.position"),
            ("type", "embed.segment"),
        ),
        attrs=(("scale", 1.0),),
        allowed_substitutes=("released", "private"),
        leakage=("embedding tables to the client if released",),
    )
    return summed, _norm(config, "embed.norm", summed.output)


def _layer_nodes(config: EncoderConfig, index: int, x: ValueSpec) -> tuple[OpNode, ...]:
    d, name = config.hidden, f"layer{index}"
    qkv = _linear(f"{name}.qkv", x, 3 * d)
    context = OpNode(
        kind=Op.ATTENTION,
        inputs=(qkv.output, MASK),
        output=ValueSpec(f"{name}.context", ("B", "n", d)),
        attrs=(("heads", config.heads), ("head_dim", config.head_dim), ("fused", True)),
        allowed_substitutes=EXP_SUBSTITUTES,
        leakage=("kept-token count if pruned", "high-degree count if reduced"),
    )
    attn_out = _linear(f"{name}.attn_out", context.output, d)
    attn_sum = _add(f"{name}.attn_sum", attn_out.output, x)
    attn_norm = _norm(config, f"{name}.attn_norm", attn_sum.output)
    ffn_in = _linear(f"{name}.ffn_in", attn_norm.output, config.ffn)
    ffn_act = OpNode(
        kind=Op.GELU,
        inputs=(ffn_in.output,),
        output=ValueSpec(f"{name}.ffn_act", ffn_in.output.shape),
        attrs=(("form", config.activation),),
        allowed_substitutes=GELU_SUBSTITUTES,
    )
    ffn_out = _linear(f"{name}.ffn_out", ffn_act.output, d)
    ffn_sum = _add(f"{name}.ffn_sum", ffn_out.output, attn_norm.output)
    ffn_norm = _norm(config, f"{name}.ffn_norm", ffn_sum.output)
    attention = (qkv, context, attn_out, attn_sum, attn_norm)
    return (*attention, ffn_in, ffn_act, ffn_out, ffn_sum, ffn_norm)


def _head_nodes(config: EncoderConfig, x: ValueSpec) -> tuple[OpNode, ...]:
    pooled = ValueSpec("pool", ("B", config.hidden))
    if config.pooling == "mean":
        return (OpNode(kind=Op.POOL_MEAN, inputs=(x, MASK), output=pooled),)
    pool = OpNode(kind=Op.POOL_CLS, inputs=(x,), output=pooled)
    if config.pooling == "cls":
        return (pool,)
    dense = _linear("pooler", pooled, config.hidden)
    tanh = OpNode(
        kind=Op.TANH,
        inputs=(dense.output,),
        output=ValueSpec("pooler.tanh", dense.output.shape),
        allowed_substitutes=TANH_SUBSTITUTES,
    )
    if not config.labels:
        return (pool, dense, tanh)
    return (pool, dense, tanh, _linear("classifier", tanh.output, len(config.labels)))


def _linear(name: str, x: ValueSpec, width: int) -> OpNode:
    lead: tuple[Dim, ...] = x.shape[:-1]
    return OpNode(
        kind=Op.LINEAR,
        inputs=(x,),
        output=ValueSpec(name, (*lead, width)),
        params=(("weight", f"{name}.weight"), ("bias", f"{name}.bias")),
    )


def _add(name: str, a: ValueSpec, b: ValueSpec) -> OpNode:
    return OpNode(kind=Op.ADD, inputs=(a, b), output=ValueSpec(name, a.shape))


def _norm(config: EncoderConfig, name: str, x: ValueSpec) -> OpNode:
    return OpNode(
        kind=Op.LAYERNORM,
        inputs=(x,),
        output=ValueSpec(name, x.shape),
        params=(("gamma", f"{name}.gamma"), ("beta", f"{name}.beta")),
        attrs=(("eps", config.eps),),
    )


def _linear_shapes(name: str, d1: int, d2: int) -> dict[str, tuple[int, ...]]:
    return {f"{name}.weight": (d2, d1), f"{name}.bias": (d2,)}


def _norm_shapes(name: str, d: int) -> dict[str, tuple[int, ...]]:
    return {f"{name}.gamma": (d,), f"{name}.beta": (d,)}
