"""Paper-style pipeline: Brevitas training and concrete-ml with exact rounding; prints JSON.

Runs in the concrete-ml environment, on the arrays of an ``.npz`` file: training inputs ``X`` and
labels ``y``, test inputs ``T`` and labels ``t``::

    python concrete_ml_worker.py rows.npz '{"stem": 16, "blocks": [[16, 1], [24, 2]], "seed": 0}'

The network is residual, with quantisers where the paper has them: input, stem, second convolution,
shortcut, pooled features, and two quantised ReLUs a block. Both summands of a residual pass one
quantiser, as Brevitas needs it.
"""

from __future__ import annotations

import json
import os
import sys
import time
from typing import Any

sys.setdlopenflags(os.RTLD_LAZY | os.RTLD_LOCAL)  # its CUDA libraries are stand-ins

import brevitas.nn as qnn  # noqa: E402 - after the flags
import numpy as np  # noqa: E402 - after the flags
import torch  # noqa: E402 - after the flags
import torch.nn.functional as F  # noqa: E402 - after the flags
from concrete import fhe  # noqa: E402 - after the flags
from concrete.ml.torch.compile import compile_brevitas_qat_model  # noqa: E402 - after the flags
from torch import Tensor, nn  # noqa: E402 - after the flags

CALIBRATION, BATCH = 100, 64


def act(bits: int, *, relu: bool) -> nn.Module:
    """Return a quantiser, with or without ReLU."""
    kind = qnn.QuantReLU if relu else qnn.QuantIdentity
    return kind(bit_width=bits, return_quant_tensor=True)


def conv(inner: int, outer: int, kernel: int, stride: int, bits: int) -> nn.Module:
    """Return a convolution with signed per-tensor weights."""
    return qnn.QuantConv2d(
        inner, outer, kernel, stride=stride, padding=kernel // 2, bias=False, weight_bit_width=bits
    )


class Block(nn.Module):
    """Two convolutions and a requantised skip."""

    def __init__(self, inner: int, outer: int, stride: int, bits: int) -> None:
        super().__init__()
        self.conv1, self.bn1 = conv(inner, outer, 3, stride, bits), nn.BatchNorm2d(outer)
        self.act1 = act(bits, relu=True)
        self.conv2, self.bn2 = conv(outer, outer, 3, 1, bits), nn.BatchNorm2d(outer)
        self.both = act(bits, relu=False)
        self.act2 = act(bits, relu=True)
        self.short = None
        if stride > 1 or inner != outer:
            self.short, self.bn3 = conv(inner, outer, 1, stride, bits), nn.BatchNorm2d(outer)

    def forward(self, x: Tensor) -> Tensor:
        """Return the block."""
        y = self.bn2(self.conv2(self.act1(self.bn1(self.conv1(x)))))
        skip = x if self.short is None else self.bn3(self.short(x))
        return self.act2(self.both(y) + self.both(skip))


class Net(nn.Module):
    """Stem, residual blocks, sum over the grid, classifier."""

    def __init__(self, channels: int, shape: dict[str, Any], bits: int) -> None:
        super().__init__()
        self.start = act(shape.get("input_bits", bits), relu=False)
        self.stem, self.bn = (
            conv(channels, shape["stem"], 3, 1, bits),
            nn.BatchNorm2d(shape["stem"]),
        )
        self.act = act(bits, relu=True)
        blocks, inner = [], shape["stem"]
        for outer, stride in shape["blocks"]:
            blocks.append(Block(inner, outer, stride, bits))
            inner = outer
        self.blocks = nn.Sequential(*blocks)
        self.features = act(bits, relu=False)
        self.head = qnn.QuantLinear(inner, 10, bias=True, weight_bit_width=bits)
        self.side = shape["side"]

    def forward(self, x: Tensor) -> Tensor:
        """Return class scores."""
        x = self.blocks(self.act(self.bn(self.stem(self.start(x)))))
        if self.side > 1:
            x = self.features(F.avg_pool2d(x.value if hasattr(x, "value") else x, self.side))
        return self.head(torch.flatten(x, 1))


def train(net: Net, X: Tensor, y: Tensor, epochs: int, seed: int) -> None:
    """Quantisation-aware training with a one-cycle rate."""
    generator = np.random.default_rng(seed)  # noqa: TID251 - no privml in this environment
    steps = epochs * (len(X) // BATCH)
    optimiser = torch.optim.AdamW(net.parameters(), lr=1e-2, weight_decay=1e-4)
    rate = torch.optim.lr_scheduler.OneCycleLR(optimiser, 1e-2, total_steps=steps)
    net.train()
    for _ in range(epochs):
        order = torch.from_numpy(generator.permutation(len(X)))
        for first in range(0, len(X) // BATCH * BATCH, BATCH):
            which = order[first : first + BATCH]
            loss = F.cross_entropy(net(X[which]), y[which], label_smoothing=0.05)
            optimiser.zero_grad()
            loss.backward()
            optimiser.step()
            rate.step()
    net.eval()


def main(path: str, settings: dict[str, Any]) -> dict[str, object]:
    """Train, compile, classify in the clear and simulated, execute."""
    torch.set_num_threads(1)
    torch.manual_seed(settings["seed"])  # noqa: TID251 - no privml in this environment
    with np.load(path) as rows:
        X, y, T, t = (rows[name] for name in ("X", "y", "T", "t"))
    net = Net(X.shape[1], settings, settings["bits"])
    train(net, torch.from_numpy(X), torch.from_numpy(y), settings["epochs"], settings["seed"])
    exactness = fhe.Exactness.EXACT if settings["exact"] else fhe.Exactness.APPROXIMATE
    module = compile_brevitas_qat_model(
        net, X[:CALIBRATION], n_bits=settings["bits"], p_error=settings["p_error"],
        rounding_threshold_bits={"n_bits": settings["round_to"], "method": exactness},
    )  # fmt: skip
    clear = module.forward(T, fhe="disable").argmax(1)
    some = settings["simulated"]
    simulated = module.forward(T[:some], fhe="simulate").argmax(1) if some else np.array([])
    circuit, times, classes = module.fhe_circuit, [], []
    if settings["executed"]:
        circuit.keygen()
        module.forward(T[:1], fhe="execute")  # keys are unpacked in the first run
    for one in T[: settings["executed"]]:
        start = time.process_time()
        classes.append(int(module.forward(one[None], fhe="execute").argmax(1)[0]))
        times.append(time.process_time() - start)
    return {
        "clear": float((clear == t).mean()),
        "simulated": float((simulated == t[:some]).mean()) if some else None,
        "core_s": times,
        "agreed": sum(int(a == b) for a, b in zip(classes, clear.tolist(), strict=False)),
        "bootstraps": int(circuit.programmable_bootstrap_count),
        "bits": int(circuit.graph.maximum_integer_bit_width()),
        "key_mb": (circuit.size_of_bootstrap_keys + circuit.size_of_keyswitch_keys) / 1e6,
    }


if __name__ == "__main__":
    print(json.dumps(main(sys.argv[1], json.loads(sys.argv[2]))))
