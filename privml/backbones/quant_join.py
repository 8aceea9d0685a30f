"""Residual sums inside one accumulator, so that they cost no table.

A skip tensor ``h`` of integers is added as ``k*z + r*h`` with small integers. A 1x1 convolution on
the skip is quantised directly in units of the accumulator, ``k*z + w''*h``: no factor is needed and
its weights may be as fine as the accumulator is, for only tables limit bits.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from privml.backbones import integers
from privml.backbones.quant import (
    FLOAT32_EXACT,
    Accumulated,
    QuantConv2d,
    Scaled,
    exact_kind,
    larger_side,
    round_half_up,
)

_LEAST: Final = 3.0
"""The largest weight of a channel of a skip convolution is at least this, by raising ``k``."""


@dataclass(frozen=True, eq=False)
class Joined:
    """A residual sum: the accumulator, ``k`` and ``r`` (C,), and the skip's weights if it has any.

    ``offset`` is that of the skip alone.
    """

    total: Accumulated
    multiple: NDArray[np.int64]
    factor: NDArray[np.int64]
    offset: Tensor
    weight: Tensor | None = None


def add_identity(x: Accumulated, skip: Scaled, *, most: int, training: bool) -> Joined:
    """Return the fused sum of an accumulator and the block's input.

    The gain of the accumulator is first clamped between ``unit / most`` and ``16 * unit``, with
    ``unit`` the value of one unit of the skip tensor, so that no channel asks for a huge factor;
    see :func:`privml.backbones.integers.fuse_factors`.

    Parameters
    ----------
    x
        (n, C, H, W) accumulator of the second convolution.
    skip
        The block's input.
    most
        Largest ``r / k``.
    training
        Let gradients pass through clamp and rounding of the factors, at the price of float error.
    """
    unit = skip.scale.expand_as(x.gain)
    bound = unit.detach()
    cut = torch.minimum(torch.maximum(x.gain, bound / most), bound * integers.MAX_MULTIPLE)
    gain = x.gain + (cut - x.gain).detach() if training else cut
    k, r = integers.fuse_factors(_doubles(bound), _doubles(gain))
    multiple, factor = torch.from_numpy(k).to(gain), torch.from_numpy(r).to(gain)
    fused = gain / multiple
    if training:  # the gradient of fused*r is that of unit
        exact = unit / fused
        factor = exact + (factor - exact).detach()
    low, high = x.low * k + r * skip.low, x.high * k + r * skip.high
    values = _sum(x.values, multiple, skip.values, factor, low, high)
    total = Accumulated(values, fused, x.offset, low, high)
    return Joined(total, k, r, torch.zeros_like(x.offset))


def add_shortcut(
    x: Accumulated, skip: Scaled, layer: QuantConv2d, *, reach: float, training: bool
) -> Joined:
    """Return the fused sum of an accumulator and a convolution of the block's input.

    Parameters
    ----------
    x
        (n, C, H, W) accumulator of the second convolution.
    skip
        The block's input.
    layer
        The convolution on the skip; its own weight scales are not used.
    reach
        Largest sum of its integer weights of one sign; the gain of ``x`` is raised to meet it.
    training
        Let gradients pass through the clamp, at the price of float error.
    """
    real = layer.weight.to(x.gain.dtype)
    inverse, offset = layer.normalisation(lambda: _normalised(layer, skip), x.gain)
    weight = real * (inverse * skip.scale).view(-1, 1, 1, 1)  # (O, I, 1, 1) what it stands for
    flat = weight.detach().flatten(1)
    least = (larger_side(flat) / reach).clamp_min(1e-30)
    top = torch.maximum(flat.abs().amax(1), least)
    wanted = torch.maximum(x.gain.detach(), least)
    multiple = torch.ceil(_LEAST * wanted / top).clamp(1, integers.MAX_MULTIPLE)
    cut = torch.maximum(x.gain.detach() / multiple, least)
    fused = x.gain / multiple
    fused = fused + (cut - fused).detach() if training else cut
    ints = round_half_up(weight / fused.view(-1, 1, 1, 1))
    whole = ints.detach().to(torch.int64).numpy(force=True)
    k = multiple.detach().to(torch.int64).numpy(force=True)
    ends = integers.conv_bounds(whole, skip.low, skip.high)
    kind = exact_kind(whole, skip.low, skip.high)
    added = F.conv2d(
        skip.values.to(kind), ints.to(kind), None, layer.stride, layer.pad, 1, layer.groups
    )  # (n, O, H', W')
    low, high = x.low * k + ends[0], x.high * k + ends[1]
    values = _sum(x.values, multiple, added, torch.ones_like(multiple), low, high)
    total = Accumulated(values, fused, x.offset + offset, low, high)
    return Joined(total, k, np.ones_like(k), offset, ints)


def filled(joined: Joined, *, keep: int | None) -> Joined:
    """Return the sum with channels multiplied so that a table of ``keep`` bits sees more of them.

    See :func:`privml.backbones.integers.fill_factors`.
    """
    if keep is None:
        return joined
    total = joined.total
    times = integers.fill_factors(total.low, total.high, keep=keep)
    by = torch.from_numpy(times).to(total.gain)
    values = total.values * by.view(1, -1, 1, 1).to(total.values.dtype)
    more = Accumulated(values, total.gain / by, total.offset, total.low * times, total.high * times)
    return replace(
        joined, total=more, multiple=joined.multiple * times, factor=joined.factor * times
    )


def _normalised(layer: QuantConv2d, x: Scaled) -> Tensor:
    y = F.conv2d(x.values, layer.weight, None, layer.stride, layer.pad, 1, layer.groups)
    return y * x.scale


def _sum(
    x: Tensor, multiple: Tensor, skip: Tensor, factor: Tensor, low: NDArray[np.int64],
    high: NDArray[np.int64],
) -> Tensor:  # fmt: skip
    kind = torch.promote_types(x.dtype, skip.dtype)
    if max(-int(low.min()), int(high.max())) >= FLOAT32_EXACT:
        kind = torch.float64
    shape = (1, -1, 1, 1)
    total = x.to(kind) * multiple.view(shape).to(kind)
    return total + skip.to(kind) * factor.view(shape).to(kind)


def _doubles(x: Tensor) -> NDArray[np.float64]:
    array: NDArray[np.float64] = x.detach().double().numpy(force=True)
    return array
