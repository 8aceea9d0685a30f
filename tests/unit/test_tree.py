"""The comparison tree against Python integers, both parties evaluated in one thread."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from privml.protocols.mpc.boolean.tree import Tree, level_inputs, levels, opened_bits
from privml.protocols.mpc.ops import chunk_compare, chunk_onehot, padded
from privml.rng import ScienceSeed

GENERATOR = ScienceSeed(5).child("tree").generator()


def any_bits(shape: tuple[int, ...], dtype: Any = np.uint64) -> Any:
    info = np.iinfo(dtype)
    return GENERATOR.integers(0, info.max, shape, dtype, endpoint=True)


def cut(x: Any) -> tuple[Any, Any]:
    share = any_bits(x.shape, x.dtype)
    return x ^ share, share


def less(c: list[int], r: list[int], chunks: int) -> list[int]:
    """Bits 1{c < r} of ``4 * chunks``-bit integers through shares of r and a tree."""
    n = len(c)
    words = padded(n) // 64
    tree = Tree("t", 1, chunks, words)
    free = {f.name: any_bits(f.shape) for f in tree.fields() if not f.derived}
    corr: list[dict[str, Any]] = [{}, {}]
    for name, value in {**free, **tree.derive(free)}.items():
        corr[0][name], corr[1][name] = cut(value)
    onehot = cut(chunk_onehot(np.array(r, np.uint64)))
    sides = [chunk_compare(np.array(c, np.uint64), w) for w in onehot]
    lt = [s[0][None, :chunks] for s in sides]
    eq = [s[1][None, :chunks] for s in sides]
    for level in range(tree.depth()):
        opened = np.bitwise_xor(*(tree.masked(level, lt[i], eq[i], corr[i]) for i in (0, 1)))
        pairs = [tree.combine(level, opened, lt[i], eq[i], corr[i], i) for i in (0, 1)]
        lt, eq = [p[0] for p in pairs], [p[1] for p in pairs]
    root = (lt[0] ^ lt[1])[0, 0]
    return [int(root[i // 64]) >> (i % 64) & 1 for i in range(n)]


def adversarial(bits: int) -> list[tuple[int, int]]:
    """Pairs that differ in one bit, in one chunk, by one, or not at all."""
    top = (1 << bits) - 1
    bases = [0, top, top // 3, 1 << (bits - 1), 0x123456789ABCDEF & top]
    pairs = [(b, b) for b in bases]
    pairs += [(b, b ^ (1 << k)) for b in bases for k in range(bits)]
    pairs += [(b, (b + d) & top) for b in bases for d in (1, -1, 16, -16)]
    pairs += [(b ^ (15 << k), b ^ (3 << k)) for b in bases for k in range(0, bits - 3, 4)]
    return pairs + [(y, x) for x, y in pairs]


@pytest.mark.parametrize(("chunks", "bits"), [(16, 63), (8, 31), (5, 20)])
def test_tree_compares_like_python(chunks: int, bits: int) -> None:
    pairs = adversarial(bits)
    top = (1 << bits) - 1
    pairs += [(int(a) & top, int(b) & top) for a, b in any_bits((300, 2))]
    c, r = [p[0] for p in pairs], [p[1] for p in pairs]
    assert less(c, r, chunks) == [int(a < b) for a, b in pairs]


@pytest.mark.parametrize("chunks", [2, 3, 4, 6, 7, 9, 12, 13, 15])
def test_any_number_of_chunks(chunks: int) -> None:
    top = (1 << (4 * chunks)) - 1
    pairs = [(int(a) & top, int(b) & top) for a, b in any_bits((120, 2))]
    pairs += [(a, a ^ (1 << (i % (4 * chunks)))) for i, (a, _) in enumerate(pairs)]
    c, r = [p[0] for p in pairs], [p[1] for p in pairs]
    assert less(c, r, chunks) == [int(a < b) for a, b in pairs]


def test_one_chunk_exhaustively() -> None:
    """All pairs of one byte: two chunks, every value against every mask."""
    c, r = (list(map(int, v.reshape(-1))) for v in np.meshgrid(np.arange(256), np.arange(256)))
    assert less(c, r, 2) == [int(a < b) for a, b in zip(c, r, strict=True)]


def test_declared_openings() -> None:
    assert [opened_bits(k) for k in (16, 9, 8, 5)] == [33, 18, 14, 8]
    assert [len(levels(k)) for k in (16, 9, 8, 5, 2)] == [2, 2, 1, 1, 1]
    assert [level_inputs(nodes) for nodes in levels(16)] == [27, 6]


@pytest.mark.parametrize("chunks", [16, 8, 5])
def test_every_opened_bit_has_a_mask_of_its_own(chunks: int) -> None:
    tree = Tree("t", 3, chunks, 2)
    masks = [f for f in tree.fields() if not f.derived]
    assert sum(f.shape[1] for f in masks) == opened_bits(chunks)
    assert all(f.shape[0] == 3 and f.shape[2] == 2 for f in masks)
    assert tree.opened_bytes() == sum(f.nbytes for f in masks)
