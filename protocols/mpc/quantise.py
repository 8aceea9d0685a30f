"""Float parameters to the server's ring words, at the scales the program expects."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from functools import cached_property
from math import sqrt

import numpy as np
from numpy.typing import NDArray

from privml.backbones.base import Op
from privml.fixedpoint import FixedPoint
from privml.protocols.mpc import functions as fn
from privml.protocols.mpc.arithmetic.affine import WEIGHT_SCALE
from privml.protocols.mpc.engine import Known
from privml.protocols.mpc.primitive import Words
from privml.protocols.mpc.program import Program

#: Name of the pruning thresholds among the server's operands.
THRESHOLDS = "prune"

Floats = Mapping[str, NDArray[np.float32]]


class Weights(dict[str, Known]):
    """The server's operands by operation name; not changed after it is made."""

    @cached_property
    def digest(self) -> bytes:
        """SHA-256 over names and words. Guessable for a public model, so never sent as it is."""
        h = hashlib.sha256()
        for name in sorted(self):
            for part in (self[name].weight, self[name].bias):
                h.update(name.encode() + b"\0")
                if part is not None:
                    h.update(np.ascontiguousarray(part).view(np.uint8).data)
        return h.digest()


def encode(x: NDArray[np.floating], scale: int) -> Words:
    """Round real values to ring words with ``scale`` fractional bits.

    Raises
    ------
    ParameterError
        If a value is not finite or reaches 2^(62 - scale).
    """
    return FixedPoint(64, scale).encode(x)


def decode(words: Words, scale: int) -> NDArray[np.float64]:
    """Read ring words as signed fixed-point values."""
    return FixedPoint(64, scale).decode(words)


def quantise(program: Program, params: Floats) -> Weights:
    """Return the server's operands by operation name.

    The 1/sqrt(head width) of the attention scores is folded into the query rows before rounding.
    """
    known = Weights()
    heads = {n.inputs[0].name: n.int_attr("head_dim") for n in program.ops
             if n.kind == Op.ATTENTION}  # fmt: skip
    for node in program.ops:
        if node.kind == Op.LINEAR:
            w = np.asarray(params[node.param("weight")], np.float64).T.copy()
            b = np.asarray(params[node.param("bias")], np.float64).copy()
            if node.name in heads:
                third = w.shape[1] // 3
                w[:, :third] /= sqrt(heads[node.name])
                b[:third] /= sqrt(heads[node.name])
            bits = program.spec.weight_bits
            known[node.name] = Known(np.ascontiguousarray(encode(w, bits)), encode(b, fn.F + bits))
        elif node.kind == Op.LAYERNORM:
            gamma, beta = params[node.param("gamma")], params[node.param("beta")]
            known[node.name] = Known(encode(gamma, WEIGHT_SCALE), encode(beta, fn.F + WEIGHT_SCALE))
        elif node.kind == Op.EMBED and program.spec.embedding == "private":
            table = np.concatenate([params[node.param("word")], params[node.param("type")]])
            scale = node.float_attr("scale")
            known[node.name] = Known(
                np.ascontiguousarray(encode(table * scale, fn.F)),
                encode(params[node.param("position")] * scale, fn.F),
            )
    return known
