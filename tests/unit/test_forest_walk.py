"""The native walk of exported predictors gives, bit for bit, what its numpy twin gives."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from privml.rng import ScienceSeed
from privml.testing.forests import random_history
from privml.unlearning import DynForestClassifier
from privml.unlearning.forest import _walk, flat
from privml.unlearning.forest.flat import FlatTrees, flatten
from privml.unlearning.forest.model import open_core
from privml.unlearning.forest.params import CLASSIFICATION, REGRESSION

needs_native = pytest.mark.skipif(_walk.function() is None, reason="no native library")


@needs_native
@pytest.mark.parametrize("task", [CLASSIFICATION, REGRESSION])
@pytest.mark.parametrize("mixed", [False, True])
def test_native_and_numpy_walks_agree(task: int, mixed: bool) -> None:
    for seed in range(40):
        rng = ScienceSeed(seed).generator()
        history = random_history(rng, n=60, p=1 + seed % 5, steps=0, task=task, mixed=mixed)
        params, pool = history.params, history.pool
        core = open_core(params, history.key)
        core.fit(pool.X.copy(), pool.y.copy(), pool.ids.copy())
        trees = flatten(core.canonical(range(params.n_classes)), params, history.key)
        core.fit(pool.X.copy(), pool.y.copy(), pool.ids.copy())
        strange = np.vstack([pool.X, np.full_like(pool.X[:3], np.nan), pool.X[::-1]])
        for X in (strange, strange[:1], strange[:0], strange[:11], np.asfortranarray(strange)):
            want = trees.ref_predict(X)
            assert trees.predict(X).tobytes() == want.tobytes()
        answers = np.asarray(core.predict(strange)).reshape(len(strange), -1)
        assert trees.predict(strange).tobytes() == answers.tobytes()


@needs_native
def test_forests_with_categories_and_missing_values_answer_as_their_twin() -> None:
    """Many rows and one row take different walks through the forest itself."""
    rng = np.random.default_rng(5)
    X = rng.normal(size=(400, 4))
    X[:, 2] = rng.integers(0, 60, 400)
    X[rng.random((400, 4)) < 0.2] = np.nan
    y = rng.integers(0, 3, 400)
    model = DynForestClassifier(25, random_state=0, categorical_features=[2]).fit(X, y)
    model.unlearn(range(0, 90, 2))
    whole = model.predict_proba(X)
    single = np.vstack([model.predict_proba(X[[i]]) for i in range(len(X))])
    assert whole.tobytes() == single.tobytes()
    trees = model.export_predictor().trees
    assert trees.ref_predict(model._encode(X, model._model)).tobytes() == whole.tobytes()


def test_without_the_library_numpy_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    X = np.arange(30.0, dtype=np.float32)[:, None]
    trees = DynForestClassifier(5, random_state=0).fit(X, X[:, 0] > 9).export_predictor().trees
    want = trees.predict(X)
    monkeypatch.setattr(_walk, "function", lambda: None)
    assert trees.predict(X).tobytes() == want.tobytes()
    monkeypatch.undo()
    monkeypatch.setattr(flat, "_MOST_NODES", 3)
    fields = {name: getattr(trees, name) for name in FlatTrees.__dataclass_fields__}
    assert FlatTrees(**fields).predict(X).tobytes() == want.tobytes()
    assert replace(trees).predict(X).tobytes() == want.tobytes()
