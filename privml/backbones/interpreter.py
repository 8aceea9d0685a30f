"""Plaintext interpreter of programs: the meaning of every :class:`~privml.backbones.base.Op`.

Written in numpy without torch, independently of the models' own forward passes; encrypted
runtimes are tested against it. With ``x`` of shape ``(B, n, d)`` unless said otherwise:

* ``embed``: ``scale * (word[ids] + position[0..n-1] + type[type_ids])``;
* ``linear``: ``x @ weight.T + bias``, weight of shape (out, in);
* ``attention``: input ``(B, n, 3d)`` holds q, k, v side by side, each cut into heads of width D;
  ``softmax(q k^T / sqrt(D))`` over the keys whose mask is true, times v, heads side by side; if
  ``causal``, query i sees only keys up to i, and itself even if it is padding (rows of padding
  before the first token would see nothing else; no token sees them);
* ``layernorm``: ``gamma * (x - mean) / sqrt(var + eps) + beta``, mean and variance over d;
* ``gelu``: ``x * Phi(x)``, by the error function (``form = gelu``) or by tanh (``gelu_tanh``);
* ``pool_mean``: mean over the positions whose mask is true; ``pool_cls``: position 0;
  ``pool_last``: the last position whose mask is true.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence

import numpy as np
from numpy.typing import DTypeLike, NDArray

from privml.backbones.base import Op, OpNode
from privml.backbones.batch import Encoded
from privml.backbones.config import EncoderConfig
from privml.backbones.program import encoder_ops, finish_output
from privml.errors import ParameterError

Array = NDArray[np.floating]
Params = Mapping[str, NDArray[np.float32]]

_erf = np.frompyfunc(math.erf, 1, 1)


def interpret(config: EncoderConfig, params: Params, batch: Encoded) -> NDArray[np.float64]:
    """Return an encoder's output, computed from its program in float64.

    Returns
    -------
    ndarray
        Shape ``(B, output_dim)``, float64: normalised embedding or logits, as in ``forward``.
    """
    ops = encoder_ops(config)
    values = run_program(ops, params, batch)
    return finish_output(config, values[ops[-1].name]).astype(np.float64)


def run_program(
    ops: Sequence[OpNode], params: Params, batch: Encoded, *, dtype: DTypeLike = np.float64
) -> dict[str, Array]:
    """Run a program in the clear and return every value by name.

    Parameters
    ----------
    ops
        Program in execution order.
    params
        Arrays for every parameter name in the program.
    batch
        Token batch; ids and segment ids must lie inside the tables.
    dtype
        Float type of all arithmetic.

    Raises
    ------
    ParameterError
        If a parameter is missing or the batch does not fit the tables.
    """
    missing = sorted({name for node in ops for _, name in node.params} - set(params))
    if missing:
        raise ParameterError(f"parameters are missing: {', '.join(missing)}")
    values: dict[str, Array] = {}
    for node in ops:
        weights = {role: params[name].astype(dtype, copy=False) for role, name in node.params}
        inputs = [values[v.name] for v in node.inputs if v.name in values]
        values[node.name] = _RUN[node.kind](node, inputs, weights, batch)
    return values


def _embed(node: OpNode, _: list[Array], w: Mapping[str, Array], batch: Encoded) -> Array:
    limits = (("token", batch.ids, w["word"]), ("segment", batch.type_ids, w["type"]))
    for what, ids, table in limits:
        if int(ids.max()) >= len(table):
            raise ParameterError(f"{what} ids must be below {len(table)}, the table's size")
    if batch.length > len(w["position"]):
        raise ParameterError(f"{batch.length} positions exceed the model's {len(w['position'])}")
    summed = w["word"][batch.ids] + w["position"][: batch.length] + w["type"][batch.type_ids]
    return node.float_attr("scale") * summed  # (B, n, d)


def _linear(_: OpNode, x: list[Array], w: Mapping[str, Array], __: Encoded) -> Array:
    result: Array = x[0] @ w["weight"].T + w["bias"]  # (..., out)
    return result


def _attention(node: OpNode, x: list[Array], _: Mapping[str, Array], batch: Encoded) -> Array:
    rows, n, _width = x[0].shape
    heads, head_dim = node.int_attr("heads"), node.int_attr("head_dim")
    split = x[0].reshape(rows, n, 3, heads, head_dim)
    q, k, v = (split[:, :, part].transpose(0, 2, 1, 3) for part in range(3))  # (B, H, n, D)
    scores = q @ k.transpose(0, 1, 3, 2) / math.sqrt(head_dim)  # (B, H, n, n)
    visible = batch.mask[:, None, None, :]  # (B, 1, 1 or n, n)
    if node.flag("causal"):
        visible = visible & np.tri(n, dtype=np.bool_) | np.eye(n, dtype=np.bool_)
    scores = np.where(visible, scores, -np.inf)
    weights = np.exp(scores - scores.max(axis=-1, keepdims=True))
    weights /= weights.sum(axis=-1, keepdims=True)
    context: Array = (weights @ v).transpose(0, 2, 1, 3)  # (B, n, H, D)
    return context.reshape(rows, n, heads * head_dim)


def _add(_: OpNode, x: list[Array], __: Mapping[str, Array], ___: Encoded) -> Array:
    return x[0] + x[1]


def _layernorm(node: OpNode, x: list[Array], w: Mapping[str, Array], _: Encoded) -> Array:
    centred = x[0] - x[0].mean(axis=-1, keepdims=True)
    variance = np.square(centred).mean(axis=-1, keepdims=True)
    scaled: Array = centred / np.sqrt(variance + node.float_attr("eps"))
    return scaled * w["gamma"] + w["beta"]


def _gelu(node: OpNode, x: list[Array], _: Mapping[str, Array], __: Encoded) -> Array:
    value = x[0]
    if node.str_attr("form") == "gelu_tanh":
        inner = math.sqrt(2 / math.pi) * (value + 0.044715 * value**3)
        smooth: Array = np.tanh(inner)
    else:
        smooth = _erf(value / math.sqrt(2)).astype(value.dtype)
    result: Array = 0.5 * value * (1 + smooth)
    return result


def _tanh(_: OpNode, x: list[Array], __: Mapping[str, Array], ___: Encoded) -> Array:
    result: Array = np.tanh(x[0])
    return result


def _pool_mean(_: OpNode, x: list[Array], __: Mapping[str, Array], batch: Encoded) -> Array:
    weights = batch.mask.astype(x[0].dtype)[:, :, None]
    result: Array = (x[0] * weights).sum(axis=1) / weights.sum(axis=1)  # (B, d)
    return result


def _pool_cls(_: OpNode, x: list[Array], __: Mapping[str, Array], ___: Encoded) -> Array:
    return x[0][:, 0]  # (B, d)


def _pool_last(_: OpNode, x: list[Array], __: Mapping[str, Array], batch: Encoded) -> Array:
    return x[0][np.arange(batch.batch_size), batch.last]  # (B, d)


_RUN: Mapping[Op, Callable[[OpNode, list[Array], Mapping[str, Array], Encoded], Array]] = {
    Op.EMBED: _embed,
    Op.LINEAR: _linear,
    Op.ATTENTION: _attention,
    Op.ADD: _add,
    Op.LAYERNORM: _layernorm,
    Op.GELU: _gelu,
    Op.TANH: _tanh,
    Op.POOL_MEAN: _pool_mean,
    Op.POOL_CLS: _pool_cls,
    Op.POOL_LAST: _pool_last,
}
