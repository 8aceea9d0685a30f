"""Exact up to four times the calibrated bound, refused or damaged-proof otherwise."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np
import pytest

from privml.backbones.loader import random_encoder
from privml.errors import Corrupt, ParameterError
from privml.protocols import mpc
from privml.protocols.cipherprune.gelu_low import GeluLow
from privml.protocols.mpc import functions as fn
from privml.protocols.mpc.correlations.supply import PoolSupply
from privml.protocols.mpc.engine import Known, Planner, Simulator, Val
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


def test_gains_that_leave_the_ring_are_refused_at_plan_time() -> None:
    x = Val((4, D), fn.F, BOUND)
    for bound, fits in ((2.0**29, True), (2.0**30, False), (2.0**40, False)):
        norm = partial(fn.layernorm, Planner(), x, Known(), name="w", eps=1e-12, bound=bound)
        if fits:
            norm()
        else:
            with pytest.raises(ParameterError, match="affine map of w"):
                norm()


def gelu(e: Simulator, x: Val) -> Val:
    return fn.gelu(e, x, "ring4")


def low_gelu(e: Simulator, x: Val) -> Val:
    words = e.apply(GeluLow(x.shape, fn.gelu_bits(x)), x)
    return e.result(words, x.shape, scale=32, bound=x.bound)


@pytest.mark.parametrize(
    ("f", "name", "scale", "bound", "value"),
    [(gelu, "gelu", 12, 300.0, 2050.0), (gelu, "gelu", 12, 600.0, -33_000.0),
     (low_gelu, "gelu_low", 12, 300.0, 2050.0), (fn.tanh, "compare", 16, 4.0, 520.0),
     (fn.row_max, "maximum", 32, 16.0, 70.0), (fn.exp_nonpositive, "exp", 32, 1e5, -6e5),
     (fn.exp_nonpositive, "exp", 32, 1e5, 1.0)],
)  # fmt: skip
def test_the_simulation_shows_what_leaves_a_short_range(
    f: Callable[[Simulator, Val], Val], name: str, scale: int, bound: float, value: float
) -> None:
    """A comparison of few bits is wrong far below the ring's limit; the table must tell."""
    for factor, over in ((0.2, False), (1.0, True)):
        engine = Simulator(fixed_seeds(4))
        ends = np.array([[-abs(value) if name == "exp" and value < 0 else value, -value]]) * factor
        if name == "exp":
            ends = np.array([[value * factor if over else -1.0, -1.0]])
        f(engine, Val(ends.shape, scale, bound, encode(ends, scale)))
        assert (engine.head[f"range of {name}"] >= 1) is over


@pytest.mark.parametrize("n", [1, 2, 3, 5, 17])
@pytest.mark.parametrize("limit", [0.01, 8.0, 1000.0, 7000.0])
def test_softmax_at_both_ends_of_its_range(n: int, limit: float, rng: np.random.Generator) -> None:
    x = rng.choice([-3.99, 3.99], (40, n)) * limit
    x[:5] = 3.99 * limit
    x[5:10] = -3.99 * limit
    x[10:15] = rng.normal(0, 2, (5, n)).clip(-limit, limit)
    engine = Simulator(fixed_seeds(5))
    words = encode(x, 32)
    y = fn.softmax(engine, Val(x.shape, 32, limit, words))
    assert y.words is not None
    assert max(engine.head.values()) < 1
    e = np.exp(x - x.max(axis=1, keepdims=True))
    assert np.abs(decode(y.words, fn.F) - e / e.sum(axis=1, keepdims=True)).max() < 5e-4


@pytest.mark.parametrize("d", [1, 2, 3, 7, 96, 383])
def test_layernorm_of_hostile_rows(d: int, rng: np.random.Generator) -> None:
    """Constant rows, one outlier, a large mean, and usual rows beside them."""
    x = rng.normal(0, 1, (12, d))
    x[0], x[1], x[2, 0], x[3] = 0.0, 4000.0, 8000.0, x[3] + 1000.0
    x = np.rint(x * 2.0**16) / 2.0**16
    bound, variance = 8000.0, max(1.0, float(x.var(axis=1).max()))
    known = Known(encode(np.ones(d), 14), encode(np.zeros(d), 30))
    engine = Simulator(fixed_seeds(6))
    y = fn.layernorm(engine, Val(x.shape, fn.F, bound, encode(x, fn.F)), known,
                     name="w", eps=1e-12, bound=30.0, variance=variance)  # fmt: skip
    assert y.words is not None
    assert max(engine.head.values()) < 1
    got, deviation = decode(y.words, fn.F), x.std(axis=1, keepdims=True)
    assert np.abs(got[:2]).max() < 1.0
    mean = np.abs(x.mean(axis=1, keepdims=True))
    unit = (x - x.mean(axis=1, keepdims=True)) / np.maximum(deviation, 2.0**-10)
    allowed = (2.0**-12.5 + deviation * 2.0**-18) * np.abs(unit) + 2.0**-14
    allowed += (2.0**-15 + mean * d / 2.0**31) / np.maximum(deviation, 2.0**-10)
    rows = (deviation > 2.0**-4)[:, 0]
    assert (np.abs(got - unit) <= allowed)[rows].all()
