"""Threshold learning on a small task that a tiny model solves: budget, resuming, data, saving."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from pathlib import Path

import numpy as np
import pytest
import torch

from privml.backbones.digests import Json
from privml.backbones.encoder import Encoder
from privml.backbones.loader import load_encoder, random_decoder, random_encoder
from privml.backbones.saving import save_encoder
from privml.backbones.synthetic import random_params
from privml.backbones.tokenizer import Tokenizer
from privml.errors import Corrupt, ParameterError, StorageError, UnsupportedError
from privml.protocols.cipherprune import (
    Learned,
    Options,
    TaskData,
    Thresholds,
    fine_tune,
    learn_thresholds,
    with_classifier,
)
from privml.protocols.cipherprune.learning import Recipe, checkpoint, evaluate, tokenise
from privml.protocols.cipherprune.learning.masks import meet, shares
from privml.protocols.cipherprune.learning.objectives import Price
from privml.protocols.cipherprune.thresholds import model_digest
from privml.rng import ScienceSeed

GOOD, BAD = ("fine", "great", "lovely"), ("awful", "dull", "sad")
FILL = ("a", "and", "film", "is", "it", "of", "plot", "scene", "the", "was", "with")
SPECIAL = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
ROWS = 240
FAST = Options(
    budget=0.5,
    soft=Recipe(epochs=4, rate=1e-3, batch=24),
    hard=Recipe(epochs=2, rate=1e-3, batch=24),
    threshold_rate=0.03,
    sample=80,
    seed=3,
)


@pytest.fixture(autouse=True)
def one_thread() -> None:
    torch.set_num_threads(1)


@cache
def small_data() -> TaskData:
    """Filler words and one word that decides the class."""
    generator = np.random.default_rng(5)
    texts, labels = [], []
    for _ in range(ROWS):
        label = int(generator.integers(2))
        words = list(generator.choice(FILL, int(generator.integers(3, 9))))
        words.insert(int(generator.integers(len(words))), generator.choice((BAD, GOOD)[label]))
        texts.append(" ".join(words))
        labels.append(label)
    return TaskData(tuple(texts), np.array(labels))


@cache
def small_encoder() -> Encoder:
    words = [*SPECIAL, *GOOD, *BAD, *FILL]
    tokenizer = Tokenizer.from_vocabulary(words, max_length=16, lowercase=True)
    plain = random_encoder(
        layers=3, hidden=16, heads=2, ffn=24, vocab=len(words), max_positions=16, seed=1
    )
    params = random_params(plain.config, seed=1)
    return Encoder(plain.config, params, tokenizer=tokenizer)


@cache
def small_model() -> Encoder:
    fresh = with_classifier(small_encoder(), ("bad", "good"), seed=2)
    recipe = Recipe(epochs=10, rate=1e-2, batch=24)
    return fine_tune(fresh, small_data(), recipe=recipe, precision="float32")


@cache
def small_learned() -> Learned:
    return learn_thresholds(small_model(), small_data(), options=FAST, precision="float32")


def equal(a: Encoder, b: Encoder) -> bool:
    return all(np.array_equal(x, b.params()[name]) for name, x in a.params().items())


def test_the_budget_is_met_and_the_task_still_solved() -> None:
    learned, rows = small_learned(), tokenise(small_model(), small_data())
    before = evaluate(small_model(), rows)
    after = evaluate(learned.model, rows, learned.thresholds)
    assert before.accuracy > 0.97
    assert after.accuracy > before.accuracy - 0.03
    assert after.share <= 1.1 * FAST.budget
    assert after.kept[1:].mean() < 0.7 * after.kept[0].mean()
    assert (after.kept[1:] >= 1).all()
    assert (np.diff(after.kept, axis=0) <= 0).all()
    assert (after.high <= after.kept).all()
    assert (after.kept[0] == rows.lengths).all()


def test_thresholds_lie_on_the_grid_and_belong_to_the_tuned_model(tmp_path: Path) -> None:
    learned = small_learned()
    found = learned.thresholds
    assert all(0 <= t <= b for t, b in zip(found.raw_theta, found.raw_beta, strict=True))
    assert found.model_digest == model_digest(learned.model) != model_digest(small_model())
    found.require(learned.model)
    folder = save_encoder(learned.model, tmp_path / "model")
    found.save(folder / "thresholds")
    again = load_encoder(folder)
    Thresholds.load(folder / "thresholds").require(again)
    assert equal(learned.model, again)


def test_the_report_has_distributions_and_no_threshold() -> None:
    report = small_learned().report
    assert set(report["pruned"]["layers"][1]["tokens"]) == {"mean", "quantiles_0_10_50_90_100"}
    assert report["pruned"]["rows"] == ROWS // 20
    assert report["options"]["budget"] == FAST.budget
    assert isinstance(report["budget_met"], bool)
    text = repr(report)
    assert all(repr(t) not in text for t in small_learned().thresholds.theta if t)


def test_the_model_given_is_not_changed() -> None:
    digest = model_digest(small_model())
    small_learned()
    assert model_digest(small_model()) == digest


class Stop(Exception):
    pass


@pytest.mark.parametrize("steps", [11, 40, 47])
def test_a_stopped_run_goes_on_to_the_same_result(tmp_path: Path, steps: int) -> None:
    """40 steps end stage 1, so the three stops are in stage 1, at its end and in stage 2."""
    calls = [0]

    def progress(stage: str, _: float) -> None:
        calls[0] += stage.endswith("masks")
        if calls[0] > steps:
            raise Stop

    with pytest.raises(Stop):
        learn_thresholds(
            small_model(), small_data(), options=FAST, precision="float32", checkpoint_dir=tmp_path,
            checkpoint_seconds=0.0, progress=progress,
        )  # fmt: skip
    stages: list[str] = []
    resumed = learn_thresholds(
        small_model(), small_data(), options=FAST, precision="float32", checkpoint_dir=tmp_path,
        checkpoint_seconds=60.0, progress=lambda stage, done: stages.append(stage),
    )  # fmt: skip
    assert resumed.thresholds == small_learned().thresholds
    assert equal(resumed.model, small_learned().model)
    assert stages.count("soft masks") <= 42 - min(steps, 40)


def test_a_checkpoint_of_another_run_and_a_damaged_one_are_refused(tmp_path: Path) -> None:
    def stop(stage: str, done: float) -> None:
        if stage == "soft masks" and done > 0.1:
            raise Stop

    def learn(options: Options, progress: object = None) -> Learned:
        return learn_thresholds(
            small_model(), small_data(), options=options, precision="float32",
            checkpoint_dir=tmp_path, checkpoint_seconds=0.0, progress=progress,
        )  # fmt: skip

    with pytest.raises(Stop):
        learn(FAST, stop)
    with pytest.raises(ParameterError, match="other data, options or weights"):
        learn(Options(budget=0.3))
    file = tmp_path / "checkpoint.safetensors"
    data = bytearray(file.read_bytes())
    data[len(data) // 2] ^= 1
    file.write_bytes(bytes(data))
    with pytest.raises(Corrupt, match="remove it"):
        learn(FAST)
    file.write_bytes(b"nothing")
    with pytest.raises(Corrupt, match="no checkpoint"):
        learn(FAST)


def test_without_reduction_every_kept_token_is_high() -> None:
    short = Options(
        budget=0.6, reduce=False, sample=80,
        soft=Recipe(epochs=1, rate=1e-3, batch=40), hard=Recipe(epochs=0, rate=1e-3),
    )  # fmt: skip
    learned = learn_thresholds(small_model(), small_data(), options=short, precision="float32")
    assert learned.thresholds.theta == learned.thresholds.beta
    found = evaluate(
        learned.model, tokenise(small_model(), small_data()), learned.thresholds, reduce=False
    )
    assert (found.high == found.kept).all()


def test_short_texts_are_left_alone_and_the_budget_is_that_of_the_others() -> None:
    options = replace(FAST, shortest=8, budget=0.6)
    learned = learn_thresholds(small_model(), small_data(), options=options, precision="float32")
    rows = tokenise(small_model(), small_data())
    found = evaluate(learned.model, rows, learned.thresholds)
    short = rows.lengths <= 8
    assert learned.thresholds.shortest == 8
    assert 0 < short.sum() < len(rows)
    assert (found.kept[:, short] == rows.lengths[short]).all()
    assert (found.high[:, short] == rows.lengths[short]).all()
    assert found.share_above(8) == pytest.approx(0.6, abs=0.1)
    assert found.share > found.share_above(8)
    assert found.share_above(99) == 1.0
    with pytest.raises(ParameterError, match="shortest"):
        learn_thresholds(small_model(), small_data(), options=replace(FAST, shortest=16))


@pytest.mark.parametrize("budget", [0.3, 0.5, 0.8])
def test_a_budget_is_met_by_scaling_alone(budget: float) -> None:
    model, rows = small_model(), tokenise(small_model(), small_data())
    start = Thresholds((0.004, 0.004), (0.008, 0.008), heads=2)
    found = meet(model, rows, start, budget=budget, high=0.5)
    kept, high = shares(model, rows, found)
    assert kept == pytest.approx(budget, abs=0.08)  # attention of a small model is nearly discrete
    assert high == pytest.approx(0.5 * kept, abs=0.12)


def test_a_price_rises_above_its_target_and_falls_below() -> None:
    price = Price(0.1, 0.5)
    for _ in range(5):
        price.cost(torch.tensor(0.9), 0.5)
        price.move(0.5)
    high = price.value
    assert high > 0.1
    for _ in range(400):
        price.cost(torch.tensor(0.1), 0.5)
        price.move(0.5)
    assert price.value == 0.0


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
