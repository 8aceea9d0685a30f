"""Private functions against float references within declared errors, extremes included.

Values come from the simulator; ``three_ways`` also executes them between two parties and holds
execution to the simulation bit for bit and the measured cost to the plan.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest

from privml.errors import ParameterError
from privml.protocols.mpc import functions as fn
from privml.protocols.mpc.engine import Engine, Known, Planner, Val
from privml.protocols.mpc.nonlinear.gelu import QUARTICS
from privml.protocols.mpc.quantise import decode, encode
from privml.rng import ScienceSeed
from privml.testing.programs import Keys, clear, function, three_ways

ULP = 2.0**-16
KEYS = Keys((b"\1" * 32, b"\2" * 32), b"\3" * 32)


def random(*labels: str | int) -> np.random.Generator:
    """Generator of one test, the same in every run and order."""
    return ScienceSeed(9).child("functions", *labels).generator()


def val(x: Any, scale: int, bound: float | None = None) -> Val:
    x = np.asarray(x, np.float64)
    limit = float(np.abs(x).max()) if bound is None else bound
    return Val(x.shape, scale, limit, encode(x, scale))


def run(f: Callable[..., Val], *inputs: Val, params: dict[str, Known] | None = None) -> Any:
    """Values of a function, after planning, simulating and executing it."""
    done = three_ways(function(f, *inputs), params, keys=KEYS)
    assert done.problems() == []
    assert max(done.head.values(), default=0.0) < 1.0
    return decode(clear(done.simulated), done.simulated.scale)


def erf_gelu(x: Any) -> Any:
    return np.array([0.5 * v * (1 + math.erf(v / math.sqrt(2))) for v in x.reshape(-1)])


@pytest.mark.parametrize("variant", sorted(QUARTICS))
def test_gelu_on_a_dense_grid(variant: str) -> None:
    x = np.linspace(-8, 8, 1 << 16)
    x = np.rint(x * 2**12) / 2**12
    y = run(partial(fn.gelu, variant=variant), val(x, fn.GELU_SCALE))
    assert np.abs(y - erf_gelu(x)).max() <= QUARTICS[variant].max_err


def test_gelu_far_out_is_the_identity_or_zero() -> None:
    x = np.concatenate([2.0 ** np.arange(2, 11), [1023.99, 3.5, 8.25]])
    x = np.rint(np.concatenate([x, -x]) * 2**12) / 2**12
    y = run(partial(fn.gelu, variant="ring4"), val(x, fn.GELU_SCALE))
    assert np.array_equal(y, np.where(x > 0, x, 0.0))


def test_gelu_is_close_on_both_sides_of_its_cuts() -> None:
    cut = QUARTICS["ring4"].integers()["cut"]
    units = np.concatenate([s * cut + np.arange(-3, 4) for s in (-1, 0, 1)])
    x = units / 2.0**12
    y = run(partial(fn.gelu, variant="ring4"), val(x, fn.GELU_SCALE))
    assert np.abs(y - erf_gelu(x)).max() <= QUARTICS["ring4"].max_err


EXP_ERROR = 4e-5
"""Largest error against exp(x - 2^-16): the caller's tie-breaking unit is part of the function."""


@pytest.mark.parametrize("scale", [16, 20, 32, 36])
def test_exp(scale: int) -> None:
    x = np.concatenate([-np.linspace(0, 20, 20_001), -(2.0 ** np.arange(-16, 11)), [0.0]])
    x = np.rint(x * 2.0**scale) / 2.0**scale
    y = run(fn.exp_nonpositive, val(x, scale, 1024.0))
    assert np.abs(y - np.exp(x - ULP)).max() <= EXP_ERROR
    assert np.abs(y - np.exp(x)).max() <= EXP_ERROR + ULP
    assert not y[x < -15.5].any()
    assert (y >= 0).all()


@pytest.mark.parametrize("far", [-8.0, -13.0, -15.4999, -15.5, -16.0, -31.9, -32.0, -64.0, -128.0])
def test_exp_far_below_the_clip(far: float) -> None:
    x = np.full(256, far)
    y = run(fn.exp_nonpositive, val(x, 32, 256.0))
    assert np.abs(y - np.exp(far)).max() <= EXP_ERROR + ULP


@pytest.mark.parametrize("n", [1, 2, 3, 5, 8, 33, 128])
def test_softmax_total_variation(n: int) -> None:
    x = random("softmax", n).normal(0, 2, (40, n))
    x[0], x[1] = 0.0, np.linspace(-15, 0, n)
    x[2], x[2, -1] = -20.0, 20.0
    x = np.rint(x * 2.0**32) / 2.0**32
    y = run(fn.softmax, val(x, 32, 24.0))
    e = np.exp(x - x.max(axis=1, keepdims=True))
    exact = e / e.sum(axis=1, keepdims=True)
    distance = 0.5 * np.abs(y - exact).sum(axis=1)
    assert distance.max() <= 1.5e-4 + n * ULP / 4
    assert distance.mean() <= 1e-4 + n * ULP / 5
    assert np.abs(y.sum(axis=1) - 1).max() <= 3e-4 + n * ULP


def test_softmax_of_padded_keys() -> None:
    """A key that is pushed below the clip gets exactly nothing."""
    x = random("padded").normal(0, 2, (8, 16))
    x[:, 9:] -= 2 * 10 + 16.5
    y = run(fn.softmax, val(x, 32, 50.0))
    assert not y[:, 9:].any()
    assert np.abs(y.sum(axis=1) - 1).max() <= 5e-4


@pytest.mark.parametrize("bound", [200.0, 5000.0, 2.0**20])
def test_row_maximum_is_a_value_within_the_slack(bound: float) -> None:
    for n in (1, 2, 3, 4, 5, 7, 16, 17, 64, 100):
        x = np.rint(random("maximum", n).normal(0, 50, (9, n)) * 2**16) / 2**16
        x[0] = 3.0
        given = val(x, 16, bound)
        y = run(fn.row_max, given)
        assert all(value in row for value, row in zip(y, x, strict=True))
        assert (x.max(axis=1) - y <= fn.max_slack(given, n)).all()
    assert fn.max_slack(val(x, 16, 2.0**20), 64) <= 8.0
    assert fn.max_slack(val(x, 32, 200.0), 128) <= 2.0**-8


def test_what_lies_below_the_maximum_is_never_positive() -> None:
    for bound in (200.0, 5000.0, 60_000.0):
        x = np.rint(random("below", str(bound)).normal(0, 50, (9, 30)) * 2**32) / 2**32
        given = val(x, 32, bound)
        y = run(partial(fn.below_max, columns=128), given)
        assert y.max() <= 0
        assert (y.max(axis=1) >= -2 * fn.max_slack(given, 128)).all()


def test_softmax_under_a_loose_bound() -> None:
    """The resolution of the maximum falls with the bound; the result does not depend on it."""
    x = np.rint(random("loose").normal(0, 3, (9, 50)) * 2**32) / 2**32
    y = run(fn.softmax, val(x, 32, 8000.0))
    e = np.exp(x - x.max(axis=1, keepdims=True))
    assert 0.5 * np.abs(y - e / e.sum(axis=1, keepdims=True)).sum(axis=1).max() <= 2e-4 + 50 * ULP


def test_exp_refuses_what_its_clip_cannot_tell() -> None:
    with pytest.raises(ParameterError, match="head-room"):
        fn.exp_nonpositive(Planner(), Val((4,), 32, 2.0**18))


@pytest.mark.parametrize(("low", "high"), [(0.98, 2.05), (0.9, 130.0), (0.01, 4.0), (1.0, 600.0)])
def test_reciprocal(low: float, high: float) -> None:
    s = np.concatenate([np.geomspace(low, high, 3000), [low, high]])
    s = np.clip(np.rint(s * 2**16), math.ceil(low * 2**16), math.floor(high * 2**16)) / 2**16
    y = run(partial(fn.reciprocal, low=low, high=high), val(s, 16))
    factor = high * 2.0**-23  # rounding of the public factor, relative to the smallest one
    assert (np.abs(y - 1 / s) <= (2.0**-12.3 + factor) / s + 2 * ULP).all()


@pytest.mark.parametrize(("low", "high"), [(0.5, 2.0), (2.0**-10, 1.0), (0.1, 5000.0)])
def test_reciprocal_square_root(low: float, high: float) -> None:
    s = np.concatenate([np.geomspace(low, high, 3000), [low, high]])
    s = np.clip(np.rint(s * 2**20), math.ceil(low * 2**20), math.floor(high * 2**20)) / 2**20
    y = run(partial(fn.rsqrt, low=low, high=high), val(s, 20))
    factor = math.sqrt(high) * 2.0**-23
    assert (np.abs(y - s**-0.5) <= (2.0**-13 + factor) * s**-0.5 + 2 * ULP).all()


def test_functions_work_on_matrices() -> None:
    s = np.array([[1.0, 1.5, 2.0], [1.25, 1.75, 1.9]])
    for f, power in ((fn.reciprocal, -1.0), (fn.rsqrt, -0.5)):
        y = run(partial(f, low=0.98, high=2.05), val(s, 16))
        assert y.shape == s.shape
        assert np.abs(y - s**power).max() < 2.0**-12


def layernorm(x: Any, gamma: Any, beta: Any, *, bound: float, eps: float = 1e-12) -> Any:
    known = Known(encode(gamma, 14), encode(beta, 30))

    def f(e: Engine, v: Val, affine: Known) -> Val:
        return fn.layernorm(e, v, affine, name="norm", eps=eps, bound=64.0)

    return run(f, val(x, 16, bound), params={"norm": known})


def exact_norm(x: Any, gamma: Any, beta: Any, eps: float) -> Any:
    centred = x - x.mean(axis=1, keepdims=True)
    unit = centred / np.sqrt(np.square(centred).mean(axis=1, keepdims=True) + eps)
    return unit * gamma + beta, unit


@pytest.mark.parametrize("variance", [1e-4, 1e-2, 1.0, 30.0, 1e3])
@pytest.mark.parametrize("d", [8, 96, 384])
def test_layernorm_over_seven_orders_of_variance(variance: float, d: int) -> None:
    """Error: 2^-13 and the factor's rounding, relative, and two units of x over its deviation."""
    sigma = math.sqrt(variance)
    draw = random("norm", d, str(variance))
    x = np.rint((draw.normal(0, sigma, (16, d)) + 0.3) * 2**16) / 2**16
    gamma, beta = draw.uniform(0.5, 1.5, d), draw.normal(0, 0.5, d)
    y = layernorm(x, gamma, beta, bound=256.0)
    want, unit = exact_norm(x, gamma, beta, 1e-12)
    deviation = np.std(x, axis=1, keepdims=True)
    relative = 2.0**-12.5 + deviation * 2.0**-18
    allowed = (relative * np.abs(unit) + 2 * ULP / deviation) * gamma + 4 * ULP
    assert (np.abs(y - want) <= allowed).all()


def test_layernorm_with_one_outlier_and_with_a_large_mean() -> None:
    d = 384
    x = np.full((2, d), 0.01)
    x[0, 5] = 120.0
    x[1] = 100 + random("mean").normal(0, 1, d)
    x = np.rint(x * 2**16) / 2**16
    y = layernorm(x, np.ones(d), np.zeros(d), bound=256.0)
    want, unit = exact_norm(x, np.ones(d), np.zeros(d), 1e-12)
    assert (np.abs(y - want) <= 2.0**-11 * np.abs(unit) + 4 * ULP).all()


@pytest.mark.parametrize("eps", [1e-12, 1e-5])
def test_layernorm_of_a_constant_row_stays_bounded(eps: float) -> None:
    """Variance 0: the float result is beta; ours may amplify one unit of rounding by 1/low."""
    d = 64
    y = layernorm(np.full((4, d), 1.5), np.ones(d), np.full(d, 0.25), bound=16.0, eps=eps)
    assert np.abs(y - 0.25).max() <= 2.0**10 * 2 * ULP


def test_tanh() -> None:
    x = np.concatenate([np.linspace(-9, 9, 4001), [-100.0, 100.0, 0.0, ULP, -ULP]])
    x = np.rint(x * 2**16) / 2**16
    y = run(fn.tanh, val(x.reshape(1, -1), 16, 128.0)).reshape(-1)
    assert np.abs(y - np.tanh(x)).max() <= 2.5e-4
    assert np.abs(y).max() <= 1.0 + 2.0**-12


def test_linear_is_right_up_to_one_unit() -> None:
    draw = random("linear")
    x, w, b = draw.normal(0, 2, (5, 40)), draw.normal(0, 0.3, (40, 7)), draw.normal(0, 1, 7)
    xq, wq, bq = (np.rint(v * 2.0**s) / 2.0**s for v, s in ((x, 16), (w, 12), (b, 28)))
    known = Known(encode(w, 12), encode(b, 28))

    def f(e: Engine, v: Val, layer: Known) -> Val:
        return fn.linear(e, v, layer, name="w", m=7, weight_scale=12, out_scale=16, bound=100.0)

    y = run(f, val(x, 16), params={"w": known})
    assert np.abs(y - (xq @ wq + bq)).max() < ULP


def test_matmul_and_product_are_exact() -> None:
    draw = random("product")
    x, y = draw.normal(0, 2, (2, 3, 4)), draw.normal(0, 2, (2, 4, 5))
    xq, yq = (np.rint(v * 2**16) / 2**16 for v in (x, y))
    z = run(partial(fn.matmul, bound=100.0), val(x, 16), val(y, 16))
    assert np.abs(z - xq @ yq).max() < 1e-12
    z = run(fn.mul, val(x, 16), val(x, 16))
    assert np.abs(z - xq * xq).max() < 1e-12


def test_values_without_head_room_are_refused() -> None:
    big = Val((4,), 44, 2.0**17)
    for f in (partial(fn.truncate, f=8), fn.row_max, partial(fn.gelu, variant="ring4")):
        with pytest.raises(ParameterError, match="head-room"):
            f(Planner(), big)
    fn.truncate(Planner(), big.like_bound(2.0**15), 8)


def test_exp_refuses_a_scale_that_cuts_a_chunk() -> None:
    with pytest.raises(ParameterError):
        fn.exp_nonpositive(Planner(), Val((4,), 18, 2.0))


def test_gelu_refuses_values_that_leave_the_ring_at_its_output_scale() -> None:
    with pytest.raises(ParameterError):
        fn.gelu(Planner(), Val((4,), fn.GELU_SCALE, 2.0**47.5), "ring4")


@pytest.mark.parametrize(("low", "high"), [(1.0, 1.0), (2.0, 1.0), (0.0, 1.0)])
def test_an_empty_interval_is_refused(low: float, high: float) -> None:
    with pytest.raises(ParameterError):
        fn.reciprocal(Planner(), Val((4,), 16, 1.0), low=low, high=high)


def test_scales_never_mix() -> None:
    with pytest.raises(ParameterError, match="scales"):
        Planner().add(Val((1,), 16, 1.0), Val((1,), 12, 1.0))


def test_tanh_at_four_times_its_bound() -> None:
    """The end of the range is a power of two, where a sign needs one bit more."""
    x = np.array([[2.0, -2.0, 1.9999, 0.5, 0.0]])
    y = run(fn.tanh, val(x, 16, 0.5))
    assert np.abs(y - np.tanh(x)).max() <= 2.5e-4
