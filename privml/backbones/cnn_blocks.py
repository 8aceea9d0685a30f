"""Blocks of a quantised network, each with a floating-point and an integer pass."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, TypeAlias

import numpy as np
import torch
from torch import Tensor, nn

from privml.backbones.cnn_spec import Basic, Block, MeanPool, Plain
from privml.backbones.quant import (
    Accumulated,
    QuantAct,
    QuantConv2d,
    Scaled,
    as_accumulated,
    sum_pool,
)
from privml.backbones.quant_join import add_identity, add_shortcut, filled
from privml.backbones.recorder import Recorder
from privml.params import check, outside
from privml.rng import ScienceSeed

SUM_BITS: Final = 16
"""Bits of the widest accumulator that executors take."""


@dataclass(frozen=True, kw_only=True)
class Bits:
    """Widths of the integers of a network.

    Attributes
    ----------
    weight, act, input
        Weights, activations and the signed input, 2 to 8 each.
    head
        Weights of the last layer; ``weight`` if not given.
    round_to
        Bits of an accumulator that a table sees, 2 to 16; all if not given. Training rounds too.
    accumulator
        Signed bits that the accumulator of a convolution is kept within by raising the weights'
        scales, 6 to 20; not limited if not given. It also limits factors of residuals. What a
        table sees is the widest possible accumulator in ``round_to`` bits, so wide layers need it.
    """

    weight: int = 4
    act: int = 4
    input: int = 5
    head: int | None = None
    round_to: int | None = 6
    accumulator: int | None = 13

    def __post_init__(self) -> None:
        problems = outside("weight", self.weight, 2, 8) + outside("act", self.act, 2, 8)
        problems += outside("input", self.input, 2, 8)
        problems += outside("head", self.head_bits, 2, 8)
        if self.round_to is not None:
            problems += outside("round_to", self.round_to, 2, 16)
        if self.accumulator is not None:
            problems += outside("accumulator", self.accumulator, 6, 20)
        check("bits", problems)

    @property
    def head_bits(self) -> int:
        """Bits of the last layer's weights."""
        return self.weight if self.head is None else self.head

    def reach(self, x: Scaled) -> float | None:
        """Return the largest sum of weights of one sign that keeps within ``accumulator``."""
        if self.accumulator is None:
            return None
        return float((1 << (self.accumulator - 1)) - 1) / max(-x.low, x.high)

    def most(self, largest: int) -> int:
        """Return the largest factor of a skip tensor whose magnitude is at most ``largest``."""
        limit = SUM_BITS - 2 if self.accumulator is None else self.accumulator - 2
        return max(8, (1 << limit) // largest)


class Draw:
    """Initial weights: normal with variance 2 / fan-in, from a seed and a name."""

    def __init__(self, seed: ScienceSeed) -> None:
        self.seed = seed

    def __call__(self, name: str, shape: tuple[int, ...], *, fan: int) -> Tensor:
        """Return weights of a shape for ``fan`` inputs."""
        draw = self.seed.child("weight", name).generator().standard_normal(shape)
        return torch.from_numpy((draw * np.sqrt(2.0 / fan)).astype(np.float32))


class PlainBlock(nn.Module):
    """Convolution and activation."""

    def __init__(self, block: Plain, channels: int, name: str, bits: Bits, draw: Draw) -> None:
        super().__init__()
        self.name, self.bits = name, bits
        inner = channels // block.groups
        shape = (block.width, inner, block.kernel, block.kernel)
        weight = draw(name, shape, fan=inner * block.kernel**2)
        self.conv = QuantConv2d(
            weight, stride=block.stride, pad=block.padding, groups=block.groups, bits=bits.weight
        )
        self.act = QuantAct(bits=bits.act, signed=not block.relu)

    def float_forward(self, x: Tensor) -> Tensor:
        """Return the block in floating point."""
        return self.act.float_forward(self.conv.float_forward(x))

    def forward(self, x: Scaled, note: Recorder) -> Scaled:
        """Return the block on integers; its steps are told to ``note``."""
        acc = _convolved(f"{self.name}.conv", self.conv, x, self.bits, note)
        keep = self.bits.round_to
        return note.act(f"{self.name}.act", acc, self.act, self.act(acc, keep), keep)


class BasicBlock(nn.Module):
    """Two convolutions and a skip; two tables for each element."""

    def __init__(self, block: Basic, channels: int, name: str, bits: Bits, draw: Draw) -> None:
        super().__init__()
        self.name, self.bits = name, bits
        first = draw(f"{name}.conv1", (block.width, channels, 3, 3), fan=9 * channels)
        second = draw(f"{name}.conv2", (block.width, block.width, 3, 3), fan=9 * block.width)
        self.conv1 = QuantConv2d(first, stride=block.stride, pad=1, bits=bits.weight)
        self.act1 = QuantAct(bits=bits.act)
        self.conv2 = QuantConv2d(second, pad=1, bits=bits.weight)
        self.act = QuantAct(bits=bits.act)
        self.skip: QuantConv2d | None = None
        if block.stride > 1 or block.width != channels:
            weight = draw(f"{name}.skip", (block.width, channels, 1, 1), fan=channels)
            self.skip = QuantConv2d(weight, stride=block.stride, bits=bits.weight)

    def float_forward(self, x: Tensor) -> Tensor:
        """Return the block in floating point."""
        y = self.conv2.float_forward(self.act1.float_forward(self.conv1.float_forward(x)))
        skip = x if self.skip is None else self.skip.float_forward(x)
        return self.act.float_forward(y + skip)

    def forward(self, x: Scaled, note: Recorder) -> Scaled:
        """Return the block on integers; its steps are told to ``note``."""
        bits, keep = self.bits, self.bits.round_to
        acc = _convolved(f"{self.name}.conv1", self.conv1, x, bits, note)
        inner = note.act(f"{self.name}.act1", acc, self.act1, self.act1(acc, keep), keep)
        acc = _convolved(f"{self.name}.conv2", self.conv2, inner, bits, note, fill=False)
        if self.skip is None:
            most = bits.most(max(-x.low, x.high))
            joined = add_identity(acc, x, most=most, training=self.training)
        else:
            reach = bits.reach(x) or float(1 << (SUM_BITS - 2)) / max(-x.low, x.high)
            joined = add_shortcut(acc, x, self.skip, reach=reach / 2, training=self.training)
        joined = filled(joined, keep=keep)
        total = note.join(f"{self.name}.add", acc, x, joined, self.skip)
        return note.act(f"{self.name}.act", total, self.act, self.act(total, keep), keep)


class PoolBlock(nn.Module):
    """Mean over windows, requantised."""

    def __init__(self, block: MeanPool, name: str, bits: Bits, *, signed: bool) -> None:
        super().__init__()
        self.name, self.kernel, self.bits = name, block.kernel, bits
        self.act = QuantAct(bits=bits.act, signed=signed)

    def float_forward(self, x: Tensor) -> Tensor:
        """Return the block in floating point."""
        return self.act.float_forward(nn.functional.avg_pool2d(x, self.kernel))

    def forward(self, x: Scaled, note: Recorder) -> Scaled:
        """Return the block on integers; its steps are told to ``note``."""
        pooled = note.pool(f"{self.name}.pool", x, sum_pool(x, self.kernel), self.kernel)
        acc = note.renamed(pooled, as_accumulated(pooled))
        keep = self.bits.round_to
        return note.act(f"{self.name}.act", acc, self.act, self.act(acc, keep), keep)


AnyBlock: TypeAlias = PlainBlock | BasicBlock | PoolBlock


def build_block(
    block: Block, channels: int, name: str, bits: Bits, draw: Draw,
    before: AnyBlock | None,
) -> AnyBlock:  # fmt: skip
    """Return the module of a block that takes ``channels`` and comes after ``before``."""
    if isinstance(block, Plain):
        return PlainBlock(block, channels, name, bits, draw)
    if isinstance(block, Basic):
        return BasicBlock(block, channels, name, bits, draw)
    return PoolBlock(block, name, bits, signed=before is None or before.act.signed)


def _convolved(
    name: str, conv: QuantConv2d, x: Scaled, bits: Bits, note: Recorder, *, fill: bool = True
) -> Accumulated:
    reach = bits.reach(x)
    acc: Accumulated = conv(x, reach, bits.round_to if fill else None)
    return note.conv(name, x, conv, acc, reach)
