"""What careless and hostile callers hand over: a clear error or a defined result, never a mix."""

from __future__ import annotations

import copy
import os
from collections.abc import Callable
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp
from safetensors.numpy import load, save
from sklearn.base import clone

from privml.errors import CorruptModelError, SchemaError, StorageError
from privml.unlearning import DynForestClassifier, DynForestRegressor
from privml.unlearning.forest import Limits
from privml.unlearning.forest.predictor import ForestPredictor
from privml.unlearning.forest.settings import thread_count

SMALL: dict[str, Any] = {"n_estimators": 5, "random_state": 0}
N = 40
NUMBERS = np.random.default_rng(0).normal(size=(N, 3))
LABELS = (NUMBERS[:, 0] > 0).astype(int)


def fit(X: Any, y: Any = LABELS, **more: Any) -> DynForestClassifier:
    return DynForestClassifier(**SMALL, **more).fit(X, y)


def objects(value: object) -> np.ndarray:
    table = NUMBERS.astype(object)
    table[3, 1] = value
    return table


TABLES: dict[str, tuple[Any, str]] = {
    "dates": ((NUMBERS * 1e6).astype("M8[s]"), "dates"),
    "spans": ((NUMBERS * 1e6).astype("m8[s]"), "spans"),
    "masked": (np.ma.masked_array(NUMBERS, mask=NUMBERS > 1), "masked"),
    "sparse": (sp.csr_matrix(NUMBERS), "toarray"),
    "complex": (NUMBERS + 1j, "Complex"),
    "huge integer": (objects(10**400), "too large"),
    "list with a huge integer": (objects(10**400).tolist(), "too large"),
    "a dict inside": (objects({"a": 1}), "dict"),
    "a list inside": (objects([1, 2]), ""),
    "words": (objects("three"), ""),
    "beyond float32": (NUMBERS * 1e39, "column 0"),
    "infinite": (np.full((N, 3), np.inf), "infinity"),
    "cube": (NUMBERS[None], "dim"),
    "one column": (NUMBERS[:, 0], "1D"),
    "no rows": (NUMBERS[:0], "0 sample"),
    "no columns": (NUMBERS[:, :0], "0 feature"),
    "None": (None, "2D"),
    "text": ("abc", ""),
    "ragged": ([[1, 2], [3]] * (N // 2), ""),
}


@pytest.mark.parametrize("name", TABLES)
def test_tables_that_are_no_numbers_are_refused(name: str) -> None:
    X, hint = TABLES[name]
    with pytest.raises(SchemaError, match=hint or None):
        fit(X)
    model = fit(NUMBERS)
    before = model.state_digest()
    with pytest.raises(SchemaError):
        model.predict(X)
    with pytest.raises(SchemaError):
        model.learn(X, LABELS, ids=range(100, 100 + N))
    assert model.state_digest() == before


@pytest.mark.parametrize("change", [np.asarray, np.asfortranarray, lambda x: x.astype(">f8"),
                                    lambda x: x.astype(object), lambda x: x.tolist(),
                                    lambda x: np.ma.masked_array(x, mask=False)])  # fmt: skip
def test_one_table_in_many_forms_is_one_model(change: Callable[[Any], Any]) -> None:
    assert fit(change(NUMBERS)).state_digest() == fit(NUMBERS).state_digest()


def test_missing_values_in_many_forms_are_missing() -> None:
    pd = pytest.importorskip("pandas")
    X = np.where(NUMBERS > 1, np.nan, np.round(NUMBERS * 4))
    frame = pd.DataFrame(X)
    want = fit(X).state_digest()
    none = np.where(np.isnan(X), None, X.astype(object))
    for table in (none, frame, frame.astype("Float64"), frame.astype("Int64")):
        assert fit(table).state_digest() == want


def test_dates_in_a_frame_are_named() -> None:
    pd = pytest.importorskip("pandas")
    days = pd.date_range("2020-01-01", periods=N)
    for column in (days, days - days[0], days.to_period("D")):
        frame = pd.DataFrame({"when": column, "x": NUMBERS[:, 0]})
        with pytest.raises(SchemaError):
            fit(frame)
        with pytest.raises(SchemaError, match="when"):
            fit(frame, categorical_features=["when"])
    frame = pd.DataFrame({"when": days, "c": ["a", "b"] * (N // 2)})
    with pytest.raises(SchemaError, match=r"when.*days"):
        fit(frame, categorical_features=["c"])


def test_odd_frames_are_refused() -> None:
    pd = pytest.importorskip("pandas")
    for names in (["a", "a", "b"], ["a", 1, 2], ["\ud800", "b", "c"]):
        with pytest.raises(SchemaError):
            fit(pd.DataFrame(NUMBERS, columns=names))
    assert fit(pd.DataFrame(NUMBERS, columns=[1, 2, 3])).n_live_ == N
    model = fit(pd.DataFrame(NUMBERS, columns=["a", "b", "c"]))
    with pytest.raises(SchemaError, match="names"):
        model.learn(pd.DataFrame(NUMBERS[:1], columns=["b", "a", "c"]), [1], ids=[99])


def coloured(values: Any) -> np.ndarray:
    column = np.empty(N, dtype=object)
    for i in range(N):
        column[i] = values[i % len(values)]
    return np.c_[column, NUMBERS[:, :1].astype(object)]


@pytest.mark.parametrize(
    "value", [-1, 0.5, 1 << 23, 10**400, float("inf"), "\ud800", b"a", (1,), [1], 1j, Decimal(1),
              np.datetime64("2020"), np.float32(-1)]
)  # fmt: skip
def test_odd_categories_are_refused(value: Any) -> None:
    with pytest.raises(SchemaError, match="column 0"):
        fit(coloured(["a", value]), categorical_features=[0])


def test_category_codes_of_any_integer_type_are_equal() -> None:
    forms: list[list[Any]] = [
        [0, 1, None, 3],
        [np.int64(0), np.int8(1), np.nan, np.uint16(3)],
        [0.0, np.float32(1), None, 3.0],
        [-0.0, True, float("nan"), np.float64(3)],
    ]
    digests = {fit(coloured(form), categorical_features=[0]).state_digest() for form in forms}
    assert len(digests) == 1
    pd = pytest.importorskip("pandas")
    frame = pd.DataFrame({"c": pd.Categorical([0, 1, None, 3] * (N // 4)), "x": NUMBERS[:, 0]})
    nullable = frame.assign(c=pd.array([0, 1, None, 3] * (N // 4), dtype="Int64"))
    for table in (frame, nullable, frame.set_axis([0, 1], axis=1)):
        assert fit(table, categorical_features=table.columns[:1].tolist()).state_digest() in digests


def test_sparse_and_masked_tables_with_categories_are_refused() -> None:
    table = np.c_[LABELS, NUMBERS]
    with pytest.raises(SchemaError, match="toarray"):
        fit(sp.csr_matrix(table), categorical_features=[0])
    with pytest.raises(SchemaError, match="masked"):
        fit(np.ma.masked_array(table, mask=table > 1), categorical_features=[0])


LABEL_COLUMNS: dict[str, tuple[Any, str]] = {
    "dates": (np.arange(N).astype("M8[D]"), "dates"),
    "masked": (np.ma.masked_array(LABELS, mask=LABELS > 0), "masked"),
    "bytes": ([b"a", b"b"] * (N // 2), ""),
    "surrogates": (["\ud800", "b"] * (N // 2), "Unicode"),
    "beyond 64 bits": (np.array([2**64 - 1, 0] * (N // 2), dtype=np.uint64), "64 bits"),
    "NaN": ([float("nan")] * N, "NaN"),
    "infinite": ([float("inf"), 1.0] * (N // 2), "infinity"),
    "fractions": ([0.5, 0.7] * (N // 2), "continuous"),
    "None": ([1, None] * (N // 2), "label"),
    "two columns": (np.zeros((N, 2)), "1d"),
    "short": ([1, 2], "inconsistent"),
    "nothing": (None, "None"),
}


@pytest.mark.parametrize("name", LABEL_COLUMNS)
@pytest.mark.filterwarnings("ignore:The number of unique classes")
def test_odd_labels_are_refused(name: str) -> None:
    y, hint = LABEL_COLUMNS[name]
    with pytest.raises(SchemaError, match=hint or None):
        fit(NUMBERS, y)


@pytest.mark.filterwarnings("ignore:The number of unique classes")
def test_too_many_classes_are_refused_by_number() -> None:
    with pytest.raises(SchemaError, match="70000 classes, at most 65536"):
        DynForestClassifier(1, occurrence=1.0).fit(np.zeros((70_000, 1)), np.arange(70_000))


@pytest.mark.parametrize(
    ("y", "hint"),
    [
        (["a"] * N, "number|convert"),
        ([10**400] * N, "too large"),
        ([1e308] * N, "target_bits"),
        ([None] * N, "NaN"),
        ([1j] * N, "Complex"),
        (np.arange(N).astype("M8[s]"), "dates"),
        (np.arange(N).astype("m8[s]"), "spans"),
        (np.ma.masked_array(NUMBERS[:, 0], mask=LABELS > 0), "masked"),
    ],
)
def test_odd_targets_are_refused(y: Any, hint: str) -> None:
    with pytest.raises(SchemaError, match=hint or None):
        DynForestRegressor(**SMALL).fit(NUMBERS, y)


ODD_IDS: tuple[Any, ...] = (
    [np.timedelta64(1, "D")],
    np.arange(2).astype("m8[D]"),
    np.array("1"),
    np.array(None, dtype=object),
    ["\ud800"],
    [1, "1", 1.0],
    [float("nan")],
    [1 << 63],
    [-(1 << 63) - 1],
    np.array([1 << 63], dtype=np.uint64),
    np.array([[1, 2]], dtype=object),
    {1: 2},
    bytearray(b"12"),
    memoryview(b"\1\2"),
    np.ma.masked_array([1, 2], mask=[False, True]),
    [1j],
    [[1]],
    [Decimal(1)],
)


@pytest.mark.parametrize("number", range(len(ODD_IDS)))
def test_odd_ids_are_refused_and_change_nothing(number: int) -> None:
    model = fit(NUMBERS)
    before = model.state_digest(), model.version_
    with pytest.raises(SchemaError):
        model.unlearn(ODD_IDS[number])
    assert (model.state_digest(), model.version_) == before


def test_extreme_and_unicode_ids_are_ids() -> None:
    ids = [-(1 << 63), (1 << 63) - 1, 0, -1, "e\u0301", "\u00e9", "\U0001f469\u200d\U0001f680", " ",
           "x" * 100_000, "0", "-1"]  # fmt: skip
    model = DynForestClassifier(**SMALL).fit(NUMBERS[:11], LABELS[:11], ids=ids)
    assert model.contains(ids).all()
    model.unlearn(ids[::2])
    assert model.contains(ids).tolist() == [False, True] * 5 + [False]
    fresh = clone(model).fit(NUMBERS[1:11:2], LABELS[1:11:2], ids=ids[1::2])
    assert fresh.state_digest() == model.state_digest()
    with pytest.raises(SchemaError, match="no integer ids are left"):
        model.learn(NUMBERS[:1], LABELS[:1])


def test_ids_that_can_be_read_once_are_enough() -> None:
    model = fit(NUMBERS)
    model.unlearn(i for i in range(5))
    model.learn(NUMBERS[:5], LABELS[:5], ids=iter(range(5)))
    assert model.state_digest() == fit(NUMBERS).state_digest()


@pytest.mark.parametrize("budget", [-1, float("nan"), "soon", -float("inf")])
def test_odd_time_budgets_are_refused(budget: Any) -> None:
    with pytest.raises(SchemaError, match="budget_s"):
        fit(NUMBERS).resolve(budget)


def test_time_budgets_of_any_length_are_kept() -> None:
    model = fit(NUMBERS)
    model.unlearn(range(9))
    assert model.resolve(1e300)
    assert model.resolve(float("inf"))


def test_threads_are_at_most_one_per_core() -> None:
    cores = len(os.sched_getaffinity(0))
    for jobs in (cores, 10**6, 2**32, 10**12, -1):
        assert thread_count(jobs) == cores
    assert thread_count(-(10**9)) == 1
    one, many = fit(NUMBERS, n_jobs=1), fit(NUMBERS, n_jobs=10**12)
    assert one.state_digest() == many.state_digest()
    assert (one.predict_proba(np.tile(NUMBERS, (50, 1))) ==
            many.predict_proba(np.tile(NUMBERS, (50, 1)))).all()  # fmt: skip


def test_arguments_of_any_collection_can_be_copied() -> None:
    pd = pytest.importorskip("pandas")
    frame = pd.DataFrame({"c": pd.Categorical(list("abcd") * (N // 4)), "x": NUMBERS[:, 0]})
    for spec in (frame.columns[:1], frame.dtypes == "category", np.array([True, False]), {"c"}):
        model = fit(frame, categorical_features=spec)
        assert copy.deepcopy(model).state_digest() == model.state_digest()
    for classes in (pd.Index([0, 1]), pd.Series([1, 0]), {0, 1}, range(2), np.arange(2)):
        model = fit(NUMBERS, classes=classes)
        assert copy.deepcopy(model).state_digest() == model.state_digest()


@pytest.mark.parametrize("name", ["categorical_features", "classes"])
def test_arguments_that_can_be_read_once_are_refused(name: str) -> None:
    with pytest.raises(SchemaError, match=name):
        fit(NUMBERS, **{name: iter([0, 1])})
    if name == "classes":
        with pytest.raises(SchemaError, match=name):
            fit(NUMBERS, classes=3)


def test_what_is_no_file_is_never_replaced(tmp_path: Path) -> None:
    model = fit(NUMBERS)
    pipe, link, folder = (tmp_path / name for name in ("pipe", "link", "folder"))
    os.mkfifo(pipe)
    (tmp_path / "kept").write_text("kept")
    link.symlink_to(tmp_path / "kept")
    folder.mkdir()
    for path in (pipe, link, folder, "", "/", "a\0b", "\ud800", tmp_path / "none" / "x"):
        for writer in (model, model.export_predictor()):
            with pytest.raises(StorageError):
                writer.save(path)
    assert pipe.is_fifo()
    assert link.is_symlink()
    assert (tmp_path / "kept").read_text() == "kept"
    for path in (pipe, link, folder, "a\0b", "/dev/zero"):
        for kind in (DynForestClassifier, ForestPredictor):
            with pytest.raises(StorageError):
                kind.load(path)


def test_a_file_whose_forest_would_fill_the_memory_is_refused(tmp_path: Path) -> None:
    model = DynForestClassifier(200, occurrence=1.0, max_features=2, n_thresholds=4_096)
    model.fit(np.tile(NUMBERS, (2, 1)), np.tile(LABELS, 2)).save(tmp_path / "m")
    assert DynForestClassifier.load(tmp_path / "m").n_live_ == 2 * N
    with pytest.raises(CorruptModelError, match="max_memory"):
        DynForestClassifier.load(tmp_path / "m", limits=Limits(max_memory=10_000_000))
    wide = DynForestClassifier(5, classes=range(2_000)).fit(NUMBERS, LABELS)
    wide.save(tmp_path / "w")
    with pytest.raises(CorruptModelError, match="max_memory"):
        DynForestClassifier.load(tmp_path / "w", limits=Limits(max_memory=100_000))


def test_a_predictor_with_an_endless_chain_is_refused(tmp_path: Path) -> None:
    fit(NUMBERS).export_predictor().save(tmp_path / "p")
    arrays = load((tmp_path / "p").read_bytes())
    nodes = 3_000
    at = np.arange(nodes)
    last = at == nodes - 1
    arrays |= {
        "roots": np.zeros(1, np.int64),
        "attribute": np.where(last, -1, 0).astype(np.int32),
        "threshold": np.zeros(nodes, np.float32),
        "left": np.where(last, 0, at + 1).astype(np.int64),
        "right": np.where(last, 0, at + 1).astype(np.int64),
        "missing_left": np.zeros(nodes, bool),
        "kappa": np.zeros(nodes, np.uint64),
        "draw": np.full(nodes, -1, np.int32),
    }
    (tmp_path / "x").write_bytes(save(arrays))
    with pytest.raises(CorruptModelError):
        ForestPredictor.load(tmp_path / "x")
    arrays["roots"] = np.full(70_000, nodes - 1, np.int64)
    (tmp_path / "x").write_bytes(save(arrays))
    with pytest.raises(CorruptModelError, match="too many trees"):
        ForestPredictor.load(tmp_path / "x")
