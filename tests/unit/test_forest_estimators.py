"""The estimators: scikit-learn's own checks, ids, classes, tables, errors without side effects."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from sklearn.base import clone
from sklearn.datasets import load_breast_cancer, load_diabetes, load_digits
from sklearn.exceptions import NotFittedError
from sklearn.model_selection import cross_val_score
from sklearn.utils.estimator_checks import parametrize_with_checks

from privml.errors import (
    DuplicateIdError,
    EmptyForestError,
    SchemaError,
    UnknownIdError,
    UnlearningError,
    UnsupportedError,
)
from privml.unlearning import DynForestClassifier, DynForestRegressor, ForestKey, Unlearner

SMALL: dict[str, Any] = {"n_estimators": 10, "random_state": 0}


@parametrize_with_checks(
    [DynForestClassifier(n_estimators=20), DynForestRegressor(n_estimators=20)]
)
@pytest.mark.filterwarnings("ignore")
def test_scikit_learn_is_content(estimator: Any, check: Callable[[Any], None]) -> None:
    check(estimator)


@pytest.fixture
def cancer() -> tuple[np.ndarray, np.ndarray]:
    X, y = load_breast_cancer(return_X_y=True)
    return X[:200], y[:200]


@pytest.fixture
def forest(cancer: tuple[np.ndarray, np.ndarray]) -> DynForestClassifier:
    return DynForestClassifier(**SMALL).fit(*cancer)


def test_forgetting_is_refitting(cancer: tuple[np.ndarray, np.ndarray]) -> None:
    X, y = cancer
    model = DynForestClassifier(n_estimators=10).fit(X, y)
    model.unlearn([3, 150, 7])
    keep = np.setdiff1d(np.arange(len(y)), [3, 150, 7])
    oracle = clone(model).set_params(key=model.key_).fit(X[keep], y[keep], ids=keep)
    assert model.state_digest() == oracle.state_digest()
    assert model.predict_proba(X).tobytes() == oracle.predict_proba(X).tobytes()
    assert model.n_live_ == len(keep)
    assert model.ids_.tolist() == keep.tolist()


def test_learning_is_refitting(cancer: tuple[np.ndarray, np.ndarray]) -> None:
    X, y = cancer
    whole = DynForestClassifier(**SMALL).fit(X, y)
    grown = DynForestClassifier(**SMALL).fit(X[:50], y[:50])
    assert grown.learn(X[50:], y[50:]) is grown
    assert grown.state_digest() == whole.state_digest()
    assert grown.version_ == 2


def test_regression_forgets_too() -> None:
    X, y = load_diabetes(return_X_y=True)
    model = DynForestRegressor(**SMALL).fit(X, y)
    model.unlearn(range(0, 100, 3))
    keep = np.setdiff1d(np.arange(len(y)), range(0, 100, 3))
    oracle = clone(model).fit(X[keep], y[keep], ids=keep)
    assert model.state_digest() == oracle.state_digest()
    assert model.predict(X).tobytes() == oracle.predict(X).tobytes()


def test_it_satisfies_the_unlearner_protocol(forest: DynForestClassifier) -> None:
    assert isinstance(forest, Unlearner)
    before = forest.state_digest(), forest.version_
    impact = forest.affected([5, 6])
    assert (forest.state_digest(), forest.version_) == before
    assert impact.unit == "tree"
    assert impact.per_id.shape == (2, 2)
    assert set(impact.union()) <= set(range(10))
    forest.unlearn([5])
    assert (forest.affected([5]).per_id == impact.per_id[:1]).all()  # a function of the id


@pytest.mark.parametrize(
    ("ids", "error"),
    [
        ([0, 999], UnknownIdError),
        ([999], UnknownIdError),
        (["0"], UnknownIdError),
        ([-1], UnknownIdError),
        ([4, 4], DuplicateIdError),
        ([4, 5, 4], DuplicateIdError),
        ([1.5], SchemaError),
        ([True], SchemaError),
        ([None], SchemaError),
        ([""], SchemaError),
        ([1 << 63], SchemaError),
        ([b"4"], SchemaError),
        (4, SchemaError),
        ("4", SchemaError),
        (None, SchemaError),
        (np.array([[1, 2]]), SchemaError),
        (np.array([1.0, 2.0]), SchemaError),
        (np.array([2**64 - 1], dtype=np.uint64), SchemaError),
    ],
)
def test_a_bad_request_changes_nothing(
    forest: DynForestClassifier, ids: Any, error: type[Exception]
) -> None:
    before = forest.state_digest(), forest.version_
    with pytest.raises(error):
        forest.unlearn(ids)
    assert (forest.state_digest(), forest.version_) == before


def test_a_second_delete_is_an_unknown_id(forest: DynForestClassifier) -> None:
    forest.unlearn([17])
    with pytest.raises(UnknownIdError) as caught:
        forest.unlearn([17])
    assert isinstance(caught.value, KeyError)
    assert isinstance(caught.value, UnlearningError)
    assert "'" not in str(caught.value)[:1]  # a sentence, not the repr that KeyError shows
    assert forest.contains([17, 18]).tolist() == [False, True]


def test_forgetting_nothing_is_legal(forest: DynForestClassifier) -> None:
    before = forest.state_digest()
    certificate = forest.unlearn([])
    assert certificate.rows_before == certificate.rows_after == 200
    assert forest.state_digest() == before


def test_learning_a_living_or_repeated_id_changes_nothing(
    forest: DynForestClassifier, cancer: tuple[np.ndarray, np.ndarray]
) -> None:
    X, y = cancer
    before = forest.state_digest()
    for ids in ([300, 5], [300, 300]):
        with pytest.raises(DuplicateIdError):
            forest.learn(X[:2], y[:2], ids=ids)
    with pytest.raises(SchemaError, match="one per row"):
        forest.learn(X[:2], y[:2], ids=[300])
    with pytest.raises(DuplicateIdError):
        DynForestClassifier(**SMALL).fit(X[:3], y[:3], ids=[1, 2, 1])
    assert forest.state_digest() == before


def test_ids_are_typed(cancer: tuple[np.ndarray, np.ndarray]) -> None:
    X, y = cancer
    model = DynForestClassifier(**SMALL).fit(X[:4], y[:4], ids=[7, "7", -7, "ada"])
    assert model.contains([7, "7", -7, "ada", "eve", 8]).tolist() == [True] * 4 + [False] * 2
    model.unlearn(["7"])
    assert model.contains([7, "7"]).tolist() == [True, False]
    listed = model.ids_.tolist()
    assert listed[:2] == [7, -7]
    assert listed[2].startswith("#")
    assert "ada" not in listed


def test_new_rows_without_ids_follow_the_largest(
    forest: DynForestClassifier, cancer: tuple[np.ndarray, np.ndarray]
) -> None:
    X, y = cancer
    forest.learn(X[:2], y[:2])
    assert forest.ids_.tolist()[-2:] == [200, 201]


def test_classes_shrink_with_their_rows_and_grow_again() -> None:
    X, y = load_digits(return_X_y=True)
    X, y = X[:120], np.array([f"digit {v}" for v in y[:120]])
    model = DynForestClassifier(**SMALL).fit(X, y)
    nines = np.flatnonzero(y == "digit 9")
    certificate = model.unlearn(nines)
    assert (certificate.classes_before, certificate.classes_after) == (10, 9)
    assert "digit 9" not in model.classes_
    assert model.predict_proba(X).shape == (120, 9)
    rest = np.flatnonzero(y != "digit 9")
    oracle = clone(model).fit(X[rest], y[rest], ids=rest)
    assert oracle.state_digest() == model.state_digest()
    assert oracle.classes_.dtype == model.classes_.dtype
    model.learn(X[nines], np.where(nines % 2, "a", "digit 9"), ids=nines)
    assert model.classes_.tolist() == ["a", *(f"digit {v}" for v in range(10))]
    y[nines] = np.where(nines % 2, "a", "digit 9")
    whole = clone(model).fit(X, y)
    assert whole.state_digest() == model.state_digest()
    assert whole.predict_proba(X).tobytes() == model.predict_proba(X).tobytes()


def test_declared_classes_stay_and_bind() -> None:
    X, y = load_digits(return_X_y=True)
    model = DynForestClassifier(**SMALL, classes=range(10)).fit(X[:5], y[:5])
    assert model.predict_proba(X[:3]).shape == (3, 10)
    with pytest.raises(SchemaError, match="classes="):
        DynForestClassifier(**SMALL, classes=[0, 1]).fit(X[:3], [0, 1, 2])
    with pytest.raises(SchemaError, match="classes="):
        model.learn(X[:1], [12], ids=[12])
    model.unlearn([0, 1, 2, 3])
    assert model.classes_.tolist() == list(range(10))


@pytest.mark.parametrize("classes", [[], [1, 1], [1, "1"]])
def test_odd_declarations_are_refused(classes: list[Any]) -> None:
    with pytest.raises(SchemaError):
        DynForestClassifier(classes=classes).fit([[1.0]], [1])


def test_labels_of_another_kind_are_refused(forest: DynForestClassifier) -> None:
    with pytest.raises(SchemaError, match="str"):
        forest.learn(np.zeros((1, 30)), ["1"], ids=[500])


def test_forgetting_down_to_nothing(cancer: tuple[np.ndarray, np.ndarray]) -> None:
    X, y = cancer
    model = DynForestClassifier(**SMALL).fit(X, y)
    model.unlearn(range(5, 200))
    assert np.isfinite(model.predict_proba(X)).all()
    model.unlearn(range(1, 5))
    assert np.isfinite(model.predict_proba(X)).all()
    assert model.n_live_ == 1
    model.unlearn([0])
    for call in (model.predict, model.predict_proba):
        with pytest.raises(EmptyForestError):
            call(X)
    assert model.classes_.tolist() == []
    model.learn(X, y, ids=range(200))
    assert model.state_digest() == clone(model).fit(X, y).state_digest()


def test_not_fitted_is_said() -> None:
    for call in ("predict", "unlearn", "affected"):
        with pytest.raises(NotFittedError):
            getattr(DynForestRegressor(), call)([[1.0]])
    with pytest.raises(NotFittedError):
        DynForestClassifier().state_digest()


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("n_estimators", 0),
        ("n_estimators", 2.0),
        ("n_estimators", True),
        ("occurrence", 0.0),
        ("occurrence", 1.5),
        ("occurrence", "much"),
        ("max_depth", -1),
        ("max_depth", 256),
        ("n_thresholds", 0),
        ("max_features", 0),
        ("max_features", "many"),
        ("max_features", 1.5),
        ("max_features", 0.0),
        ("min_samples_split", 1),
        ("random_state", 0.5),
        ("key", "secret"),
        ("n_jobs", 0),
    ],
)
def test_parameters_out_of_range_are_named(name: str, value: object) -> None:
    with pytest.raises(ValueError, match=name):
        DynForestClassifier(**{name: value}).fit([[0.0], [1.0]], [0, 1])


def test_infinite_and_huge_values_are_refused_by_column() -> None:
    huge = frame()[["age", "pay"]]
    huge.loc[5, "pay"] = 1e39
    with pytest.raises(SchemaError, match="'pay'"):
        DynForestClassifier().fit(huge, np.arange(120) % 2)
    with pytest.raises(SchemaError, match="infinity"):
        DynForestClassifier().fit([[np.inf], [1.0]], [0, 1])
    model = DynForestClassifier(**SMALL).fit([[0.0], [1.0]], [0, 1])
    with pytest.raises(SchemaError, match="infinity"):
        model.predict([[-np.inf]])


def test_targets_out_of_range_name_the_remedy() -> None:
    X = np.arange(4.0)[:, None]
    with pytest.raises(SchemaError, match="target_bits"):
        DynForestRegressor(target_bits=20).fit(X, [1e9, 2, 3, 4])
    with pytest.raises(SchemaError, match="NaN"):
        DynForestRegressor().fit(X, [np.nan, 2, 3, 4])
    model = DynForestRegressor(**SMALL, target_bits=0).fit(X, [1e9, 2, 3, 4])
    before = model.state_digest()
    with pytest.raises(SchemaError, match="add up"):
        model.learn(np.zeros((40_000, 1)), np.full(40_000, 2.0**46.9), ids=range(10, 40_010))
    assert model.state_digest() == before


def test_missing_values_are_learned_and_answered() -> None:
    rng = np.random.default_rng(0)
    X = rng.normal(size=(300, 3))
    X[rng.random((300, 3)) < 0.3] = np.nan
    y = np.isnan(X[:, 1]).astype(int)
    model = DynForestClassifier(50, random_state=0).fit(X, y)
    assert model.score(X, y) > 0.97
    assert np.isfinite(model.predict_proba(np.full((1, 3), np.nan))).all()


def frame(n: int = 120) -> Any:
    pd = pytest.importorskip("pandas")
    rng = np.random.default_rng(1)
    return pd.DataFrame(
        {
            "age": rng.integers(18, 90, n),
            "city": rng.choice(["Oslo", "Rome", "Lima", None], n),
            "plan": pd.Categorical(rng.choice(["a", "b"], n)),
            "pay": rng.normal(size=n),
        }
    )


def test_categories_by_name_position_mask_and_dtype_agree() -> None:
    X = frame()
    y = ((X["city"] == "Rome") | (X["age"] > 70)).to_numpy()
    specs: tuple[Any, ...] = (["city", "plan"], [1, 2], [-3, 2], [False, True, True, False],
                              "from_dtype")  # fmt: skip
    models = [DynForestClassifier(**SMALL, categorical_features=s).fit(X, y) for s in specs]
    assert len({m.state_digest() for m in models}) == 1
    assert models[0].score(X, y) > 0.9
    array = DynForestClassifier(**SMALL, categorical_features=[1, 2]).fit(X.to_numpy(object), y)
    assert array.state_digest() == models[0].state_digest()
    unseen = X.assign(city="Cairo")
    assert np.isfinite(models[0].predict_proba(unseen)).all()


def test_categories_are_a_function_of_the_row_alone() -> None:
    X, y = frame(), np.arange(120) % 2
    model = DynForestClassifier(**SMALL, categorical_features=["city", "plan"]).fit(X, y)
    model.unlearn(range(60))
    rest = X.iloc[60:]
    oracle = clone(model).fit(rest.iloc[::-1], y[60:][::-1], ids=range(119, 59, -1))
    assert oracle.state_digest() == model.state_digest()


def test_category_codes_must_be_small_whole_numbers() -> None:
    model = DynForestClassifier(**SMALL, categorical_features=[0])
    model.fit([[0], [1], [8_388_607]], [0, 1, 0])
    for bad in (-1, 0.5, 8_388_608, 1e30):
        with pytest.raises(SchemaError, match="column 0"):
            model.predict([[bad]])
    with pytest.raises(SchemaError, match="column 0"):
        model.fit(np.array([["a"], [("x",)], ["b"]], dtype=object), [0, 1, 0])


@pytest.mark.parametrize("spec", [["town"], [9], "auto", [True], [1.5], 3.5])
def test_odd_category_declarations_are_refused(spec: Any) -> None:
    with pytest.raises(SchemaError):
        DynForestClassifier(categorical_features=spec).fit(frame(), np.arange(120) % 2)


def test_a_text_column_needs_a_declaration() -> None:
    with pytest.raises(SchemaError):
        DynForestClassifier().fit(frame(), np.arange(120) % 2)


def test_columns_are_checked_by_name() -> None:
    X, y = frame()[["age", "pay"]], np.arange(120) % 2
    model = DynForestClassifier(**SMALL).fit(X, y)
    assert model.feature_names_in_.tolist() == ["age", "pay"]
    with pytest.raises(SchemaError, match="feature names"):
        model.predict(X[["pay", "age"]])
    with pytest.raises(SchemaError, match="features"):
        DynForestClassifier(**SMALL).fit(X.to_numpy(), y).predict(X.to_numpy()[:, :1])


def test_the_coding_of_a_binary_column_does_not_matter() -> None:
    rng = np.random.default_rng(2)
    noise, y = rng.normal(size=(300, 4)), rng.integers(0, 2, 300)
    scores = [
        DynForestClassifier(50, random_state=0)
        .fit(np.c_[noise, y + shift], y)
        .score(np.c_[noise, y + shift], y)
        for shift in (0, 1)
    ]
    assert scores == [1.0, 1.0]


def test_the_certificate_is_true_and_shows_no_id(forest: DynForestClassifier) -> None:
    certificate = forest.unlearn([123, 77], digest=True)
    assert (certificate.version_before, certificate.version_after) == (1, 2)
    assert (certificate.rows_before, certificate.rows_after) == (200, 198)
    assert certificate.trees_visited == 4
    assert certificate.state_digest == forest.state_digest()
    assert certificate.id_hashes == forest.id_hashes([123, 77])
    assert certificate.key_commitment == forest.key_.commitment().hex()
    assert not certificate.persisted
    assert certificate.as_persisted().persisted
    fields = json.loads(certificate.to_json())
    assert fields["format"] == "privml-forest-certificate/1"
    assert not any("second" in name or "time" in name for name in fields)
    assert 123 not in fields.values()
    other = DynForestClassifier(**SMALL, key=ForestKey.fresh()).fit(np.zeros((2, 1)), [0, 1])
    assert set(other.id_hashes([123, 77])).isdisjoint(certificate.id_hashes)


def test_resolving_and_purging_leave_the_model(forest: DynForestClassifier) -> None:
    forest.unlearn(range(50))
    answers = forest.predict_proba(np.zeros((3, 30)))
    assert forest.resolve() is True
    before = forest.state_digest()
    forest.purge()
    forest.compact()
    assert forest.state_digest() == before
    assert forest.predict_proba(np.zeros((3, 30))).tobytes() == answers.tobytes()
    assert forest.memory_usage()["total"] > 0


@pytest.mark.parametrize("level", ["structure", "retrain", "twin"])
def test_audits_pass(forest: DynForestClassifier, level: Any) -> None:
    forest.unlearn(range(3))
    report = forest.audit(level)
    assert report.ok
    assert report.rows == 197
    assert report.state_digest == forest.state_digest()


def test_threads_do_not_change_the_model(cancer: tuple[np.ndarray, np.ndarray]) -> None:
    X, y = cancer
    one, two = (DynForestClassifier(**SMALL, n_jobs=jobs).fit(X, y) for jobs in (1, 2))
    assert one.state_digest() == two.state_digest()
    assert one.predict_proba(X).tobytes() == two.predict_proba(X).tobytes()


def test_leave_one_out_by_forgetting_is_leave_one_out_by_refitting(
    cancer: tuple[np.ndarray, np.ndarray],
) -> None:
    X, y = cancer
    X, y = X[:40], y[:40]
    model = DynForestClassifier(**SMALL).fit(X, y)
    for i in range(0, 40, 7):
        keep = np.delete(np.arange(40), i)
        model.unlearn([i])
        oracle = clone(model).fit(X[keep], y[keep], ids=keep)
        assert (model.predict_proba(X) == oracle.predict_proba(X)).all()
        model.learn(X[[i]], y[[i]], ids=[i])


def test_it_works_inside_scikit_learn(cancer: tuple[np.ndarray, np.ndarray]) -> None:
    assert cross_val_score(DynForestClassifier(**SMALL), *cancer, cv=3).mean() > 0.85


def test_read_only_and_fortran_arrays_are_taken(cancer: tuple[np.ndarray, np.ndarray]) -> None:
    X, y = cancer
    want = DynForestClassifier(**SMALL).fit(X, y).state_digest()
    fortran = np.asfortranarray(X.astype(np.float32))
    fortran.flags.writeable = False
    assert DynForestClassifier(**SMALL).fit(fortran, y).state_digest() == want


def test_a_new_key_gives_another_forest_of_the_same_rows(forest: DynForestClassifier) -> None:
    forest.unlearn([5, 9])
    before, version, ids = forest.state_digest(), forest.version_, forest.ids_
    old = forest.key_
    assert forest.rekey() is forest
    assert forest.key_ != old
    assert forest.state_digest() != before
    assert forest.version_ == version + 1
    assert (forest.ids_ == ids).all()
    assert forest.audit("twin").ok
    forest.unlearn([6])
    assert forest.n_live_ == 197


def test_texts_cannot_be_rekeyed() -> None:
    named = DynForestClassifier(**SMALL).fit([[0.0], [1.0]], [0, 1], ids=["a", "b"])
    coloured = DynForestClassifier(**SMALL, categorical_features=[0]).fit([["a"], ["b"]], [0, 1])
    for model in (named, coloured):
        before = model.state_digest()
        with pytest.raises(UnsupportedError, match="fit the living rows"):
            model.rekey()
        assert model.state_digest() == before
    numbered = DynForestClassifier(**SMALL, categorical_features=[0]).fit([[3], [4]], [0, 1])
    numbered.unlearn([0])
    assert numbered.rekey().n_live_ == 1


def test_a_failed_fit_leaves_the_old_model(forest: DynForestClassifier) -> None:
    before = forest.state_digest()
    with pytest.raises(SchemaError):
        forest.fit(np.zeros((3, 5)), [0.5, 1.5, np.nan])
    with pytest.raises(SchemaError):
        forest.fit(frame()[["age", "pay"]], np.arange(3))
    assert forest.state_digest() == before
    assert forest.n_features_in_ == 30
    assert not hasattr(forest, "feature_names_in_")
    assert forest.predict_proba(np.zeros((2, 30))).shape == (2, 2)


def test_arguments_changed_after_the_fit_do_not_change_the_model() -> None:
    X, y = np.arange(20.0)[:, None], np.linspace(-1, 1, 20)
    model = DynForestRegressor(**SMALL).fit(X[:10], y[:10])
    model.set_params(target_bits=3, max_depth=1, n_estimators=2)
    model.learn(X[10:], y[10:])
    assert model.state_digest() == DynForestRegressor(**SMALL).fit(X, y).state_digest()
