"""Messages say which place or column is wrong and what to do, and quote nothing of the data."""

from __future__ import annotations

import datetime
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from privml.errors import (
    CorruptModelError,
    DuplicateIdError,
    SchemaError,
    StorageError,
    UnknownIdError,
)
from privml.unlearning import DynForestClassifier, DynForestRegressor

SECRET = 987654.25
NAME = "Ada Lovelace"


@pytest.fixture
def model() -> DynForestClassifier:
    X = np.random.default_rng(0).normal(size=(40, 3))
    return DynForestClassifier(5, random_state=0).fit(X, np.arange(40) % 2)


def told(call: Any) -> str:
    """Return the whole traceback of a refused call, causes included."""
    import traceback

    with pytest.raises(SchemaError) as caught:
        call()
    return "".join(traceback.format_exception(caught.value, chain=True)).split("SchemaError", 1)[-1]


def test_no_message_quotes_a_value(model: DynForestClassifier) -> None:
    row = [SECRET, 1.0, 2.0]
    words = np.array([[NAME, "x", "y"], ["z", "x", "y"]], dtype=object)
    calls = (
        lambda: model.learn(np.array(row), [0], ids=[50]),
        lambda: model.learn(row, [0], ids=[50]),
        lambda: model.predict(SECRET),
        lambda: model.predict(np.array(SECRET)),
        lambda: model.predict([[SECRET + 1j, 0, 0]]),
        lambda: model.predict(words),
        lambda: model.predict(words.tolist()),
        lambda: model.predict([[NAME, SECRET, 1]]),
        lambda: model.predict([[{NAME: 1}, SECRET, 1]]),
        lambda: model.fit([[SECRET]], SECRET),
        lambda: model.fit([[1.0], [2.0]], [SECRET, 0.5]),
        lambda: DynForestRegressor().fit([[1.0], [2.0]], [NAME, "x"]),
        lambda: DynForestRegressor().fit([[1.0], [2.0]], [1.0, None]),
        lambda: DynForestClassifier(categorical_features=[0]).fit([[(NAME,)], ["x"]], [0, 1]),
    )
    for call in calls:
        text = told(call)
        assert NAME not in text
        assert "987654" not in text


def test_shapes_are_explained(model: DynForestClassifier) -> None:
    with pytest.raises(SchemaError, match=r"got 1D array instead\. Reshape your data: X\[None"):
        model.predict([1.0, 2.0, 3.0])
    with pytest.raises(SchemaError, match="got scalar array"):
        model.predict(np.float64(3))


def test_columns_of_texts_are_named_with_the_remedy(model: DynForestClassifier) -> None:
    pd = pytest.importorskip("pandas")
    frame = pd.DataFrame({"age": [1.0, 2.0], "city": ["Oslo", "Rome"], "plan": ["a", None]})
    for table in (frame, frame.astype({"city": "category"})):
        with pytest.raises(SchemaError, match=r"columns 'city', 'plan'.*categorical_features="):
            DynForestClassifier().fit(table, [0, 1])
        with pytest.raises(SchemaError, match=r"categorical_features=\['plan'\]"):
            DynForestClassifier(categorical_features=["city"]).fit(table, [0, 1])
    with pytest.raises(SchemaError, match=r"categorical_features=\[1\]"):
        DynForestClassifier().fit([[1, "x"], [2, "y"]], [0, 1])
    with pytest.raises(SchemaError, match="column 0"):
        model.predict([["a", 1, 2]])


def test_dates_are_no_numbers() -> None:
    pd = pytest.importorskip("pandas")
    days = pd.date_range("2020-01-01", periods=3)
    for dates in (days, days.tz_localize("UTC"), days - days[0]):
        frame = pd.DataFrame({"a": [1.0, 2.0, 3.0], "seen": dates})
        for kwargs in ({}, {"categorical_features": ["a"]}):
            with pytest.raises(SchemaError, match="'seen' holds dates"):
                DynForestClassifier(**kwargs).fit(frame.assign(a=[1, 2, 3]), [0, 1, 0])
        with pytest.raises(SchemaError, match="dates"):
            DynForestClassifier().fit(np.array(dates, dtype="M8[ns]")[:, None]
                                      if dates.dtype.kind == "M" and dates.tz is None
                                      else frame[["seen"]], [0, 1, 0])  # fmt: skip
    with pytest.raises(SchemaError):
        DynForestClassifier().fit([[datetime.date(2020, 1, 1)], [datetime.date.today()]], [0, 1])


def test_wrong_ids_are_named_by_their_place(model: DynForestClassifier) -> None:
    X, y = np.zeros((3, 3)), [0, 1, 0]
    ids: list[Any] = [0, 777_777, 2, "3", 4]
    with pytest.raises(UnknownIdError, match=r"positions 1, 3 of 5.*'7'.*contains") as caught:
        model.unlearn(ids)
    assert "777" not in str(caught.value)
    with pytest.raises(DuplicateIdError, match="positions 2, 3 of 4 was named before"):
        model.unlearn([5, 6, 5, 6])
    with pytest.raises(DuplicateIdError, match=r"position 1 of 3.*unlearn it first"):
        model.learn(X, y, ids=[100, 7, 101])
    with pytest.raises(DuplicateIdError, match="position 2 of 3"):
        model.learn(X, y, ids=["a", "b", "a"])
    with pytest.raises(UnknownIdError, match="0, 1, 2, 3, 4 and 15 more of 20"):
        model.unlearn(range(100, 120))


def test_ids_that_cannot_be_are_explained(model: DynForestClassifier) -> None:
    with pytest.raises(SchemaError, match="empty text"):
        model.unlearn([""])
    for large in ([1 << 63], np.array([1 << 63], dtype=np.uint64)):
        with pytest.raises(SchemaError, match=r"signed integer of 64 bits.*texts?"):
            model.unlearn(large)


def test_a_file_of_the_other_kind_says_who_reads_it(
    model: DynForestClassifier, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model.save(tmp_path / "a")
    monkeypatch.setattr("privml.unlearning.forest.persistence._rebuild", None)
    with pytest.raises(CorruptModelError, match=r"holds a classifier; use DynForestClassifier\."):
        DynForestRegressor.load(tmp_path / "a")


def test_a_missing_folder_is_named(model: DynForestClassifier, tmp_path: Path) -> None:
    for thing in (model, model.export_predictor()):
        with pytest.raises(StorageError, match="none is not a folder; make it") as caught:
            thing.save(tmp_path / "none" / "a.forest")
        assert ".part" not in str(caught.value)


def test_files_say_what_the_model_was_fitted_with(
    model: DynForestClassifier, tmp_path: Path
) -> None:
    model.set_params(n_estimators=9, max_depth=1)
    model.save(tmp_path / "a")
    loaded = DynForestClassifier.load(tmp_path / "a")
    assert loaded.n_estimators == 5
    assert loaded.state_digest() == model.state_digest()
