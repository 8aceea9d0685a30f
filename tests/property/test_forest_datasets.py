"""Real tables: after deletions of any size and manner every tree is the retrained one."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from sklearn.base import clone
from sklearn.datasets import load_breast_cancer, load_diabetes, load_digits, load_iris, load_wine

from privml.testing.forests import twin_form
from privml.unlearning import DynForestClassifier, DynForestRegressor
from privml.unlearning.forest.audit import canonical_rows

Table = tuple[NDArray[np.float64], NDArray[Any]]
TABLES: dict[str, tuple[Callable[..., Table], Any]] = {
    "breast_cancer": (load_breast_cancer, DynForestClassifier),
    "digits": (load_digits, DynForestClassifier),
    "wine": (load_wine, DynForestClassifier),
    "iris": (load_iris, DynForestClassifier),
    "diabetes": (load_diabetes, DynForestRegressor),
}
SIZES: dict[str, Callable[[int], int]] = {
    "1": lambda n: 1,
    "100": lambda n: min(100, n - 20),
    "10%": lambda n: n // 10,
}


def one_by_one(model: Any, gone: NDArray[np.int64], table: Table) -> None:
    del table
    for i in gone:
        model.unlearn([i])


def batched(model: Any, gone: NDArray[np.int64], table: Table) -> None:
    del table
    model.unlearn(gone)


def streamed(model: Any, gone: NDArray[np.int64], table: Table) -> None:
    """Mix queries, rows that come and go, and the deletions that are asked for."""
    X, y = table
    for step, i in enumerate(gone):
        model.unlearn([i])
        model.predict(X[i : i + 1])
        if step % 3 == 0:
            model.learn(X[[i]], y[[i]], ids=[10**6 + i])
            model.predict(X[:1])
            model.unlearn([10**6 + i])


@pytest.mark.parametrize("how", [one_by_one, batched, streamed])
@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("name", TABLES)
def test_all_trees_are_the_retrained_ones(
    name: str, size: str, how: Callable[..., None], seed: int
) -> None:
    loader, kind = TABLES[name]
    X, y = loader(return_X_y=True)
    model = kind(n_estimators=10, random_state=seed % 1000).fit(X, y)
    rng = np.random.default_rng(seed)
    gone = rng.permutation(len(y))[: SIZES[size](len(y))]
    how(model, gone, (X, y))
    keep = np.setdiff1d(np.arange(len(y)), gone)
    fresh = clone(model).fit(X[keep], y[keep], ids=keep)
    assert model.state_digest() == fresh.state_digest()
    answer = "predict_proba" if kind is DynForestClassifier else "predict"
    got, want = (getattr(m, answer)(X).tobytes() for m in (model, fresh))
    assert got == want


@pytest.mark.parametrize("name", ["breast_cancer", "iris", "diabetes"])
def test_the_twin_agrees_on_real_tables(name: str) -> None:
    loader, kind = TABLES[name]
    X, y = loader(return_X_y=True)
    model = kind(n_estimators=10, random_state=1).fit(X, y)
    model.unlearn(range(0, len(y), 9))
    inner = model._fitted()
    params, rows = canonical_rows(inner)
    assert twin_form(rows, params, inner.key) == inner.canonical()


@pytest.mark.nightly
@pytest.mark.parametrize("name", TABLES)
def test_half_of_a_full_size_forest(name: str, seed: int) -> None:
    loader, kind = TABLES[name]
    X, y = loader(return_X_y=True)
    model = kind(n_estimators=100, random_state=0).fit(X, y)
    gone = np.random.default_rng(seed).permutation(len(y))[: len(y) // 2]
    one_by_one(model, gone, (X, y))
    keep = np.setdiff1d(np.arange(len(y)), gone)
    assert model.state_digest() == clone(model).fit(X[keep], y[keep], ids=keep).state_digest()
    assert model.audit("retrain").ok
