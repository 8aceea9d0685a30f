"""The native core: defects of public forests that it must not have, settings, limits, refusals."""

from __future__ import annotations

import ctypes
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from privml import _native
from privml.errors import (
    DuplicateIdError,
    EmptyForestError,
    SchemaError,
    UnknownIdError,
)
from privml.unlearning.forest._core import ForestCore, _function, available
from privml.unlearning.forest.flat import FlatTrees, flatten
from privml.unlearning.forest.ids import default_ids
from privml.unlearning.forest.keys import ForestKey
from privml.unlearning.forest.params import CLASSIFICATION, REGRESSION, ForestParams

pytestmark = pytest.mark.skipif(not available(), reason="runs on the twin core")

KEY = ForestKey.from_seed(7)
"""Key of the forests under test."""


@dataclass(frozen=True)
class Table:
    """Rows with the integers 0..n-1 as ids."""

    X: NDArray[np.float32]
    y: NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.y)


def table(n: int, seed: int = 0, *, classes: int = 2) -> Table:
    """Return numeric, two-valued, few-valued, skewed and constant columns; labels follow some."""
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(n, 8)).astype(np.float32)
    X[:, 1] = rng.integers(0, 2, n)
    X[:, 2] = rng.integers(0, 4, n)
    X[:, 3] = rng.random(n) < 0.02
    X[:, 4] = np.where(rng.random(n) < 0.1, rng.integers(0, 1000, n), 0)
    X[:, 5] = 3
    y = (X[:, 0] + X[:, 1] + rng.normal(size=n) > 0.5).astype(np.int64)
    return Table(X, y if classes == 2 else (y + rng.integers(0, classes - 1, n)))


def params(p: int = 8, **changes: Any) -> ForestParams:
    """Return parameters of a small forest over ``p`` numeric columns."""
    base = ForestParams(CLASSIFICATION, 8, 3, 12, 7, 3, 5, p, 2, 0, (False,) * p)
    return replace(base, **changes)


def ids(places: Iterable[int]) -> NDArray[np.uint64]:
    """Return the records of integer ids."""
    chosen = np.array(list(places), dtype=np.int64)
    records = default_ids(len(chosen))
    records[:, 1] = chosen
    return records


def fitted(rows: Table, p: ForestParams, places: Sequence[int], **settings: Any) -> ForestCore:
    """Return a core fitted on the rows at some places."""
    core = ForestCore(p, KEY, **settings)
    core.fit(rows.X[places], rows.y[places], ids(places))
    return core


def form(core: ForestCore, p: ForestParams) -> bytes:
    """Return the canonical form with classes in code order."""
    return bytes(core.canonical(range(p.n_classes)))


def assert_as_fitted(core: ForestCore, rows: Table, p: ForestParams, places: Sequence[int]) -> None:
    """Require the forest that a fresh fit on these places gives, and sound structures."""
    assert list(core.audit(2)) == []
    assert form(core, p) == form(fitted(rows, p, places), p)


def flat(core: ForestCore, p: ForestParams) -> FlatTrees:
    """Return the trees by columns."""
    return flatten(form(core, p), p, KEY)


# Defects D1-D17 found in public forests, see the docs page of the unlearning forest.


def test_d1_the_kept_split_is_the_best_one_after_many_deletions() -> None:
    rows, p = table(3000), params(min_samples_split=10, n_thresholds=30)
    core = fitted(rows, p, range(3000))
    for i in range(0, 2000, 2):
        core.unlearn(ids([i]))
    assert list(core.audit(1)) == []
    assert_as_fitted(core, rows, p, [i for i in range(3000) if i >= 2000 or i % 2])


def test_d2_a_column_that_loses_its_extremes_stays_in_its_nodes() -> None:
    rows, p = table(600), params(trees_per_row=8)
    core = fitted(rows, p, range(600))
    left = list(range(600))
    for _ in range(20):
        for column in (0, 4, 6, 7):
            values = rows.X[left, column]
            for place in (int(values.argmin()), int(values.argmax())):
                core.unlearn(ids([left[place]]))
                left.pop(place)
                values = rows.X[left, column]
    assert_as_fitted(core, rows, p, left)


def test_d3_interior_deletions_leave_the_retrained_forest() -> None:
    rows, p = table(800), params()
    middle = np.argsort(rows.X[:, 0])[300:500]
    core = fitted(rows, p, range(800))
    for i in middle:
        core.unlearn(ids([i]))
    assert_as_fitted(core, rows, p, sorted(set(range(800)) - set(middle.tolist())))


def test_d4_constant_columns_do_not_use_up_the_draws() -> None:
    X = np.zeros((200, 60), dtype=np.float32)
    X[:, 37] = np.arange(200)
    rows = Table(X, (np.arange(200) > 99).astype(np.int64))
    p = params(60, max_features=1)
    trees = flat(fitted(rows, p, range(200)), p)
    assert set(trees.attribute[trees.roots].tolist()) == {37}


def test_d5_a_constant_column_wakes_when_rows_that_differ_are_added() -> None:
    rows, p = table(1000), params()
    decisive = rows.X.copy()
    decisive[:500, 5] = 3
    decisive[500:, 5] = np.where(rows.y[500:] == 1, 9, 3)
    rows = Table(decisive, rows.y)
    core = fitted(rows, p, range(500))
    assert 5 not in flat(core, p).attribute
    for i in range(500, 1000):
        core.learn(rows.X[i : i + 1], rows.y[i : i + 1], ids([i]))
    assert 5 in flat(core, p).attribute
    assert_as_fitted(core, rows, p, range(1000))


@pytest.mark.parametrize("coding", [(1, 2), (-7, 40), (0, 1e-30)])
def test_d6_two_valued_columns_may_hold_any_two_values(coding: tuple[float, float]) -> None:
    rows, p = table(500), params()
    plain = rows.X.copy()
    plain[:, 1] = rows.y
    coded = plain.copy()
    coded[:, 1] = np.array(coding, dtype=np.float32)[rows.y]
    answers = []
    for X in (plain, coded):
        core = fitted(Table(X, rows.y), p, range(500))
        core.unlearn(ids(range(100)))
        core.learn(X[:50], rows.y[:50], ids(range(50)))
        answers.append(core.predict(X))
        assert_as_fitted(core, Table(X, rows.y), p, [*range(50), *range(100, 500)])
    assert np.array_equal(*answers)


@pytest.mark.parametrize("share", [3, 50, 200, 395])
def test_d7_a_batch_changes_every_count(share: int) -> None:
    rows, p = table(400), params(trees_per_row=8)
    core = fitted(rows, p, range(400))
    core.unlearn(ids(range(share)))
    assert core.stats()["members"] == 8 * (400 - share)
    assert_as_fitted(core, rows, p, range(share, 400))


def test_d8_nothing_freed_keeps_what_it_held() -> None:
    rows, p = table(1000), params()
    core = fitted(rows, p, range(1000))
    core.unlearn(ids(range(500)))
    assert list(core.audit(2)) == []
    core.predict(rows.X)
    core.unlearn(ids(range(500, 900)))
    assert list(core.audit(2)) == []
    core.purge()
    assert core.stats()["rows"] == 100
    assert core.memory()["total"] < fitted(rows, p, range(1000)).memory()["total"] / 4
    assert_as_fitted(core, rows, p, range(900, 1000))


def test_d9_resolving_leaves_no_tag_and_finite_answers() -> None:
    rows, p = table(2000), params()
    core = fitted(rows, p, range(2000))
    for i in range(300):
        core.unlearn(ids([i]))
    assert core.stats()["tagged"] > 0
    assert not core.resolve(0.0)
    assert core.resolve()
    assert core.stats()["tagged"] == 0
    assert np.isfinite(core.predict(rows.X)).all()
    assert_as_fitted(core, rows, p, range(300, 2000))


@pytest.mark.parametrize("left", [5, 1])
def test_d10_few_rows_give_finite_answers(left: int) -> None:
    rows, p = table(300), params()
    core = fitted(rows, p, range(300))
    for i in range(300 - left):
        core.unlearn(ids([i]))
        if i % 50 == 0:
            core.predict(rows.X[:20])
    answer = core.predict(rows.X)
    assert np.isfinite(answer).all()
    assert np.allclose(answer.sum(axis=1), 1)
    assert_as_fitted(core, rows, p, range(300 - left, 300))


def test_d10_no_rows_have_no_answer_and_can_be_filled_again() -> None:
    rows, p = table(120), params()
    core = fitted(rows, p, range(120))
    core.unlearn(ids(range(120)))
    with pytest.raises(EmptyForestError, match="no row is left"):
        core.predict(rows.X)
    assert form(core, p) == form(ForestCore(p, KEY), p)
    for i in range(60):
        core.learn(rows.X[i : i + 1], rows.y[i : i + 1], ids([i]))
    assert_as_fitted(core, rows, p, range(60))


def test_d11_wrong_deletions_are_refused_and_change_nothing() -> None:
    rows, p = table(200), params()
    core = fitted(rows, p, range(200))
    core.unlearn(ids([3]))
    before = form(core, p)
    for wrong in ([3], [10_000], [5, 3], [7, 9, 12_345]):
        with pytest.raises(UnknownIdError, match="not that of a living row"):
            core.unlearn(ids(wrong))
    with pytest.raises(DuplicateIdError, match="repeated"):
        core.unlearn(ids([8, 9, 8]))
    text = ids([4])
    text[:, 0] = 1  # the same words under another type
    with pytest.raises(UnknownIdError):
        core.unlearn(text)
    assert form(core, p) == before


def test_d12_extremes_held_by_many_rows_are_counted() -> None:
    rng = np.random.default_rng(3)
    X = np.repeat(np.float32([[9, 9, -4]]), 300, axis=0)
    X[150:] = rng.integers(-4, 10, (150, 3))
    rows, p = Table(X, rng.integers(0, 2, 300)), params(3, trees_per_row=8)
    core = fitted(rows, p, range(300))
    for i in range(149):
        core.unlearn(ids([i]))
    assert_as_fitted(core, rows, p, range(149, 300))


def test_d13_a_value_equal_to_the_threshold_goes_left_everywhere() -> None:
    grid = np.nextafter(np.float32(1), np.float32(2)) - np.float32(1)
    X = np.float32(1) + grid * np.arange(4, dtype=np.float32).repeat(40)[:, None]
    rows = Table(X, np.arange(160) // 40 % 2)
    p = params(1, trees_per_row=8, max_features=1, min_samples_split=2, n_thresholds=20)
    core = fitted(rows, p, range(160))
    assert (core.predict(X).argmax(axis=1) == rows.y).all()
    core.unlearn(ids(range(0, 160, 3)))
    assert (core.predict(X).argmax(axis=1) == rows.y).all()
    assert_as_fitted(core, rows, p, [i for i in range(160) if i % 3])


def test_d14_missing_values_take_a_side_of_their_own() -> None:
    rows, p = table(600), params()
    X = rows.X.copy()
    X[::3, 0] = np.nan
    X[:, 6] = np.nan
    rows = Table(X, (np.isnan(X[:, 0])).astype(np.int64))
    core = fitted(rows, p, range(600))
    assert ((core.predict(X)[:, 1] > 0.5) == rows.y).mean() > 0.9
    core.unlearn(ids(range(0, 300, 3)))
    assert_as_fitted(core, rows, p, [i for i in range(600) if i >= 300 or i % 3])
    gone = [i for i in range(300, 600) if i % 3 == 0]
    core.unlearn(ids(gone))  # the last missing value of column 0
    assert_as_fitted(core, rows, p, [i for i in range(600) if i % 3])


def test_d16_the_key_decides_the_forest() -> None:
    rows, p = table(300), params()
    again = ForestCore(p, ForestKey.from_seed(8))
    again.fit(rows.X, rows.y, ids(range(300)))
    assert form(fitted(rows, p, range(300)), p) == form(fitted(rows, p, range(300)), p)
    assert form(again, p) != form(fitted(rows, p, range(300)), p)


@pytest.mark.parametrize("classes", [3, 10])
def test_d17_many_classes_give_frequencies(classes: int) -> None:
    rows, p = table(700, classes=classes), params(n_classes=classes)
    core = fitted(rows, p, range(700))
    core.unlearn(ids(range(200)))
    answer = core.predict(rows.X)
    assert answer.shape == (700, classes)
    assert (answer >= 0).all()
    assert np.allclose(answer.sum(axis=1), 1)
    assert_as_fitted(core, rows, p, range(200, 700))


def test_a_new_class_widens_the_forest() -> None:
    rows, p = table(300), params()
    core = fitted(rows, p, range(300))
    core.learn(rows.X[:1], np.array([4], dtype=np.int64), ids([999]))
    assert core.predict(rows.X[:3]).shape == (3, 5)
    assert core.class_counts().tolist() == [*np.bincount(rows.y), 0, 0, 1]
    core.unlearn(ids([999]))
    assert core.class_counts()[4] == 0
    assert bytes(core.canonical([0, 1])) == form(fitted(rows, p, range(300)), p)


def test_settings_of_speed_do_not_move_the_model() -> None:
    rows = table(4000, classes=3)
    X = rows.X.copy()
    X[::17, 2] = np.nan
    rows, p = (
        Table(X, rows.y),
        params(n_classes=3, categorical=(*(False,) * 2, True, *(False,) * 5)),
    )
    seen = set()
    for isa in range(_native.isa_level() + 1):
        for block_rows in (0, 40, 300, 1 << 30):
            core = ForestCore(p, KEY, isa=isa, block_rows=block_rows)
            core.fit(rows.X[:3000], rows.y[:3000], ids(range(3000)), threads=1 + isa)
            core.unlearn(ids(range(100, 200)))
            for i in range(3000, 3060):
                core.learn(rows.X[i : i + 1], rows.y[i : i + 1], ids([i]))
                core.unlearn(ids([i - 3000]))
            assert list(core.audit(2)) == []
            seen.add((core.predict(rows.X, threads=2).tobytes(), form(core, p)))
    assert len(seen) == 1


@pytest.mark.parametrize("n", [250, 65_530])
def test_counters_grow_with_their_node(n: int) -> None:
    rows = table(n + 20)
    p = params(n_trees=1, trees_per_row=1, max_depth=2, min_samples_split=50)
    core = fitted(rows, p, range(n))
    for i in range(n, n + 20):
        core.learn(rows.X[i : i + 1], rows.y[i : i + 1], ids([i]))
    assert_as_fitted(core, rows, p, range(n + 20))
    core.unlearn(ids(range(20)))
    assert_as_fitted(core, rows, p, range(20, n + 20))


def test_targets_at_the_limit_are_summed_exactly() -> None:
    rng = np.random.default_rng(5)
    rows = Table(table(400).X, rng.integers(-(2**47) + 1, 2**47, 400))
    p = params(task=REGRESSION, n_classes=0, target_bits=10)
    core = fitted(rows, p, range(400))
    for i in range(0, 200, 2):
        core.unlearn(ids([i]))
        core.predict(rows.X[:3])
    assert_as_fitted(core, rows, p, [i for i in range(400) if i >= 200 or i % 2])


def test_bad_rows_are_refused_and_change_nothing() -> None:
    rows, p = table(100), params(categorical=(*(False,) * 2, True, *(False,) * 5))
    core = fitted(rows, p, range(100))
    before = form(core, p)
    infinite, fraction, large = (rows.X[:2].copy() for _ in range(3))
    infinite[1, 0], fraction[1, 2], large[1, 2] = np.inf, 1.5, 1 << 24
    labels = rows.y[:2]
    refused: list[tuple[NDArray[Any], NDArray[Any], list[int], type[Exception]]] = [
        (infinite, labels, [200, 201], SchemaError),
        (fraction, labels, [200, 201], SchemaError),
        (large, labels, [200, 201], SchemaError),
        (rows.X[:2], labels - 5, [200, 201], SchemaError),
        (rows.X[:2], labels + (1 << 16), [200, 201], SchemaError),
        (rows.X[:2], labels, [200, 200], DuplicateIdError),
        (rows.X[:2], labels, [200, 99], DuplicateIdError),
    ]
    for X, y, names, error in refused:
        with pytest.raises(error):
            core.learn(X, y, ids(names))
        if 99 not in names:
            with pytest.raises(error):
                core.fit(X, y, ids(names))
    assert form(core, p) == before


def test_a_program_does_what_single_calls_do() -> None:
    rows, p = table(400), params()
    one, two = fitted(rows, p, range(300)), fitted(rows, p, range(300))
    steps = [("delete", 0, 5), ("query", 7, 0), ("add", 310, 310), ("delete", 0, 310)]
    ns = one.run_program(steps, rows.X, rows.y, ids(range(400)))
    two.unlearn(ids([5]))
    assert ns.shape == (4,)
    assert (ns > 0).all()
    assert form(one, p) == form(two, p)
    with pytest.raises(UnknownIdError):
        one.run_program([("delete", 0, 5)], rows.X, rows.y, ids(range(400)))


def test_the_trees_of_a_row_follow_from_its_id() -> None:
    p = params(n_trees=40, trees_per_row=7)
    core = ForestCore(p, KEY)
    trees = core.affected(ids(range(2000)))
    assert (np.diff(trees.astype(np.int64), axis=1) > 0).all()
    counts = np.bincount(trees.ravel(), minlength=40)
    assert abs(counts - 350).max() < 5 * np.sqrt(350)


def test_calls_out_of_order_are_refused_not_obeyed() -> None:
    nothing = ctypes.c_void_p()
    assert _function("purge")(nothing) == 1
    assert _function("stats")(nothing, None) == 1
    record = bytearray(200)
    at = (ctypes.c_char * 200).from_buffer(record)
    handle = ctypes.c_void_p()
    assert _function("create")(at, at, ctypes.byref(handle)) == 1
    assert not handle
