"""Private functions as programs over an engine: truncation, linear layers, softmax, LayerNorm, ...

Each function checks the range rule at plan time and gives its flights. Flights of one encoder
layer at n = 128: Q K V 2, scores 1, maximum 28, exp 4 + 1, row inverse 6 + 2, P V 2, output 2,
LayerNorm 12, GELU block 2 + 5 + 2, LayerNorm 12.
"""

from __future__ import annotations

from functools import cache
from math import ceil, log2, prod, sqrt

import numpy as np

from privml.errors import ParameterError
from privml.protocols.mpc.arithmetic.affine import WEIGHT_SCALE, Affine
from privml.protocols.mpc.arithmetic.matmul import Linear, MatMul
from privml.protocols.mpc.arithmetic.mul import Mul, ScaleRows, SumSquares
from privml.protocols.mpc.arithmetic.truncate import Truncate
from privml.protocols.mpc.boolean.compare import Compare
from privml.protocols.mpc.boolean.logic import BitToRing
from privml.protocols.mpc.engine import HEADROOM_BITS, Engine, Known, Val
from privml.protocols.mpc.nonlinear import exp as exp_mod
from privml.protocols.mpc.nonlinear.exp import Exp
from privml.protocols.mpc.nonlinear.gelu import IN_SCALE, QUARTICS, Gelu
from privml.protocols.mpc.nonlinear.maximum import Maximum
from privml.protocols.mpc.nonlinear.rows import Normalise, PolyTruncate

#: Main fixed-point scale of activations.
F = 16
#: Scale at which GELU takes its input.
GELU_SCALE = IN_SCALE
_POLY = 14
_COEF = 16
_SPREAD = 58
_NODES = (1.0157651, 1.1278504, 1.2863631, 1.3984485)  # Chebyshev nodes of [1, sqrt(2)]


def truncate(e: Engine, x: Val, f: int, *, proved: bool = False) -> Val:
    """Drop ``f`` fractional bits; 1 flight."""
    e.need(x, "truncation", proved=proved)
    return e.result(e.apply(Truncate(x.shape, f), x), x.shape, scale=x.scale - f, bound=x.bound)


def mul(e: Engine, x: Val, y: Val) -> Val:
    """Element product at the sum of the scales; 1 flight."""
    words = e.apply(Mul(x.shape), x, y)
    return e.result(words, x.shape, scale=x.scale + y.scale, bound=x.bound * y.bound)


def matmul(e: Engine, x: Val, y: Val, *, bound: float) -> Val:
    """Batched matrix product of shared values, no truncation; 1 flight."""
    (b, n, k), m = x.shape, y.shape[2]
    words = e.apply(MatMul(b, n, k, m), x, y)
    return e.result(words, (b, n, m), scale=x.scale + y.scale, bound=bound)


def linear(
    e: Engine, x: Val, known: Known, *, name: str, m: int, weight_scale: int, out_scale: int,
    bound: float,
) -> Val:  # fmt: skip
    """``x @ W + bias`` for a weight that rank 0 knows; 2 flights (1 without truncation)."""
    n, k = x.shape
    f = x.scale + weight_scale - out_scale
    e.need(Val((n, m), x.scale + weight_scale, bound), f"linear layer {name}")
    words = e.apply(Linear(n, k, m, f, name), x, known=known)
    return e.result(words, (n, m), scale=out_scale, bound=bound)


def gelu(e: Engine, x: Val, variant: str, *, out_scale: int = F) -> Val:
    """GELU from scale 12 to scale 16, or another one; 5 flights."""
    e.need(Val(x.shape, max(out_scale, x.scale), x.bound), "GELU")
    if x.scale != GELU_SCALE:
        raise ParameterError(f"GELU takes {GELU_SCALE} fractional bits, not {x.scale}")
    words = e.apply(Gelu(x.shape, variant, out_scale), x)
    return e.result(words, x.shape, scale=out_scale, bound=x.bound + QUARTICS[variant].max_err)


def row_max(e: Engine, x: Val) -> Val:
    """Maximum over the last axis; 4 flights for each halving."""
    e.need(e.scaled(x, 2), "maximum")
    while x.shape[-1] > 1:
        width = x.shape[-1]
        half = width // 2
        a = _columns(e, x, 0, half)
        b = _columns(e, x, half, 2 * half)
        top = e.result(e.apply(Maximum(a.shape), a, b), a.shape, scale=x.scale, bound=x.bound)
        x = top if width % 2 == 0 else _append(e, top, x)
    return e.reshape(x, *x.shape[:-1])


def _columns(e: Engine, x: Val, start: int, stop: int) -> Val:
    return e.map(x, lambda w: w[..., start:stop], (*x.shape[:-1], stop - start))


def _append(e: Engine, top: Val, x: Val) -> Val:
    shape = (*top.shape[:-1], top.shape[-1] + 1)
    if top.words is None or x.words is None:
        return top.like(None, shape=shape)
    return top.like(np.concatenate([top.words, x.words[..., -1:]], axis=-1))


def exp_nonpositive(e: Engine, x: Val) -> Val:
    """exp(x) for x <= 0, scale 16 out; 5 flights. Below -15.5 the result is exactly 0."""
    shift = x.scale - F
    e.need(x, "exp")
    x = e.add_public(x, np.uint64((1 << 64) - (1 << shift)))
    y = e.result(e.apply(Exp(x.shape, shift), x), x.shape, scale=exp_mod.OUT_SCALE, bound=1.0)
    return truncate(e, y, exp_mod.OUT_SCALE - F, proved=True)


def _grid(low: float, high: float) -> list[float]:
    """Points low, low*sqrt(2), ... up to at least ``high``."""
    return [low * sqrt(2.0) ** i for i in range(ceil(2 * log2(high / low)) + 1)]


@cache
def _bank(
    scale: int, factor_scale: int, power: float, low: float, high: float, gain: float
) -> tuple[tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]], float]:
    """Thresholds, multipliers, factors that undo them, and the largest of these."""
    grid = [max(1, round(t * 2.0**scale)) for t in _grid(low, high)]
    mult = tuple(max(1, round(2.0**_SPREAD / t)) for t in grid)
    undo = tuple(gain * (m * 2.0 ** (scale - _SPREAD)) ** (-power) for m in mult)
    factors = tuple(round(u * 2.0**factor_scale) for u in undo)
    return (tuple(grid[1:]), mult, factors), max(undo)


@cache
def _cubic(power: float) -> tuple[int, int, int, int]:
    """Integer cubic for x^power on [1, sqrt(2)], input scale 14, output scale 58.

    Newton interpolation in plain arithmetic, so that both hosts get the same integers.
    """
    diff = [x**power for x in _NODES]
    for level in range(1, 4):
        for i in range(3, level - 1, -1):
            diff[i] = (diff[i] - diff[i - 1]) / (_NODES[i] - _NODES[i - level])
    coef = [diff[3], 0.0, 0.0, 0.0]
    for i in (2, 1, 0):
        shifted = [coef[k] - _NODES[i] * coef[k + 1] for k in range(3)]
        coef = [diff[i] - _NODES[i] * coef[0], *shifted]
    out = [round(c * 2.0 ** (_POLY * (3 - k) + _COEF)) for k, c in enumerate(coef)]
    return (out[0], out[1], out[2], out[3])


def row_power(
    e: Engine,
    s: Val,
    power: float,
    *,
    low: float,
    high: float,
    factor_scale: int,
    gain: float = 1.0,
    y_scale: int = F,
) -> tuple[Val, Val]:
    """``gain * s^power`` (power -1 or -1/2) for ``low <= s <= high`` as two factors; 6 flights.

    Returns ``(y, g)`` whose product it is: y in (0.7, 1.01) at ``y_scale``, g from the public bank
    at ``factor_scale``. Relative error below 2^-12.3 (power -1) or 2^-13 (power -1/2) plus the
    rounding of g.
    """
    if not 0 < low < high:
        raise ParameterError(f"a row inverse needs 0 < low < high, got [{low:g}, {high:g}]")
    shape = s.shape
    s = e.reshape(s, prod(shape))
    e.need(Val(s.shape, s.scale, high), "row inverse")
    bank, largest = _bank(s.scale, factor_scale, power, low, high, gain)
    pair = e.apply_pair(Normalise(prod(shape), *bank), s)
    v = e.result(pair[0], s.shape, scale=_SPREAD, bound=1.5)
    g = e.result(pair[1], s.shape, scale=factor_scale, bound=largest)
    e.need(v, "row inverse", proved=True)
    poly = PolyTruncate(prod(shape), _SPREAD - _POLY, _cubic(power))
    y = e.result(e.apply(poly, v), s.shape, scale=3 * _POLY + _COEF, bound=1.5)
    y = truncate(e, y, 3 * _POLY + _COEF - y_scale, proved=True)
    return e.reshape(y, *shape), e.reshape(g, *shape)


def scale_rows(e: Engine, x: Val, y: Val, g: Val, *, bound: float) -> Val:
    """``x * y * g`` for a matrix and two row factors, truncated to scale 16; 2 flights."""
    rows, cols = x.shape
    words = e.apply(ScaleRows(rows, cols), x, e.reshape(y, rows, 1), e.reshape(g, rows, 1))
    z = e.result(words, x.shape, scale=x.scale + y.scale + g.scale, bound=bound)
    return truncate(e, z, z.scale - F)


def softmax(e: Engine, x: Val) -> Val:
    """Softmax over the last axis of a matrix; 4 log2(n) + 13 flights."""
    rows, n = x.shape
    with e.scope("max"):
        top = row_max(e, x)
    with e.scope("exp"):
        y = exp_nonpositive(e, e.sub(x, e.reshape(top, rows, 1)))
    with e.scope("normalise"):
        total = e.row_sum(y, bound=float(n) * 1.01)
        inv, g = row_power(e, total, -1.0, low=0.98, high=n * 1.01, factor_scale=22)
        return scale_rows(e, y, inv, g, bound=1.1)


def reciprocal(e: Engine, s: Val, *, low: float, high: float) -> Val:
    """1/s elementwise for a public positive interval, scale 16 out; 8 flights."""
    y, g = row_power(e, s, -1.0, low=low, high=high, factor_scale=22)
    z = mul(e, y, g)
    return truncate(e, z.like(z.words, bound=1.1 / low), z.scale - F)


def rsqrt(e: Engine, s: Val, *, low: float, high: float) -> Val:
    """1/sqrt(s) elementwise for a public positive interval, scale 16 out; 8 flights."""
    y, g = row_power(e, s, -0.5, low=low, high=high, factor_scale=22)
    z = mul(e, y, g)
    return truncate(e, z.like(z.words, bound=1.1 / sqrt(low)), z.scale - F)


def layernorm(
    e: Engine, x: Val, affine: Known, *, name: str, eps: float, bound: float,
    variance: float | None = None,
) -> Val:  # fmt: skip
    """LayerNorm over the last axis of ``(rows, d)`` with secret gamma and beta; 12 or 13 flights.

    ``variance`` is the calibrated bound of the row variance; without it the bound of x squared
    serves. A row may have up to 4^HEADROOM_BITS times that variance, down to 2^-20: the comparison
    bank covers the whole range.
    """
    rows, d = x.shape
    x = x.like_bound(max(x.bound, 2.0**-8))
    total = e.row_sum(x, bound=x.bound * d)
    mean = truncate(e, e.scaled(total, round(2.0**30 / d), more_scale=30), 30)
    centred = e.sub(x, e.reshape(mean, rows, 1))
    usual = x.bound**2 if variance is None else max(variance, 2.0**-16)
    sumsq_bound = d * usual * 4.0**HEADROOM_BITS
    words = e.apply(SumSquares(rows, d), centred)
    sumsq = e.result(words, (rows,), scale=2 * x.scale, bound=sumsq_bound)
    floor = max(1, round(d * eps * 2.0**sumsq.scale))
    sumsq = e.add_public(sumsq, np.uint64(floor))
    high = 2 * sumsq_bound
    spare = ceil(log2(high)) + sumsq.scale - 48
    if spare > 0:
        sumsq = truncate(e, sumsq, spare, proved=True)  # the bound has its head-room inside
    low = max(d * eps, d * 2.0**-20, 2.0 ** (8 - sumsq.scale))
    y, g = row_power(e, sumsq, -0.5, low=low, high=high, factor_scale=18, gain=sqrt(d))
    unit = scale_rows(e, centred, y, g, bound=sqrt(d))
    return affine_rows(e, unit, affine, name=name, bound=bound)


def affine_rows(e: Engine, x: Val, known: Known, *, name: str, bound: float) -> Val:
    """``x * gamma + beta`` column by column with the server's vectors; 2 flights."""
    rows, d = x.shape
    words = e.apply(Affine(rows, d, WEIGHT_SCALE, name), x, known=known)
    return e.result(words, x.shape, scale=x.scale, bound=bound)


def sign_split(e: Engine, x: Val) -> tuple[Val, Val]:
    """``(s, |x|)`` with s = 1{x >= 0} as a 0/1 ring value; 5 flights."""
    e.need(x, "comparison")
    bit = Val((1,), 0, 1.0, e.apply(Compare(x.shape), x))
    flat = None if bit.words is None else bit.words[0]
    ring = e.apply(BitToRing(x.shape), Val((1,), 0, 1.0, flat))
    s = e.result(ring, x.shape, scale=0, bound=1.0)
    twice = mul(e, s, x)
    return s, e.sub(e.scaled(twice, 2), x).like_bound(x.bound)


def tanh(e: Engine, x: Val) -> Val:
    """tanh(x) at scale 16 through exp(-2|x|) and one reciprocal; 21 flights.

    Meant for pooled rows: it costs no approximation of its own.
    """
    s, size = sign_split(e, x)
    t = exp_nonpositive(e, e.scaled(size, -2))
    one = np.uint64(1 << F)
    den = e.add_public(t, one, bound=1.0)
    num = e.add_public(e.scaled(t, -1), one, bound=1.0)
    value = mul(e, num, reciprocal(e, den, low=0.98, high=2.05))
    mag = truncate(e, value.like(value.words, bound=1.1), F)
    signed = mul(e, s, mag)
    return e.sub(e.scaled(signed, 2), mag).like_bound(1.0)
