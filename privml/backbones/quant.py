"""Layers whose forward pass is integer arithmetic: fake-quantised convolution, linear, activation.

Values travel as :class:`Scaled`: a tensor of integers, the value of one unit, and its range.
Weights are symmetric per output channel, activations have one scale, zero points are zero. Scales
are learned in the log domain; rounding is half up everywhere and straight-through in the backward
pass. Batch normalisation stays a layer of its own in training and becomes gain and offset of the
table that follows. In evaluation every step is exact: integers up to 2^24 in float32 (2^53 in
float64), gains and offsets in float64 in the order that the integer graph uses.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor, nn

from privml.backbones import integers
from privml.errors import ParameterError
from privml.params import check, outside

FLOAT32_EXACT = 1 << 23
_STEPS = 40
_RAISES = 12
_SAMPLE = 1 << 16


@dataclass(frozen=True, eq=False)
class Scaled:
    """Integers in a float tensor, all in [low, high]; ``values * scale`` is what they stand for."""

    values: Tensor
    scale: Tensor
    low: int
    high: int
    name: str = ""


@dataclass(frozen=True, eq=False)
class Accumulated:
    """An accumulator and the affine map to what it stands for: ``gain*values + offset``.

    ``values`` is (n, C, ...); ``gain`` is (C,) and positive, ``offset`` (C,); ``low`` and ``high``
    are (C,) int64 bounds over all inputs in range. ``name`` is set while steps are recorded;
    ``multiple`` (C,) is what the weights were multiplied by, if they were.
    """

    values: Tensor
    gain: Tensor
    offset: Tensor
    low: NDArray[np.int64]
    high: NDArray[np.int64]
    name: str = ""
    multiple: NDArray[np.int64] | None = None


class _RoundHalfUp(torch.autograd.Function):
    """``floor(x + 1/2)``; the gradient passes unchanged."""

    @staticmethod
    def forward(ctx: object, x: Tensor) -> Tensor:
        return torch.floor(x + 0.5)

    @staticmethod
    def backward(ctx: object, grad: Tensor) -> Tensor:
        return grad


def round_half_up(x: Tensor) -> Tensor:
    """Return ``floor(x + 1/2)``, straight-through in the backward pass."""
    result: Tensor = _RoundHalfUp.apply(x)  # type: ignore[no-untyped-call]
    return result


def round_low_bits(x: Tensor, drop: int) -> Tensor:
    """Return integers rounded half up to multiples of ``2^drop``; exact, straight-through."""
    return x if drop == 0 else round_half_up(x / (1 << drop)) * (1 << drop)


def larger_side(rows: Tensor) -> Tensor:
    """Return (O,): the larger of the sums of positive and of negative parts of each row."""
    return torch.maximum(rows.clamp_min(0).sum(1), (-rows).clamp_min(0).sum(1))


def best_scale(values: Tensor, limit: int) -> Tensor:
    """Return (rows,) scales that give the least squared error of rounding to [-limit, limit].

    Parameters
    ----------
    values
        (rows, n) float; each row gets its own scale.
    limit
        Largest integer.
    """
    top = values.abs().amax(1).clamp_min(1e-8) / limit
    best, least = top.clone(), torch.full_like(top, torch.inf)
    for step in range(_STEPS):
        scale = top * (1.0 - step / (_STEPS + 4))
        near = torch.floor(values / scale[:, None] + 0.5).clamp(-limit, limit)
        error = (near * scale[:, None] - values).square().mean(1)
        best = torch.where(error < least, scale, best)
        least = torch.minimum(error, least)
    return best


class _Weighted(nn.Module):
    """Weights with a learned scale for each output channel."""

    def __init__(self, weight: Tensor, *, bits: int) -> None:
        super().__init__()
        check("quantised layer", outside("weight bits", bits, 2, 8))
        self.bits = bits
        self.weight = nn.Parameter(weight)
        self.log_scale = nn.Parameter(torch.zeros(len(weight)))

    @property
    def limit(self) -> int:
        """Largest integer weight."""
        return (1 << (self.bits - 1)) - 1

    def calibrate(self) -> None:
        """Set the scales to those of least squared error of the present weights."""
        with torch.no_grad():
            self.log_scale.copy_(best_scale(self.weight.flatten(1), self.limit).log2())

    def integer_weight(self, reach: float | None) -> tuple[Tensor, Tensor]:
        """Return integers of the weight's shape and the (O,) scale; float64 in evaluation.

        Parameters
        ----------
        reach
            Largest sum of the integers of one sign in a channel: scales are raised until it is
            met, but for a small excess that a few steps may leave. No limit if not given.
        """
        kind = self.weight.dtype if self.training else torch.float64
        weight, scale = self.weight.to(kind), torch.exp2(self.log_scale.to(kind))
        if reach is not None:
            scale = scale * self._excess(weight.detach().flatten(1), scale.detach(), reach)
        scaled = weight / scale.view(-1, *[1] * (weight.ndim - 1))
        return round_half_up(scaled.clamp(-self.limit, self.limit)), scale

    def _excess(self, rows: Tensor, scale: Tensor, reach: float) -> Tensor:
        """Return (O,) factors, at least 1, for scales with which the weights meet ``reach``."""
        factor = torch.ones_like(scale)
        for _ in range(_RAISES):
            near = torch.floor(rows / (scale * factor)[:, None] + 0.5)
            near = near.clamp(-self.limit, self.limit)
            over = larger_side(near) / reach
            if bool((over <= 1.0).all()):
                break
            factor = torch.where(over > 1.0, factor * over.clamp_min(1.02), factor)
        return factor


class QuantConv2d(_Weighted):
    """Convolution without bias, followed by batch normalisation.

    Parameters
    ----------
    weight
        (O, I / groups, kh, kw) initial weights.
    stride, pad, groups
        Of the convolution.
    bits
        Bits of a weight, 2 to 8.

    Attributes
    ----------
    norm
        The batch normalisation; its sign of gain is folded into the weights.
    """

    def __init__(
        self, weight: Tensor, *, stride: int = 1, pad: int = 0, groups: int = 1, bits: int = 4
    ) -> None:
        super().__init__(weight, bits=bits)
        self.stride, self.pad, self.groups = stride, pad, groups
        self.norm = nn.BatchNorm2d(len(weight))

    def float_forward(self, x: Tensor) -> Tensor:
        """Return convolution and normalisation in floating point."""
        y = F.conv2d(x, self.weight, None, self.stride, self.pad, 1, self.groups)
        result: Tensor = self.norm(y)
        return result

    def signed_weight(self, reach: float | None) -> tuple[Tensor, Tensor]:
        """Return integer weights with the sign of the gain folded in, and their scale."""
        integer, scale = self.integer_weight(reach)
        sign = torch.where(self.norm.weight.detach() < 0, -1.0, 1.0).to(integer.dtype)
        return integer * sign.view(-1, 1, 1, 1), scale

    def forward(
        self, x: Scaled, reach: float | None = None, fill: int | None = None
    ) -> Accumulated:
        """Return the accumulator with the affine map that normalisation gives it.

        Parameters
        ----------
        reach
            See :meth:`integer_weight`.
        fill
            Bits that the table after it sees: channels are multiplied to use them well.
        """
        weight, scale = self.signed_weight(reach)
        whole = weight.detach().to(torch.int64).numpy(force=True)
        low, high = integers.conv_bounds(whole, x.low, x.high)
        multiple = None
        if fill is not None:
            multiple = integers.fill_factors(low, high, keep=fill)
            low, high, whole = low * multiple, high * multiple, whole * _columns(multiple)
            times = torch.from_numpy(multiple).to(scale)
            weight, scale = weight * times.view(-1, 1, 1, 1), scale / times
        kind = exact_kind(whole, x.low, x.high)
        acc = F.conv2d(
            x.values.to(kind), weight.to(kind), None, self.stride, self.pad, 1, self.groups
        )  # (n, O, H', W')
        unit = scale * x.scale  # (O,) value of one unit before normalisation
        gain, offset = self._affine(acc, unit)
        return Accumulated(acc, gain, offset, low, high, multiple=multiple)

    def _affine(self, acc: Tensor, unit: Tensor) -> tuple[Tensor, Tensor]:
        """Return gain and offset of the accumulator; of this batch while statistics are learned."""
        sign = torch.where(self.norm.weight.detach() < 0, -1.0, 1.0)
        inverse, offset = self.normalisation(lambda: acc * (unit * sign).view(1, -1, 1, 1), unit)
        return inverse.abs() * unit, offset

    def normalisation(self, value: Callable[[], Tensor], like: Tensor) -> tuple[Tensor, Tensor]:
        """Return (O,) factor and offset of batch normalisation in the type of ``like``.

        Parameters
        ----------
        value
            Returns what is normalised; asked for only while statistics are learned.
        """
        norm = self.norm
        if norm.running_mean is None or norm.running_var is None:
            raise ParameterError("batch normalisation must keep running statistics")
        gamma, beta = norm.weight.to(like.dtype), norm.bias.to(like.dtype)
        if norm.training:
            batch = value()
            variance, mean = torch.var_mean(batch, dim=(0, 2, 3), correction=0)
            self._remember(mean.detach(), variance.detach(), batch.numel() // batch.shape[1])
        else:
            mean, variance = norm.running_mean.to(like.dtype), norm.running_var.to(like.dtype)
        inverse = gamma / torch.sqrt(variance + norm.eps)
        return inverse, beta - inverse * mean

    def _remember(self, mean: Tensor, variance: Tensor, count: int) -> None:
        norm, weight = self.norm, self.norm.momentum or 0.1
        if norm.running_mean is None or norm.running_var is None:
            return
        norm.running_mean.lerp_(mean, weight)
        norm.running_var.lerp_(variance * (count / max(count - 1, 1)), weight)


class QuantLinear(_Weighted):
    """The last layer: integer class scores, each with a scale and an offset in the clear.

    Parameters
    ----------
    weight
        (O, I) initial weights.
    bits
        Bits of a weight, 2 to 8.
    """

    def __init__(self, weight: Tensor, *, bits: int = 4) -> None:
        super().__init__(weight, bits=bits)
        self.bias = nn.Parameter(torch.zeros(len(weight)))

    def float_forward(self, x: Tensor) -> Tensor:
        """Return the product in floating point."""
        return F.linear(x, self.weight, self.bias)

    def forward(self, x: Scaled) -> Accumulated:
        """Return integer scores and the map to class scores."""
        weight, scale = self.integer_weight(None)
        whole = weight.detach().to(torch.int64).numpy(force=True)
        low, high = integers.conv_bounds(whole, x.low, x.high)
        kind = exact_kind(whole, x.low, x.high)
        acc = F.linear(x.values.to(kind), weight.to(kind))
        return Accumulated(acc, scale * x.scale, self.bias.to(scale.dtype), low, high)


class QuantAct(nn.Module):
    """Activation and quantiser with one learned scale; a table under encryption.

    Parameters
    ----------
    bits
        Bits of the output, 2 to 8.
    signed
        Range [-2^(bits-1), 2^(bits-1) - 1]; otherwise [0, 2^bits - 1], which is a ReLU.

    Attributes
    ----------
    drop
        Low bits that the latest forward pass dropped before the table.
    """

    drop: int

    def __init__(self, *, bits: int = 4, signed: bool = False) -> None:
        super().__init__()
        check("quantised activation", outside("activation bits", bits, 2, 8))
        self.bits, self.signed, self.drop = bits, signed, 0
        self.log_scale = nn.Parameter(torch.zeros(()))
        self.observed: list[Tensor] | None = None

    @property
    def low(self) -> int:
        """Least output."""
        return -(1 << (self.bits - 1)) if self.signed else 0

    @property
    def high(self) -> int:
        """Largest output."""
        return (1 << (self.bits - self.signed)) - 1

    def scale(self) -> Tensor:
        """Return the value of one unit; float64 in evaluation."""
        kind = self.log_scale.dtype if self.training else torch.float64
        return torch.exp2(self.log_scale.to(kind))

    def float_forward(self, x: Tensor) -> Tensor:
        """Return the activation in floating point; watched while scales are set."""
        y = x if self.signed else F.relu(x)
        if self.observed is not None:
            flat = y.detach().flatten()
            self.observed.append(flat[:: max(1, len(flat) // _SAMPLE)].clone())
        return y

    def calibrate(self) -> None:
        """Set the scale to that of least squared error over what was watched."""
        if self.observed:
            with torch.no_grad():
                seen = torch.cat(self.observed)[None]
                self.log_scale.copy_(best_scale(seen, self.high)[0].log2())
        self.observed = None

    def forward(self, x: Accumulated, keep: int | None = None) -> Scaled:
        """Return ``clip(floor(gain*r + offset + 1/2), low, high)``, r rounded to ``keep`` bits."""
        scale = self.scale()
        self.drop = integers.drop_bits(int(x.low.min()), int(x.high.max()), keep=keep)
        shape = (1, -1, *[1] * (x.values.ndim - 2))
        gain, offset = (x.gain / scale).view(shape), (x.offset / scale).view(shape)
        rounded = round_low_bits(x.values, self.drop).to(gain.dtype)
        return self._clipped(gain * rounded + offset, scale)

    def quantise(self, x: Tensor) -> Scaled:
        """Return the integers of a real input, as the client computes them."""
        scale = self.scale()
        return self._clipped(x.to(scale.dtype) / scale, scale)

    def _clipped(self, x: Tensor, scale: Tensor) -> Scaled:
        if self.training:  # clipped first, so that the scale learns from what it cuts off
            y = round_half_up(x.clamp(self.low, self.high))
        else:
            y = round_half_up(x).clamp(self.low, self.high)
        return Scaled(y.to(torch.float32), scale, self.low, self.high)


def sum_pool(x: Scaled, kernel: int | None) -> Scaled:
    """Return sums over windows, or over the whole map as (n, C); they stand for means."""
    if kernel is None:
        count = x.values.shape[2] * x.values.shape[3]
        values = x.values.sum((2, 3))
    else:
        count = kernel * kernel
        values = F.avg_pool2d(x.values, kernel, divisor_override=1)
    return Scaled(values, x.scale / count, x.low * count, x.high * count)


def as_accumulated(x: Scaled) -> Accumulated:
    """Return integers as an accumulator, to be looked up in a table."""
    channels = x.values.shape[1]
    low, high = (np.full(channels, end, np.int64) for end in (x.low, x.high))
    zero = torch.zeros(channels, dtype=x.scale.dtype, device=x.scale.device)
    return Accumulated(x.values, x.scale.expand(channels), zero, low, high)


def _columns(x: NDArray[np.int64]) -> NDArray[np.int64]:
    return x.reshape(-1, 1, 1, 1)


def exact_kind(weight: NDArray[np.int64], low: int, high: int) -> torch.dtype:
    """Return the float type in which every partial sum of a product is an exact integer."""
    largest = int(np.abs(weight).reshape(len(weight), -1).sum(1).max()) * max(-low, high)
    return torch.float32 if largest < FLOAT32_EXACT else torch.float64
