"""A class is forgotten with its last row, audits see a wrong label table, files never hold one."""

from __future__ import annotations

import copy
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sklearn.base import clone
from sklearn.datasets import load_iris

from privml.errors import ModelUnusable, ParameterError, SchemaError
from privml.unlearning import DynForestClassifier, DynForestRegressor
from privml.unlearning.forest.labels import LabelTable

Tables = tuple[np.ndarray, np.ndarray]


@pytest.fixture(scope="module")
def iris() -> Tables:
    X, y = load_iris(return_X_y=True)
    return X, y


def two_classes(iris: Tables) -> DynForestClassifier:
    X, y = iris
    return DynForestClassifier(10, random_state=0).fit(X[:100], y[:100])


def test_a_class_learned_after_a_deletion_is_forgotten(iris: Tables, tmp_path: Path) -> None:
    X, y = iris
    model = two_classes(iris)
    model.unlearn([0])
    model.learn(X[100:101], y[100:101], ids=[100])
    assert model.classes_.tolist() == [0, 1, 2]
    certificate = model.unlearn([100])
    assert (certificate.classes_before, certificate.classes_after) == (3, 2)
    assert model.classes_.tolist() == [0, 1]
    oracle = clone(model).fit(X[1:100], y[1:100], ids=range(1, 100))
    assert model.state_digest() == oracle.state_digest()
    assert model.predict_proba(X).shape == (150, 2)
    model.save(tmp_path / "a")
    for other in (DynForestClassifier.load(tmp_path / "a"), copy.deepcopy(model)):
        assert other.state_digest() == oracle.state_digest()
        assert other.classes_.tolist() == [0, 1]


def test_a_rare_class_that_grows_and_shrinks_is_forgotten_in_time(iris: Tables) -> None:
    X, y = iris
    model = two_classes(iris)
    model.unlearn([0])
    for i in (100, 101, 102):
        model.learn(X[[i]], y[[i]], ids=[i])
    model.unlearn([101])
    model.unlearn([100])
    assert model.classes_.tolist() == [0, 1, 2]
    model.unlearn([102])
    assert model.classes_.tolist() == [0, 1]
    assert model.audit("twin").ok


WRONG: tuple[tuple[dict[str, Any], str], ...] = (
    ({"values": (0, 1, 2)}, "without rows"),
    ({"values": (0,)}, "has no label"),
    ({"values": (0, None)}, "has no label"),
    ({"values": (0, 0)}, "one label"),
    ({"values": (0, "1")}, "one kind"),
    ({"values": (0, True)}, "one kind"),
    ({"kind": "str"}, "one kind"),
)


@pytest.mark.parametrize(("change", "says"), WRONG)
@pytest.mark.parametrize("level", ["structure", "retrain"])
def test_audits_see_a_wrong_label_table(
    iris: Tables, change: dict[str, Any], says: str, level: Any, tmp_path: Path
) -> None:
    model = two_classes(iris)
    inner = model._model
    inner.labels = replace(inner.labels, **change)
    report = model.audit(level)
    assert not report.ok
    assert any(says in finding for finding in report.findings)
    with pytest.raises(ModelUnusable, match=says):
        model.save(tmp_path / "a")
    assert not (tmp_path / "a").exists()
    with pytest.raises(ModelUnusable):
        copy.deepcopy(model)


def test_audits_see_a_wrong_number_of_rows() -> None:
    model = DynForestRegressor(5, random_state=0).fit(np.arange(30.0)[:, None], np.arange(30.0))
    assert model.audit().ok
    model._model.n_rows += 1
    assert "number of rows" in model.audit().findings[0]


def test_a_declared_class_without_rows_is_right() -> None:
    table = LabelTable.declare([0, 1, 2])
    assert table.contradictions([3, 0, 0]) == []
    assert table.contradictions([3]) == []
    assert table.contradictions([1, 1, 1, 1]) == ["a class with rows has no label"]
    assert LabelTable().contradictions([]) == []


@pytest.mark.parametrize("level", ["foo", "", None, 2, "Twin"])
def test_an_unknown_audit_level_is_refused(iris: Tables, level: Any) -> None:
    with pytest.raises(ParameterError, match="structure, retrain, twin"):
        two_classes(iris).audit(level)


def test_labels_of_data_frames_keep_their_type() -> None:
    pd = pytest.importorskip("pandas")
    X = np.arange(20.0)[:, None]
    truth = np.arange(20) % 3 == 0
    for y in (
        pd.Categorical(truth),
        pd.Series(truth).astype("category"),
        pd.Series(truth, dtype="boolean"),
        pd.Series(truth, dtype=object),
        truth.astype(object),
    ):
        model = DynForestClassifier(5, random_state=0).fit(X, y)
        assert model.classes_.dtype == np.bool_
        assert model.score(X, truth) > 0.5
    for y, kind in (
        (pd.Series(np.arange(20) % 2, dtype="Int64"), "i"),
        (pd.Series(["a", "b"] * 10, dtype="string"), "U"),
        (pd.Series(["a", "b"] * 10, dtype="category"), "U"),
        (pd.Categorical(np.arange(20) % 2), "i"),
    ):
        assert DynForestClassifier(5).fit(X, y).classes_.dtype.kind == kind


@pytest.mark.parametrize("labels", [[0, None, 1], ["a", None, "b"], [np.nan, "a", "b"], [1, "a", 2],
                                    [True, "a", "b"], [1, 2.5, None]])  # fmt: skip
def test_missing_and_mixed_labels_are_named_by_place_or_type(labels: list[Any]) -> None:
    y = np.array(labels, dtype=object)
    with pytest.raises(SchemaError, match=r"position \d|types \(") as caught:
        DynForestClassifier().fit(np.arange(3.0)[:, None], y)
    assert "'a'" not in str(caught.value)
