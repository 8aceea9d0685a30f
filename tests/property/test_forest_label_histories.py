"""Histories of the whole estimator in which classes arrive, stay rare, die and come back.

The label table lives outside the core, so the histories of the core do not reach it: these do.
After each step the classes are those of the living rows, and at the end the model is, byte for
byte, the one that a fresh fit on them gives.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from privml.errors import PrivmlError
from privml.rng import ScienceSeed
from privml.unlearning import DynForestClassifier, ForestKey
from privml.unlearning.forest.model import ForestModel
from privml.unlearning.forest.persistence import DEFAULT_LIMITS, dump_model, load_model

KINDS = ("learn", "unlearn", "unlearn", "predict")


@dataclass(frozen=True)
class Pool:
    """Rows whose labels are mostly of two classes and seldom of many others."""

    X: np.ndarray
    y: np.ndarray
    key: ForestKey


def some_pool(seed: int) -> Pool:
    rng = ScienceSeed(seed).generator()
    n = int(rng.integers(4, 40))
    rare = int(rng.integers(2, 8))
    y = np.where(rng.random(n) < 0.6, rng.integers(0, 2, n), rng.integers(0, rare, n))
    if seed % 2:
        y = np.array([f"class {v}" for v in y])
    return Pool(rng.normal(size=(n, 2)).round(1), y, ForestKey(rng.bytes(32)))


def model_of(pool: Pool, rows: list[int]) -> DynForestClassifier:
    model = DynForestClassifier(3, occurrence=0.7, min_samples_split=2, key=pool.key)
    return model.fit(pool.X[rows], pool.y[rows], ids=rows)


def differs(seed: int) -> bool:
    """Return whether a history leads elsewhere than a fresh fit on what lives."""
    pool, rng = some_pool(seed), ScienceSeed(seed).child("steps").generator()
    everything = range(len(pool.y))
    living = sorted(rng.permutation(len(pool.y))[: int(rng.integers(1, len(pool.y)))].tolist())
    model = model_of(pool, living)
    for _ in range(int(rng.integers(2, 14))):
        kind = str(rng.choice(KINDS))
        away = sorted(set(everything) - set(living))
        source = away if kind == "learn" else living
        count = int(rng.integers(1, 4)) if rng.random() < 0.8 else len(source)
        some = rng.permutation(source).astype(int)[:count].tolist()
        if not some:
            continue
        if kind == "learn":
            model.learn(pool.X[some], pool.y[some], ids=some)
            living = sorted({*living, *some})
        elif kind == "unlearn":
            model.unlearn(some)
            living = sorted(set(living) - set(some))
        elif model.predict_proba(pool.X).shape[1] != len(set(pool.y[living].tolist())):
            return True
        if model.classes_.tolist() != sorted(set(pool.y[living].tolist())):
            return True
    if not living:
        return model.n_live_ != 0
    fresh = model_of(pool, living)
    again, _ = load_model(dump_model(model._model, model._settings), limits=DEFAULT_LIMITS)
    return (
        model.state_digest() != fresh.state_digest()
        or model.predict_proba(pool.X).tobytes() != fresh.predict_proba(pool.X).tobytes()
        or again.canonical() != fresh._model.canonical()
        or not model.audit("retrain").ok
    )


@settings(max_examples=250)
@given(st.integers(0, 2**32 - 1))
def test_classes_come_and_go_with_their_rows(seed: int) -> None:
    assert not differs(seed)


def test_a_bound_that_new_classes_do_not_lower_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    """The forest once kept the smallest class's size across the arrival of a smaller one."""
    learn = ForestModel.learn

    def forgetful(self: ForestModel, *rows: Any) -> None:
        kept = self._spare
        learn(self, *rows)
        self._spare = kept

    monkeypatch.setattr(ForestModel, "learn", forgetful)

    def found(seed: int) -> bool:
        try:
            return differs(seed)
        except (PrivmlError, ValueError, IndexError):  # such a model contradicts itself
            return True

    assert any(found(seed) for seed in range(60))
