"""Bit kernels against Python integers and the numpy twins, on every instruction set."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from privml import _native
from privml.errors import ParameterError
from privml.protocols.mpc import ops
from privml.rings import Words

HAS = _native.features()
LEVELS = [level for level in range(3) if level == 0 or HAS & (1 << (level - 1))]
SIZES = (0, 1, 2, 3, 31, 32, 33, 62, 63, 64, 65, 96, 127, 128, 129, 1000, 2047, 2048, 2049, 4160)
EXTREME = np.array([0, 1, 2**62, 2**63 - 1, 2**63, 2**64 - 1, 0xF0F0 << 44], dtype=np.uint64)


@pytest.fixture(params=LEVELS, ids=[_native.ISAS[level] for level in LEVELS])
def isa(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> int:
    """Run the test on one instruction set."""
    level = int(request.param)
    monkeypatch.setattr(_native, "isa_level", lambda: level)
    return level


def words(rng: np.random.Generator, n: int) -> Words:
    """Random words with some extreme ones among them."""
    drawn = rng.integers(0, 2**64, n, dtype=np.uint64)
    return np.where(rng.random(n) < 0.2, EXTREME[rng.integers(0, EXTREME.size, n)], drawn)


def bit(packed: Words, i: int) -> int:
    return int(packed[i // 64]) >> (i % 64) & 1


def chunk(word: int, j: int) -> int:
    return word >> 4 * j & (7 if j == 15 else 15)


def test_twins_follow_the_definition(rng: np.random.Generator) -> None:
    """Oracle: one element at a time in Python integers."""
    n = 70
    r, c = words(rng, n), words(rng, n)
    onehot = ops.ref_chunk_onehot(r)
    w = rng.integers(0, 2**16, onehot.shape, dtype=np.uint16)
    lt, eq = ops.ref_chunk_compare(c, w)
    bits = rng.integers(0, 2, n, dtype=np.uint8)
    packed = ops.ref_pack_bits(bits)
    assert onehot.shape == (16, 128)
    assert lt.shape == eq.shape == (16, 2)
    for i in range(128):
        for j in range(16):
            assert int(onehot[j, i]) == 1 << (chunk(int(r[i]), j) if i < n else 0)
            v, row = (chunk(int(c[i]), j), int(w[j, i])) if i < n else (0, 0)
            assert bit(lt[j], i) == (row >> v + 1).bit_count() % 2
            assert bit(eq[j], i) == row >> v & 1
        assert bit(packed, i) == (int(bits[i]) if i < n else 0)
    assert ops.ref_unpack_bits(packed, n).tolist() == bits.tolist()


@pytest.mark.parametrize("n", SIZES)
def test_kernels_equal_their_twins(rng: np.random.Generator, n: int, isa: int) -> None:
    r, c = words(rng, n), words(rng, n)
    np.testing.assert_array_equal(ops.chunk_onehot(r), ops.ref_chunk_onehot(r))
    w = rng.integers(0, 2**16, (16, ops.padded(n)), dtype=np.uint16)
    for got, want in zip(ops.chunk_compare(c, w), ops.ref_chunk_compare(c, w), strict=True):
        assert got.dtype == np.uint64
        np.testing.assert_array_equal(got, want)
    for chunks in (1, 6, 15):
        short = np.ascontiguousarray(w[:chunks])
        for got, want in zip(ops.chunk_compare(c, short), ops.ref_chunk_compare(c, w), strict=True):
            np.testing.assert_array_equal(got, want[:chunks])
    bits = rng.integers(0, 256, n, dtype=np.uint8)
    packed = ops.pack_bits(bits)
    np.testing.assert_array_equal(packed, ops.ref_pack_bits(bits))
    np.testing.assert_array_equal(ops.unpack_bits(packed, n), ops.ref_unpack_bits(packed, n))
    np.testing.assert_array_equal(ops.unpack_bits(packed, n), bits & 1)
    np.testing.assert_array_equal(ops.pack_bits((bits & 1).astype(np.bool_)), packed)
    np.testing.assert_array_equal(ops.top_bits(r), ops.ref_top_bits(r))
    np.testing.assert_array_equal(ops.top_bits(r), ops.pack_bits(r >= np.uint64(1 << 63)))


@pytest.mark.parametrize("n", [0, 1, 63, 64, 65, 130])
def test_rows_are_packed_by_themselves(rng: np.random.Generator, n: int, isa: int) -> None:
    c = words(rng, 6 * n).reshape(2, 3, n)
    w = rng.integers(0, 2**16, (16, ops.padded(n)), dtype=np.uint16)
    bits = rng.integers(0, 256, c.shape, dtype=np.uint8)
    packed, tops = ops.pack_bits(bits), ops.top_bits(c)
    plain, (lt, eq) = ops.unpack_bits(packed, n), ops.chunk_compare(c, w)
    assert lt.shape == eq.shape == (2, 3, 16, ops.padded(n) // 64)
    for i in np.ndindex(2, 3):
        np.testing.assert_array_equal(packed[i], ops.pack_bits(bits[i]))
        np.testing.assert_array_equal(tops[i], ops.top_bits(c[i]))
        np.testing.assert_array_equal(plain[i], bits[i] & 1)
        for got, want in zip((lt[i], eq[i]), ops.chunk_compare(c[i], w), strict=True):
            np.testing.assert_array_equal(got, want)
    np.testing.assert_array_equal(ops.ref_unpack_bits(packed, n), plain)
    for got, want in zip((lt, eq), ops.ref_chunk_compare(c, w), strict=True):
        np.testing.assert_array_equal(got, want)


@pytest.mark.parametrize("n", [0, 1, 64, 65, 130])
def test_each_row_may_have_its_own_chunks(rng: np.random.Generator, n: int, isa: int) -> None:
    c, w = words(rng, 5 * n).reshape(5, n), rng.integers(0, 2**16, (5, 7, ops.padded(n)), np.uint16)
    got, twin = ops.chunk_compare(c, w), ops.ref_chunk_compare(c, w)
    for row in range(5):
        want = ops.chunk_compare(c[row], w[row])
        for mine, theirs, one in zip(got, twin, want, strict=True):
            np.testing.assert_array_equal(mine[row], one)
            np.testing.assert_array_equal(theirs[row], one)


def test_top_bits_of_narrow_words() -> None:
    assert ops.top_bits(np.array([1 << 31, 1, 1 << 31], np.uint32)).tolist() == [5]


def test_shared_chunks_compare(rng: np.random.Generator, isa: int) -> None:
    """XOR of both parties' results is c_j < r_j and c_j == r_j, chunk by chunk."""
    n = 1000
    r, c = words(rng, n), words(rng, n)
    c[::7] = r[::7]
    mask = rng.integers(0, 2**16, (16, ops.padded(n)), dtype=np.uint16)
    one = ops.chunk_compare(c, ops.chunk_onehot(r) ^ mask)
    two = ops.chunk_compare(c, mask)
    lt, eq = (ops_one ^ ops_two for ops_one, ops_two in zip(one, two, strict=True))
    below = np.zeros(n, dtype=np.uint64)
    for j in range(16):  # from the lowest chunk: the higher one decides unless equal
        less, same = ops.unpack_bits(lt[j], n), ops.unpack_bits(eq[j], n)
        below = less | (same & below)
    low = np.uint64(2**63 - 1)
    np.testing.assert_array_equal(below, (c & low) < (r & low))


@given(st.lists(st.booleans(), max_size=300))
def test_packing_round_trip(bits: list[bool]) -> None:
    array = np.array(bits, dtype=np.bool_)
    packed = ops.pack_bits(array)
    whole = sum(int(b) << i for i, b in enumerate(bits))
    assert int.from_bytes(packed.astype("<u8").tobytes(), "little") == whole
    np.testing.assert_array_equal(ops.unpack_bits(packed, len(bits)), array)


def test_nothing_is_written_outside_the_result(rng: np.random.Generator, isa: int) -> None:
    library = _native.load()
    if library is None:
        pytest.skip("no native kernel")
    at = _native.address
    for n in (1, 63, 64, 100):
        r, size = words(rng, n), ops.padded(n)
        w = rng.integers(0, 2**16, (16, size), dtype=np.uint16)
        onehot = np.full(16 * size + 64, 77, dtype=np.uint16)
        lt, eq = (np.full(16 * size // 64 + 16, 77, dtype=np.uint64) for _ in range(2))
        plain, packed = np.full(n + 16, 77, np.uint64), np.full(size // 64 + 16, 77, np.uint64)
        assert library.privml_chunk_onehot(isa, at(r), n, at(onehot[32:])) == 0
        tops = packed.copy()
        outs = at(lt[8:]), at(eq[8:])
        assert library.privml_chunk_compare(isa, at(r), 1, n, 16, at(w), 0, *outs) == 0
        assert library.privml_unpack_bits(isa, at(r), 1, n, at(plain[8:])) == 0
        assert library.privml_pack_bits(isa, at(w), 1, n, at(packed[8:])) == 0
        assert library.privml_top_bits(isa, at(r), 1, n, at(tops[8:])) == 0
        for frame, edge in ((onehot, 32), (lt, 8), (eq, 8), (plain, 8), (packed, 8), (tops, 8)):
            assert (frame[:edge] == 77).all()
            assert (frame[-edge:] == 77).all()


def test_twins_run_without_a_library(
    rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch
) -> None:
    r = words(rng, 90)
    bits = (r & np.uint64(1)).astype(np.uint8)

    def results() -> list[Any]:
        w, packed = ops.chunk_onehot(r), ops.pack_bits(bits)
        planes = ops.chunk_compare(r, w)
        return [w, *planes, packed, ops.unpack_bits(packed, r.size), ops.top_bits(r)]

    want = results()
    monkeypatch.setattr(_native, "load", lambda: None)
    for x, y in zip(results(), want, strict=True):
        np.testing.assert_array_equal(x, y)


W64 = np.zeros((16, 64), dtype=np.uint16)
R8 = np.zeros(8, dtype=np.uint64)


@pytest.mark.parametrize(
    ("call", "text"),
    [
        (lambda: ops.pack_bits(R8), "bits must be uint8"),
        (lambda: ops.pack_bits(np.zeros((), np.uint8)), "one axis"),
        (lambda: ops.top_bits(R8[::-1]), "C-contiguous"),
        (lambda: ops.pack_bits(np.zeros(16, np.uint8)[::2]), "C-contiguous"),
        (lambda: ops.unpack_bits(R8, -1), "at least 0"),
        (lambda: ops.unpack_bits(R8, 64), "shape"),
        (lambda: ops.unpack_bits(R8, 1000), "shape"),
        (lambda: ops.unpack_bits(R8.view(np.int64), 512), "words must be uint64"),
        (lambda: ops.chunk_onehot(R8.view(np.int64)), "r must be uint64"),
        (lambda: ops.chunk_onehot(R8.reshape(2, 4)), "shape"),
        (lambda: ops.chunk_onehot(R8[::-1]), "C-contiguous"),
        (lambda: ops.chunk_onehot(np.zeros(65, np.uint8)[1:].view(np.uint64)), "C-contiguous"),
        (lambda: ops.chunk_compare(R8, W64[:0]), "shape"),
        (lambda: ops.chunk_compare(R8, np.concatenate([W64, W64])), "shape"),
        (lambda: ops.chunk_compare(R8, W64[0]), "shape"),
        (lambda: ops.chunk_compare(np.stack([R8, R8]), np.stack([W64] * 3)), "shape"),
        (lambda: ops.chunk_compare(np.zeros(65, np.uint64), W64), "shape"),
        (lambda: ops.chunk_compare(R8, W64.astype(np.uint32)), "w must be uint16"),
        (lambda: ops.chunk_compare(R8, np.asfortranarray(W64)), "C-contiguous"),
    ],
)
def test_bad_arguments_are_refused(call: Any, text: str) -> None:
    with pytest.raises(ParameterError, match=text):
        call()
