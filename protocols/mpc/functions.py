"""Private functions as programs over an engine: truncation, linear layers, softmax, LayerNorm, ...

Each function checks the range rule at plan time and gives its flights. Flights of one encoder
layer at n = 128: Q K V 2, scores 1, maximum 12, exp 3 + 1, row inverse 3 + 2, P V 2, output 2,
LayerNorm 8, GELU block 2 + 4 + 2, LayerNorm 8.
"""

from __future__ import annotations

from functools import cache, partial
from math import ceil, log2, prod, sqrt

import numpy as np

from privml.errors import ParameterError
from privml.protocols.mpc.arithmetic.affine import WEIGHT_SCALE, Affine
from privml.protocols.mpc.arithmetic.matmul import Linear, MatMul
from privml.protocols.mpc.arithmetic.moments import MEAN_BITS, Moments
from privml.protocols.mpc.arithmetic.mul import Mul, ScaleRows
from privml.protocols.mpc.arithmetic.truncate import Truncate
from privml.protocols.mpc.boolean.compare import Compare
from privml.protocols.mpc.boolean.logic import Select
from privml.protocols.mpc.engine import HEADROOM_BITS, Engine, Known, Val
from privml.protocols.mpc.nonlinear import exp as exp_mod
from privml.protocols.mpc.nonlinear.exp import Exp
from privml.protocols.mpc.nonlinear.gelu import IN_SCALE, QUARTICS, Gelu
from privml.protocols.mpc.nonlinear.maximum import BITS as MAX_BITS
from privml.protocols.mpc.nonlinear.maximum import GROUP, Maximum
from privml.protocols.mpc.nonlinear.rows import ARGUMENT, SPREAD, RowPower, intervals
from privml.protocols.mpc.primitive import Words

#: Main fixed-point scale of activations.
F = 16
#: Scale at which GELU takes its input.
GELU_SCALE = IN_SCALE
#: Bits of a sum of squares that the comparison bank of a square root takes.
MAX_SUM_BITS = 57
_COEF = 16
_NODES = (1.0157651, 1.1278504, 1.2863631, 1.3984485)  # Chebyshev nodes of [1, sqrt(2)]


def truncate(e: Engine, x: Val, f: int, *, proved: bool = False) -> Val:
    """Drop ``f`` fractional bits; 1 flight."""
    e.need(x, "truncation", proved=proved)
    return e.result(e.apply(Truncate(x.shape, f), x), x.shape, scale=x.scale - f, bound=x.bound)


def within(x: Val, largest: float, what: str) -> None:
    """Refuse a value whose bound, with head-room, exceeds what a step is made for."""
    if not x.bound * 2.0**HEADROOM_BITS <= largest:
        raise ParameterError(
            f"{what}: values up to {x.bound:.4g} leave fewer than {HEADROOM_BITS} bits of "
            f"head-room below {largest:.4g}; check the calibrated ranges of the model"
        )


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
    """GELU from scale 12 to scale 16, or another one; 4 flights, 5 for a large bound."""
    e.need(Val(x.shape, max(out_scale, x.scale), x.bound), "GELU")
    if x.scale != GELU_SCALE:
        raise ParameterError(f"GELU takes {GELU_SCALE} fractional bits, not {x.scale}")
    words = e.apply(Gelu(x.shape, variant, out_scale, gelu_bits(x)), x)
    return e.result(words, x.shape, scale=out_scale, bound=x.bound + QUARTICS[variant].max_err)


def gelu_bits(x: Val) -> int:
    """Bits of the comparisons of GELU: 24 hold 2,048, and at least the bound with head-room."""
    return compared_bits((x.bound * 2.0**HEADROOM_BITS + 4) * 2.0**GELU_SCALE, least=24)


def row_max(e: Engine, x: Val) -> Val:
    """One of the largest over the last axis, see :func:`max_slack`; 3 flights for each quartering.

    The calibrated bound may be exceeded by its head-room.
    """
    e.need(e.scaled(x, 2), "maximum")
    rows, start = prod(x.shape[:-1]), _max_start(x)
    top = e.reshape(x, rows, x.shape[-1])
    while top.shape[1] > 1:
        groups = -(-top.shape[1] // GROUP)
        fours = e.map(top, partial(_in_fours, groups=groups), (GROUP, rows * groups))
        words = e.apply(Maximum(rows * groups, start), fours)
        top = e.result(words, (rows * groups,), scale=x.scale, bound=x.bound)
        top = e.reshape(top, rows, groups)
    return e.reshape(top, *(x.shape[:-1] or (1,)))


def _in_fours(w: Words, *, groups: int) -> Words:
    """Deal the columns to groups of four; the last column fills up what is missing."""
    missing = GROUP * groups - w.shape[1]
    whole = np.concatenate([w, np.repeat(w[:, -1:], missing, axis=1)], axis=1) if missing else w
    return whole.reshape(len(w), GROUP, groups).transpose(1, 0, 2).reshape(GROUP, -1)


def _max_start(x: Val) -> int:
    """Lowest bit of the comparisons: differences, with head-room, stay below 2^23 units of it."""
    largest = max(2 * x.bound * 2.0**HEADROOM_BITS, 1.0)
    return max(0, ceil(log2(largest)) + x.scale - (MAX_BITS - 1))


def max_slack(x: Val, columns: int) -> float:
    """How far below the largest value :func:`row_max` of ``columns`` values may stay, at most."""
    rounds = ceil(log2(columns) / 2)
    return 2.0 * rounds * 2.0 ** (_max_start(x) - x.scale)


def below_max(e: Engine, x: Val, *, columns: int) -> Val:
    """``x`` minus an upper bound of its rows' maxima: at most 0, the largest above -2 slack."""
    top = e.reshape(row_max(e, x), *x.shape[:-1], 1)
    slack = round(max_slack(x, columns) * 2.0**x.scale)
    return e.add_public(e.sub(x, top), np.uint64(-slack % (1 << 64)))


def exp_nonpositive(e: Engine, x: Val) -> Val:
    """exp(x) for x <= 0, scale 16 out; 4 flights. Below -15.5 the result is exactly 0."""
    shift = x.scale - F
    e.need(x, "exp")
    within(x, exp_mod.RANGE, "exp")
    x = e.add_public(x, np.uint64((1 << 64) - (1 << shift)))
    y = e.result(e.apply(Exp(x.shape, shift), x), x.shape, scale=exp_mod.OUT_SCALE, bound=1.0)
    return truncate(e, y, exp_mod.OUT_SCALE - F, proved=True)


@cache
def _bank(
    scale: int, factor_scale: int, power: float, low: float, high: float, gain: float
) -> tuple[tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]], float]:
    """Thresholds, multipliers, factors that undo them, and the largest of these."""
    first = max(1, round(low * 2.0**scale))
    thresholds, mult = intervals(first, ceil(high * 2.0**scale))
    undo = tuple(gain * (m * 2.0 ** (scale - SPREAD)) ** (-power) for m in mult)
    factors = tuple(round(u * 2.0**factor_scale) for u in undo)
    return (thresholds, mult, factors), max(undo)


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
    out = [round(c * 2.0 ** (ARGUMENT * (3 - k) + _COEF)) for k, c in enumerate(coef)]
    return (out[0], out[1], out[2], out[3])


def row_power(
    e: Engine, s: Val, power: float, *, low: float, high: float, factor_scale: int,
    gain: float = 1.0,
) -> Val:  # fmt: skip
    """``gain * s^power`` (power -1 or -1/2) for ``low <= s <= high``; 4 flights, 3 for short s.

    The scale of the result is 16 + ``factor_scale``, its relative error below 2^-12.3 (power -1) or
    2^-13 (power -1/2) plus the rounding of factors of ``factor_scale`` bits. Where s is 0 the
    result is some number.
    """
    if not 0 < low < high:
        raise ParameterError(f"a row inverse needs 0 < low < high, got [{low:g}, {high:g}]")
    shape = s.shape
    s = e.reshape(s, prod(shape))
    e.need(Val(s.shape, s.scale, high), "row inverse")
    bank, largest = _bank(s.scale, factor_scale, power, low, high, gain)
    drop = 3 * ARGUMENT + _COEF - F
    bits = compared_bits(high * 2.0**s.scale)
    words = e.apply(RowPower(prod(shape), *bank, _cubic(power), drop, bits), s)
    out = e.result(words, s.shape, scale=F + factor_scale, bound=1.5 * largest)
    return e.reshape(out, *shape)


def compared_bits(largest: float, *, least: int = 4) -> int:
    """Bits of a comparison whose differences stay below ``largest``: at most 32, or 64."""
    bits = max(least, 4 * ceil((log2(max(largest, 1.0)) + 1) / 4))
    return bits if bits <= 32 else 64


def scale_rows(e: Engine, x: Val, factor: Val) -> Val:
    """``x * factor`` for a matrix and a factor for each row, no truncation; 1 flight."""
    rows, cols = x.shape
    words = e.apply(ScaleRows(rows, cols), x, e.reshape(factor, rows, 1))
    return e.result(words, x.shape, scale=x.scale + factor.scale, bound=x.bound * factor.bound)


def softmax(e: Engine, x: Val) -> Val:
    """Softmax over the last axis of a matrix; 3 log4(n) + 9 flights."""
    with e.scope("max"):
        below = below_max(e, x, columns=x.shape[1])
    with e.scope("exp"):
        y = exp_nonpositive(e, below)
    with e.scope("normalise"):
        return normalised(e, y, slack=max_slack(x, x.shape[1]), columns=x.shape[1])


def normalised(e: Engine, y: Val, *, slack: float, columns: int) -> Val:
    """Rows of exponentials, at most ``columns`` each, divided by their sum; 5 flights.

    The largest exponential of a row is at least exp(-2 ``slack``); rows of zeros stay zeros.
    """
    total = e.row_sum(y, bound=columns * 1.01)
    low = 0.98 / (1 + 2 * slack + 4 * slack**2)
    inverse = row_power(e, total, -1.0, low=low, high=columns * 1.01, factor_scale=22)
    z = scale_rows(e, y, inverse).like_bound(1.1)
    flat = truncate(e, e.reshape(z, prod(z.shape)), z.scale - F, proved=True)
    return e.reshape(flat, *z.shape)


def reciprocal(e: Engine, s: Val, *, low: float, high: float) -> Val:
    """1/s elementwise for a public positive interval, scale 16 out; 4 or 5 flights."""
    y = row_power(e, s, -1.0, low=low, high=high, factor_scale=22)
    return truncate(e, y.like_bound(1.1 / low), y.scale - F)


def rsqrt(e: Engine, s: Val, *, low: float, high: float) -> Val:
    """1/sqrt(s) elementwise for a public positive interval, scale 16 out; 4 or 5 flights."""
    y = row_power(e, s, -0.5, low=low, high=high, factor_scale=22)
    return truncate(e, y.like_bound(1.1 / sqrt(low)), y.scale - F)


def layernorm(
    e: Engine, x: Val, affine: Known, *, name: str, eps: float, bound: float,
    variance: float | None = None,
) -> Val:  # fmt: skip
    """LayerNorm over the last axis of ``(rows, d)`` with secret gamma and beta; 8 or 9 flights.

    ``variance`` is the calibrated bound of the row variance; without it the bound of x squared
    serves. A row may have up to 4^HEADROOM_BITS times that variance, down to 2^-20: the comparison
    bank covers the whole range.
    """
    d = x.shape[1]
    x = x.like_bound(max(x.bound, 2.0**-8))
    usual = x.bound**2 if variance is None else max(variance, 2.0**-16)
    sumsq_bound = d * usual * 4.0**HEADROOM_BITS
    centred, sumsq = _centred(e, x, sumsq_bound)
    floor = max(1, round(d * eps * 2.0**sumsq.scale))
    sumsq = e.add_public(sumsq, np.uint64(floor))
    high = 2 * sumsq_bound
    spare = ceil(log2(high)) + sumsq.scale - MAX_SUM_BITS
    if spare > 0:
        sumsq = truncate(e, sumsq, spare, proved=True)  # the bound has its head-room inside
    low = max(d * eps, d * 2.0**-20, 2.0 ** (8 - sumsq.scale))
    factor = row_power(e, sumsq, -0.5, low=low, high=high, factor_scale=18, gain=sqrt(d))
    unit = scale_rows(e, centred, factor).like_bound(sqrt(d))
    return affine_rows(e, unit, affine, name=name, bound=bound)


def _centred(e: Engine, x: Val, sumsq_bound: float) -> tuple[Val, Val]:
    """Rows minus their means, and the sums of squares of that at twice the scale; 1 flight."""
    rows, d = x.shape
    prim = Moments(rows, d)
    total = e.row_sum(x, bound=x.bound * d)
    e.need(e.scaled(total, int(prim.inverse), more_scale=MEAN_BITS), "mean")
    mean, sumsq = e.apply_pair(prim, x)
    means = e.result(mean, (rows,), scale=x.scale, bound=x.bound)
    sums = e.result(sumsq, (rows,), scale=2 * x.scale, bound=sumsq_bound)
    return e.sub(x, e.reshape(means, rows, 1)), sums


def affine_rows(e: Engine, x: Val, known: Known, *, name: str, bound: float) -> Val:
    """``x * gamma + beta`` column by column with the server's vectors, scale 16 out; 2 flights."""
    rows, d = x.shape
    e.need(x, f"unit rows of {name}")
    e.need(Val(x.shape, F + WEIGHT_SCALE, bound), f"affine map of {name}")
    words = e.apply(Affine(rows, d, x.scale - F, WEIGHT_SCALE, name), x, known=known)
    return e.result(words, x.shape, scale=F, bound=bound)


def tanh(e: Engine, x: Val) -> Val:
    """tanh(x) at scale 16 through exp(-2|x|) and one reciprocal; 13 or 14 flights.

    Meant for pooled rows: it costs no approximation of its own.
    """
    n = prod(x.shape)
    bits = compared_bits(x.bound * 2.0 ** (x.scale + HEADROOM_BITS) + 1)  # the end counts as inside
    e.need(x, "comparison")
    planes = e.apply(Compare((n,), (0,), bits), e.reshape(x, n))
    sign = Val((1,), 0, 1.0, None if planes is None else planes[0])
    t = exp_nonpositive(e, e.scaled(_size(e, sign, x), -2))
    one = np.uint64(1 << F)
    inverse = row_power(
        e, e.add_public(t, one, bound=1.0), -1.0, low=0.98, high=2.05, factor_scale=22
    )
    num = e.reshape(e.add_public(e.scaled(t, -1), one, bound=1.0), n, 1)
    value = scale_rows(e, num, inverse).like_bound(1.1)
    mag = e.reshape(truncate(e, value, value.scale - F), *x.shape)
    # The sign's turn: 2 s m - m is m where s = 1{x >= 0}, else -m.
    return _size(e, sign, mag).like_bound(1.0)


def _size(e: Engine, sign: Val, x: Val) -> Val:
    """``x`` where the packed bit is 1, ``-x`` where it is 0; 1 flight."""
    words = e.apply(Select(x.shape), sign, x)
    chosen = e.result(words, x.shape, scale=x.scale, bound=x.bound)
    return e.sub(e.scaled(chosen, 2), x).like_bound(x.bound)
