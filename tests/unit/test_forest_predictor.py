"""Exported predictors answer like the forest, hold no row and no key, and load strictly."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from safetensors.numpy import load, save
from sklearn.datasets import load_diabetes, load_digits

from privml.errors import CorruptModelError, EmptyForestError, ModelVersionError, SchemaError
from privml.unlearning import DynForestClassifier, DynForestRegressor
from privml.unlearning.forest.predictor import ForestPredictor


def coloured() -> tuple[Any, np.ndarray]:
    pd = pytest.importorskip("pandas")
    rng = np.random.default_rng(0)
    X = pd.DataFrame({"a": rng.normal(size=300), "c": rng.choice(["red", "blue", "grey"], 300)})
    X.loc[rng.random(300) < 0.2, "a"] = np.nan
    X.loc[rng.random(300) < 0.2, "c"] = None
    return X, np.where((X["c"] == "red") ^ X["a"].isna(), "yes", "no")


def test_answers_are_those_of_the_forest(tmp_path: Path) -> None:
    X, y = load_digits(return_X_y=True)
    X[::7, 3] = np.nan
    model = DynForestClassifier(10, random_state=0).fit(X[:500], y[:500])
    model.unlearn(range(0, 100, 3))
    predictor = model.export_predictor()
    predictor.save(tmp_path / "p")
    for one in (predictor, ForestPredictor.load(tmp_path / "p")):
        assert one.predict_proba(X).tobytes() == model.predict_proba(X).tobytes()
        assert (one.predict(X) == model.predict(X)).all()
        assert one.version == model.version_
        assert repr(one) == "ForestPredictor(10 trees, version 2)"


def test_regression_and_categories_agree_too(tmp_path: Path) -> None:
    X, y = load_diabetes(return_X_y=True)
    model = DynForestRegressor(10, random_state=0).fit(X, y)
    model.export_predictor().save(tmp_path / "r")
    assert (ForestPredictor.load(tmp_path / "r").predict(X) == model.predict(X)).all()
    frame, labels = coloured()
    forest = DynForestClassifier(10, random_state=0, categorical_features=["c"])
    forest.fit(frame, labels)
    forest.export_predictor().save(tmp_path / "c")
    loaded = ForestPredictor.load(tmp_path / "c")
    unseen = frame.assign(c=np.where(np.arange(300) % 2, "green", frame["c"]))
    for table in (frame, unseen):
        assert loaded.predict_proba(table).tobytes() == forest.predict_proba(table).tobytes()
    with pytest.raises(SchemaError):
        loaded.predict(frame[["c", "a"]])


def test_it_holds_neither_rows_nor_key(tmp_path: Path) -> None:
    X = np.random.default_rng(1).normal(size=(80, 3)).astype(np.float32)
    model = DynForestClassifier(5).fit(X, np.arange(80) % 2, ids=range(10**15, 10**15 + 80))
    model.export_predictor().save(tmp_path / "p")
    data = (tmp_path / "p").read_bytes()
    key = model.key_
    assert not any(part in data for part in (key.master, key.tree, key.occurrence, key.identity))
    assert not any(row.tobytes() in data for row in X)
    assert np.int64(10**15 + 7).tobytes() not in data
    assert not hasattr(model.export_predictor(), "unlearn")


def test_an_empty_forest_exports_and_says_so(tmp_path: Path) -> None:
    model = DynForestClassifier(3).fit([[0.0]], [1])
    model.unlearn([0])
    model.export_predictor().save(tmp_path / "p")
    with pytest.raises(EmptyForestError):
        ForestPredictor.load(tmp_path / "p").predict([[0.0]])


def damaged(data: bytes, path: Path) -> None:
    path.write_bytes(data)
    with pytest.raises(CorruptModelError):
        ForestPredictor.load(path)


def test_damaged_files_are_refused(tmp_path: Path, rng: np.random.Generator) -> None:
    X, y = coloured()
    DynForestClassifier(3, categorical_features=["c"]).fit(X, y).export_predictor().save(
        tmp_path / "p"
    )
    data = (tmp_path / "p").read_bytes()
    for length in (0, 7, 8, 100, len(data) - 1):
        damaged(data[:length], tmp_path / "x")
    for _ in range(300):  # whatever is loaded answers; nothing breaks
        altered = bytearray(data)
        altered[int(rng.integers(len(data)))] ^= 1 << int(rng.integers(8))
        (tmp_path / "x").write_bytes(altered)
        try:
            answer = ForestPredictor.load(tmp_path / "x").predict_proba(X.to_numpy(object))
        except (CorruptModelError, ModelVersionError, SchemaError):
            continue
        except UserWarning:
            continue
        assert len(answer) == len(X)


CHANGES: tuple[tuple[str, Any], ...] = (
    ("left", lambda a: a * 0),
    ("left", lambda a: a + 10**9),
    ("right", lambda a: -a),
    ("roots", lambda a: a + 10**6),
    ("attribute", lambda a: a + 50),
    ("attribute", lambda a: a.astype(np.int64)),
    ("values", lambda a: a * np.nan),
    ("values", lambda a: a[:1]),
    ("values", lambda a: a[:, :1]),
    ("draw", lambda a: -np.ones_like(a)),
    ("threshold", lambda a: a[:-1]),
)


@pytest.mark.parametrize(("name", "change"), CHANGES)
def test_contradictory_arrays_are_refused(name: str, change: Any, tmp_path: Path) -> None:
    X, y = coloured()
    model = DynForestClassifier(3, random_state=0, categorical_features=["c"]).fit(X, y)
    model.export_predictor().save(tmp_path / "p")
    arrays = load((tmp_path / "p").read_bytes())
    arrays[name] = np.ascontiguousarray(change(arrays[name]))
    damaged(save(arrays), tmp_path / "x")


@pytest.mark.parametrize(
    "change", [{"labels": ["yes", "no"]}, {"labels": [1, 2]}, {"names": ["a"]}, {"extra": 1},
               {"category_key": "AAAA"}, {"categorical": [True, True]}],
)  # fmt: skip
def test_odd_descriptions_are_refused(change: dict[str, Any], tmp_path: Path) -> None:
    X, y = coloured()
    model = DynForestClassifier(3, random_state=0, categorical_features=["c"]).fit(X, y)
    model.export_predictor().save(tmp_path / "p")
    arrays = load((tmp_path / "p").read_bytes())
    fields = {**msgspec.json.decode(arrays["description"].tobytes()), **change}
    arrays["description"] = np.frombuffer(msgspec.json.encode(fields), np.uint8)
    damaged(save(arrays), tmp_path / "x")
    arrays["description"] = np.frombuffer(msgspec.json.encode({**fields, "format": 2}), np.uint8)
