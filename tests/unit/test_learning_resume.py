"""Threshold learning and fine-tuning go on after a stop, with the same result."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from privml.backbones.encoder import Encoder
from privml.errors import Corrupt, ParameterError
from privml.protocols.cipherprune import (
    Learned,
    Options,
    fine_tune,
    learn_thresholds,
    with_classifier,
)
from privml.protocols.cipherprune.learning import (
    Progress,
    Recipe,
    loop,
)
from privml.protocols.cipherprune.learning.loop import Loop
from privml.testing.small_task import (
    equal_weights,
    small_data,
    small_encoder,
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


class Stop(Exception):
    pass


@pytest.mark.parametrize(
    ("stage", "done"),
    [
        ("teacher", 1.0), ("soft masks", 0.3), ("soft masks", 1.0), ("freezing thresholds", 1.0),
        ("hard masks", 0.0), ("hard masks", 0.5), ("hard masks", 1.0), ("report", 0.0),
    ],
)  # fmt: skip
def test_a_stopped_run_goes_on_to_the_same_result(tmp_path: Path, stage: str, done: float) -> None:
    def progress(now: str, far: float) -> None:
        if now == stage and far >= done:
            raise Stop

    with pytest.raises(Stop):
        learn_thresholds(
            small_model(), small_data(), options=FAST, precision="float32", checkpoint_dir=tmp_path,
            checkpoint_seconds=0.0, progress=progress,
        )  # fmt: skip
    steps: list[str] = []
    resumed = learn_thresholds(
        small_model(), small_data(), options=FAST, precision="float32", checkpoint_dir=tmp_path,
        checkpoint_seconds=60.0, progress=lambda now, _: steps.append(now),
    )  # fmt: skip
    assert resumed.thresholds == small_learned().thresholds
    assert equal_weights(resumed.model, small_learned().model)
    left = {"teacher": 37, "soft masks": 37 - int(36 * done)}.get(stage, 1)
    assert steps.count("soft masks") <= left
    assert ("soft masks" not in steps) == (stage in ("hard masks", "report"))


def test_stopped_fine_tuning_goes_on_to_the_same_result(tmp_path: Path) -> None:
    fresh, calls = with_classifier(small_encoder(), ("bad", "good"), seed=2), [0]

    def progress(_: str, __: float) -> None:
        calls[0] += 1
        if calls[0] == 15:
            raise Stop

    def tune(progress: Progress | None = None, folder: Path | None = tmp_path) -> Encoder:
        return fine_tune(
            fresh, small_data(), recipe=Recipe(epochs=2, rate=1e-3, batch=24),
            precision="float32", checkpoint_dir=folder, checkpoint_seconds=0.0, progress=progress,
        )  # fmt: skip

    with pytest.raises(Stop):
        tune(progress)
    assert equal_weights(tune(lambda _, done: calls.append(int(done < 0.5))), tune(folder=None))
    assert calls[0] == 15
    assert sum(calls[1:]) == 0  # the first half was not done again


def test_a_resumed_run_keeps_its_number_format(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The automatic choice depends on timing, so it may differ the second time."""
    found: list[str] = []
    step, model = Loop._step, small_model()  # made, with steps of its own, before they are counted

    def spy(self: Loop, which: NDArray[np.int64], at: int, total: int) -> None:
        found.append(self.precision)
        if len(found) in (3, 45):
            raise Stop
        step(self, which, at, total)

    def learn() -> None:
        learn_thresholds(
            model, small_data(), options=FAST, checkpoint_dir=tmp_path,
            checkpoint_seconds=0.0,
        )  # fmt: skip

    monkeypatch.setattr(Loop, "_step", spy)
    for chosen in ("bfloat16", "float32", "float32"):
        monkeypatch.setattr(
            loop, "choose", lambda asked, now=chosen: now if asked == "auto" else asked
        )
        if chosen == "bfloat16" or len(found) < 45:
            with pytest.raises(Stop):
                learn()
        else:
            learn()
    assert set(found) == {"bfloat16"}


def test_a_tiny_training_set_is_warned_about() -> None:
    few = small_data().take(np.arange(40))
    recipe = Recipe(epochs=1, rate=1e-3, batch=30)
    before = small_model()
    with pytest.warns(UserWarning, match="1 step"):
        after = fine_tune(before, few, recipe=recipe, precision="float32")
    assert not equal_weights(before, after)  # even a single step has a rate


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
        learn(Options(budget=0.3, shortest=0))
    file = tmp_path / "checkpoint.safetensors"
    data = bytearray(file.read_bytes())
    data[len(data) // 2] ^= 1
    file.write_bytes(bytes(data))
    with pytest.raises(Corrupt, match="remove it"):
        learn(FAST)
    file.write_bytes(b"nothing")
    with pytest.raises(Corrupt, match="no checkpoint"):
        learn(FAST)
