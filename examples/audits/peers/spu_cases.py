"""Workloads for SecretFlow SPU: public shapes, made-up inputs, JAX programs, numpy references.

Runs in the peer's environment, where privml is not installed. Inputs come from a hash of the
element's position, so both parties and every run agree on them without a generator.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np

TOKENS = 128
EPSILON = 1e-5  # LayerNorm; below 2^-18 it would vanish in the fixed-point format


@dataclass(frozen=True)
class Case:
    """One program: `inputs[0]` belongs to the client, the others to the server."""

    program: Callable[..., object]
    reference: Callable[..., np.ndarray]
    shapes: tuple[tuple[int, ...], ...]
    scales: tuple[float, ...]
    shifts: tuple[float, ...]

    def inputs(self) -> list[np.ndarray]:
        """Return the float32 inputs: shift + scale times a standard normal pattern."""
        rows = zip(self.shapes, self.scales, self.shifts, strict=True)
        return [
            (shift + scale * _normal(shape, stream)).astype(np.float32)
            for stream, (shape, scale, shift) in enumerate(rows)
        ]


def _normal(shape: tuple[int, ...], stream: int) -> np.ndarray:
    size = math.prod(shape)
    words = np.arange(2 * size, dtype=np.uint64) + np.uint64((stream + 1) << 40)
    for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
        words = (words ^ (words >> np.uint64(shift))) * np.uint64(factor)  # wraps by intent
    uniform = ((words ^ (words >> np.uint64(31))) >> np.uint64(11)) + 0.5
    radius, angle = np.split(uniform * 2.0**-53, 2)
    pattern = np.sqrt(-2.0 * np.log(radius)) * np.cos(2.0 * np.pi * angle)
    return np.asarray(pattern).reshape(shape)


def gelu_pieces(x: jax.Array) -> jax.Array:
    """GELU in four pieces, as SPU's transformer examples do it: 0, cubic, degree six, x."""
    low, cubic, high = x < -4.0, x < -1.95, x > 3.0
    x2 = jnp.square(x)
    x3, x4 = x2 * x, jnp.square(x2)
    left = -0.5054031199708174 - 0.42226581151983866 * x
    left = left - 0.11807612951181953 * x2 - 0.011034134030615728 * x3
    middle = 0.008526321541038084 + 0.5 * x + 0.3603292692789629 * x2
    middle = middle - 0.037688200365904236 * x4 + 0.0018067462606141187 * jnp.square(x3)
    inside = jnp.logical_not(jnp.logical_xor(cubic, high))
    return high * x + jnp.logical_xor(low, cubic) * left + inside * middle


def gelu_exact(x: np.ndarray) -> np.ndarray:
    """Return x times the standard normal distribution function, the reference."""
    return 0.5 * x * (1.0 + np.vectorize(math.erf)(x / math.sqrt(2.0)))


def softmax_exact(x: np.ndarray) -> np.ndarray:
    """Return the softmax over the last axis, the reference."""
    grown = np.exp(x - x.max(axis=-1, keepdims=True))
    return np.asarray(grown / grown.sum(axis=-1, keepdims=True))


def _layer(heads: int, xp: object, softmax: Callable, gelu: Callable, rsqrt: Callable) -> Callable:
    """Return a post-norm encoder layer over arrays of `xp` (numpy or jax.numpy)."""

    def norm(x, gain, offset):  # noqa: ANN001, ANN202 - numpy and JAX arrays alike
        centred = x - xp.mean(x, axis=-1, keepdims=True)
        variance = xp.mean(xp.square(centred), axis=-1, keepdims=True)
        return centred * rsqrt(variance + EPSILON) * gain + offset

    def layer(x, wqkv, bqkv, wo, bo, g1, o1, w1, b1, w2, b2, g2, o2):  # noqa: ANN001, ANN202
        n, d = x.shape
        qkv = (x @ wqkv + bqkv).reshape(n, 3, heads, d // heads)
        q, k, v = qkv.transpose(1, 2, 0, 3)  # (heads, n, d / heads) each
        scores = xp.matmul(q, k.transpose(0, 2, 1)) * (1.0 / math.sqrt(d // heads))
        mixed = xp.matmul(softmax(scores), v).transpose(1, 0, 2).reshape(n, d)
        x = norm(x + mixed @ wo + bo, g1, o1)
        return norm(x + gelu(x @ w1 + b1) @ w2 + b2, g2, o2)

    return layer


def encoder_layer(width: int, inner: int, gelu: Callable, heads: int = 12) -> Case:
    """Return the case of one encoder layer with private weights and private input."""
    d, f = width, inner
    shapes = ((TOKENS, d), (d, 3 * d), (3 * d,), (d, d), (d,), (d,), (d,))
    shapes += ((d, f), (f,), (f, d), (d,), (d,), (d,))
    scales = tuple(1.0 if i == 0 else 0.05 for i in range(len(shapes)))
    shifts = tuple(1.0 if i in (5, 11) else 0.0 for i in range(len(shapes)))  # LayerNorm gains
    program = _layer(heads, jnp, jax.nn.softmax, gelu, jax.lax.rsqrt)
    exact = _layer(heads, np, softmax_exact, gelu_exact, lambda v: 1.0 / np.sqrt(v))
    return Case(program, exact, shapes, scales, shifts)


def cases(*, tuned: bool) -> dict[str, Case]:
    """Return all cases by name.

    Parameters
    ----------
    tuned
        Use the piecewise GELU of SPU's transformer examples instead of ``jax.nn.gelu``.
    """
    gelu = gelu_pieces if tuned else jax.nn.gelu
    return {
        "matmul": Case(jnp.matmul, np.matmul, ((TOKENS, 768), (768, 768)), (1.0, 0.05), (0.0, 0.0)),
        "gelu": Case(gelu, gelu_exact, ((TOKENS, 3072),), (2.0,), (0.0,)),
        "softmax": Case(jax.nn.softmax, softmax_exact, ((12, TOKENS, TOKENS),), (2.0,), (0.0,)),
        "layer_minilm": encoder_layer(384, 1536, gelu),
        "layer_bert_base": encoder_layer(768, 3072, gelu),
    }
