"""Exact up to four times the calibrated bound, refused or damaged-proof otherwise."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from privml.backbones.loader import random_encoder
from privml.errors import Corrupt, ParameterError
from privml.protocols import mpc
from privml.protocols.mpc import functions as fn
from privml.protocols.mpc.correlations.supply import PoolSupply
from privml.protocols.mpc.engine import Known, Simulator, Val
from privml.protocols.mpc.program import _mask
from privml.protocols.mpc.quantise import decode, encode
from privml.testing.simulate import fixed_seeds

D = 48
BOUND = 20.0


def normalised(x: np.ndarray) -> np.ndarray:
    return (x - x.mean(1, keepdims=True)) / x.std(1, keepdims=True)


@pytest.mark.parametrize("factor", [0.01, 0.5, 1.0, 2.0, 3.0, 3.99])
def test_layernorm_up_to_four_times_the_bound(factor: float, rng: np.random.Generator) -> None:
    x = rng.choice([-1.0, 1.0], size=(8, D)) * BOUND * factor
    known = Known(encode(np.ones(D), 14), encode(np.zeros(D), 30))
    y = fn.layernorm(
        Simulator(fixed_seeds(1)),
        Val(x.shape, fn.F, BOUND, encode(x, fn.F)),
        known,
        name="w",
        eps=1e-12,
        bound=30.0,
    )
    assert y.words is not None
    assert np.abs(decode(y.words, fn.F) - normalised(x)).max() < 2e-3


@pytest.mark.parametrize("factor", [1.0, 2.0, 3.0, 3.99])
def test_padded_keys_get_no_attention_up_to_four_times_the_bound(factor: float) -> None:
    limit = 10.0
    scores = np.full((1, 1, 4), -limit * factor)
    scores[..., 3] = limit * factor  # a padded key with the largest score
    engine = Simulator(fixed_seeds(2))
    padding = np.array([[0, 0, 0, 1]], np.uint64)
    val = Val(scores.shape, 32, limit, encode(scores, 32))
    masked = _mask(engine, val, padding, limit, (1, 1, 4))
    probs = fn.softmax(engine, engine.reshape(masked, 1, 4))
    assert probs.words is not None
    assert np.abs(decode(probs.words, fn.F)[0] - [1 / 3, 1 / 3, 1 / 3, 0]).max() < 1e-3
    assert decode(probs.words, fn.F)[0, 3] == 0


@pytest.mark.parametrize("scale", [1e-4, 0.0])
def test_rows_that_hardly_vary_are_refused_at_plan_time(scale: float) -> None:
    encoder = random_encoder(layers=2, hidden=16, heads=2, ffn=32, vocab=40, max_positions=8)
    params = {name: value * np.float32(scale) for name, value in encoder.params().items()}
    model = mpc.PrivateModel(type(encoder)(encoder.config, params))
    with pytest.raises(ParameterError, match=r"layer0\.attn_sum vary too little"):
        model.plan(n=4)


def flipped(path: Path, offset: int) -> None:
    with path.open("r+b") as file:
        file.seek(offset)
        byte = file.read(1)[0]
        file.seek(offset)
        file.write(bytes([byte ^ 4]))


@pytest.mark.parametrize("where", [0.01, 0.5, 0.99])
def test_a_damaged_correction_ends_the_run(tmp_path: Path, where: float) -> None:
    encoder = random_encoder(layers=1, hidden=8, heads=2, ffn=16, vocab=30, max_positions=8)
    plan = mpc.PrivateModel(encoder).plan(n=4)
    mpc.deal(plan, runs=1, server=tmp_path / "s.pool", client=tmp_path / "c.pool")
    start = (tmp_path / "c.pool").stat().st_size - plan.pool_bytes()
    flipped(tmp_path / "c.pool", start // 4096 * 4096 + int(where * plan.pool_bytes()))
    used = mpc.UsedLog(tmp_path / "used")
    opened = {name: np.zeros(shape, np.uint64) for name, shape in plan.secret_weights()}
    with mpc.Pool.open(tmp_path / "c.pool", plan_digest=plan.digest, used=used) as pool:
        supply = PoolSupply(1, pool.claim(0), plan.steps, opened=opened)
        with pytest.raises(Corrupt, match="damaged"):
            supply.prepare(memory_bytes=1 << 30)
        supply.close()
