"""Threshold learning on a small task that a tiny model solves: budget, report, thresholds."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from privml.backbones.loader import load_encoder
from privml.backbones.saving import save_encoder
from privml.errors import ParameterError
from privml.protocols.cipherprune import (
    Learned,
    Options,
    Thresholds,
    learn_thresholds,
)
from privml.protocols.cipherprune.learning import (
    Recipe,
    evaluate,
    tokenise,
)
from privml.protocols.cipherprune.learning.masks import meet, shares
from privml.protocols.cipherprune.learning.objectives import Price
from privml.protocols.cipherprune.learning.start import fitted, towards
from privml.protocols.cipherprune.thresholds import model_digest
from privml.testing.small_task import (
    ROWS,
    equal_weights,
    small_data,
    small_model,
)

FAST = Options(
    budget=0.5,
    shortest=0,
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
def small_learned() -> Learned:
    return learn_thresholds(small_model(), small_data(), options=FAST, precision="float32")


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
    assert equal_weights(learned.model, again)


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


def test_without_reduction_every_kept_token_is_high() -> None:
    short = Options(
        budget=0.6, shortest=0, reduce=False, sample=80,
        soft=Recipe(epochs=1, rate=1e-3, batch=20), hard=Recipe(epochs=0, rate=1e-3),
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


@given(
    st.lists(st.floats(0, 1), min_size=1, max_size=8),
    st.floats(0.05, 0.95),
    st.integers(1, 5),
)
def test_shares_are_stretched_to_a_mean(shares: list[float], mean: float, heavy: int) -> None:
    weights = [float(heavy), *[1.0] * (len(shares) - 1)]
    found = towards(shares, mean, weights=weights)
    assert np.average(found, weights=weights) == pytest.approx(mean, abs=1e-6)
    assert all(0 <= share <= 1 for share in found)
    order = np.argsort(shares, kind="stable")
    assert (np.diff(np.array(found)[order]) >= -1e-9).all()


def test_fitted_thresholds_keep_the_shares_asked_for() -> None:
    model, rows = small_model(), tokenise(small_model(), small_data())
    theta, beta = fitted(model, rows, [0.8, 0.5], [0.5, 0.4], reference=128)
    limits = ([t / 128 for t in levels] for levels in (theta, beta))
    found = evaluate(model, rows, Thresholds(*(tuple(x) for x in limits), heads=2))
    total = found.kept[0].sum()
    assert found.kept[1:].sum(axis=1) / total == pytest.approx([0.8, 0.5], abs=0.02)
    assert found.high[1:].sum(axis=1) / total == pytest.approx([0.4, 0.2], abs=0.02)


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
