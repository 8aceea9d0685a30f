"""The pruned program against its clear twin: counts, outputs, costs, and every edge of a count."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from privml.backbones.batch import Encoded
from privml.backbones.config import EncoderConfig
from privml.backbones.encoder import Encoder
from privml.backbones.pruned import pruned_forward
from privml.backbones.synthetic import random_params
from privml.errors import ParameterError, UnsupportedError
from privml.protocols.cipherprune.spec import PruneSpec
from privml.protocols.cipherprune.thresholds import Thresholds
from privml.protocols.mpc.engine import Known
from privml.protocols.mpc.inputs import fit, outputs
from privml.protocols.mpc.spec import Spec
from privml.testing.programs import Run, TinyModel, clear

LENGTH = 16
GRID = (1, 2, 4, 8, 12, 16)
BASE = EncoderConfig(
    name="tiny", layers=3, hidden=16, heads=2, ffn=32, vocab=50, max_positions=LENGTH,
    max_length=LENGTH, pooling="pooler", labels=("a", "b"),
)  # fmt: skip
DECODER = EncoderConfig(
    name="tiny-decoder", layers=3, hidden=16, heads=2, ffn=32, vocab=50, max_positions=LENGTH,
    max_length=LENGTH, pooling="last", causal=True, pre_norm=True, type_vocab=1,
    activation="gelu_tanh",
)  # fmt: skip
MEAN = EncoderConfig(
    name="tiny-mean", layers=3, hidden=16, heads=2, ffn=32, vocab=50, max_positions=LENGTH,
    max_length=LENGTH, pooling="mean",
)  # fmt: skip


def sharp_params(config: EncoderConfig, seed: int) -> dict[str, np.ndarray]:
    """Random weights whose attention differs between tokens."""
    params = random_params(config, seed=seed)
    for name in params:
        if name.endswith(("qkv.weight", "embed.word")):
            params[name] = params[name] * np.float32(25.0)
    return params


def thresholds(scores: np.ndarray, config: EncoderConfig) -> np.ndarray:
    """Raw thresholds (layers - 1, 2) at scale 16 in the widest gaps near chosen quantiles."""
    out = []
    for row in scores:
        live = np.sort(row[row > 0])
        gaps = np.diff(live)
        low = int(np.argmax(gaps[: max(1, len(gaps) * 2 // 3)])) if len(gaps) else 0
        high = low + 1 + int(np.argmax(gaps[low + 1 :])) if len(gaps) > low + 1 else low
        mids = [(live[k] + live[min(k + 1, len(live) - 1)]) / 2 for k in (low, high)]
        out.append([round(m * 65536) for m in mids])
    return np.maximum(np.array(out, np.uint64), np.uint64(1))


def batch_of(tokens: int, seed: int) -> Encoded:
    generator = np.random.default_rng(seed)
    ids = generator.integers(1, 50, (1, LENGTH))
    mask = (np.arange(LENGTH) < tokens)[None]
    return Encoded.of(np.where(mask, ids, 0), mask)


class Setting:
    """A model, a sentence, and thresholds that really prune it."""

    def __init__(self, config: EncoderConfig, tokens: int, seed: int) -> None:
        self.config, self.batch = config, batch_of(tokens, seed)
        self.params = sharp_params(config, seed)
        self.encoder = Encoder(config, self.params)
        self.raw = np.ones((config.layers - 1, 2), np.uint64)
        for layer in range(config.layers - 1):  # a threshold changes the scores of later layers
            scores = self.twin(reduce=True).scores[:, 0].numpy()
            self.raw[layer] = thresholds(scores, config)[layer]

    @torch.no_grad()
    def twin(self, *, reduce: bool, schedule: object = None):
        unit = 65536.0 * self.config.heads * 128
        theta, beta = (self.raw.astype(np.float64) / unit).T
        return pruned_forward(
            self.encoder, self.batch, tuple(theta), tuple(beta), reduce=reduce, schedule=schedule
        )

    def run(self, prune: PruneSpec, raw: np.ndarray | None = None, **spec: object) -> Run:
        model = self.model(prune, raw, **spec)
        return model.run(fit(model.plan, self.batch))

    def model(self, prune: PruneSpec, raw: np.ndarray | None = None, **spec: object) -> TinyModel:
        made = TinyModel.make(
            self.config, self.params, rows=1, length=LENGTH, spec=Spec(prune=prune, **spec)
        )
        operands = {**made.known, "prune": Known(None, self.raw if raw is None else raw)}
        return replace(made, known=operands)

    def output(self, run: Run, prune: PruneSpec) -> np.ndarray:
        plan = self.model(prune).plan
        return outputs(plan, clear(run.executed), fit(plan, self.batch), rows=1)[0]


def spec(mode: str, *, reduce: bool) -> PruneSpec:
    if mode != "schedule":
        return PruneSpec(reveal=mode, grid=GRID, reduce=reduce)
    pairs = ((9, 4), (5, 2)) if reduce else ((9, 9), (5, 5))
    return PruneSpec(reveal="schedule", schedule=pairs, reduce=reduce)


CASES = [
    (config, mode, reduce, tokens)
    for config in (BASE, MEAN, DECODER)
    for mode in ("count", "bucket", "schedule")
    for reduce in (True, False)
    for tokens in (16, 11)
]


@pytest.mark.parametrize(("config", "mode", "reduce", "tokens"), CASES)
def test_execution_equals_simulation_and_follows_the_twin(config, mode, reduce, tokens):
    setting = Setting(config, tokens, seed=3)
    prune = spec(mode, reduce=reduce)
    run = setting.run(prune)
    assert run.problems() == []
    twin = setting.twin(reduce=reduce, schedule=prune.schedule or None)
    kept = twin.kept[1:, 0].sum(dim=1).tolist()
    high = (twin.high & twin.kept)[1:, 0].sum(dim=1).tolist()
    rows, found_high = zip(*run.found, strict=True)
    if mode == "count":
        assert list(rows) == kept
        assert list(found_high) == high
    elif mode == "bucket":
        assert list(rows) == [prune.bucket(k, limit=prune.bucket(tokens, limit=16)) for k in kept]
    else:
        assert list(rows) == [9, 5]
    expected = twin.output[0].detach().numpy()
    got = setting.output(run, prune)
    promoted = mode == "bucket" and reduce  # low rows that fill the bucket get the exact functions
    assert np.abs(got - expected).max() < (0.15 if promoted else 5e-3)


@pytest.mark.parametrize("config", [BASE, MEAN, DECODER])
def test_fillers_of_a_bucket_influence_nothing(config):
    setting = Setting(config, 13, seed=5)
    exact = setting.run(PruneSpec(reveal="count", reduce=False))
    padded = setting.run(PruneSpec(reveal="bucket", grid=(7, 11), reduce=False))
    assert padded.found != exact.found
    a = setting.output(exact, PruneSpec(reveal="count", reduce=False))
    b = setting.output(padded, PruneSpec(reveal="bucket", grid=(7, 11), reduce=False))
    assert np.abs(a - b).max() < 2e-3


def test_first_row_stays_when_its_score_is_below_every_threshold():
    setting = Setting(BASE, 12, seed=4)
    above = np.full((2, 2), BASE.heads * 128 << 16, np.uint64)  # theta = beta = 1
    for mode in ("count", "bucket"):
        run = setting.run(spec(mode, reduce=True), above)
        assert run.problems() == []
        assert run.found == ((1, 1), (1, 1))


def test_everything_stays_below_the_lowest_threshold():
    setting = Setting(BASE, 12, seed=4)
    lowest = np.ones((2, 2), np.uint64)
    run = setting.run(spec("count", reduce=True), lowest)
    assert run.problems() == []
    assert run.found == ((12, 12), (12, 12))
    bucket = setting.run(spec("bucket", reduce=True), lowest)
    assert bucket.found == ((12, 12), (12, 12))


def test_a_score_at_the_threshold_is_kept_and_one_unit_below_is_not():
    setting = Setting(BASE, 16, seed=6)
    params = {k: v * 0 if k.endswith("qkv.weight") else v for k, v in setting.params.items()}
    setting.params = {k: v * 0 if k.endswith("qkv.bias") else v for k, v in params.items()}
    prune = PruneSpec(reveal="count", reduce=False)
    equal = 2 * 65536  # 16 rows, 2 heads, probability 1/16 each, exactly
    slack = 64  # rounding of the row inverses
    for raw, rows in ((equal - slack, 16), (equal + slack, 1)):
        run = setting.run(prune, np.full((2, 2), raw, np.uint64))
        assert run.problems() == []
        assert run.found[0] == (rows, rows)


@pytest.mark.parametrize("tokens", [1, 2, 3])
@pytest.mark.parametrize("mode", ["count", "bucket", "schedule"])
def test_shortest_sentences(tokens, mode):
    setting = Setting(BASE, tokens, seed=7)
    run = setting.run(spec(mode, reduce=True))
    assert run.problems() == []


@pytest.mark.parametrize("mode", ["count", "bucket"])
@pytest.mark.parametrize("config", [BASE, MEAN, DECODER])
def test_texts_that_are_too_short_are_not_pruned(config, mode):
    setting = Setting(config, 7, seed=3)
    for shortest, pruned in ((8, False), (6, True)):
        prune = PruneSpec(reveal=mode, grid=GRID, shortest=shortest)
        run = setting.run(prune)
        assert run.problems() == []
        assert (run.found[-1][0] < 7) is pruned
        if not pruned:
            rows = 8 if mode == "bucket" else 7
            assert run.found == ((rows, rows), (rows, rows))
            theta = (0.0, 0.0)
            whole = pruned_forward(setting.encoder, setting.batch, theta, theta, shortest=8)
            expected = whole.output[0].detach().numpy()
            assert np.abs(setting.output(run, prune) - expected).max() < 5e-3


def test_the_shortest_pruned_text_comes_from_the_thresholds():
    learned = Thresholds((0.1, 0.1), (0.2, 0.2), heads=2, shortest=5)
    assert PruneSpec(learned).least == 5
    assert PruneSpec(learned, shortest=0).least == 0
    assert PruneSpec(learned).public() == PruneSpec(shortest=5)


def test_private_embedding_tables():
    setting = Setting(BASE, 9, seed=8)
    released = setting.run(spec("count", reduce=True))
    private = setting.run(spec("count", reduce=True), embedding="private")
    assert private.problems() == []
    assert private.found == released.found


def test_padding_beside_the_sentence_does_not_change_what_is_found():
    """The score is normalised by the reference, never by the rows that are there."""
    setting = Setting(BASE, 9, seed=9)
    counts = setting.run(spec("count", reduce=False)).found
    wide = PruneSpec(reveal="bucket", grid=(16,), reduce=False)
    plan = setting.model(wide)
    assert plan.run(fit(plan.plan, setting.batch)).problems() == []
    prune = PruneSpec(reveal="bucket", grid=tuple(range(1, 17)), reduce=False)
    assert setting.run(prune).found == counts


def test_several_sentences_are_refused():
    with pytest.raises((UnsupportedError, ParameterError), match=r"rows of a pruned plan|one sent"):
        _ = TinyModel.make(
            BASE, sharp_params(BASE, 1), rows=2, length=8, spec=Spec(prune=PruneSpec())
        ).plan.steps


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"reveal": "sometimes"}, "choose bucket"),
        ({"grid": (4, 4)}, "increasing"),
        ({"grid": ()}, "increasing"),
        ({"reveal": "schedule"}, "needs schedule="),
        ({"schedule": ((3, 2),)}, "a schedule belongs"),
        ({"reveal": "schedule", "schedule": ((3, 4),)}, "high"),
        ({"reveal": "schedule", "schedule": ((3, 2), (4, 2))}, "kept"),
        ({"reference": 0}, "reference"),
    ],
)
def test_options_out_of_range_are_named(options, message):
    with pytest.raises(ParameterError, match=message):
        PruneSpec(**options)
