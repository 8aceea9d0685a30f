"""Hash and generator of the forest against published vectors; draws against their definition."""

from __future__ import annotations

import hashlib
from decimal import Decimal
from math import ceil
from typing import Any

import numpy as np
import pytest

from privml.errors import ParameterError
from privml.unlearning.forest import reference, siphash, vector
from privml.unlearning.forest.canonical import canonical_bytes, digest
from privml.unlearning.forest.keys import ForestKey, resolve_key
from privml.unlearning.forest.params import (
    CLASSIFICATION,
    REGRESSION,
    ForestParams,
    trees_per_row,
)

# First outputs of the SipHash authors' test program: key 00..0f, message 00..n-1.
SIPHASH_VECTORS = (
    "310e0edd47db6f72", "fd67dc93c539f874", "5a4fa9d909806c0d", "2d7efbd796666785",
    "b7877127e09427cf", "8da699cd64557618", "cee3fe586e46c9cb", "37d1018bf50002ab",
    "6224939a79f5f593", "b0e4a90bdf82009e", "f3b9dd94c5bb5d7a", "a7ad6b22462fb3f4",
    "fbe50e86bc8f1e75", "903d84c02756ea14", "eef27a8e90ca23f7", "e545be4961ca29a1",
)  # fmt: skip
# First outputs of splitmix64 from state 0.
SPLITMIX_VECTORS = (0xE220A8397B1DCDAF, 0x6E789E6AA1B965F4, 0x06C45D188009454F)
# Digests of the canonical form of the small forests below, format version 1.
GOLDEN = {
    "classification": "1114c4132bcc71477fd67c6c767969f8a57d6c15eaff18f4c0a57288138460ac",
    "regression": "4bd4807c245cb21d7d27bd32569a913df62786660a76bba5bcc916a0a9339c28",
}


@pytest.mark.parametrize(("n", "want"), list(enumerate(SIPHASH_VECTORS)))
def test_siphash_gives_the_published_words(n: int, want: str) -> None:
    got = siphash.siphash24(bytes(range(16)), bytes(range(n)))
    assert got.to_bytes(8, "little").hex() == want


def test_the_mixer_is_the_splitmix64_finaliser() -> None:
    states = [siphash.GOLDEN * (i + 1) & siphash.MASK for i in range(3)]
    assert tuple(map(siphash.fmix, states)) == SPLITMIX_VECTORS


def test_the_keyed_hash_frames_its_fields() -> None:
    key = bytes(range(16))
    message = b"\x02" + (7).to_bytes(8, "little") + (1 << 63).to_bytes(8, "little")
    assert siphash.keyed_hash(key, 2, 7, 1 << 63) == siphash.siphash24(key, message)


def test_array_versions_agree_word_for_word(rng: np.random.Generator) -> None:
    key = rng.bytes(16)
    kappa = np.r_[rng.integers(0, 2**64, 50, dtype=np.uint64), np.uint64(0), np.uint64(2**64 - 1)]
    side = (np.arange(52) % 2).astype(np.uint64)
    keys = [siphash.keyed_hash(key, siphash.CHILD, k, s % 2) for s, k in enumerate(kappa.tolist())]
    assert vector.child_keys(key, kappa, side).tolist() == keys
    a, j, v = (rng.integers(0, 2**size, 52).astype(np.uint64) for size in (20, 8, 32))
    numbers = zip(kappa.tolist(), a.tolist(), j.tolist(), v.tolist(), strict=True)
    want = [siphash.node_draw(k, siphash.CATEGORY, x, y, z) for k, x, y, z in numbers]
    assert vector.node_draws(kappa, siphash.CATEGORY, a, j, v).tolist() == want


def test_bounded_covers_the_range() -> None:
    assert [siphash.bounded(h, 5) for h in (0, siphash.MASK)] == [0, 4]
    assert siphash.bounded(1 << 63, 10) == 5


def test_sub_keys_are_keyed_blake2b() -> None:
    key = ForestKey(bytes(range(32)))
    for label, got in (
        (b"privml.occ", key.occurrence),
        (b"privml.tree", key.tree),
        (b"privml.id", key.identity),
        (b"privml.cat", key.category.secret),
    ):
        want = hashlib.blake2b(b"", key=key.master, digest_size=16, person=label).digest()
        assert got == want


def test_a_key_does_not_show_itself() -> None:
    key = ForestKey.fresh()
    assert key.master.hex() not in repr(key)
    assert repr(key.master) not in repr(key)
    assert key.commitment() != ForestKey.fresh().commitment()


@pytest.mark.parametrize("bad", ["text", b"short", 7, bytearray(32)])
def test_odd_keys_are_refused(bad: object) -> None:
    with pytest.raises(ParameterError, match="32 bytes"):
        resolve_key(bad, None)


def test_seeds_give_one_key_each_and_generators_none() -> None:
    assert resolve_key(None, 3) == resolve_key(None, np.int32(3)) != resolve_key(None, 4)
    assert resolve_key(None, None) != resolve_key(None, None)
    with pytest.raises(ParameterError, match="integer"):
        resolve_key(None, np.random.RandomState(0))


def test_trees_per_row_is_exact_in_decimals() -> None:
    assert trees_per_row(0.07, 100) == 7  # binary floating point gives 8
    assert trees_per_row(0.55, 100) == 55  # binary floating point gives 56
    assert ceil(0.07 * 100) == 8
    assert ceil(0.55 * 100) == 56
    for trees in (1, 7, 100, 999):
        for hundredth in range(1, 101):
            want = -(-hundredth * trees // 100)
            assert trees_per_row(hundredth / 100, trees) == want
    assert trees_per_row(1e-9, 5) == 1
    assert trees_per_row(1, 5) == 5
    assert Decimal("0.1") * 10 == trees_per_row(0.1, 10)


@pytest.mark.parametrize("rate", [0, -0.1, 1.0001, float("nan"), float("inf"), "half", None])
def test_rates_out_of_range_are_refused(rate: Any) -> None:
    with pytest.raises(ParameterError, match="occurrence"):
        trees_per_row(rate, 10)


def small(task: int) -> tuple[reference.Rows, ForestParams]:
    """Return a small table with ties, gaps and categories, made without any generator."""
    n, p = 60, 4
    i = np.arange(n)
    X = np.stack([i * 37 % 61, i * i % 7, i % 2, i * 11 % 5], axis=1).astype(np.float32) / 2
    X[:, 3] *= 2
    X[i % 9 == 4, 0] = np.nan
    X[i % 13 == 5, 3] = np.nan
    ids = np.zeros((n, 3), dtype=np.uint64)
    ids[:, 1] = i
    y = i * i % 3 if task == CLASSIFICATION else (i - 30) * 1_000_003
    params = ForestParams(
        task=task,
        n_trees=5,
        trees_per_row=3,
        max_depth=6,
        n_thresholds=4,
        max_features=2,
        min_samples_split=4,
        n_features=p,
        n_classes=3 if task == CLASSIFICATION else 0,
        target_bits=0 if task == CLASSIFICATION else 20,
        categorical=(False, False, False, True),
    )
    return reference.Rows(ids, X, y.astype(np.int64)), params


@pytest.mark.parametrize("task", [CLASSIFICATION, REGRESSION])
def test_the_format_has_not_moved(task: int) -> None:
    rows, params = small(task)
    forest = reference.build_forest(rows, ForestKey(bytes(range(32))), params)
    name = "classification" if task == CLASSIFICATION else "regression"
    assert digest(canonical_bytes(forest)).hex() == GOLDEN[name]


def test_the_twin_obeys_its_own_rules() -> None:
    rows, params = small(CLASSIFICATION)
    key = ForestKey(bytes(range(32)))
    forest = reference.build_forest(rows, key, params)
    held = np.zeros(len(rows.y), dtype=int)

    def walk(node: reference.Node, depth: int) -> list[int]:
        if isinstance(node, reference.Leaf):
            assert list(node.rows) == sorted(node.rows)
            held[node.rows] += 1
            return node.rows.tolist()
        below = walk(node.left, depth + 1) + walk(node.right, depth + 1)
        assert depth < params.max_depth
        assert node.n == len(below) >= params.min_samples_split
        for row in below:
            assert (row in leaf_rows(node.left)) == reference.goes_left(
                params, node, forest.rows.X[row]
            )
        return below

    for tree in forest.trees:
        assert tree is not None
        walk(tree, 0)
    assert (held == params.trees_per_row).all()


def leaf_rows(node: reference.Node) -> set[int]:
    if isinstance(node, reference.Leaf):
        return set(node.rows.tolist())
    return leaf_rows(node.left) | leaf_rows(node.right)


def test_row_order_does_not_matter() -> None:
    rows, params = small(REGRESSION)
    key = ForestKey(bytes(32))
    turned = reference.Rows(rows.ids[::-1], rows.X[::-1], rows.y[::-1])
    forms = [canonical_bytes(reference.build_forest(r, key, params)) for r in (rows, turned)]
    assert forms[0] == forms[1]
