"""Every known way to get incremental forests wrong is noticed by the equality tests.

The walk forest keeps what a fast forest keeps; with a fault switched on, some history must give a
canonical form or an answer that differs from the twin's. Faults of single functions are put in by
hand further down.
"""

from __future__ import annotations

import re
from math import ceil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sklearn.datasets import load_digits

from privml.rng import ScienceSeed
from privml.testing.forest_faults import Fault
from privml.testing.forest_walk import WalkForest
from privml.testing.forests import History, play, random_history, twin_form
from privml.unlearning import DynForestClassifier
from privml.unlearning.forest import reference
from privml.unlearning.forest.ids import default_ids
from privml.unlearning.forest.keys import ForestKey
from privml.unlearning.forest.labels import LabelTable
from privml.unlearning.forest.params import CLASSIFICATION, REGRESSION, trees_per_row
from privml.unlearning.forest.reference import Rows

ROOT = Path(__file__).resolve().parents[2]
SEARCH = 400
MEMORY = (Fault.UNSWEPT, Fault.TOMBSTONE)
# Where a fault shows seldom on any history, the kind of history that provokes it.
PROVOKED: dict[Fault, dict[str, Any]] = {
    Fault.FLOAT32_SCORES: {"n": 250, "p": 5, "steps": 0},
    Fault.FLOAT_SUMS: {"task": REGRESSION},
    Fault.FIRST_SEEN_CODES: {"mixed": True},
    Fault.SLACK_KEPT: {"n": 100, "p": 4, "steps": 20},
    Fault.SLACK_PLUS_ONE: {"n": 60, "p": 3},
}


class Different(Exception):
    """The walk forest answered otherwise than the twin."""


def some_history(seed: int, **settings: Any) -> History:
    rng = ScienceSeed(seed).generator()
    task = REGRESSION if seed % 4 == 3 else CLASSIFICATION
    shape = {"n": int(rng.integers(5, 60)), "p": int(rng.integers(1, 6)), "steps": 14}
    return random_history(rng, **{**shape, "task": task, "mixed": seed % 2 == 1, **settings})


def differs(history: History, fault: Fault, *, defer: bool = False) -> bool:
    """Return whether a walk forest with a fault differs from the twin on one history."""
    params, key = history.params, history.key

    def check(core: Any, living: Rows) -> None:
        if len(living.y):
            forest = reference.build_forest(living, key, params)
            want = reference.predict(forest, history.pool.X)
            if core.predict(history.pool.X).tobytes() != want.tobytes():
                raise Different

    walk = WalkForest(params, key, fault=fault, defer=defer)
    try:
        living = play(walk, history, check)  # type: ignore[arg-type]
        return walk.canonical() != twin_form(living, params, key)
    except Different:
        return True
    except (ValueError, ZeroDivisionError, RuntimeError, OverflowError):
        if fault is Fault.NONE:
            raise
        return True  # a broken forest may also break


@pytest.mark.parametrize("defer", [False, True])
def test_the_walk_forest_without_fault_is_the_twin(defer: bool) -> None:
    assert [s for s in range(80) if differs(some_history(s), Fault.NONE, defer=defer)] == []


@pytest.mark.parametrize("fault", [f for f in Fault if f is not Fault.NONE and f not in MEMORY])
def test_every_fault_is_noticed(fault: Fault) -> None:
    settings = PROVOKED.get(fault, {})
    defer = fault is Fault.DIRTY_ANSWER
    found = (s for s in range(SEARCH) if differs(some_history(s, **settings), fault, defer=defer))
    assert next(found, None) is not None, f"no history shows that {fault}"


@pytest.mark.parametrize("fault", MEMORY)
def test_rows_left_in_memory_are_noticed(fault: Fault) -> None:
    history = some_history(0, n=20, p=2, steps=0)
    marked = Rows(history.pool.ids, history.pool.X.copy(), history.pool.y)
    marked.X[7] = np.float32(1234.5678)
    marked.ids[7] = (0, 0x1122334455667788, 0)
    patterns = marked.X[7].tobytes(), marked.ids[7].tobytes()
    kept = {}
    for case in (Fault.NONE, fault):
        walk = WalkForest(history.params, history.key, fault=case)
        walk.fit(marked.X, marked.y, marked.ids)
        assert all(pattern in walk.store.memory() for pattern in patterns)
        walk.unlearn(marked.ids[7:8])
        kept[case] = any(pattern in walk.store.memory() for pattern in patterns)
    assert kept == {Fault.NONE: False, fault: True}


def test_a_class_list_that_never_shrinks_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    X, y = load_digits(return_X_y=True)
    X, y = X[:60], y[:60]
    gone, kept = np.flatnonzero(y == 9), np.flatnonzero(y != 9)
    key = ForestKey.from_seed(0)
    fresh = DynForestClassifier(5, key=key).fit(X[kept], y[kept], ids=kept)
    for broken in (False, True):
        if broken:
            monkeypatch.setattr(LabelTable, "living", lambda self, counts: self)
        model = DynForestClassifier(5, key=key).fit(X, y)
        model.unlearn(gone)
        assert (model.state_digest() == fresh.state_digest()) is not broken


def test_trees_per_row_in_binary_floating_point_is_noticed() -> None:
    grid = [(h / 100, t) for h in range(1, 101) for t in (10, 50, 100, 250)]
    assert [q for q, t in grid if ceil(q * t) != trees_per_row(q, t)]
    assert all(trees_per_row(q, t) == -(-round(q * 100) * t // 100) for q, t in grid)


def test_fused_products_are_forbidden_in_every_forest_source() -> None:
    """One fused multiply-add changes scores in the last bit; the build rules it out by name."""
    cmake = (ROOT / "CMakeLists.txt").read_text(encoding="utf-8")
    sources = {p.name for p in (ROOT / "unlearning/forest/native").glob("*.cpp")}
    strict = " ".join(
        block for block in re.findall(r"set_property\(.*?\)", cmake, re.S)
        if "-ffp-contract=off" in block
    )  # fmt: skip
    listed = re.findall(r"set\(FOREST_SOURCES(.*?)\)", cmake, re.S)
    named = strict.replace("${FOREST_SOURCES}", " ".join(listed))
    assert {name for name in sources if f"/{name}" not in named} <= {"portable.cpp"}
    assert "fast-math" not in cmake
    assert "-Ofast" not in cmake
    assert "-march=native" not in cmake


def test_draws_by_row_number_would_differ() -> None:
    """Ids, not positions: the same rows under other ids give another forest."""
    history = some_history(2, n=30, p=3, steps=0)
    renamed = Rows(default_ids(30)[::-1].copy(), history.pool.X, history.pool.y)
    named = Rows(default_ids(30), history.pool.X, history.pool.y)
    forms = [twin_form(rows, history.params, history.key) for rows in (named, renamed)]
    assert forms[0] != forms[1]


@pytest.mark.nightly
@pytest.mark.parametrize("defer", [False, True])
def test_the_walk_forest_is_the_twin_on_many_histories(defer: bool) -> None:
    seeds = range(1_000, 4_000)
    assert [s for s in seeds if differs(some_history(s), Fault.NONE, defer=defer)] == []
