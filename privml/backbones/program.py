"""The typed program of a BERT- or GPT-2-type model, from its configuration alone; torch-free.

Values of layer ``i``: ``layer{i}.qkv`` (queries, keys and values side by side), ``.context``,
``.attn_out``, ``.attn_sum``, ``.attn_norm``, ``.ffn_in``, ``.ffn_act``, ``.ffn_out``, ``.ffn_sum``
and ``.ffn_norm``, the layer's output. Before them ``embed`` and ``embed.norm``, after them
``pool`` and, where the model has them, ``pooler``, ``pooler.tanh`` and ``classifier``.

With ``pre_norm`` the order is ``attn_norm``, ``qkv``, ``context``, ``attn_out``, ``attn_sum``,
``ffn_norm``, ``ffn_in``, ``ffn_act``, ``ffn_out``, ``ffn_sum``; the sums are the residual stream
and ``ffn_sum`` is the layer's output. ``embed`` has no norm. After the layers stands
``final_norm``: of the one pooled row, after ``pool``, except that a mean is taken over normed rows.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from privml.backbones.base import Attr, Dim, Op, OpNode, ValueSpec
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
    """Return the program of a model, in execution order.

    The program reads ``ids``, ``type_ids`` and ``mask`` of a batch and ends with the pooled
    embedding before normalisation, or with the logits; :func:`finish_output` is what the holder of
    the result does to it in the clear.
    """
    nodes = list(_embedding_nodes(config))
    layer = _pre_norm_nodes if config.pre_norm else _post_norm_nodes
    for index in range(config.layers):
        nodes += layer(config, index, nodes[-1].output)
    nodes += _head_nodes(config, nodes[-1].output)
    return tuple(nodes)


def parameter_shapes(config: EncoderConfig) -> dict[str, tuple[int, ...]]:
    """Return the shape of every parameter the program names, in program order."""
    d, ffn = config.hidden, config.ffn
    shapes: dict[str, tuple[int, ...]] = {
        "embed.word": (config.vocab, d),
        "embed.position": (config.max_positions, d),
        "embed.segment": (config.type_vocab, d),
    }
    if not config.pre_norm:
        shapes |= _norm_shapes("embed.norm", d)
    for index in range(config.layers):
        name = f"layer{index}"
        shapes |= _linear_shapes(f"{name}.qkv", d, 3 * d)
        shapes |= _linear_shapes(f"{name}.attn_out", d, d)
        shapes |= _norm_shapes(f"{name}.attn_norm", d)
        shapes |= _linear_shapes(f"{name}.ffn_in", d, ffn)
        shapes |= _linear_shapes(f"{name}.ffn_out", ffn, d)
        shapes |= _norm_shapes(f"{name}.ffn_norm", d)
    if config.pre_norm:
        shapes |= _norm_shapes("final_norm", d)
    if config.pooling == "pooler":
        shapes |= _linear_shapes("pooler", d, d)
    if config.labels:
        shapes |= _linear_shapes("classifier", d, len(config.labels))
    return shapes


def multiply_adds(config: EncoderConfig, *, length: int) -> int:
    """Return the multiply-adds of all matrix products for one row of ``length`` positions.

    Causal attention counts in full, since its hidden half is computed and then masked.
    """
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


def _embedding_nodes(config: EncoderConfig) -> tuple[OpNode, ...]:
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
    return (summed,) if config.pre_norm else (summed, _norm(config, "embed.norm", summed.output))


def _post_norm_nodes(config: EncoderConfig, index: int, x: ValueSpec) -> tuple[OpNode, ...]:
    name = f"layer{index}"
    attention = _attention_nodes(config, name, x, residual=x)
    attn_norm = _norm(config, f"{name}.attn_norm", attention[-1].output)
    ffn = _ffn_nodes(config, name, attn_norm.output, residual=attn_norm.output)
    ffn_norm = _norm(config, f"{name}.ffn_norm", ffn[-1].output)
    return (*attention, attn_norm, *ffn, ffn_norm)


def _pre_norm_nodes(config: EncoderConfig, index: int, x: ValueSpec) -> tuple[OpNode, ...]:
    name = f"layer{index}"
    attn_norm = _norm(config, f"{name}.attn_norm", x)
    attention = _attention_nodes(config, name, attn_norm.output, residual=x)
    attn_sum = attention[-1].output
    ffn_norm = _norm(config, f"{name}.ffn_norm", attn_sum)
    ffn = _ffn_nodes(config, name, ffn_norm.output, residual=attn_sum)
    return (attn_norm, *attention, ffn_norm, *ffn)


def _attention_nodes(
    config: EncoderConfig, name: str, x: ValueSpec, *, residual: ValueSpec
) -> tuple[OpNode, ...]:
    d = config.hidden
    qkv = _linear(f"{name}.qkv", x, 3 * d)
    attrs: tuple[tuple[str, Attr], ...] = (
        ("heads", config.heads),
        ("head_dim", config.head_dim),
        ("fused", True),
    )
    context = OpNode(
        kind=Op.ATTENTION,
        inputs=(qkv.output, MASK),
        output=ValueSpec(f"{name}.context", ("B", "n", d)),
        attrs=(*attrs, ("causal", True)) if config.causal else attrs,
        allowed_substitutes=EXP_SUBSTITUTES,
        leakage=("kept-token count if pruned", "high-degree count if reduced"),
    )
    attn_out = _linear(f"{name}.attn_out", context.output, d)
    return (qkv, context, attn_out, _add(f"{name}.attn_sum", attn_out.output, residual))


def _ffn_nodes(
    config: EncoderConfig, name: str, x: ValueSpec, *, residual: ValueSpec
) -> tuple[OpNode, ...]:
    ffn_in = _linear(f"{name}.ffn_in", x, config.ffn)
    ffn_act = OpNode(
        kind=Op.GELU,
        inputs=(ffn_in.output,),
        output=ValueSpec(f"{name}.ffn_act", ffn_in.output.shape),
        attrs=(("form", config.activation),),
        allowed_substitutes=GELU_SUBSTITUTES,
    )
    ffn_out = _linear(f"{name}.ffn_out", ffn_act.output, config.hidden)
    return (ffn_in, ffn_act, ffn_out, _add(f"{name}.ffn_sum", ffn_out.output, residual))


def _head_nodes(config: EncoderConfig, x: ValueSpec) -> tuple[OpNode, ...]:
    nodes = list(_pool_nodes(config, x))
    if config.pooling == "pooler":
        dense = _linear("pooler", nodes[-1].output, config.hidden)
        tanh = OpNode(
            kind=Op.TANH,
            inputs=(dense.output,),
            output=ValueSpec("pooler.tanh", dense.output.shape),
            allowed_substitutes=TANH_SUBSTITUTES,
        )
        nodes += (dense, tanh)
    if config.labels:
        nodes.append(_linear("classifier", nodes[-1].output, len(config.labels)))
    return tuple(nodes)


def _pool_nodes(config: EncoderConfig, x: ValueSpec) -> tuple[OpNode, ...]:
    """Pool and, for pre-norm models, norm: a single row after pooling, all rows before a mean."""
    pooled = ValueSpec("pool", ("B", config.hidden))
    if config.pooling == "mean":
        before = (_norm(config, "final_norm", x),) if config.pre_norm else ()
        rows = before[-1].output if before else x
        return (*before, OpNode(kind=Op.POOL_MEAN, inputs=(rows, MASK), output=pooled))
    if config.pooling == "last":
        pool = OpNode(kind=Op.POOL_LAST, inputs=(x, MASK), output=pooled)
    else:
        pool = OpNode(kind=Op.POOL_CLS, inputs=(x,), output=pooled)
    return (pool, _norm(config, "final_norm", pooled)) if config.pre_norm else (pool,)


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
