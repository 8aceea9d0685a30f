"""The real MiniLM-L6: known answers, program against forward, default ranges."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from privml.backbones.encoder import Encoder
from privml.backbones.interpreter import run_program
from privml.backbones.known_ranges import known_ranges
from privml.backbones.loader import load_encoder
from privml.backbones.program import finish_output
from privml.backbones.ranges import default_ranges

TEXTS = [
    "A cold front will bring snow to the northern valleys by Thursday evening.",
    "Ünïcode naïve café — 今日は #39;s $5.00",
]
# First six components, and the dot product with (0, 1, ..., 383) / 384, of the embeddings that
# transformers 5.24.0 (BertModel, mean pooling, normalised) gives for TEXTS.
KNOWN = [
    [-0.031562, -0.005748, 0.072857, 0.029893, 0.017917, -0.017541],
    [-0.014995, 0.081545, 0.060806, 0.023529, -0.018280, -0.020451],
]
KNOWN_DOT = [0.2136327624320984, -0.2553044259548187]


@pytest.fixture(scope="module")
def encoder() -> Encoder:
    return load_encoder("minilm-l6")


def test_configuration(encoder: Encoder) -> None:
    spec, config = encoder.spec(), encoder.config
    assert (config.layers, config.hidden, config.heads, config.ffn) == (6, 384, 12, 1536)
    assert (spec.max_length, spec.task, spec.output_dim) == (256, "embedding", 384)
    assert spec.parameter_count == 22_565_376
    assert config.normalize
    assert config.pooling == "mean"


def test_known_answers(encoder: Encoder) -> None:
    embeddings = encoder.encode(TEXTS)
    assert embeddings[:, :6] == pytest.approx(np.array(KNOWN), abs=2e-6)
    assert embeddings @ (np.arange(384) / 384) == pytest.approx(KNOWN_DOT, abs=5e-6)
    assert np.linalg.norm(embeddings, axis=1) == pytest.approx(1.0, abs=1e-6)


def test_interpreter_reproduces_every_value(encoder: Encoder) -> None:
    assert encoder.tokenizer is not None
    batch = encoder.tokenizer.encode(TEXTS)
    ops = encoder.ops()
    values = run_program(ops, encoder.params(), batch)
    captured = encoder.capture(batch, [node.name for node in ops])
    for node in ops:
        got, want = captured.activations[node.name].numpy(), values[node.name]
        assert got.shape == node.output.resolve(rows=2, length=batch.length) == want.shape
        np.testing.assert_allclose(got, want, rtol=1e-5, atol=2e-5, err_msg=node.name)
    output = finish_output(encoder.config, values[ops[-1].name])
    assert captured.output.numpy() == pytest.approx(output, abs=1e-6)


def test_float64_forward_agrees_to_1e_9() -> None:
    encoder = load_encoder("minilm-l6").double()
    assert encoder.tokenizer is not None
    batch = encoder.tokenizer.encode(TEXTS[:1])
    values = run_program(encoder.ops(), encoder.params(), batch)
    with torch.no_grad():
        forward = encoder(batch).numpy()
    assert finish_output(encoder.config, values["pool"]) == pytest.approx(forward, abs=1e-9)


def test_default_ranges_hold_known_extremes(encoder: Encoder) -> None:
    ranges = encoder.ranges()
    names = {node.name for node in encoder.ops()}
    assert names <= set(ranges)
    assert {f"layer{i}.scores" for i in range(6)} <= set(ranges)
    assert {f"layer{i}.{v}.var" for i in range(6) for v in ("attn_sum", "ffn_sum")} <= set(ranges)
    assert all(r.origin == "calibrated" and r.samples == 65 for r in ranges.values())
    # Seen on 500 rows of AG News: largest score, GELU input, residual sum; smallest variance.
    assert ranges["layer0.scores"].bound > 126
    assert ranges["layer0.ffn_in"].bound > 25
    assert ranges["layer0.ffn_sum"].bound > 224
    assert 0 < ranges["embed.var"].low < 0.0021
    assert ranges is encoder.ranges()


def test_ranges_that_come_with_the_package_equal_a_fresh_calibration(encoder: Encoder) -> None:
    shipped, fresh = known_ranges(encoder), default_ranges(encoder)
    assert shipped is not None
    assert shipped.keys() == fresh.keys()
    ends = [
        (name, getattr(shipped[name], end), getattr(fresh[name], end))
        for name in fresh
        for end in ("low", "high")
    ]
    # One rounding step apart at most, if sums of another processor straddle a step.
    assert [e for e in ends if e[1] != pytest.approx(e[2], rel=0.126)] == []
    assert sum(got != want for _, got, want in ends) <= 2
    for name, interval in fresh.items():
        assert (interval.samples, interval.factor) == (shipped[name].samples, shipped[name].factor)


def test_ranges_of_changed_weights_are_not_looked_up() -> None:
    encoder = load_encoder("minilm-l6")
    with torch.no_grad():
        next(iter(encoder.parameters()))[0, 0] += 1
    assert known_ranges(encoder) is None
