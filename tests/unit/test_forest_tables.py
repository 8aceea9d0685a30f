"""Data frames: one encoding whatever the column type, ids from the index, parameters by name."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sklearn.datasets import load_breast_cancer
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import FunctionTransformer

from privml.errors import SchemaError
from privml.unlearning import DynForestClassifier, DynForestRegressor
from privml.unlearning.forest.keys import CategoryKey
from privml.unlearning.forest.schema import Columns, encode_categories, text_code

pd = pytest.importorskip("pandas")
SMALL: dict[str, Any] = {"n_estimators": 8, "random_state": 0}
KEY = CategoryKey(bytes(16))
ONE = Columns(None, (True,))


def coloured(n: int) -> Any:
    rng = np.random.default_rng(3)
    colour = rng.choice(np.array(["red", "blue", "grey", None], dtype=object), n)
    number = rng.choice([0, 3, 7, 1 << 22], n)
    return pd.DataFrame({"c": colour, "n": number, "x": rng.normal(size=n)}), rng.integers(0, 2, n)


@pytest.mark.parametrize("n", [10, 63, 64, 500])
def test_the_type_of_a_column_does_not_matter(n: int) -> None:
    X, y = coloured(n)
    spare = pd.CategoricalDtype(["blue", "unused", "red", "grey", ("odd",)])
    variants = (
        X,
        X.astype({"c": "category", "n": "category"}),
        X.astype({"c": spare}),
        X.astype({"c": "string", "n": "Int64"}),
        X.astype({"c": "str", "n": object}).where(X.notna(), None),
        X.to_numpy(dtype=object),
    )
    models = [DynForestClassifier(**SMALL, categorical_features=[0, 1]) for _ in variants]
    digests = {m.fit(v, y).state_digest() for m, v in zip(models, variants, strict=True)}
    assert len(digests) == 1


def test_codes_are_those_of_the_values_one_by_one() -> None:
    given = ["a", 1, True, 1.0, None, float("nan"), np.float64(2), np.str_("a"), pd.NA, 0.0, False]
    want = [text_code(KEY, "a"), 1, 1, 1, np.nan, np.nan, 2, text_code(KEY, "a"), np.nan, 0, 0]
    for values in (given, given * 50):
        got = encode_categories(np.array(values, dtype=object), ONE, KEY, column=0)
        np.testing.assert_array_equal(got[: len(want)], np.array(want, dtype=np.float32))
    for bad in (("a",), -1, 0.5, 1 << 23, b"a", ["a"]):
        values = np.empty(3, dtype=object)
        values[:] = ["a", bad, "a"]
        with pytest.raises(SchemaError, match="column 0"):
            encode_categories(values, ONE, KEY, column=0)


def test_the_index_names_rows_where_asked_and_warns_where_not() -> None:
    X, y = coloured(30)
    X = X[["n", "x"]].set_axis([f"person {i}" for i in range(30)])
    with pytest.warns(UserWarning, match="ids='index'"):
        numbered = DynForestClassifier(**SMALL).fit(X, y)
    assert numbered.contains([0, 29]).all()
    named = DynForestClassifier(**SMALL).fit(X, y, ids="index")
    assert named.contains(X.index).all()
    named.unlearn(["person 3"])
    with pytest.raises(SchemaError, match="data frame"):
        DynForestClassifier(**SMALL).fit(X.to_numpy(), y, ids="index")
    named.learn(X.iloc[3:4], y[3:4], ids="index")
    whole = DynForestClassifier(**SMALL).fit(X, y, ids=list(X.index))
    assert named.state_digest() == whole.state_digest()
    shuffled = X.set_axis(range(30)).iloc[::-1]
    with pytest.warns(UserWarning, match="index"):
        named.learn(shuffled.iloc[:2], y[:2])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        DynForestClassifier(**SMALL).fit(X.set_axis(range(30)), y)
        DynForestClassifier(**SMALL).fit(X, y, ids=range(30))


@pytest.mark.parametrize(
    ("given", "means"),
    [("sqrt", 5), ("log2", 4), (0.5, 15), (1.0, 30), (0.01, 1), (np.float32(0.5), 15), (None, 6)],
)
def test_attributes_per_node_by_name_and_share(given: Any, means: int, tmp_path: Path) -> None:
    X, y = load_breast_cancer(return_X_y=True)
    model = DynForestClassifier(**SMALL, max_features=given).fit(X[:100], y[:100])
    same = DynForestClassifier(**SMALL, max_features=means).fit(X[:100], y[:100])
    assert model.state_digest() == same.state_digest()
    model.save(tmp_path / "a")
    assert DynForestClassifier.load(tmp_path / "a").max_features == given


def test_no_limit_of_depth_is_the_largest() -> None:
    X = np.arange(50.0)[:, None]
    free, deep = (
        DynForestRegressor(**SMALL, max_depth=d, min_samples_split=2).fit(X, X[:, 0] ** 3)
        for d in (None, 255)
    )
    assert free.state_digest() == deep.state_digest()


def test_logarithms_of_frequencies() -> None:
    X, y = load_breast_cancer(return_X_y=True)
    model = DynForestClassifier(**SMALL).fit(X, y)
    logs = model.predict_log_proba(X)
    assert np.isneginf(logs).any()
    np.testing.assert_array_equal(np.exp(logs) > 0.5, model.predict_proba(X) > 0.5)


def test_it_forgets_at_the_end_of_a_pipeline() -> None:
    X, y = load_breast_cancer(return_X_y=True)
    pipe = make_pipeline(FunctionTransformer(np.log1p), DynForestClassifier(**SMALL))
    names = [f"p{i}" for i in range(len(y))]
    pipe.fit(X, y, dynforestclassifier__ids=names)
    pipe[-1].unlearn(["p7"])
    keep = [i for i in range(len(y)) if i != 7]
    want = DynForestClassifier(**SMALL)
    want.fit(np.log1p(X[keep]), y[keep], ids=[names[i] for i in keep])
    assert pipe[-1].state_digest() == want.state_digest()
