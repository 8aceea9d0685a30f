"""The headline: after any history the forest is, bit for bit, the forest fitted on what is left.

Each of the some 900 histories of one run ends with three equal canonical forms: that of the core
that went through it, of a fresh native fit on the rows that live, and of the twin. Performance
settings (rows below which nodes keep no statistics, instruction set, threads) vary with the key.
"""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings

from privml import _native
from privml.errors import EmptyForestError
from privml.testing.forests import History, histories, play, subset, twin_form
from privml.unlearning.forest import reference
from privml.unlearning.forest._core import ForestCore, available
from privml.unlearning.forest.interface import Core
from privml.unlearning.forest.model import open_core
from privml.unlearning.forest.params import REGRESSION
from privml.unlearning.forest.reference import Rows
from privml.unlearning.forest.twin_core import TwinCore

BLOCKS = (0, 2, 8, 64, 1 << 30)


def varied_core(history: History) -> Core:
    """Return an empty core with performance settings that depend on the history's key."""
    first, second = history.key.master[:2]
    if not available():
        return TwinCore(history.params, history.key)
    isa = second % (_native.isa_level() + 1)
    block = BLOCKS[first % len(BLOCKS)]
    return ForestCore(history.params, history.key, block_rows=block, isa=isa)


def check_history(history: History) -> None:
    """Play a history; compare with a fresh native fit, the twin, and the twin's predictions."""
    params, key = history.params, history.key

    def check_answers(core: Core, living: Rows) -> None:
        if not len(living.y):
            with pytest.raises(EmptyForestError):
                core.predict(history.pool.X)
            return
        want = reference.predict(reference.build_forest(living, key, params), history.pool.X)
        got = core.predict(history.pool.X)
        assert got.tobytes() == want.tobytes()

    core = varied_core(history)
    living = play(core, history, check_answers)
    order = range(params.n_classes)
    form = core.canonical(order)
    assert form == twin_form(living, params, key)
    fresh = open_core(params, key)
    fresh.fit(living.X, living.y, living.ids, threads=2)
    assert form == fresh.canonical(order)
    assert list(core.audit(2)) == []
    assert core.n_rows == len(living.y)
    check_answers(core, living)


@settings(max_examples=300)
@given(histories())
def test_classification_histories(history: History) -> None:
    check_history(history)


@settings(max_examples=300)
@given(histories(mixed=True))
def test_histories_with_categories_and_missing_values(history: History) -> None:
    check_history(history)


@settings(max_examples=150)
@given(histories(task=REGRESSION))
def test_regression_histories(history: History) -> None:
    check_history(history)


@settings(max_examples=100)
@given(histories(task=REGRESSION, mixed=True))
def test_regression_histories_with_categories_and_missing_values(history: History) -> None:
    check_history(history)


@settings(max_examples=40)
@given(histories(mixed=True))
def test_a_batch_is_a_loop_in_any_order(history: History) -> None:
    params = history.params
    pool = subset(history.pool, history.first)
    rng = np.random.default_rng(len(pool.y))
    gone = rng.permutation(len(pool.y))[: 1 + len(pool.y) // 2]
    forms = []
    for groups in ([gone], [gone[i : i + 1] for i in range(len(gone))], [gone[::-1]]):
        core = varied_core(history)
        shuffled = rng.permutation(len(pool.y))
        core.fit(pool.X[shuffled], pool.y[shuffled], pool.ids[shuffled])
        for group in groups:
            core.unlearn(pool.ids[group])
        forms.append(core.canonical(range(params.n_classes)))
    assert forms[0] == forms[1] == forms[2]


@settings(max_examples=30)
@given(histories(mixed=True))
def test_forgotten_rows_can_come_back(history: History) -> None:
    params = history.params
    pool = subset(history.pool, history.first)
    core = varied_core(history)
    core.fit(pool.X, pool.y, pool.ids)
    before = core.canonical(range(params.n_classes))
    core.unlearn(pool.ids)
    assert core.n_rows == 0
    core.learn(pool.X[::-1].copy(), pool.y[::-1].copy(), pool.ids[::-1].copy())
    assert core.canonical(range(params.n_classes)) == before


@pytest.mark.nightly
@settings(max_examples=3_000)
@given(histories(mixed=True, scale=4))
def test_long_search(history: History) -> None:
    check_history(history)
