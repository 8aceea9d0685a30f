"""Users' sequences: equal floating-point results, and every layer that cannot be taken is named."""

from __future__ import annotations

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from privml.backbones.convert import from_module, from_sequential, unsupported
from privml.backbones.quant_model import QuantModel
from privml.errors import ParameterError, UnsupportedError, UnsupportedLayer
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


class Block(nn.Module):
    def __init__(self, inputs: int, width: int, stride: int = 1) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, width, 3, stride, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(width)
        self.conv2 = nn.Conv2d(width, width, 3, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(width)
        self.short = nn.Sequential()
        if stride > 1 or inputs != width:
            self.short = nn.Sequential(nn.Conv2d(inputs, width, 1, stride), nn.BatchNorm2d(width))

    def forward(self, x: Tensor) -> Tensor:
        y = self.bn2(self.conv2(F.relu(self.bn1(self.conv1(x)))))
        short = self.short(x) if len(self.short) else x
        return torch.relu(y + short)


class Net(nn.Module):
    """A residual network as people write them, with functions and methods."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 8, 3, padding=1)
        self.norm = nn.BatchNorm2d(8)
        self.blocks = nn.Sequential(Block(8, 8), Block(8, 12, 2))
        self.head = nn.Linear(12, 5)

    def forward(self, x: Tensor) -> Tensor:
        x = self.norm(self.stem(x)).relu()
        x = F.avg_pool2d(self.blocks(x), 2)
        x = F.dropout(F.adaptive_avg_pool2d(x, 1), 0.5, self.training)
        return self.head(x.view(x.size(0), -1))


class Odd(nn.Module):
    """A network with steps that no table network has."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Conv2d(3, 4, 3, padding=1), nn.Conv2d(3, 4, 3, padding=1)
        self.act, self.head = nn.GELU(), nn.Linear(4, 2)

    def forward(self, x: Tensor) -> Tensor:
        y = torch.exp(self.act(self.a(x) + self.b(x)))
        return self.head(F.max_pool2d(y, 2).mean((2, 3))).softmax(1)


class Conditional(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 4, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.conv(x) if bool(x.sum() > 0) else x


def test_any_module_keeps_its_results(rng: np.random.Generator) -> None:
    module = Net()
    randomised(module, rng)  # type: ignore[arg-type]
    module = module.eval()
    assert unsupported(module) == ()
    net = from_module(module, (3, 8, 8))
    kinds = [type(block).__name__ for block in net.spec.blocks]
    assert kinds == ["Plain", "Basic", "Basic", "MeanPool"]
    x = torch.from_numpy(rng.normal(size=(16, 3, 8, 8)).astype(np.float32))
    with torch.no_grad():
        torch.testing.assert_close(net(x), module(x), rtol=1e-4, atol=1e-4)
    model = QuantModel(net)
    model.calibrate(x.numpy())
    whole = model.quantise(x.numpy())
    assert np.array_equal(run(lower(model), whole), model.integers(whole))


def test_every_step_of_a_module_is_named() -> None:
    found = unsupported(Odd())
    assert [(p.name, p.kind) for p in found] == [
        ("add", "sum"), ("act", "GELU"), ("exp", "exp"), ("max_pool2d", "MaxPool2d"),
        ("softmax", "Softmax"),
    ]  # fmt: skip
    with pytest.raises(UnsupportedLayer, match=r"act \(GELU\): use ReLU") as caught:
        from_module(Odd(), (3, 8, 8))
    assert caught.value.layer == "add"
    with pytest.raises(UnsupportedLayer, match="without conditions on values"):
        unsupported(Conditional())
    wide = Block(4, 4)
    wide.conv2 = nn.Conv2d(4, 4, 5, padding=2)
    (problem,) = unsupported(nn.Sequential(nn.Conv2d(3, 4, 3, padding=1), nn.ReLU(), wide))
    assert problem.kind == "residual block"
    assert problem.name == "2.add"


class Shuffled(nn.Module):
    """Reshapes where only flattening is understood."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Conv2d(3, 4, 3, padding=1), nn.Conv2d(4, 4, 1)
        self.head = nn.Linear(4, 2)

    def forward(self, x: Tensor) -> Tensor:
        y = F.relu(self.first(x)).view(-1, 8, 8, 4).view(-1, 4, 8, 8)
        y = y.reshape(-1, 4, 64).reshape(-1, 4, 16, 4)
        return self.head(F.relu(self.second(y)).mean((2, 3)))


class Twice(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Conv2d(3, 4, 3), nn.Conv2d(3, 4, 3)
        self.head = nn.Linear(4, 2)

    def forward(self, x: Tensor) -> Tensor:
        y = F.relu(self.first(x))
        return self.head(F.relu(y).mean((2, 3))) + self.head(F.relu(self.second(x)).mean((2, 3)))


class Reversed(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Conv2d(3, 4, 3, padding=1), nn.Conv2d(8, 4, 3)
        self.head = nn.Linear(4, 2)

    def forward(self, x: Tensor) -> Tensor:
        y = F.relu(self.first(x)).reshape(-1, 8, 4, 8)
        return self.head(F.relu(self.second(y)).mean((2, 3)))


@pytest.mark.parametrize("module", [Twice(), Reversed()])
def test_a_misread_step_is_never_silent(module: nn.Module) -> None:
    module.train()
    with pytest.raises((UnsupportedError, ParameterError)):
        from_module(module, (3, 8, 8))
    assert module.training


def test_a_reshape_that_moves_nothing_across_channels_is_no_harm() -> None:
    module = Shuffled().train()
    net = from_module(module, (3, 8, 8))
    x = torch.ones(1, 3, 8, 8)
    torch.testing.assert_close(net(x), module(x), rtol=1e-3, atol=1e-3)
    assert module.training
