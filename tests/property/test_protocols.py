"""Every primitive on adversarial values: exact integers, execute equal to simulate bit for bit."""

from __future__ import annotations

from collections.abc import Callable
from math import prod
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from privml.protocols.mpc.arithmetic.affine import Affine
from privml.protocols.mpc.arithmetic.matmul import Linear, MatMul
from privml.protocols.mpc.arithmetic.moments import Moments
from privml.protocols.mpc.arithmetic.mul import Mul, ScaleRows, Square
from privml.protocols.mpc.arithmetic.truncate import Truncate, finish, simulate, wrap_dtype
from privml.protocols.mpc.boolean.compare import Compare, packed
from privml.protocols.mpc.boolean.logic import And, BitToRing, Select
from privml.protocols.mpc.engine import Known
from privml.protocols.mpc.nonlinear.exp import Exp
from privml.protocols.mpc.nonlinear.gelu import QUARTICS, Gelu
from privml.protocols.mpc.nonlinear.maximum import Maximum
from privml.protocols.mpc.nonlinear.rows import RowPower, intervals
from privml.protocols.mpc.primitive import HALF
from privml.protocols.mpc.program import Reveal
from privml.testing.cases import EDGE, Case, fresh_seeds, joined, play, simulated
from privml.testing.oracles import wrong

SHAPES = [(1,), (0,), (65,), (3, 7), (2, 1, 33), (2, 3, 2, 5)]
WORD = (1 << 64) - 1
Draw = Callable[..., Any]


def values(low: int, high: int, *marks: int) -> st.SearchStrategy[list[int]]:
    """A few integers between two ends, mostly ends, marks and their neighbours."""
    special = {low, high, 0, *(m + d for m in (low, high, 0, *marks) for d in (-1, 0, 1))}
    inside = sorted(v for v in special if low <= v <= high)
    one = st.sampled_from(inside) | st.integers(low, high)
    return st.lists(one, min_size=1, max_size=9)


def fill(draw: Draw, strategy: st.SearchStrategy[list[int]], shape: tuple[int, ...],
         dtype: str = "u8") -> Any:  # fmt: skip
    """Repeat a few drawn integers over an array of ring words."""
    few = draw(strategy)
    size = 1 << (8 * int(dtype[1:]))
    words = np.array([v % size for v in few], np.dtype(dtype))
    return np.resize(words, prod(shape)).reshape(shape)


def any_word(dtype: str = "u8") -> st.SearchStrategy[list[int]]:
    top = 1 << (8 * int(dtype[1:]))
    return values(0, top - 1, top // 2)


def planes(draw: Draw, n: int) -> Any:
    return fill(draw, any_word(), (packed(n),))


def truncate(draw: Draw) -> Case:
    shape, f = draw(st.sampled_from(SHAPES)), draw(st.integers(1, 61))
    return Case(Truncate(shape, f), (fill(draw, values(-EDGE, EDGE, 1 << f, -1 << f), shape),))


def mul(draw: Draw) -> Case:
    shape, dtype = draw(st.sampled_from(SHAPES)), draw(st.sampled_from(["u8", "u4"]))
    x, y = (fill(draw, any_word(dtype), shape, dtype) for _ in range(2))
    return Case(Mul(shape, dtype), (x, y))


def square(draw: Draw) -> Case:
    shape = draw(st.sampled_from(SHAPES))
    return Case(Square(shape), (fill(draw, any_word(), shape),))


def sizes(draw: Draw, count: int, low: int = 1) -> list[int]:
    return [draw(st.integers(low, 5)) for _ in range(count)]


def moments(draw: Draw) -> Case:
    rows, cols = sizes(draw, 2)
    return Case(Moments(rows, cols), (fill(draw, values(-(1 << 28), 1 << 28), (rows, cols)),))


def scale_rows(draw: Draw) -> Case:
    rows, cols = sizes(draw, 2)
    x, y = (fill(draw, any_word(), s) for s in ((rows, cols), (rows, 1)))
    return Case(ScaleRows(rows, cols), (x, y))


def matmul(draw: Draw) -> Case:
    b, n, k, m = sizes(draw, 4)
    dtype = draw(st.sampled_from(["u8", "u4"]))
    x, y = (fill(draw, any_word(dtype), s, dtype) for s in ((b, n, k), (b, k, m)))
    return Case(MatMul(b, n, k, m, dtype), (x, y))


def linear(draw: Draw) -> Case:
    (n, k, m), f = sizes(draw, 3), draw(st.sampled_from([0, 1, 12, 16, 44]))
    x = fill(draw, values(-(1 << 38), 1 << 38), (n, k))
    w = fill(draw, values(-(1 << 20), 1 << 20), (k, m))
    b = fill(draw, values(-(1 << 60), 1 << 60), (m,))
    bias = draw(st.sampled_from([b, None]))
    return Case(Linear(n, k, m, f, "w"), (x,), known=Known(w, bias))


def affine(draw: Draw) -> Case:
    (n, d), f = sizes(draw, 2), draw(st.sampled_from([1, 14, 40]))
    g = draw(st.sampled_from([1, 22, 34]))
    x = fill(draw, values(-(1 << (40 + min(g, 21))), 1 << (40 + min(g, 21)), 1 << g), (n, d))
    w = fill(draw, values(-(1 << 20), 1 << 20), (d,))
    b = fill(draw, values(-(1 << 61), 1 << 61), (d,))
    return Case(Affine(n, d, g, f, "w"), (x,), known=Known(w, draw(st.sampled_from([b, None]))))


def compare(draw: Draw) -> Case:
    shape, bits = draw(st.sampled_from(SHAPES)), draw(st.sampled_from([64, 32, 28, 16, 8]))
    top = (1 << (bits - 2)) - 1
    cuts = draw(values(-top, top))[:4]
    x = fill(draw, values(-top, top, *cuts), shape, "u8" if bits > 32 else "u4")
    return Case(Compare(shape, tuple(cuts), bits), (x,))


def and_bits(draw: Draw) -> Case:
    n = draw(st.sampled_from([0, 1, 64, 65, 130]))
    return Case(And(n), (planes(draw, n), planes(draw, n)), frozenset({0, 1}))


def bit_to_ring(draw: Draw) -> Case:
    shape = draw(st.sampled_from(SHAPES))
    return Case(BitToRing(shape), (planes(draw, prod(shape)),), frozenset({0}))


def select(draw: Draw) -> Case:
    shape = draw(st.sampled_from(SHAPES))
    x = fill(draw, any_word(), shape)
    return Case(Select(shape), (planes(draw, prod(shape)), x), frozenset({0}))


def maximum(draw: Draw) -> Case:
    n, start = draw(st.sampled_from([0, 1, 65])), draw(st.sampled_from([0, 3, 20, 40]))
    top = (1 << (start + 22)) - (1 << start)
    x = [fill(draw, values(-top + 1, top - 1, 1 << start), (n,)) for _ in range(4)]
    return Case(Maximum(n, start), (np.stack(x),))


def exp(draw: Draw) -> Case:
    shape, shift = draw(st.sampled_from(SHAPES)), draw(st.sampled_from([0, 4, 16, 20, 28]))
    unit = 1 << shift
    clip = -31 << (15 + shift)
    marks = (clip, clip - 1, -(16 << 16) * unit, -(32 << 16) * unit, -3 * unit // 2)
    lowest = max(-EDGE, -(1 << (35 + shift)) + (1 << (20 + shift)))
    return Case(Exp(shape, shift), (fill(draw, values(lowest, -unit, *marks), shape),))


def gelu(draw: Draw) -> Case:
    shape = draw(st.sampled_from(SHAPES))
    cut = round(3.2 * 4096)
    bits = draw(st.sampled_from([24, 28, 64]))
    x = fill(draw, values(-(1 << 22), 1 << 22, cut, -cut), shape)
    return Case(Gelu(shape, bits=bits), (x,))


def row_power(draw: Draw) -> Case:
    n, low = draw(st.sampled_from([1, 0, 65])), draw(st.integers(0, 24))
    high = draw(st.integers(low + 1, 57))
    cuts, known = intervals(1 << low, 1 << high)
    factors = tuple(draw(st.integers(0, WORD)) for _ in range(len(known)))
    a = [draw(st.integers(-(1 << (59 - 14 * k)), 1 << (59 - 14 * k))) for k in range(4)]
    bits = draw(st.sampled_from([b for b in (16, 28, 32, 64) if high < b - 1]))
    prim = RowPower(
        n, cuts, known, factors, (a[0], a[1], a[2], a[3]), draw(st.integers(1, 61)), bits
    )
    return Case(prim, (fill(draw, values(1 << low, 1 << high, *cuts), (n,)),))


CASES: list[Callable[[Draw], Case]] = [
    truncate, mul, square, moments, scale_rows, matmul, linear, affine, compare, and_bits,
    bit_to_ring, select, maximum, exp, gelu, row_power,
]  # fmt: skip


@pytest.mark.parametrize("make", CASES, ids=lambda make: make.__name__)
@given(data=st.data())
def test_primitive_is_right_in_both_interpreters(make: Callable[[Draw], Case], data: Any) -> None:
    case = make(data.draw)
    seeds = fresh_seeds()
    played = play(case, seeds)
    got = joined(case, played.outputs)
    assert wrong(case, got) == []
    for ours, theirs in zip(got, simulated(case, seeds), strict=True):
        assert np.array_equal(ours, theirs)
    declared = case.prim.online()
    assert [end.flights for end in played.wires] == [declared.flights] * 2
    assert tuple(end.sent for end in played.wires) == declared.sent


@given(data=st.data())
def test_reveal_tells_rank_1_only(data: Any) -> None:
    shape = data.draw(st.sampled_from(SHAPES))
    x = fill(data.draw, any_word(), shape)
    played = play(Case(Reveal(shape), (x,)), fresh_seeds())
    assert not np.any(played.outputs[0])
    assert np.array_equal(played.outputs[1], x)
    assert played.wires[0].view == []


@pytest.mark.parametrize("f", [1, 2, 5, 6])
def test_truncation_exhaustively_on_low_bits(f: int) -> None:
    """All residues of value and mask, at every corner of the range: exact, and exactly unbiased."""
    size = 1 << f
    corners = [-(1 << 62) + size, -size, 0, size, (1 << 62) - size]
    highs = [0, 1 << 62, 1 << 63, (1 << 64) - size, (1 << 63) - size, (3 << 62)]
    low_x, low_r = (v.reshape(-1) for v in np.meshgrid(np.arange(size), np.arange(size)))
    for corner in corners:
        for high in highs:
            x = (corner + low_x).astype(np.int64).view(np.uint64)
            r = low_r.astype(np.uint64) + np.uint64(high)
            up = (low_x + low_r >= size).astype(np.int64)
            want = (x.view(np.int64) >> np.int64(f)) + up
            assert np.array_equal(simulate(x, r, f).view(np.int64), want)
            assert np.array_equal(_by_shares(x, r, f).view(np.int64), want)
            counts = np.bincount(low_x, weights=up, minlength=size)
            assert np.array_equal(counts, np.arange(size))  # upper value: x mod 2^f of 2^f masks


def _by_shares(x: Any, r: Any, f: int) -> Any:
    """Both parties' last step on shares that add up to the mask's parts."""
    c = x + HALF + r
    kind = np.dtype(wrap_dtype(f))
    u1, v1 = np.uint64(0x9E3779B97F4A7C15) + x, np.full(x.shape, 40_503, kind)
    top = (r >> np.uint64(63)).astype(kind)
    first = finish(c, {"u": (r >> np.uint64(f)) - u1, "v": top - v1}, f, 0)
    only_top = (c >> np.uint64(63)) << np.uint64(63)
    return first + finish(only_top, {"u": u1, "v": v1}, f, 1)


@pytest.mark.parametrize("name", sorted(QUARTICS))
def test_gelu_variants_agree_with_simulation(name: str) -> None:
    x = np.arange(-(1 << 15), 1 << 15, 37, np.int64).view(np.uint64)
    case, seeds = Case(Gelu(x.shape, name), (x,)), fresh_seeds()
    (got,) = joined(case, play(case, seeds).outputs)
    assert np.array_equal(got, simulated(case, seeds)[0])
