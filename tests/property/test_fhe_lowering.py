"""The integer graph equals the fake-quantised torch pass bit for bit, on random networks."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from privml.backbones import integers
from privml.backbones.cnn import Bits, Cnn
from privml.backbones.cnn_spec import Basic, Block, CnnSpec, MeanPool, Plain
from privml.backbones.quant import QuantAct, QuantConv2d
from privml.backbones.quant_model import QuantModel
from privml.errors import ParameterError
from privml.protocols.fhe.graph import AddScaled, Conv, Graph, Table
from privml.protocols.fhe.lower import lower
from privml.protocols.fhe.reference import run
from privml.rng import ScienceSeed

plain = st.builds(
    Plain,
    width=st.sampled_from([2, 4, 6]),
    kernel=st.integers(1, 3),
    stride=st.integers(1, 2),
    pad=st.none() | st.just(0),
    groups=st.sampled_from([1, 1, 2]),
    relu=st.booleans(),
)
basic = st.builds(Basic, width=st.sampled_from([2, 4, 6]), stride=st.integers(1, 2))
blocks = st.lists(plain | basic | st.just(MeanPool(2)), min_size=1, max_size=4)
widths = st.builds(
    Bits,
    weight=st.integers(2, 6),
    act=st.integers(2, 6),
    input=st.integers(2, 6),
    round_to=st.none() | st.integers(3, 8),
    accumulator=st.none() | st.integers(8, 13),
)


def model_of(spec: CnnSpec, bits: Bits, seed: int) -> tuple[QuantModel, np.random.Generator]:
    """Return a calibrated model with random statistics and gains of either sign."""
    rng = np.random.default_rng(seed)
    model = QuantModel(Cnn(spec, bits=bits, seed=ScienceSeed(seed)))
    with torch.no_grad():
        for module in model.net.modules():
            if isinstance(module, nn.BatchNorm2d):
                count = len(module.weight)
                module.weight.copy_(torch.from_numpy(rng.normal(0.5, 1.0, count)))
                module.bias.copy_(torch.from_numpy(rng.normal(0.0, 1.0, count)))
                module.running_mean.copy_(torch.from_numpy(rng.normal(0.0, 1.0, count)))
                module.running_var.copy_(torch.from_numpy(rng.uniform(0.1, 4.0, count)))
    model.calibrate(rng.normal(size=(16, *spec.shape)))
    return model, rng


def corners(graph: Graph, rng: np.random.Generator) -> np.ndarray:
    """Return random inputs of the graph, among them constant and checkered extremes."""
    start = graph.input
    x = rng.integers(start.low, start.high + 1, (6, *start.shape))
    x[0], x[1], x[2] = start.low, start.high, 0
    x[3] = np.where(rng.random(start.shape) < 0.5, start.low, start.high)
    return x


@given(
    st.integers(1, 3).map(lambda n: 2 * n), st.integers(2, 7), blocks, widths,
    st.integers(0, 2**20), st.booleans(),
)  # fmt: skip
def test_graph_equals_the_torch_pass(
    channels: int, side: int, layers: list[Block], bits: Bits, seed: int, exact: bool
) -> None:
    try:
        spec = CnnSpec("random", (channels, side, side), 3, tuple(layers))
    except ParameterError:
        return  # a block does not fit its grid
    model, rng = model_of(spec, bits, seed)
    whole, small = lower(model, exact=exact, simplified=False), lower(model, exact=exact)
    x = corners(whole, rng)
    want = model.integers(x)
    assert np.array_equal(run(whole, x), want)
    assert np.array_equal(run(small, x), want)
    assert sum(small.tables().values()) <= sum(whole.tables().values())


def residual(seed: int, block: Basic) -> tuple[QuantModel, Graph, dict[str, np.ndarray]]:
    """Return a residual network without rounding, its graph and values of it."""
    spec = CnnSpec("residual", (4, 6, 6), 2, (Plain(4), block))
    model, rng = model_of(spec, Bits(round_to=None, accumulator=None), seed)
    graph = lower(model, simplified=False)
    return model, graph, traced(graph, corners(graph, rng))


@given(st.integers(0, 2**20))
def test_fused_residual_stays_within_its_bound(seed: int) -> None:
    """The fused table is off by at most what rounding of the factors explains."""
    model, graph, values = residual(seed, Basic(4))
    steps = {step.name: step for step in model.steps()}
    act = graph.node("b1.act")
    factor = graph.node("b1.add").factor[None, :, None, None]
    gain, offset = act.gain[None, :, None, None], act.offset[None, :, None, None]
    unit = steps["b0.act"].scale / steps["b1.act"].scale
    skip = values["b0.act"]
    unfused = gain * values["b1.conv2"] + unit * skip + offset
    want = np.clip(np.floor(unfused + 0.5), act.low, act.high)
    bound = np.abs(gain * factor - unit) * np.abs(skip)
    assert (np.abs(values["b1.act"] - want) <= np.ceil(bound + 1e-9)).all()
    assert (bound <= unit * integers.TOLERANCE * np.abs(skip) * 1.0001).all()
    if unit * integers.TOLERANCE * act.high < 1:
        assert np.abs(values["b1.act"] - want).max() <= 1


@given(st.integers(0, 2**20), st.integers(1, 2), st.sampled_from([4, 6]))
def test_fused_shortcut_stays_within_its_bound(seed: int, stride: int, width: int) -> None:
    """Its weights are off by half a unit of the accumulator each, at most."""
    if (stride, width) == (1, 4):
        return
    model, graph, values = residual(seed, Basic(width, stride))
    steps = {step.name: step for step in model.steps()}
    act, join = graph.node("b1.act"), steps["b1.add"]
    layer, h = model.net.blocks[1].skip, values["b0.act"]
    with torch.no_grad():
        factor = layer.norm.weight / torch.sqrt(layer.norm.running_var + layer.norm.eps)
        weight = (layer.weight * factor[:, None, None, None]).double() * steps["b0.act"].scale
        ones = torch.ones_like(weight)
        real, total = (
            nn.functional.conv2d(torch.from_numpy(h).double(), w, None, stride).numpy()
            for w in (weight, ones)
        )
    gain = join.gain[None, :, None, None]
    unfused = gain * values["b1.conv2"] + real + join.offset[None, :, None, None]
    want = np.clip(np.floor(unfused / steps["b1.act"].scale + 0.5), act.low, act.high)
    bound = 0.5 * gain * total / steps["b1.act"].scale
    assert (np.abs(values["b1.act"] - want) <= np.ceil(bound + 1e-4)).all()


def traced(graph: Graph, x: np.ndarray) -> dict[str, np.ndarray]:
    """Return all values of the residual graph, computed with torch and the tables' own formula."""
    known = {"input": x}
    for node in graph.nodes:
        if isinstance(node, Conv):
            y = nn.functional.conv2d(
                torch.from_numpy(known[node.x]), torch.from_numpy(np.array(node.weight)), None,
                node.stride, node.pad, 1, node.groups,
            )  # fmt: skip
            known[node.name] = y.numpy()
        elif isinstance(node, AddScaled):
            known[node.name] = known[node.x] + node.factor[:, None, None] * known[node.skip]
        elif isinstance(node, Table):
            gain, offset = node.gain[:, None, None], node.offset[:, None, None]
            y = np.floor(gain * known[node.x] + offset + 0.5)
            known[node.name] = np.clip(y, node.low, node.high).astype(np.int64)
    return known


def test_factors_are_accurate_and_least() -> None:
    ratio = np.array([8.4, 100.3, 1.0, 0.5, 2.4, 0.3])
    k, r = integers.fuse_factors(ratio, np.ones(6))
    assert k.tolist()[:4] == [1, 1, 1, 2]
    assert r.tolist()[:4] == [8, 100, 1, 1]
    assert (np.abs(r / k - ratio) / ratio <= integers.TOLERANCE).all()


@given(st.integers(-(2**14), 2**14), st.integers(0, 2**15), st.none() | st.integers(2, 9))
def test_rounding_rule_is_that_of_the_graph(low: int, span: int, keep: int | None) -> None:
    from privml.protocols.fhe.graph import dropped_bits

    high = low + span
    drop = integers.drop_bits(low, high, keep=keep)
    assert drop == dropped_bits(low, high, keep)
    for value in (low, high):
        assert integers.round_low_bits(value, drop) % (1 << drop) == 0


@given(
    st.lists(st.tuples(st.integers(0, 5000), st.integers(0, 5000)), min_size=1, max_size=5),
    st.integers(3, 8),
)
def test_filling_drops_no_more_bits(ends: list[tuple[int, int]], keep: int) -> None:
    low, high = (np.array(side, np.int64) for side in zip(*ends, strict=True))
    low = -low
    factor = integers.fill_factors(low, high, keep=keep)
    before = integers.drop_bits(int(low.min()), int(high.max()), keep=keep)
    low, high = low * factor, high * factor
    assert integers.drop_bits(int(low.min()), int(high.max()), keep=keep) == before
    assert factor.min() >= 1


def test_dead_channels_disappear(seed: int) -> None:
    model, rng = model_of(CnnSpec("dead", (2, 4, 4), 2, (Plain(4), Plain(4))), Bits(), seed)
    with torch.no_grad():
        first = next(m for m in model.net.modules() if isinstance(m, QuantConv2d))
        first.norm.bias[1] = first.norm.bias[3] = -1000.0
    whole, small = lower(model, simplified=False), lower(model)
    assert small.node("b0.conv").weight.shape[0] < 4
    assert small.node("b1.conv").weight.shape[1] == small.node("b0.conv").weight.shape[0]
    assert small.tables()["b0.act"] < whole.tables()["b0.act"]
    x = corners(whole, rng)
    assert np.array_equal(run(small, x), model.integers(x))


def test_a_trained_table_sees_no_more_bits_after_a_rewrite(seed: int) -> None:
    model, _ = model_of(CnnSpec("n", (2, 4, 4), 2, (Plain(4), Basic(4))), Bits(), seed)
    for node in lower(model).nodes:
        if isinstance(node, Table):
            assert node.round_to <= 6


def test_scores_are_the_models(seed: int) -> None:
    model, rng = model_of(CnnSpec("n", (2, 4, 4), 3, (Plain(4),)), Bits(), seed)
    graph = lower(model)
    images = rng.normal(size=(5, 2, 4, 4))
    scores = graph.scores(run(graph, model.quantise(images)))
    np.testing.assert_array_equal(scores, model.scores(images))


def test_values_without_a_scale_are_refused(seed: int) -> None:
    from privml.errors import UnsupportedError

    model, _ = model_of(CnnSpec("n", (2, 4, 4), 3, (Plain(4),)), Bits(), seed)
    steps = model.steps()
    broken = replace(steps[1], gain=np.array([1.0, np.nan, 1.0, 1.0]))

    class Broken:
        def steps(self) -> tuple[object, ...]:
            return steps[0], broken, *steps[2:]

    with pytest.raises(UnsupportedError, match=r"b0\.conv.*channel 1"):
        lower(Broken())


def test_pooled_features_get_a_table_only_where_needed() -> None:
    small = Cnn(CnnSpec("s", (2, 4, 4), 2, (Plain(4),)))
    large = Cnn(CnnSpec("l", (2, 8, 8), 2, (Plain(64),)))
    assert (small.pool_table, large.pool_table) == (False, True)
    assert isinstance(large.features, QuantAct)
    assert "features" in lower(QuantModel(large)).tables()
