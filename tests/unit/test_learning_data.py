"""Data, models and options that learning takes or refuses, and saved models."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from privml.backbones.digests import Json
from privml.backbones.encoder import Encoder
from privml.backbones.loader import load_encoder, random_decoder, random_encoder
from privml.backbones.saving import save_encoder
from privml.errors import Corrupt, ParameterError, StorageError, UnsupportedError
from privml.protocols.cipherprune import (
    Options,
    TaskData,
    fine_tune,
    learn_thresholds,
    with_classifier,
)
from privml.protocols.cipherprune.learning import (
    checkpoint,
    tokenise,
)
from privml.protocols.cipherprune.thresholds import model_digest
from privml.rng import ScienceSeed
from privml.testing.small_task import (
    ROWS,
    small_data,
    small_encoder,
    small_model,
)


@pytest.fixture(autouse=True)
def one_thread() -> None:
    torch.set_num_threads(1)


# ---- data and models ---------------------------------------------------------------------------


def test_rows_are_read_with_and_without_header(tmp_path: Path) -> None:
    path = tmp_path / "t.tsv"
    path.write_text("sentence\tlabel\na film \t1\r\n\n  \t0\nwith\ttab\t0\n")
    data = TaskData.from_tsv(path)
    assert data.texts == ("a film", "with\ttab")
    assert data.labels.tolist() == [1, 0]
    assert "film" not in repr(data)
    path.write_text("x\tgood\ny\tbad\n")
    assert TaskData.from_tsv(path, classes=("bad", "good")).labels.tolist() == [1, 0]


@pytest.mark.parametrize(
    "data", [b"a\t1\nno class\n", b"a\t1\nb\t-1\n", b"a\t1\nb\tnan\n", b"\xff\xfe\t1\n"]
)
def test_files_that_are_no_task_data_are_refused(tmp_path: Path, data: bytes) -> None:
    (tmp_path / "t.tsv").write_bytes(data)
    with pytest.raises(Corrupt):
        TaskData.from_tsv(tmp_path / "t.tsv")


def test_empty_and_missing_files_are_refused(tmp_path: Path) -> None:
    (tmp_path / "t.tsv").write_text("sentence\tlabel\n")
    with pytest.raises(ParameterError, match="no rows"):
        TaskData.from_tsv(tmp_path / "t.tsv")
    with pytest.raises(StorageError):
        TaskData.from_tsv(tmp_path / "none.tsv")


def test_splits_are_reproducible_and_disjoint() -> None:
    data = TaskData(tuple(f"text {i}" for i in range(50)), np.arange(50))
    rest, held = data.split(8, seed=1)
    again, _ = data.split(8, seed=1)
    assert (len(rest), len(held)) == (42, 8)
    assert rest.texts == again.texts
    assert not set(rest.texts) & set(held.texts)
    with pytest.raises(ParameterError, match="held"):
        data.split(50)


def test_batches_of_an_epoch_hold_each_row_once_at_most() -> None:
    rows = tokenise(small_model(), small_data())
    seed = ScienceSeed(1)
    batches = rows.shuffled(32, seed=seed)
    joined = np.concatenate(batches)
    assert {len(batch) for batch in batches} == {32}
    assert len(set(joined.tolist())) == len(joined) == ROWS // 32 * 32
    assert sorted(np.concatenate(list(rows.in_order(32))).tolist()) == list(range(ROWS))


def test_models_that_cannot_learn_are_refused() -> None:
    data = small_data()
    with pytest.raises(UnsupportedError, match="with_classifier"):
        learn_thresholds(small_encoder(), data)
    bare = random_encoder(
        layers=2, hidden=8, heads=2, ffn=8, vocab=9, max_positions=8, labels=("a", "b")
    )
    with pytest.raises(UnsupportedError, match="tokenizer"):
        learn_thresholds(bare, data)
    flat = random_encoder(
        layers=1, hidden=8, heads=2, ffn=8, vocab=9, max_positions=8, labels=("a", "b")
    )
    with pytest.raises(UnsupportedError, match="two layers"):
        learn_thresholds(flat, data)
    with pytest.raises(ParameterError, match="classes"):
        learn_thresholds(small_model(), TaskData(("a film", "a plot"), np.array([0, 7])))
    decoder = random_decoder(layers=1, hidden=8, heads=2, ffn=8, vocab=9, max_positions=8)
    with pytest.raises(UnsupportedError, match="causal"):
        with_classifier(decoder, ("a", "b"))


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"budget": 0.0}, "budget"),
        ({"budget": 1.5}, "budget"),
        ({"high": -1.0}, "high"),
        ({"widths": (0.1, 0.2)}, "widths"),
        ({"distil": 2.0}, "distil"),
        ({"sample": 0}, "sample"),
    ],
)
def test_options_out_of_range_are_refused(values: dict[str, object], words: str) -> None:
    with pytest.raises(ParameterError, match=words):
        Options(**values)


def test_an_unknown_precision_is_refused() -> None:
    with pytest.raises(ParameterError, match="precision"):
        fine_tune(small_model(), small_data(), precision="float8")


# ---- saving ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "changes",
    [
        {"labels": ("a", "b")},
        {"pooling": "cls"},
        {"pooling": "mean"},
        {"decoder": True},
        {"decoder": True, "labels": ("x", "y", "z")},
    ],
)
def test_a_saved_model_is_read_back(tmp_path: Path, changes: dict[str, object]) -> None:
    build = random_decoder if changes.pop("decoder", False) else random_encoder
    model = build(layers=2, hidden=8, heads=2, ffn=12, vocab=20, max_positions=9, **changes)
    params = {name: np.array(array) for name, array in model.params().items()}
    if model.config.causal:
        params["embed.segment"][:] = 0.0  # GPT-2 files have no segments
    model = Encoder(model.config, params)
    again = load_encoder(save_encoder(model, tmp_path / "m"))
    assert model_digest(again) == model_digest(model)
    with pytest.raises(StorageError):
        save_encoder(model, tmp_path / "m")
    save_encoder(model, tmp_path / "m", replace=True)


def test_a_model_without_a_format_is_refused(tmp_path: Path) -> None:
    model = random_decoder(layers=1, hidden=8, heads=2, ffn=12, vocab=20, max_positions=9)
    with pytest.raises(UnsupportedError, match="segment"):
        save_encoder(model, tmp_path / "m")


def test_damage_to_the_plain_values_of_a_checkpoint_is_found(tmp_path: Path) -> None:
    state: dict[str, Json] = {"step": 3, "theta": [1, 2]}
    checkpoint.save(tmp_path, run="r", arrays={"w": np.zeros(2, np.float32)}, state=state)
    file = tmp_path / checkpoint.FILE
    data = file.read_bytes()
    assert data.count(b'"step":3') == 1
    file.write_bytes(data.replace(b'"step":3', b'"step":4'))
    with pytest.raises(Corrupt, match="damaged"):
        checkpoint.load(tmp_path, run="r")
