"""Quantised layers: ranges, rounding, gradients, clamped gains."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from privml.backbones import integers
from privml.backbones.cnn import Bits, small_cnn
from privml.backbones.quant import (
    Accumulated,
    QuantAct,
    QuantConv2d,
    QuantLinear,
    Scaled,
    best_scale,
    round_half_up,
    round_low_bits,
)
from privml.backbones.quant_join import add_identity
from privml.backbones.quant_model import QuantModel
from privml.errors import ParameterError


def scaled(values: np.ndarray, high: int = 15) -> Scaled:
    return Scaled(torch.from_numpy(values.astype(np.float32)), torch.tensor(0.1), 0, high)


def test_rounding_is_half_up_and_straight_through() -> None:
    x = torch.tensor([-1.5, -0.5, 0.5, 1.5, 2.5], requires_grad=True)
    y = round_half_up(x)
    assert y.tolist() == [-1.0, 0.0, 1.0, 2.0, 3.0]
    y.sum().backward()
    assert x.grad is not None
    assert x.grad.tolist() == [1.0] * 5


def test_low_bits_are_rounded_as_integers_are() -> None:
    values = range(-70, 70)
    for drop in range(5):
        want = [integers.round_low_bits(v, drop) for v in values]
        assert round_low_bits(torch.tensor([float(v) for v in values]), drop).tolist() == want


@pytest.mark.parametrize("bits", [2, 3, 4, 8])
def test_weights_are_symmetric_integers(bits: int, rng: np.random.Generator) -> None:
    weight = torch.from_numpy(rng.normal(size=(5, 3, 3, 3)).astype(np.float32))
    layer = QuantConv2d(weight, bits=bits).eval()
    layer.calibrate()
    whole, scale = layer.integer_weight(None)
    limit = (1 << (bits - 1)) - 1
    assert whole.abs().max() <= limit
    assert torch.equal(whole, whole.round())
    assert scale.shape == (5,)
    assert (whole * scale[:, None, None, None] - weight).abs().mean() < weight.abs().mean()


def test_the_aim_for_accumulators_limits_sums(rng: np.random.Generator) -> None:
    weight = torch.from_numpy(rng.normal(size=(4, 64, 3, 3)).astype(np.float32))
    layer = QuantConv2d(weight, bits=4).eval()
    layer.calibrate()
    with torch.no_grad():
        free, held = layer.integer_weight(None)[0], layer.integer_weight(100.0)[0]
    sums = held.clamp_min(0).flatten(1).sum(1), (-held).clamp_min(0).flatten(1).sum(1)
    assert free.abs().flatten(1).sum(1).min() > 400
    assert max(float(s.max()) for s in sums) <= 100


def test_negative_gains_go_into_the_weights(rng: np.random.Generator) -> None:
    weight = torch.from_numpy(rng.normal(size=(2, 3, 1, 1)).astype(np.float32))
    layer = QuantConv2d(weight, bits=4).eval()
    layer.calibrate()
    with torch.no_grad():
        layer.norm.weight[0] = -2.0
        x = scaled(rng.integers(0, 16, (4, 3, 2, 2)))
        acc = layer(x)
    assert (acc.gain > 0).all()
    assert torch.equal(layer.signed_weight(None)[0][0], -layer.integer_weight(None)[0][0])
    shown = acc.gain[:, None, None] * acc.values + acc.offset[:, None, None]
    real = layer.float_forward(x.values * x.scale)
    assert (shown - real).abs().mean() < 0.2 * real.abs().mean()


def test_accumulators_stay_within_their_bounds(rng: np.random.Generator) -> None:
    layer = QuantConv2d(torch.from_numpy(rng.normal(size=(4, 3, 3, 3)).astype(np.float32)), pad=1)
    layer.eval().calibrate()
    whole = layer.signed_weight(None)[0].detach()
    top = 15 * (whole > 0).to(torch.float32)
    acc = layer(Scaled(top, torch.tensor(1.0), 0, 15))
    reached = acc.values[:, :, 1, 1].diagonal().detach().numpy()
    assert np.array_equal(reached, acc.high)


def test_an_activation_clips_and_learns_its_scale() -> None:
    act = QuantAct(bits=4)
    acc = Accumulated(
        torch.tensor([[-5.0, 3.4, 900.0]]), torch.ones(3), torch.zeros(3),
        np.full(3, -5), np.full(3, 900),
    )  # fmt: skip
    y = act(acc)
    assert y.values.tolist() == [[0.0, 3.0, 15.0]]
    (y.values * y.scale).sum().backward()
    assert act.log_scale.grad is not None
    assert act.log_scale.grad.item() > 0  # a larger scale cuts off less
    assert (QuantAct(bits=3, signed=True).low, QuantAct(bits=3, signed=True).high) == (-4, 3)


def test_scales_minimise_the_error() -> None:
    values = torch.tensor([[0.0, 1.0, 2.0, 3.0], [0.0, 0.1, 0.2, 0.3]])
    torch.testing.assert_close(best_scale(values, 3), torch.tensor([1.0, 0.1]))


@pytest.mark.parametrize("gain", [1e-9, 1.0, 1e9])
def test_residual_gains_are_clamped(gain: float) -> None:
    gains = torch.full((2,), gain, dtype=torch.float64, requires_grad=True)
    acc = Accumulated(torch.ones(1, 2, 1, 1), gains, torch.zeros(2), np.full(2, -9), np.full(2, 9))
    skip = Scaled(torch.full((1, 2, 1, 1), 7.0), torch.tensor(1.0, dtype=torch.float64), 0, 15)
    fused = add_identity(acc, skip, most=100, training=False)
    assert 1.0 / 100 / 16 <= float(fused.total.gain.detach().min()) <= 16
    assert fused.factor.max() <= 100
    assert np.array_equal(fused.total.high, 9 * fused.multiple + 15 * fused.factor)
    trained = add_identity(acc, skip, most=100, training=True).total
    (trained.gain.sum() + trained.values.sum()).backward()
    assert gains.grad is not None
    assert bool(gains.grad.isfinite().all())
    assert float(gains.grad.abs().min()) > 0  # it can come back


def test_every_parameter_learns(rng: np.random.Generator) -> None:
    net = small_cnn((3, 4, 4), (4, 4), residual=True)
    model = QuantModel(net)
    x = rng.normal(size=(32, 3, 4, 4)).astype(np.float32)
    model.calibrate(x)
    net.train()
    net.scores(torch.from_numpy(x)).square().sum().backward()
    used = {n for n, p in net.named_parameters() if not n.startswith("features")}
    used -= {n for n in used if n.endswith("skip.log_scale")}  # its weights have no scale
    with_gradient = {
        n for n, p in net.named_parameters() if p.grad is not None and p.grad.abs().sum() > 0
    }
    assert used == with_gradient


def test_training_and_evaluation_agree_once_statistics_are_frozen(
    rng: np.random.Generator,
) -> None:
    net = small_cnn((3, 4, 4), (4, 4), residual=True)
    model = QuantModel(net)
    x = rng.normal(size=(64, 3, 4, 4)).astype(np.float32)
    model.calibrate(x)
    net.train()
    net.freeze_statistics()
    trained = net.scores(torch.from_numpy(x)).detach().double().numpy()
    exact = model.scores(x)
    assert np.mean(np.abs(trained - exact) > 1e-4 * np.abs(exact).max()) < 0.05


def test_statistics_are_those_of_float_normalisation(rng: np.random.Generator) -> None:
    weight = torch.from_numpy(rng.integers(-7, 8, (3, 2, 1, 1)).astype(np.float32))
    layer, twin = QuantConv2d(weight, bits=4), QuantConv2d(weight.clone(), bits=4)
    with torch.no_grad():
        layer.norm.weight[1] = twin.norm.weight[1] = -1.0
    x = scaled(rng.integers(0, 16, (8, 2, 3, 3)))
    layer.train()(x)
    twin.train().float_forward(x.values * x.scale)
    torch.testing.assert_close(layer.norm.running_mean, twin.norm.running_mean)
    torch.testing.assert_close(layer.norm.running_var, twin.norm.running_var)


def test_bits_and_inputs_are_checked() -> None:
    for build in (
        lambda: QuantAct(bits=1),
        lambda: QuantLinear(torch.zeros(2, 2), bits=9),
        lambda: QuantModel(small_cnn((3, 4, 4), (4,))).quantise(np.zeros((2, 4, 4))),
        lambda: QuantModel(small_cnn((3, 4, 4), (4,))).quantise(np.full((1, 3, 4, 4), np.nan)),
    ):
        with pytest.raises(ParameterError):
            build()


def test_new_bits_keep_the_weights() -> None:
    net = small_cnn((3, 4, 4), (4,))
    model = QuantModel(net, bits=Bits(weight=2, act=2))
    assert model.bits.weight == 2
    assert torch.equal(model.net.blocks[0].conv.weight, net.blocks[0].conv.weight)
    assert model.net.blocks[0].conv.bits == 2
