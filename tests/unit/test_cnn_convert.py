"""Users' sequences: equal floating-point results, and every layer that cannot be taken is named."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

from privml.backbones.convert import from_sequential, unsupported
from privml.backbones.quant_model import QuantModel
from privml.errors import ParameterError, UnsupportedError
from privml.protocols.fhe.lower import lower
from privml.protocols.fhe.reference import run


def example() -> nn.Sequential:
    return nn.Sequential(
        nn.Sequential(nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8, eps=1e-3), nn.ReLU()),
        nn.AvgPool2d(2), nn.Dropout(0.5), nn.Conv2d(8, 6, 3, stride=2, groups=2), nn.ReLU(),
        nn.Conv2d(6, 6, 1, bias=False), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(6, 4),
    )  # fmt: skip


def randomised(module: nn.Sequential, rng: np.random.Generator) -> nn.Sequential:
    with torch.no_grad():
        for tensor in (*module.parameters(), *module.buffers()):
            if tensor.is_floating_point():
                tensor.copy_(torch.from_numpy(np.abs(rng.normal(size=tuple(tensor.shape)) * 0.5)))
        for tensor in module.parameters():
            signs = rng.choice([-1.0, 1.0], tuple(tensor.shape))
            tensor.mul_(torch.from_numpy(signs).float())
    return module.eval()


def test_a_sequence_keeps_its_results_and_runs_as_integers(rng: np.random.Generator) -> None:
    module = randomised(example(), rng)
    net = from_sequential(module, (3, 10, 10))
    x = torch.from_numpy(rng.normal(size=(16, 3, 10, 10)).astype(np.float32))
    with torch.no_grad():
        relued = nn.Sequential(*list(module)[:6])(x)
        pooled = relued.mean((2, 3))
        torch.testing.assert_close(net(x), module[8](pooled), rtol=1e-4, atol=1e-5)
    model = QuantModel(net)
    model.calibrate(x.numpy())
    graph = lower(model)
    whole = model.quantise(x.numpy())
    assert np.array_equal(run(graph, whole), model.integers(whole))


def test_every_unsupported_layer_is_named_with_a_replacement() -> None:
    module = nn.Sequential(
        nn.Sequential(nn.Conv2d(3, 8, 3, dilation=2), nn.GELU()), nn.MaxPool2d(2),
        nn.LayerNorm(3), nn.AvgPool2d(3, stride=2), nn.AdaptiveAvgPool2d(2), nn.LSTM(3, 3),
        nn.Softmax(1), nn.ConvTranspose2d(3, 3, 2),
    )  # fmt: skip
    found = unsupported(module)
    assert [problem.name for problem in found] == ["0.0", "0.1", "1", "2", "3", "4", "5", "6", "7"]
    assert "dilation" in found[0].replacement
    assert found[1].replacement.startswith("ReLU")
    with pytest.raises(UnsupportedError, match=r"0\.1 \(GELU\).*; 1 \(MaxPool2d\): use AvgPool2d"):
        from_sequential(module, (3, 8, 8))


@pytest.mark.parametrize(
    ("layers", "words"),
    [
        ([nn.ReLU()], "comes in a place"),
        ([nn.Conv2d(3, 4, 1), nn.ReLU(), nn.BatchNorm2d(4)], r"2 \(BatchNorm2d\)"),
        ([nn.Conv2d(3, 4, 1), nn.ReLU(), nn.ReLU()], r"2 \(ReLU\)"),
        ([nn.Conv2d(3, 4, 1)], "no last Linear"),
        ([nn.Conv2d(3, 4, 1), nn.Linear(4, 2), nn.Linear(2, 2)], "must be the last"),
        ([nn.Conv2d(3, 4, 1), nn.AdaptiveAvgPool2d(1), nn.Conv2d(4, 4, 1)], "only the linear"),
        ([nn.Conv2d(3, 4, 1), nn.Flatten(), nn.Linear(64, 2)], "AdaptiveAvgPool2d"),
        ([nn.Conv2d(3, 4, 1), nn.Linear(4, 2)], "AdaptiveAvgPool2d"),
        (
            [
                nn.Conv2d(3, 4, 4),
                nn.BatchNorm2d(4, track_running_stats=False),
                nn.Linear(4, 2),
            ],
            "track_running_stats",
        ),
    ],
)
def test_a_wrong_order_is_refused(layers: list[nn.Module], words: str) -> None:
    with pytest.raises(UnsupportedError, match=words):
        from_sequential(nn.Sequential(*layers), (3, 4, 4))


def test_a_mean_that_drops_rows_is_refused() -> None:
    layers = nn.Sequential(nn.Conv2d(3, 4, 1), nn.AvgPool2d(5), nn.Linear(4, 2))
    with pytest.raises(ParameterError, match="does not divide the 7x7 grid"):
        from_sequential(layers, (3, 7, 7))
