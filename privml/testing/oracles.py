"""What each primitive must return, in Python integers and floats, written apart from the engine.

Ring operations and comparisons are exact; a truncation may give the floor or the floor plus one;
exponential and GELU are held against :mod:`math` within their declared errors. Nothing here looks
at masks, so the oracles judge the functionality and not one way to compute it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from privml.protocols.mpc.fields import Array
from privml.testing.cases import Case

EXP_ERROR = 4e-5
"""Largest declared error of exp on x <= 0, after the rounding of x and with clipping."""
GELU_ERROR = 2.3e-3
"""Largest declared error of GELU ``ring4`` on all of the ring, before the output's rounding."""
EXP_LOW_ERROR = 2.0**-8
"""Largest declared error of the low exp on x <= 0, after the rounding of x and with clipping."""

Ints = list[int]
Judge = Callable[[Any, list[Ints], list[Ints]], list[bool]]


def signed(x: Array) -> Ints:
    """Return the flat signed values of ring words of any width."""
    return [int(v) for v in x.reshape(-1).view(f"i{x.itemsize}")]


def unsigned(x: Array) -> Ints:
    """Return the flat unsigned values of ring words."""
    return [int(v) for v in x.reshape(-1)]


def bits(planes: Array, n: int) -> list[Ints]:
    """Return the first ``n`` bits of each packed row."""
    rows = planes if planes.ndim == 2 else planes[None]
    return [[int(row[i // 64]) >> (i % 64) & 1 for i in range(n)] for row in rows]


def wrong(case: Case, outputs: tuple[Array, ...]) -> list[str]:
    """Name elements of the clear ``outputs`` that the functionality forbids, at most five."""
    good = _JUDGES[case.prim.name](case, outputs)
    bad = [i for i, ok in enumerate(good) if not ok]
    return [f"{case.prim.name}: output element {i} is wrong" for i in bad[:5]]


def _fits(got: int, x: int, f: int) -> bool:
    """Whether ``got`` is the floor of x / 2^f, or one more where there is a remainder."""
    low, rest = divmod(x, 1 << f)
    return got == low or (rest > 0 and got == low + 1)


def _truncate(case: Case, out: tuple[Array, ...]) -> list[bool]:
    f = case.prim.f  # type: ignore[attr-defined]
    return [_fits(y, x, f) for y, x in zip(signed(out[0]), signed(case.inputs[0]), strict=True)]


def _objects(x: Array) -> NDArray[np.object_]:
    """Return the array as Python integers, for exact arithmetic."""
    return x.view(f"i{x.itemsize}").astype(object)


def _same(out: Array, want: ArrayLike) -> list[bool]:
    """Element equality modulo the width of ``out``."""
    size = 1 << (8 * out.itemsize)
    flat = np.asarray(want, object).reshape(-1)
    return [int(a) == int(b) % size for a, b in zip(out.reshape(-1), flat, strict=True)]


def _product(case: Case, out: tuple[Array, ...]) -> list[bool]:
    want = 1
    for x in case.inputs:
        want = want * _objects(x)
    return _same(out[0], want)


def _square(case: Case, out: tuple[Array, ...]) -> list[bool]:
    return _same(out[0], _objects(case.inputs[0]) ** 2)


def _moments(case: Case, out: tuple[Array, ...]) -> list[bool]:
    inverse = int(case.prim.inverse)  # type: ignore[attr-defined]
    good = []
    rows = _objects(case.inputs[0]).tolist()
    for mean, got, row in zip(signed(out[0]), unsigned(out[1]), rows, strict=True):
        squares = sum((x - mean) ** 2 for x in row)
        good.append(_fits(mean, sum(row) * inverse, 30) and got == squares % (1 << 64))
    return good


def _matmul(case: Case, out: tuple[Array, ...]) -> list[bool]:
    x, y = (_objects(v) for v in case.inputs)
    prim: Any = case.prim
    want = [
        sum(x[b, i, k] * y[b, k, j] for k in range(prim.k))
        for b in range(prim.b) for i in range(prim.n) for j in range(prim.m)
    ]  # fmt: skip
    return _same(out[0], want)


def _owned(case: Case, out: tuple[Array, ...]) -> list[bool]:
    prim: Any = case.prim
    known = case.known
    if known is None or known.weight is None:
        raise AssertionError("internal error in privml: a weight-owner case needs its operand")
    x, w = _objects(case.inputs[0]), _objects(known.weight)
    z = x * w if w.ndim == 1 else x.dot(w)
    if known.bias is not None:
        z = z + _objects(known.bias)
    if prim.f == 0:
        return _same(out[0], z)
    return [_fits(y, int(v), prim.f) for y, v in zip(signed(out[0]), z.reshape(-1), strict=True)]


def _affine(case: Case, out: tuple[Array, ...]) -> list[bool]:
    prim: Any = case.prim
    known = case.known
    if known is None or known.weight is None:
        raise AssertionError("internal error in privml: a weight-owner case needs its operand")
    weight = signed(known.weight)
    bias = [0] * prim.d if known.bias is None else signed(known.bias)
    good = []
    for i, (got, x) in enumerate(zip(signed(out[0]), signed(case.inputs[0]), strict=True)):
        w, b = weight[i % prim.d], bias[i % prim.d]
        good.append(any(_fits(got, y * w + b, prim.f) for y in _floors(x, prim.g)))
    return good


def _floors(x: int, f: int) -> tuple[int, ...]:
    """Return what a truncation of ``x`` may give."""
    low, rest = divmod(x, 1 << f)
    return (low, low + 1) if rest else (low,)


def _compare(case: Case, out: tuple[Array, ...]) -> list[bool]:
    prim: Any = case.prim
    x = _short(case.inputs[0], prim.bits)
    rows = bits(out[0], len(x))
    want = [[int(v >= t) for v in x] for t in prim.thresholds]
    return [a == b for got, row in zip(rows, want, strict=True)
            for a, b in zip(got, row, strict=True)]  # fmt: skip


def _short(x: Array, bits: int) -> Ints:
    """Return signed values of ring words modulo 2^bits."""
    half = 1 << (bits - 1)
    return [(v + half) % (2 * half) - half for v in unsigned(x)]


def _and(case: Case, out: tuple[Array, ...]) -> list[bool]:
    x, y = (unsigned(v) for v in case.inputs)
    return [a == b & c for a, b, c in zip(unsigned(out[0]), x, y, strict=True)]


def _bit_to_ring(case: Case, out: tuple[Array, ...]) -> list[bool]:
    got = unsigned(out[0])
    return [a == b for a, b in zip(got, _flags(case, len(got)), strict=True)]


def _flags(case: Case, n: int) -> Ints:
    return bits(case.inputs[0], n)[0]


def _select(case: Case, out: tuple[Array, ...]) -> list[bool]:
    x = unsigned(case.inputs[1])
    pairs = zip(unsigned(out[0]), _flags(case, len(x)), x, strict=True)
    return [got == b * v for got, b, v in pairs]


def _maximum(case: Case, out: tuple[Array, ...]) -> list[bool]:
    unit = 1 << case.prim.start  # type: ignore[attr-defined]
    groups = zip(*(signed(row) for row in case.inputs[0]), strict=True)
    return [
        got in group and (got == max(group) or (max(group) - got < 2 * unit and unit > 1))
        for got, group in zip(signed(out[0]), groups, strict=True)
    ]


def _exp(case: Case, out: tuple[Array, ...]) -> list[bool]:
    prim: Any = case.prim
    one, clip = 2.0 ** (16 + prim.shift), -15.5
    good = []
    for got, x in zip(signed(out[0]), signed(case.inputs[0]), strict=True):
        real = x / one
        exact = math.exp(real) if real >= clip else 0.0
        good.append(abs(got / 2.0**60 - exact) <= EXP_ERROR and (real >= clip or got == 0))
    return good


def _gelu(case: Case, out: tuple[Array, ...]) -> list[bool]:
    good = []
    for got, x in zip(signed(out[0]), signed(case.inputs[0]), strict=True):
        real = x / 2.0**12
        exact = 0.5 * real * (1 + math.erf(real / math.sqrt(2)))
        close = abs(got / 2.0**16 - exact) <= GELU_ERROR + 2.0**-16
        good.append(close and (abs(real) < 3.3 or got == (x << 4 if x > 0 else 0)))
    return good


def _exp_low(case: Case, out: tuple[Array, ...]) -> list[bool]:
    prim: Any = case.prim
    good = []
    for got, x in zip(signed(out[0]), signed(case.inputs[0]), strict=True):
        real = x / 2.0 ** (16 + prim.shift)
        exact = math.exp(real) if real >= -8 else 0.0
        good.append(abs(got / 2.0**30 - exact) <= EXP_LOW_ERROR and (real >= -8 or got == 0))
    return good


def _gelu_low(case: Case, out: tuple[Array, ...]) -> list[bool]:
    want = []
    for x in signed(case.inputs[0]):
        middle = 73 * x * x + (x << 19)
        want.append(0 if x < -7182 else middle if x < 7182 else x << 20)
    return _same(out[0], want)


def _stable_keys(case: Case, out: tuple[Array, ...]) -> list[bool]:
    prim: Any = case.prim
    n = prim.n
    flags = _flags(case, n * prim.classes)
    kind = [sum(flags[i::n]) for i in range(n)]
    want = [0] * n
    for place, row in enumerate(sorted(range(n), key=lambda i: (-kind[i], i))):
        want[row] = place
    return _same(out[0], want) + _same(out[1], flags)


def _compact(case: Case, out: tuple[Array, ...]) -> list[bool]:
    prim: Any = case.prim
    rows, keys, counts = (x.tolist() for x in case.inputs)
    kept = prim.keep or counts[0]
    by_key = [row for _, row in sorted(zip(keys, rows, strict=True))][:kept]
    if out[0].shape != (kept, prim.width):
        return [False]
    return _same(out[0], by_key) + _same(out[1], counts)


def _row_power(case: Case, out: tuple[Array, ...]) -> list[bool]:
    prim: Any = case.prim
    a = prim.coefficients
    good = []
    for got, x in zip(unsigned(out[0]), signed(case.inputs[0]), strict=True):
        at = sum(x >= t for t in prim.thresholds)
        cubes = [
            a[0] + y * (a[1] + y * (a[2] + y * a[3])) for y in _floors(prim.multipliers[at] * x, 47)
        ]
        values = [prim.factors[at] * y for cube in cubes for y in _floors(cube, prim.f)]
        good.append(got in [v % (1 << 64) for v in values])
    return good


def _reveal(case: Case, out: tuple[Array, ...]) -> list[bool]:
    return _same(out[0], _objects(case.inputs[0]))


_JUDGES: Mapping[str, Callable[[Case, tuple[Array, ...]], list[bool]]] = {
    "truncate": _truncate,
    "mul": _product,
    "square": _square,
    "moments": _moments,
    "scale_rows": _product,
    "matmul": _matmul,
    "linear": _owned,
    "affine": _affine,
    "compare": _compare,
    "and": _and,
    "bit_to_ring": _bit_to_ring,
    "select": _select,
    "maximum": _maximum,
    "exp": _exp,
    "gelu": _gelu,
    "exp_low": _exp_low,
    "gelu_low": _gelu_low,
    "block_matmul": _matmul,
    "stable_keys": _stable_keys,
    "compact": _compact,
    "row_power": _row_power,
    "reveal": _reveal,
}
