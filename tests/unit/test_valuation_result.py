"""Results: saved and loaded bit for bit, hostile files refused, sums and merges."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors.numpy

from privml.backbones.digests import canonical_json, sha256
from privml.errors import PrivmlError, StorageError
from privml.valuation.errors import CorruptResult, RunMismatch, SettingError
from privml.valuation.intervals import half_width
from privml.valuation.result import ValuationResult


def made(n: int = 4, **changes: Any) -> ValuationResult:
    rng = np.random.default_rng(1)
    values = rng.normal(size=n)
    fields: dict[str, Any] = {
        "ids": (*range(n - 1), "7"),
        "values": values,
        "stderr": np.full(n, 0.1),
        "ci_low": values - 0.2,
        "ci_high": values + 0.2,
        "counts": np.full(n, 10),
        "truncated_counts": np.zeros(n, dtype=np.int64),
        "evaluations": 40,
        "rows_trained": 100,
        "seconds": 1.5,
        "efficiency_residual": 1e-16,
        "status": "budget",
        "stop_reason": "40 evaluations",
        "target": "shapley",
        "method": "Antithetic",
        "spec_digest": "ab",
        "data_digest": "cd",
        "seeds": ("1",),
        "versions": {"numpy": "2"},
        "extras": {"units": 5},
    }
    return ValuationResult(**{**fields, **changes})


FULL = {
    "members": np.array([1, 2]),
    "membership_prob": np.array([0.1, 0.9, 0.8, 0.2]),
    "eps_certificate": 0.25,
    "certificate_kind": "nominal",
    "trace": {"evaluations": np.arange(3.0), "eps": np.array([1.0, 0.5, 0.25])},
    "values": np.array([0.5, np.nan, -0.0, 1e-308]),
    "efficiency_residual": math.nan,
    "residual_reason": "some values are unknown",
}


@pytest.mark.parametrize("changes", [{}, FULL], ids=["plain", "with top-m extras"])
def test_saved_and_loaded_bit_for_bit(changes: dict[str, Any], tmp_path: Path) -> None:
    result = made(**changes)
    result.save(tmp_path / "a" / "b")
    loaded = ValuationResult.load(tmp_path / "a" / "b")
    assert loaded.digest() == result.digest()
    assert loaded.ids == (0, 1, 2, "7")
    assert loaded.values.tobytes() == result.values.tobytes()
    assert (loaded.seconds, loaded.versions) == (1.5, {"numpy": "2"})
    assert set(loaded.trace) == set(result.trace)
    result.save(tmp_path / "a" / "b")  # replaces
    assert sorted(p.name for p in (tmp_path / "a" / "b").iterdir()) == [
        "result.json",
        "values.safetensors",
    ]


def test_time_and_versions_are_not_part_of_the_digest() -> None:
    assert made(seconds=9.0, versions={}).digest() == made().digest()
    assert made(evaluations=41).digest() != made().digest()
    assert made(stderr=np.full(4, 0.2)).digest() != made().digest()


def test_cut_and_flipped_files_are_refused(tmp_path: Path) -> None:
    made(**FULL).save(tmp_path)
    rng = np.random.default_rng(2)
    for name in ("result.json", "values.safetensors"):
        good = (tmp_path / name).read_bytes()
        bad = [good[:k] for k in range(0, len(good), max(1, len(good) // 25))]
        for place in rng.integers(0, len(good), 40):
            flipped = bytearray(good)
            flipped[place] ^= 1 << int(rng.integers(8))
            bad.append(bytes(flipped))
        for data in bad:
            (tmp_path / name).write_bytes(data)
            try:
                loaded = ValuationResult.load(tmp_path)
            except CorruptResult:
                continue
            # A flip in a text of the JSON file gives another text, never another type.
            assert name == "result.json"
            assert isinstance(loaded, ValuationResult)
        (tmp_path / name).write_bytes(good)


def rewrite(folder: Path, change: Any) -> None:
    tree = json.loads((folder / "result.json").read_text())
    arrays = dict(safetensors.numpy.load((folder / "values.safetensors").read_bytes()))
    change(tree, arrays)
    data = safetensors.numpy.save(arrays)
    (folder / "values.safetensors").write_bytes(data)
    tree["arrays"] = sha256(data)
    (folder / "result.json").write_bytes(canonical_json(tree))


@pytest.mark.parametrize(
    "change",
    [
        lambda t, a: a.pop("values"),
        lambda t, a: a.update(values=a["values"].astype(np.float32)),
        lambda t, a: a.update(values=a["values"][:2].copy()),
        lambda t, a: a.update(values=a["values"][None].copy()),
        lambda t, a: a.update(counts=a["counts"].astype(np.float64)),
        lambda t, a: a.update(more=np.zeros(4)),
        lambda t, a: t["result"].pop("status"),
        lambda t, a: t["result"].update(status="splendid"),
        lambda t, a: t["result"].update(status=3),
        lambda t, a: t["result"].update(evaluations=-1),
        lambda t, a: t["result"].update(evaluations=1.5),
        lambda t, a: t["result"].update(seconds="soon"),
        lambda t, a: t["result"].update(ids=[["0"]]),
        lambda t, a: t["result"].update(ids=[["x", True]] * 4),
        lambda t, a: t["result"].update(ids=[]),
        lambda t, a: t["result"].update(seeds=[1]),
        lambda t, a: t["result"].update(versions=[]) or t["result"].update(versions=5),
        lambda t, a: t["result"].update(extras=7),
        lambda t, a: t["result"].update(ci_level=2.0),
        lambda t, a: t["result"].update(surprise=1),
        lambda t, a: t.update(format="something else"),
        lambda t, a: t.pop("result"),
    ],
)
def test_well_formed_nonsense_is_refused(change: Any, tmp_path: Path) -> None:
    made().save(tmp_path)
    rewrite(tmp_path, change)
    with pytest.raises(PrivmlError) as caught:
        ValuationResult.load(tmp_path)
    assert isinstance(caught.value, CorruptResult)


def test_oversized_object_and_missing_files(tmp_path: Path) -> None:
    with pytest.raises(StorageError):
        ValuationResult.load(tmp_path)
    made().save(tmp_path)
    (tmp_path / "values.safetensors").write_bytes(b"\x80\x04\x95\x00\x00\x00\x00\x00\x00\x00\x00.")
    with pytest.raises(CorruptResult):
        ValuationResult.load(tmp_path)
    with (tmp_path / "values.safetensors").open("wb") as file:
        file.truncate((1 << 30) + 1)  # sparse
    with pytest.raises(StorageError):
        ValuationResult.load(tmp_path)
    (tmp_path / "result.json").write_text("[" * 100_000)
    with pytest.raises(StorageError):
        ValuationResult.load(tmp_path)


def test_sums_over_groups_name_their_mode() -> None:
    result = made(values=np.array([1.0, 2.0, 3.0, np.nan]))
    total = result.by_group(["b", "a", "b", "c"])
    assert total.ids == ("a", "b", "c")
    assert total.values[:2].tolist() == [2.0, 4.0]
    assert math.isnan(total.values[2])
    assert total.stderr[1] == pytest.approx(0.2)
    assert (total.group_mode, total.counts.tolist()) == ("sum", [10, 20, 10])
    with pytest.raises(SettingError):
        result.by_group(["a"])


def test_unknown_values_rank_last_from_both_ends() -> None:
    result = made(values=np.array([1.0, np.nan, 3.0, 2.0]))
    assert result.top(4).tolist() == [2, 3, 0, 1]
    assert result.bottom(4).tolist() == [0, 3, 2, 1]


def test_merging_weighs_by_counts_and_refuses_other_runs() -> None:
    first, second = made(), made(values=np.zeros(4), counts=np.full(4, 30), seeds=("2",))
    both = first.merge(second)
    np.testing.assert_allclose(both.values, first.values / 4)
    np.testing.assert_allclose(both.stderr, 0.1 * np.sqrt(1 / 16 + 9 / 16))
    assert (both.counts == 40).all()
    assert both.seeds == ("1", "2")
    unknown = made(counts=np.zeros(4, dtype=np.int64), values=np.full(4, np.nan), seeds=("3",))
    np.testing.assert_allclose(first.merge(unknown).values, first.values)
    for other in (
        made(),
        made(seeds=("2",), data_digest="x"),
        made(seeds=("2",), ids=(1, 2, 3, 4)),
    ):
        with pytest.raises(RunMismatch):
            first.merge(other)


def test_t_intervals() -> None:
    wide = half_width(np.array([1.0, 1.0, 1.0]), np.array([0, 4, 1e9]), 0.95)
    assert math.isnan(wide[0])
    np.testing.assert_allclose(wide[1:], [2.776445, 1.959964], atol=1e-5)


def test_a_frame_for_pandas_and_checks_of_the_constructor() -> None:
    frame = made().to_dataframe()
    assert list(frame.index) == [0, 1, 2, "7"]
    assert {"values", "stderr", "ci_low", "ci_high", "counts"} <= set(frame.columns)
    for change in ({"values": np.zeros(3)}, {"status": "fine"}, {"ci_level": 1.0}):
        with pytest.raises(SettingError):
            made(**change)
