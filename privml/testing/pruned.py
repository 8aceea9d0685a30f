"""Tiny pruned models with thresholds that really prune, and sentences for them."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from privml.backbones.batch import Encoded
from privml.backbones.config import EncoderConfig
from privml.backbones.synthetic import random_params
from privml.protocols.cipherprune.spec import PruneSpec
from privml.protocols.mpc.engine import Known, Simulator
from privml.protocols.mpc.inputs import client_inputs, fit
from privml.protocols.mpc.primitive import Words
from privml.protocols.mpc.quantise import THRESHOLDS
from privml.protocols.mpc.spec import EmbeddingMode, Spec
from privml.rng import ScienceSeed
from privml.testing.programs import Keys, TinyModel

LENGTH, VOCAB = 8, 40
ENCODER = EncoderConfig(
    name="tiny-pruned", layers=3, hidden=8, heads=2, ffn=16, vocab=VOCAB, max_positions=LENGTH,
    max_length=LENGTH, pooling="pooler", labels=("a", "b"),
)  # fmt: skip
MEAN = replace(ENCODER, name="tiny-pruned-mean", pooling="mean", labels=())
DECODER = replace(
    ENCODER, name="tiny-pruned-decoder", pooling="last", labels=(), causal=True, pre_norm=True,
    type_vocab=1, activation="gelu_tanh",
)  # fmt: skip


def thresholds(config: EncoderConfig, low: float = 0.8, high: float = 1.1) -> Words:
    """Raw thresholds ``(layers - 1, 2)`` as multiples of the mean score of a layer's rows."""
    mean = config.heads << 16
    pair = [max(1, round(low * mean)), max(1, round(high * mean))]
    return np.array([pair] * (config.layers - 1), np.uint64)


def pruned_model(
    config: EncoderConfig, prune: PruneSpec, *, raw: Words | None = None, seed: int = 3,
    length: int | None = None, embedding: EmbeddingMode = "released",
) -> TinyModel:  # fmt: skip
    """Make a random model whose attention differs between tokens, under the given options."""
    params = random_params(config, seed=seed)
    for name in params:
        if name.endswith(("qkv.weight", "embed.word")):
            params[name] = params[name] * np.float32(25.0)
    spec = Spec(prune=prune, embedding=embedding)
    made = TinyModel.make(config, params, rows=1, length=length or config.max_length, spec=spec)
    if prune.reveal == "schedule":
        return made
    raw = thresholds(config) if raw is None else raw
    return replace(made, known={**made.known, THRESHOLDS: Known(None, raw)})


def sentence(tokens: int, seed: int, *, vocab: int = VOCAB) -> Encoded:
    """Return one sentence of random tokens without padding."""
    generator = ScienceSeed(seed).child("sentence", tokens).generator()
    return Encoded.of(generator.integers(1, vocab, (1, tokens)))


def counts_of(model: TinyModel, batch: Encoded) -> tuple[tuple[int, ...], ...]:
    """Row counts that a run of this batch finds, by simulation under fresh masks."""
    full = fit(model.plan, batch)
    engine = Simulator(Keys.fresh().seeds, index=model.plan.index)
    inputs = client_inputs(model.plan, full, model.public)
    model.plan.program.run(engine, model.known, inputs)
    return ((inputs.length or 0,), *engine.found)
