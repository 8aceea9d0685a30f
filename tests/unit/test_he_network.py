"""Polynomial networks: bounds, files, conversion from torch, plans and refusals."""

from __future__ import annotations

import json
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from privml.backbones.polynomial import Quadratic, Square, affine_maps, square_mlp, unsupported
from privml.errors import (
    BitsExceeded,
    Corrupt,
    DepthExceeded,
    MalformedMessage,
    MemoryExceeded,
    ParameterError,
    StorageError,
    UnsupportedLayer,
)
from privml.protocols.fhe.planned import Machine
from privml.protocols.he import CkksParameters, Layer, PolynomialNetwork
from privml.protocols.he.contexts import ClientSpec, divisor_of
from privml.protocols.he.costs import reference
from privml.protocols.he.lower import lower
from privml.protocols.he.network_file import DESCRIPTION, WEIGHTS, load_network, save_network
from privml.protocols.he.plan import plan
from privml.rng import ScienceSeed

BIG = Machine("test", 2, 16_000_000_000)


def network(rng: np.random.Generator, sizes: tuple[int, ...] = (12, 9, 4)) -> PolynomialNetwork:
    layers = tuple(
        Layer(f"m{k}", rng.normal(size=(b, a)) / 4, rng.normal(size=b))
        for k, (a, b) in enumerate(pairwise(sizes))
    )
    return PolynomialNetwork(layers, 3.0, (sizes[0],))


def test_bounds_hold_and_are_reached(rng: np.random.Generator) -> None:
    net = network(rng)
    corners = 3.0 * np.sign(net.layers[0].weight)
    values = corners @ net.layers[0].weight.T + net.layers[0].bias
    other = -corners @ net.layers[0].weight.T + net.layers[0].bias
    reached = max(np.abs(values).max(), np.abs(other).max())
    np.testing.assert_allclose(net.bounds[0], reached)
    scores = net.run(rng.uniform(-3, 3, (500, 12)))
    assert np.abs(scores).max() <= net.bounds[1]
    assert net.bounds[1] / divisor_of(net) <= 512


def test_inputs_are_cut_and_checked(rng: np.random.Generator) -> None:
    net = network(rng)
    x = rng.normal(size=(4, 12))
    x[0, 0] = 1e9
    assert np.array_equal(net.run(x), net.run(np.clip(x, -3, 3)))
    assert np.array_equal(net.run(x), net.run(np.asfortranarray(x)))
    for bad in (np.zeros((4, 11)), np.zeros(12), np.full((1, 12), np.nan), np.zeros((1, 12), bool)):
        with pytest.raises(ParameterError):
            net.run(bad)


@pytest.mark.parametrize(
    "build",
    [
        lambda a: Layer("a b", a, a[0]),
        lambda a: Layer("a", a, np.zeros(3)),
        lambda a: Layer("a", a * np.inf, a[0]),
        lambda a: Layer("a", a * 0, a[0]),
        lambda a: PolynomialNetwork((), 1.0, (2,)),
        lambda a: PolynomialNetwork((Layer("a", a, a[0]),), 0.0, (2,)),
        lambda a: PolynomialNetwork((Layer("a", a, a[0]),), 1.0, (3,)),
        lambda a: PolynomialNetwork((Layer("a", a, a[0]),) * 2, 1.0, (2,)),
        lambda a: PolynomialNetwork((Layer("a", a, a[0]),), 1.0, (2,), "abc"),
    ],
)
def test_networks_that_make_no_sense_are_refused(build: object) -> None:
    with pytest.raises(ParameterError):
        build(np.ones((2, 2)))  # type: ignore[operator]


def test_a_network_is_saved_and_read_back(tmp_path: Path, rng: np.random.Generator) -> None:
    net = replace(network(rng), front="ab" * 32)
    save_network(net, tmp_path)
    read = load_network(tmp_path)
    assert read.digest() == net.digest()
    x = rng.normal(size=(3, 12))
    assert np.array_equal(read.run(x), net.run(x))
    with pytest.raises(StorageError):
        save_network(net, tmp_path)


@pytest.mark.parametrize(
    "change", [{"layers": []}, {"layers": 3}, {"limit": "x"}, {"shape": [0]}, {"front": "x"}]
)
def test_a_hostile_description_is_refused(
    tmp_path: Path, rng: np.random.Generator, change: dict[str, object]
) -> None:
    save_network(network(rng), tmp_path)
    path = tmp_path / DESCRIPTION
    path.write_text(json.dumps(json.loads(path.read_text()) | change))
    with pytest.raises(MalformedMessage):
        load_network(tmp_path)


@pytest.mark.parametrize("damage", ["flip", "cut", "format"])
def test_damage_is_found(tmp_path: Path, rng: np.random.Generator, damage: str) -> None:
    save_network(network(rng), tmp_path)
    path = tmp_path / WEIGHTS
    data = bytearray(path.read_bytes())
    if damage == "format":
        text = json.loads((tmp_path / DESCRIPTION).read_text())
        (tmp_path / DESCRIPTION).write_text(json.dumps(text | {"format": "other"}))
    else:
        data[-1] ^= 1
        path.write_bytes(data if damage == "flip" else data[:-9])
    with pytest.raises(Corrupt):
        load_network(tmp_path)


def randomised(module: nn.Sequential, rng: np.random.Generator) -> nn.Sequential:
    with torch.no_grad():
        for tensor in (*module.parameters(), *module.buffers()):
            if tensor.is_floating_point():
                draw = np.abs(rng.normal(size=tuple(tensor.shape))) * 0.4 + 0.1
                tensor.copy_(torch.from_numpy(draw))
        for tensor in module.parameters():
            signs = rng.choice([-1.0, 1.0], tuple(tensor.shape))
            tensor.mul_(torch.from_numpy(signs).float())
    return module.eval()


def test_torch_layers_become_matrices(rng: np.random.Generator) -> None:
    module = nn.Sequential(
        nn.Sequential(nn.Conv2d(2, 4, 3, stride=2, padding=1), nn.BatchNorm2d(4), Quadratic(4)),
        nn.AvgPool2d(2), nn.Dropout(0.5), nn.Flatten(), nn.Linear(16, 6), Square(),
        nn.Linear(6, 3),
    )  # fmt: skip
    randomised(module, rng)
    before = {name: value.clone() for name, value in module.state_dict().items()}
    net = lower(affine_maps(module, (2, 8, 8)), (2, 8, 8), limit=2.0)
    assert [layer.name for layer in net.layers] == ["map0.0.0", "map1.4", "map2.6"]
    x = rng.uniform(-2, 2, (20, 2, 8, 8))
    with torch.no_grad():
        want = module(torch.from_numpy(x.astype(np.float32))).numpy()
    scale = np.abs(want).max()
    np.testing.assert_allclose(net.run(x) / scale, want / scale, atol=1e-5)
    for name, value in module.state_dict().items():
        assert value.dtype == before[name].dtype
        assert torch.equal(value, before[name]), name


def test_every_layer_that_is_no_polynomial_is_named() -> None:
    module = nn.Sequential(
        nn.Conv2d(1, 2, 3), nn.ReLU(), nn.Sequential(nn.MaxPool2d(2), nn.GELU()), nn.LayerNorm(3),
        nn.Flatten(), nn.LSTM(3, 3), nn.Softmax(1),
    )  # fmt: skip
    assert [problem.name for problem in unsupported(module)] == ["1", "2.0", "2.1", "3", "5", "6"]
    with pytest.raises(UnsupportedLayer, match=r"1 \(ReLU\): use Square .*2\.0 \(MaxPool2d\)"):
        affine_maps(module, (1, 8, 8))


@pytest.mark.parametrize(
    ("layers", "words"),
    [
        ([nn.Linear(4, 4), Square()], "must follow|must be linear"),
        ([Square(), nn.Linear(4, 2)], "must follow a linear"),
        ([nn.Linear(5, 2)], "do not fit"),
    ],
)
def test_a_wrong_order_is_refused(layers: list[nn.Module], words: str) -> None:
    with pytest.raises(ParameterError, match=words):
        affine_maps(nn.Sequential(*layers), (4,))


def test_a_plan_says_what_it_costs_and_refuses(rng: np.random.Generator) -> None:
    net = network(rng, (60, 64, 10))
    found = plan(net, machine=BIG)
    assert found.images == 64
    assert (found.parameters.degree, found.parameters.depth) == (8192, 3)
    assert [layer.rotations for layer in found.layers] == [14, 8]
    assert 0 < found.core_s_per_image < found.core_s.expected < 1
    assert found.ciphertexts(65) == 2
    assert 0 < found.error_bound < 0.05
    text = str(found)
    for words in ("128-bit", "forbidden", "calibrate this one", "64 in one", "m0"):
        assert words in text
    tree = json.loads(found.to_json())
    assert tree["share_results"] == "forbidden"
    assert "SEAL" in tree["licence"]
    deep = network(rng, (4,) * 8)
    with pytest.raises(DepthExceeded, match="m6: 13 multiplicative") as caught:
        plan(deep, machine=BIG)
    assert caught.value.layer == "m6"
    with pytest.raises(MemoryExceeded, match="80 %"):
        plan(net, machine=replace(BIG, memory_bytes=100_000_000))
    wild = replace(net, layers=(Layer("m0", 1e16 * net.layers[0].weight, net.layers[0].bias),
                                net.layers[1]))  # fmt: skip
    with pytest.raises(BitsExceeded, match="m0: the square reaches"):
        plan(wild, machine=BIG)


def test_a_specification_is_read_strictly(rng: np.random.Generator) -> None:
    net = network(rng)
    spec = ClientSpec.of(net, CkksParameters.for_depth(3))
    data = spec.to_json()
    assert ClientSpec.from_json(data) == spec
    tree = json.loads(data)
    changes: list[dict[str, object]] = [
        {"steps": [0]}, {"steps": [1 << 20]}, {"dimension": 3}, {"features": 0}, {"limit": -1.0},
        {"degree": 1000}, {"format": "x"}, {"odd": 1}, {"classes": 10**6}, {"divisor": 0.0},
    ]  # fmt: skip
    for change in changes:
        with pytest.raises(MalformedMessage):
            ClientSpec.from_json(json.dumps(tree | change).encode())
    with pytest.raises(MalformedMessage):
        ClientSpec.from_json(b" " + data)
    with pytest.raises(MalformedMessage):
        ClientSpec.from_json(b" " * (1 << 17))


def test_costs_fall_with_the_level() -> None:
    units = reference(CkksParameters.for_depth(3))
    costs = [
        units.core_s(top=3, level=level, rotations=10, products=10, squares=1)
        for level in (3, 2, 1)
    ]
    assert costs == sorted(costs, reverse=True)
    with pytest.raises(ParameterError):
        replace(units, rotate=0.0)


def test_the_network_for_digits_has_three_levels() -> None:
    net = square_mlp((28, 1, 1), (64,), seed=ScienceSeed(1))
    lowered = lower(affine_maps(net, (28, 1, 1)), (28, 1, 1), limit=6.0)
    assert (lowered.depth, lowered.dimension) == (3, 64)
