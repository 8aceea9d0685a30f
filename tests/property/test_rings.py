"""Ring products against Python integers, numpy twins, every instruction set and thread count."""

from __future__ import annotations

from itertools import product
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from privml import _native, rings
from privml.errors import ParameterError

Array = NDArray[Any]
USABLE = [True, bool(_native.features() & 1), bool(_native.features() & 2)]
LEVELS = [level for level in range(3) if USABLE[level]]
DTYPES = [np.uint64, np.uint32]
EXTREMES = (0, 1, 2, -1, -2)

ROWS = (1, 2, 3, 4, 5, 6, 7, 8, 9, 12, 13, 17)
COLS = (1, 3, 4, 7, 8, 9, 16, 17, 24, 25, 47, 49)
DEPTHS = (1, 2, 3, 7, 8, 9, 15, 16, 17, 63, 64, 65, 191, 192, 193, 255, 256, 257, 385)


@pytest.fixture(params=LEVELS, ids=[_native.ISAS[level] for level in LEVELS])
def isa(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> int:
    """Run the test on one instruction set."""
    level = int(request.param)
    monkeypatch.setattr(_native, "isa_level", lambda: level)
    return level


def filled(rng: np.random.Generator, shape: tuple[int, ...], dtype: Any, kind: int) -> Array:
    """Random words; or all-ones, the sign bit, or a mix of extreme words."""
    top = np.iinfo(dtype).max
    if kind == 1:
        return np.full(shape, top, dtype)
    if kind == 2:
        return np.full(shape, (int(top) + 1) // 2, dtype)
    if kind == 3:
        extreme = np.array([x % (int(top) + 1) for x in (*EXTREMES, int(top) // 2)], dtype)
        return extreme[rng.integers(0, extreme.size, shape)]
    return rng.integers(0, top, shape, dtype=dtype, endpoint=True)


def python_matmul(a: Array, b: Array) -> Array:
    """Oracle: Python integers, reduced once at the end."""
    modulus = int(np.iinfo(a.dtype).max) + 1
    exact = a.astype(object) @ b.astype(object) if a.shape[1] else np.zeros((len(a), b.shape[1]))
    return np.array(exact % modulus, dtype=a.dtype).reshape(len(a), b.shape[1])


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("kind", range(4))
def test_all_three_agree_with_python_integers(
    rng: np.random.Generator, dtype: Any, kind: int, isa: int
) -> None:
    for m, k, n in product((0, 1, 2, 5), (0, 1, 3, 16, 40), (0, 1, 4, 9)):
        a, b = filled(rng, (m, k), dtype, kind), filled(rng, (k, n), dtype, (kind + m) % 4)
        want = python_matmul(a, b)
        for multiply in (rings.ref_matmul, rings.limb_matmul, rings.ring_matmul):
            got = multiply(a, b)
            assert got.dtype == dtype
            assert got.shape == (m, n)
            np.testing.assert_array_equal(got, want)


@pytest.mark.parametrize("dtype", DTYPES)
def test_over_four_hundred_shapes(rng: np.random.Generator, dtype: Any, isa: int) -> None:
    shapes = [
        (m, DEPTHS[(7 * i + j + turn) % len(DEPTHS)], n)
        for turn in (0, 5, 11)
        for i, m in enumerate(ROWS)
        for j, n in enumerate(COLS)
    ]
    assert len(set(shapes)) >= 400
    for index, (m, k, n) in enumerate(shapes):
        a = filled(rng, (m, k), dtype, index % 4)
        b = filled(rng, (k, n), dtype, index // 4 % 4)
        want = np.matmul(a, b)
        np.testing.assert_array_equal(rings.ring_matmul(a, b), want, err_msg=f"{m}x{k}x{n}")
        got = rings.ring_matmul(a, b, threads=2)
        np.testing.assert_array_equal(got, want, err_msg=f"{m}x{k}x{n}, two threads")


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("k", [2047, 2048, 2049, 3072, 4097])
def test_long_contractions_of_extreme_words(
    rng: np.random.Generator, dtype: Any, k: int, isa: int
) -> None:
    for left, right in product(range(4), repeat=2):
        a, b = filled(rng, (3, k), dtype, left), filled(rng, (k, 5), dtype, right)
        want = python_matmul(a, b)
        np.testing.assert_array_equal(rings.limb_matmul(a, b), want)
        np.testing.assert_array_equal(rings.ring_matmul(a, b), want)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("top", [-(1 << 21), (1 << 21) - 1])
def test_limbs_of_greatest_size_are_exact(dtype: Any, top: int) -> None:
    """2048 products of limbs at the edge of their range add up to exactly 2^53."""
    word = np.array([top], dtype=np.int64).astype(np.uint64).astype(dtype)[0]
    a, b = np.full((1, 5000), word), np.full((5000, 1), word)
    np.testing.assert_array_equal(rings.limb_matmul(a, b), python_matmul(a, b))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(
    "shape",
    [
        (128, 384, 200),
        (257, 200, 193),
        (600, 70, 110),
        (9, 2049, 400),
        (8, 300, 1025),
        (3, 800, 2100),
    ],
)
def test_blocks_and_threads_give_the_same_bits(
    rng: np.random.Generator, dtype: Any, shape: tuple[int, int, int], isa: int
) -> None:
    m, k, n = shape
    a, b = filled(rng, (m, k), dtype, 0), filled(rng, (k, n), dtype, 0)
    want = rings.limb_matmul(a, b)
    for threads in (1, 2, 3, 7):
        np.testing.assert_array_equal(rings.ring_matmul(a, b, threads=threads), want)


@pytest.mark.parametrize("dtype", DTYPES)
def test_batches(rng: np.random.Generator, dtype: Any, isa: int) -> None:
    for batch, m, k, n in (
        (0, 3, 4, 5),
        (1, 2, 0, 3),
        (3, 0, 4, 5),
        (12, 33, 32, 31),
        (5, 64, 300, 65),
    ):
        a, b = filled(rng, (batch, m, k), dtype, 0), filled(rng, (batch, k, n), dtype, 0)
        for threads in (1, 2):
            got = rings.ring_matmul(a, b, threads=threads)
            assert got.shape == (batch, m, n)
            for i in range(batch):
                np.testing.assert_array_equal(got[i], np.matmul(a[i], b[i]))


@pytest.mark.parametrize("dtype", DTYPES)
def test_any_strides(rng: np.random.Generator, dtype: Any, isa: int) -> None:
    big = filled(rng, (4, 150, 150), dtype, 0)
    one = np.broadcast_to(big[:1], (4, 150, 150))
    views = [
        (big[0].T, big[1]),
        (big[0], big[1].T),
        (big[0].T, big[1].T),
        (big[0, ::2, ::3], big[1, :50, 1::2]),
        (big[0, ::-1, ::-1], big[1, ::-1]),
        (big[0, :3], big[1, :, ::-1]),
        (big.transpose(0, 2, 1), big[::-1]),
        (big[::2, 5:40, 3:90], big[1::2, 3:90, 7:33]),
        (one, big),
        (big, np.broadcast_to(big[0, :, :1], (4, 150, 9))),
    ]
    for a, b in views:
        np.testing.assert_array_equal(rings.ring_matmul(a, b), np.matmul(a, b))
        np.testing.assert_array_equal(rings.limb_matmul(a, b), np.matmul(a, b))


@pytest.mark.parametrize("dtype", DTYPES)
def test_nothing_is_written_outside_the_result(
    rng: np.random.Generator, dtype: Any, isa: int
) -> None:
    library = _native.load()
    if library is None:
        pytest.skip("no native kernel")
    kernel = library.privml_gemm_u64 if dtype is np.uint64 else library.privml_gemm_u32
    for m, k, n in ((1, 9, 5), (4, 8, 33), (7, 20, 47), (13, 5, 50)):
        a, b = filled(rng, (m, k), dtype, 0), filled(rng, (k, n), dtype, 0)
        frame = np.full((m + 2, n + 9), 77, dtype)
        inner = frame[1:-1, 4 : n + 4]
        at = _native.address
        assert kernel(isa, 1, m, k, n, at(a), 0, k, 1, at(b), 0, n, 1, at(inner), 0, n + 9, 1) == 0
        np.testing.assert_array_equal(inner, np.matmul(a, b))
        inner[:] = 77
        assert (frame == 77).all()


@given(data=st.data())
def test_ring_laws(data: st.DataObject) -> None:
    m, k, n, p = (data.draw(st.integers(0, 12)) for _ in range(4))
    rng = np.random.default_rng(data.draw(st.integers(0, 2**32)))
    dtype = data.draw(st.sampled_from(DTYPES))
    a, b = filled(rng, (m, k), dtype, 0), filled(rng, (k, n), dtype, data.draw(st.integers(0, 3)))
    c, d = filled(rng, (n, p), dtype, 0), filled(rng, (k, n), dtype, 3)
    mul = rings.ring_matmul
    np.testing.assert_array_equal(mul(mul(a, b), c), mul(a, mul(b, c)))
    np.testing.assert_array_equal(mul(a, b + d), mul(a, b) + mul(a, d))
    np.testing.assert_array_equal(mul(a, b), mul(b.T, a.T).T)


def test_signed_view() -> None:
    words = np.array([0, 1, 2**63, 2**64 - 1], dtype=np.uint64)
    signed = rings.to_signed(words)
    assert signed.tolist() == [0, 1, -(2**63), -1]
    assert np.shares_memory(signed, words)
    assert rings.to_signed(words.astype(np.uint32)).dtype == np.int32
    with pytest.raises(ParameterError, match="uint64 or uint32"):
        rings.to_signed(words.astype(np.float64))


@pytest.mark.parametrize("multiply", [rings.ring_matmul, rings.limb_matmul, rings.ref_matmul])
def test_bad_operands_are_refused(multiply: Any) -> None:
    x = np.zeros((3, 4), dtype=np.uint64)
    wide = np.zeros((2, 3, 4), dtype=np.uint64)
    crooked = np.zeros(100, dtype=np.uint8)[1:97].view(np.uint64).reshape(3, 4)
    record = np.zeros((4, 4), dtype=[("w", np.uint64), ("b", np.uint8)])["w"]
    for a, b, text in (
        (x, x.astype(np.uint32), "two uint64 or two uint32"),
        (x.view(np.int64), x.view(np.int64), "two uint64 or two uint32"),
        (x.astype(">u8"), x.astype(">u8"), "two uint64 or two uint32"),
        (x[0], x[0], "two 2-D or two 3-D"),
        (wide, x, "two 2-D or two 3-D"),
        (x, x, "do not multiply"),
        (wide, np.zeros((3, 4, 5), dtype=np.uint64), "do not multiply"),
        (crooked, x.T, "aligned"),
        (x, record, "aligned"),
    ):
        with pytest.raises(ParameterError, match=text):
            multiply(a, b)


@pytest.mark.parametrize("threads", [0, -1])
def test_threads_below_one_are_refused(threads: int) -> None:
    x = np.zeros((2, 2), dtype=np.uint64)
    with pytest.raises(ParameterError, match="at least 1"):
        rings.ring_matmul(x, x, threads=threads)


def test_the_twin_runs_without_a_library(
    rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch
) -> None:
    a, b = filled(rng, (5, 70), np.uint64, 0), filled(rng, (70, 6), np.uint64, 0)
    want = rings.ring_matmul(a, b)
    monkeypatch.setattr(_native, "load", lambda: None)
    np.testing.assert_array_equal(rings.ring_matmul(a, b), want)
