"""What crosses to the worker: fitted models as arrays, against the models themselves."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sklearn.base import BaseEstimator
from sklearn.datasets import load_diabetes, load_iris
from sklearn.ensemble import (
    ExtraTreesRegressor,
    GradientBoostingClassifier,
    GradientBoostingRegressor,
    HistGradientBoostingClassifier,
    HistGradientBoostingRegressor,
    RandomForestClassifier,
    RandomForestRegressor,
)
from sklearn.linear_model import (
    LinearRegression,
    LogisticRegression,
    PoissonRegressor,
    Ridge,
    SGDClassifier,
    TweedieRegressor,
)
from sklearn.neighbors import KNeighborsClassifier
from sklearn.neural_network import MLPClassifier, MLPRegressor
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.svm import SVC, LinearSVC
from sklearn.tree import DecisionTreeClassifier, DecisionTreeRegressor

from privml.errors import MalformedMessage, ParameterError, UnsupportedError
from privml.protocols.fhe.concrete_ml import kinds, trees
from privml.protocols.fhe.concrete_ml.builds import Grid
from privml.protocols.fhe.concrete_ml.heads import Head, Link, checked_rows
from privml.protocols.fhe.concrete_ml.kinds import Layers
from privml.protocols.fhe.concrete_ml.trees import Ensemble

pytestmark = pytest.mark.filterwarnings("ignore:.*converge")

CLASSIFIERS = [
    LogisticRegression(max_iter=500),
    LinearSVC(),
    SGDClassifier(loss="log_loss", random_state=0),
    DecisionTreeClassifier(max_depth=3, random_state=0),
    RandomForestClassifier(5, max_depth=3, random_state=0),
    GradientBoostingClassifier(n_estimators=4, random_state=0),
    HistGradientBoostingClassifier(max_iter=4),
    MLPClassifier(hidden_layer_sizes=(8, 5), activation="tanh", max_iter=40, random_state=0),
]
REGRESSORS = [
    LinearRegression(),
    Ridge(),
    PoissonRegressor(),
    TweedieRegressor(power=0),
    TweedieRegressor(power=1.5),
    DecisionTreeRegressor(max_depth=3, random_state=0),
    RandomForestRegressor(4, max_depth=3, random_state=0),
    ExtraTreesRegressor(4, max_depth=3, random_state=0),
    GradientBoostingRegressor(n_estimators=5, loss="huber", random_state=0),
    HistGradientBoostingRegressor(max_iter=5),
    HistGradientBoostingRegressor(max_iter=5, loss="poisson"),
    MLPRegressor(hidden_layer_sizes=(6,), activation="logistic", max_iter=40, random_state=0),
]


def iris(classes: int) -> tuple[np.ndarray, np.ndarray]:
    X, y = load_iris(return_X_y=True)
    keep = y < classes
    return X[keep] + 0.01 * np.sin(np.arange(keep.sum()))[:, None], y[keep]


def plain_head(fitted: kinds.Fitted, features: int) -> Head:
    """A head with nothing to quantise, for scores that come from the content itself."""
    ones = np.ones(features)
    return Head(
        link=fitted.link, classes=fitted.classes, centre=0 * ones, half=ones, in_scale=ones,
        in_zero=0 * ones, in_low=np.zeros(features, int), in_high=np.ones(features, int),
        out_scale=1.0, out_zero=np.zeros(1), summed=False, offset=np.zeros(1),
    )  # fmt: skip


@pytest.mark.parametrize("classes", [2, 3])
@pytest.mark.parametrize("model", CLASSIFIERS, ids=lambda m: type(m).__name__)
def test_classifiers_are_read_as_they_predict(model: Any, classes: int) -> None:
    X, y = iris(classes)
    labels = np.array(["no", "yes", "perhaps"])[y]
    model.fit(X, labels)
    fitted = kinds.read(model, X)
    head = plain_head(fitted, X.shape[1])
    scores = fitted.content.scores(X)
    assert (head.predict(scores) == model.predict(X)).mean() > 0.99  # equal shares may differ
    if head.link is Link.MARGIN:
        with pytest.raises(UnsupportedError):
            head.probabilities(scores)
    else:
        assert np.allclose(head.probabilities(scores), model.predict_proba(X), atol=1e-6)


@pytest.mark.parametrize("model", REGRESSORS, ids=lambda m: type(m).__name__)
def test_regressions_are_read_as_they_predict(model: Any) -> None:
    X, y = load_diabetes(return_X_y=True)
    X = X.astype(np.float32).astype(float)  # in which forests compare
    model.fit(X, y)
    fitted = kinds.read(model, X)
    predicted = plain_head(fitted, X.shape[1]).predict(fitted.content.scores(X))
    assert np.allclose(predicted, model.predict(X), rtol=1e-6)


def test_exponential_loss_gives_its_probabilities() -> None:
    X, y = iris(2)
    model = GradientBoostingClassifier(n_estimators=3, loss="exponential").fit(X, y)
    fitted = kinds.read(model, X)
    head = plain_head(fitted, X.shape[1])
    assert np.allclose(head.probabilities(fitted.content.scores(X)), model.predict_proba(X))


@pytest.mark.parametrize(
    ("model", "said"),
    [
        (SVC(), "SVC of sklearn has no encrypted form; those that have: .*Ridge"),
        (KNeighborsClassifier(), "no encrypted form"),
        (make_pipeline(StandardScaler(), Ridge()), "last step"),
        (object(), "no encrypted form"),
    ],
)
def test_other_models_are_refused_by_name(model: object, said: str) -> None:
    with pytest.raises(UnsupportedError, match=said):
        kinds.family(model)


def test_a_subclass_or_a_namesake_is_refused() -> None:
    class Ridge(BaseEstimator):
        pass

    with pytest.raises(UnsupportedError):
        kinds.family(Ridge())


def test_a_model_that_was_not_fitted_is_refused() -> None:
    X, _ = iris(2)
    for model in (
        Ridge(),
        RandomForestClassifier(),
        MLPClassifier(),
        HistGradientBoostingClassifier(),
    ):
        with pytest.raises(UnsupportedError, match="not fitted"):
            kinds.read(model, X)


def test_an_init_estimator_that_depends_on_rows_is_refused() -> None:
    X, y = load_diabetes(return_X_y=True)
    model = GradientBoostingRegressor(init=LinearRegression(), n_estimators=3).fit(X, y)
    with pytest.raises(UnsupportedError, match="init"):
        kinds.read(model, X)


def test_splits_on_categories_are_refused() -> None:
    X = np.arange(200.0)[:, None] % 5
    model = HistGradientBoostingRegressor(categorical_features=[0], max_iter=3).fit(X, X[:, 0] % 2)
    with pytest.raises(UnsupportedError, match="categories"):
        kinds.read(model, X)


def test_several_outputs_are_refused() -> None:
    X, y = iris(3)
    model = RandomForestRegressor(3).fit(X, np.stack([y, y], axis=1))
    with pytest.raises(UnsupportedError, match="several outputs"):
        kinds.read(model, X)


def test_xgboost_is_read_from_its_own_json() -> None:
    """Below the threshold goes left; sums start elsewhere, which the caller finds out."""
    tree = {
        "left_children": [1, -1, -1], "right_children": [2, -1, -1], "split_indices": [1, 0, 0],
        "split_conditions": [0.5, -1.5, 2.5], "split_type": [0, 0, 0],
    }  # fmt: skip
    booster = {"name": "gbtree", "model": {"trees": [tree], "tree_info": [0]}}
    data = json.dumps({"learner": {"gradient_booster": booster}}).encode()
    rows = np.array([[9.0, 0.4999], [9.0, 0.5], [9.0, 0.6]])
    assert trees.xgboost(data, outputs=1).scores(rows).ravel().tolist() == [-1.5, 2.5, 2.5]
    booster["name"] = "dart"
    with pytest.raises(UnsupportedError, match="dart"):
        trees.xgboost(json.dumps({"learner": {"gradient_booster": booster}}).encode(), outputs=1)
    with pytest.raises(UnsupportedError, match="not known here"):
        trees.xgboost(b'{"learner": {}}', outputs=1)


def grid_of(X: np.ndarray, bits: int) -> Grid:
    low, high = X.min(axis=0), X.max(axis=0)
    scale = (high - low) / (2**bits - 1)
    count = X.shape[1]
    tops = np.full(count, 2**bits - 1)
    return Grid(scale, np.rint(-low / scale), np.zeros(count, np.int64), tops)


@pytest.mark.parametrize(
    "model", [RandomForestClassifier(4, random_state=1), HistGradientBoostingClassifier(max_iter=3)]
)
def test_trees_fitted_on_the_grid_keep_every_split(model: Any) -> None:
    X, y = iris(3)
    grid = grid_of(X, 5)
    places = grid.quantise(X).astype(float)
    content = kinds.read(model.fit(places, y), places).content
    assert isinstance(content, Ensemble)
    whole = replace(
        content, trees=tuple(replace(t, threshold=np.floor(t.threshold)) for t in content.trees)
    )
    assert np.allclose(whole.scores(places), content.scores(places))


def test_converted_trees_differ_only_near_a_threshold() -> None:
    X, y = iris(3)
    model = DecisionTreeClassifier(max_depth=4, random_state=0).fit(X, y)
    content = kinds.read(model, X).content
    assert isinstance(content, Ensemble)
    grid = grid_of(X, 8)
    moved = grid.moved(content)
    places = grid.quantise(X).astype(float)
    assert (moved.scores(places).argmax(1) == content.scores(X).argmax(1)).mean() > 0.98
    for tree in moved.trees:
        assert (tree.threshold == np.floor(tree.threshold)).all()


@pytest.mark.parametrize("depth", [1, 5])
def test_node_arrays_are_whole_trees(depth: int) -> None:
    X, y = load_diabetes(return_X_y=True)
    model = GradientBoostingRegressor(n_estimators=3, max_depth=depth, min_samples_leaf=400)
    arrays = kinds.read(model.fit(X, y), X).content.arrays()  # type: ignore[union-attr]
    assert (np.diff(arrays["starts"]) >= 3).all()  # a lone leaf gets a split that changes nothing
    for name, array in arrays.items():
        assert array.dtype == (np.float64 if name == "value" else np.int64)


def test_rescaled_layers_are_the_same_function(rng: np.random.Generator) -> None:
    layers = Layers(
        (rng.normal(size=(4, 3)), rng.normal(size=(3, 2))),
        (rng.normal(size=3), rng.normal(size=2)),
        "relu",
    )
    rows, centre, half = rng.normal(size=(9, 4)), rng.normal(size=4), rng.uniform(1, 5, 4)
    again = layers.rescaled(centre, half).scores((rows - centre) / half)
    assert np.allclose(again, layers.scores(rows))


def head(**changes: Any) -> Head:
    values: dict[str, Any] = {
        "link": Link.SIGMOID, "classes": ("a", "b"), "centre": np.array([0.0, 5.0]),
        "half": np.array([1.0, 2.5]), "in_scale": np.full(2, 1 / 31), "in_zero": np.zeros(2),
        "in_low": np.full(2, -32), "in_high": np.full(2, 31), "out_scale": 0.25,
        "out_zero": np.array([3.5]), "summed": False, "offset": np.zeros(1),
    }  # fmt: skip
    return Head(**{**values, **changes})


@given(st.lists(st.floats(-1e12, 1e12), min_size=2, max_size=2))
def test_quantised_rows_stay_in_range(row: list[float]) -> None:
    integers = head().quantise([row])
    assert integers.dtype == np.int64
    assert integers.flags.c_contiguous
    assert (integers >= -32).all()
    assert (integers <= 31).all()


@pytest.mark.parametrize("link", [Link.SHARES, Link.SOFTMAX, Link.REST])
@given(st.lists(st.floats(-50, 50), min_size=3, max_size=3))
def test_probabilities_add_up_to_one(link: Link, scores: list[float]) -> None:
    found = head(link=link, classes=(0, 1, 2)).probabilities(np.array([scores]))
    assert np.isclose(found.sum(), 1.0)
    assert (found >= 0).all()


def test_a_head_comes_back_from_json() -> None:
    first = head(classes=(True, False), offset=np.array([0.1 + 0.2]))
    second = Head.from_json(first.to_json())
    assert second.to_json() == first.to_json()
    assert second.offset[0] == 0.1 + 0.2


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (b'"format":1', b'"format":2'),
        (b'"link":"sigmoid"', b'"link":"__import__"'),
        (b'"in_high":[31,31]', b'"in_high":[31]'),
        (b'"in_high":[31,31]', b'"in_high":[31,9223372036854775808]'),
        (b'"in_high":[31,31]', b'"in_high":[31,99999999]'),
        (b'"half":[1,2.5]', b'"half":[1,-2.5]'),
        (b'"half":[1,2.5]', b'"half":[1,1e999]'),
        (b'"summed":false', b'"summed":false,"more":1'),
        (b'"classes":["a","b"]', b'"classes":[]'),
        (b'"classes":["a","b"]', b'"classes":[["a"]]'),
        (b"{", b"["),
    ],
)
def test_a_foreign_head_is_refused(old: bytes, new: bytes) -> None:
    data = head().to_json()
    assert old in data
    with pytest.raises(MalformedMessage):
        Head.from_json(data.replace(old, new, 1))


@pytest.mark.parametrize(
    "rows",
    [[1.0, 2.0], [[1.0, np.nan]], [[np.inf, 0.0]], [["a", "b"]], np.zeros((2, 0)), [[1], [1, 2]]],
)
def test_rows_that_are_no_table_of_numbers_are_refused(rows: object) -> None:
    with pytest.raises(ParameterError):
        checked_rows(rows)


def test_rows_of_another_width_are_refused() -> None:
    with pytest.raises(ParameterError, match="3 features, the model takes 2"):
        head().quantise(np.zeros((1, 3)))
