"""Two sentences with the same revealed numbers look alike through whole pruned runs.

In bucket and schedule mode the sentences differ in their length and in their exact counts. Alarm
budget: one search is wrong on an honest protocol with probability below 5e-8 (``4 * ALPHA`` and
:func:`chance`); the fast tier stays below 2e-7, the long one below 1e-6.
"""

from __future__ import annotations

import pytest

from privml.backbones.batch import Encoded
from privml.backbones.config import EncoderConfig
from privml.protocols.cipherprune.spec import PruneSpec
from privml.testing.programs import TinyModel
from privml.testing.pruned import DECODER, ENCODER, LENGTH, MEAN, counts_of, pruned_model, sentence
from privml.testing.pruned_views import Sample, chance, sample, tell_apart

RUNS, MANY = 40, 250
OPTIONS = {
    "count": PruneSpec(reveal="count"),
    "bucket": PruneSpec(reveal="bucket", grid=(1, 4, LENGTH)),
    "schedule": PruneSpec(reveal="schedule", schedule=((6, 3), (3, 2))),
}


def alike(config: EncoderConfig, mode: str) -> tuple[TinyModel, Encoded, Encoded]:
    """A model and two sentences that show the same; beyond count mode their counts differ."""
    model = pruned_model(config, OPTIONS[mode])
    exact = pruned_model(config, OPTIONS["count"])
    seen: dict[object, tuple[object, Encoded]] = {}
    for seed in range(200):
        one = sentence(LENGTH if mode == "count" else LENGTH - seed % 3, seed)
        shown, hidden = counts_of(model, one), counts_of(exact, one)
        other = seen.setdefault(shown, (hidden, one))
        if other[1] is not one and (mode == "count" or other[0] != hidden):
            return model, other[1], one
    raise AssertionError("no two sentences show the same")


def runs(model: TinyModel, batch: Encoded, number: int) -> list[Sample]:
    return [sample(model, batch) for _ in range(number)]


def findings(config: EncoderConfig, mode: str, number: int) -> list[str]:
    model, first, second = alike(config, mode)
    halves = runs(model, first, number), runs(model, second, number)
    assert chance(halves[0][0]) < 1e-8
    assert all(s.run.problems() == [] for half in halves for s in half[:2])
    return tell_apart(*halves)


@pytest.mark.parametrize(
    ("config", "mode"), [(ENCODER, "count"), (ENCODER, "bucket"), (DECODER, "schedule")],
    ids=lambda x: getattr(x, "name", x),
)  # fmt: skip
def test_two_sentences_with_equal_revealed_numbers_look_alike(
    config: EncoderConfig, mode: str
) -> None:
    assert findings(config, mode, RUNS) == []


@pytest.mark.nightly
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("config", [ENCODER, MEAN, DECODER], ids=lambda c: c.name)
@pytest.mark.parametrize("mode", sorted(OPTIONS))
def test_two_sentences_look_alike_through_many_runs(config: EncoderConfig, mode: str) -> None:
    assert findings(config, mode, MANY) == []


@pytest.mark.nightly
@pytest.mark.parametrize("mode", ["bucket", "schedule"])
def test_sizes_of_messages_follow_the_revealed_numbers_alone(mode: str) -> None:
    model = pruned_model(ENCODER, OPTIONS[mode])
    sizes: dict[object, set[object]] = {}
    for seed in range(300):
        one = sentence(1 + seed % LENGTH, seed)
        made = sample(model, one)
        sizes.setdefault((made.run.found, counts_of(model, one)[0]), set()).add(made.sizes)
    assert all(len(patterns) == 1 for patterns in sizes.values())
    assert len(sizes) == 1 or mode == "bucket"
