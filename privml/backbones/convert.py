"""A user's ``torch.nn.Sequential`` as a network that can be quantised, with its weights.

Taken are ``Conv2d``, ``BatchNorm2d``, ``ReLU``, ``AvgPool2d``, a last ``AdaptiveAvgPool2d(1)``,
``Flatten``, one ``Linear``, and ``Dropout`` and ``Identity``, which do nothing here. Residual
networks are built from :class:`privml.backbones.cnn_spec.Basic` blocks instead.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace

import torch
from torch import nn

from privml.backbones.cnn import Bits, Cnn
from privml.backbones.cnn_blocks import PlainBlock
from privml.backbones.cnn_spec import Block, CnnSpec, MeanPool, Plain, Shape
from privml.errors import UnsupportedError

_IGNORED = (nn.Dropout, nn.Dropout2d, nn.Identity, nn.Flatten)
_TAKEN = (
    nn.Conv2d, nn.BatchNorm2d, nn.ReLU, nn.AvgPool2d, nn.AdaptiveAvgPool2d, nn.Linear, *_IGNORED,
)  # fmt: skip
_REPLACEMENTS: tuple[tuple[tuple[type[nn.Module], ...], str], ...] = (
    (
        (nn.MaxPool2d, nn.AdaptiveMaxPool2d),
        "AvgPool2d, or stride 2 in the convolution before it; each comparison costs a table",
    ),
    (
        (nn.GELU, nn.SiLU, nn.LeakyReLU, nn.ELU, nn.PReLU, nn.Sigmoid, nn.Tanh, nn.Hardswish),
        "ReLU, and train again",
    ),
    ((nn.LayerNorm, nn.GroupNorm, nn.InstanceNorm2d), "BatchNorm2d, and train again"),
    ((nn.Softmax, nn.LogSoftmax), "nothing: the client computes it from the scores"),
    ((nn.Conv1d, nn.Conv3d, nn.ConvTranspose2d), "Conv2d"),
)
_OTHER = "Conv2d, BatchNorm2d, ReLU, AvgPool2d, Flatten and Linear in an nn.Sequential"


@dataclass(frozen=True)
class Unsupported:
    """A layer that cannot run encrypted: qualified name, what it is, what to use instead."""

    name: str
    kind: str
    replacement: str

    def __str__(self) -> str:
        return f"{self.name} ({self.kind}): use {self.replacement}"


def unsupported(module: nn.Module) -> tuple[Unsupported, ...]:
    """Return every layer of a module that cannot be taken, in order."""
    found = []
    for name, layer in _leaves(module):
        problem = _problem(layer)
        if problem is not None:
            found.append(Unsupported(name or "the module", type(layer).__name__, problem))
    return tuple(found)


def from_sequential(
    module: nn.Sequential, shape: Shape, *, name: str = "network", bits: Bits | None = None
) -> Cnn:
    """Return a network with the layers and weights of a module; the module stays as it is.

    Parameters
    ----------
    module
        Convolutions with normalisation and ReLU in this order, means, one last linear layer. A
        convolution without ReLU gets a signed quantiser.
    shape
        (channels, rows, columns) of the input.

    Raises
    ------
    UnsupportedError
        Layers cannot be taken, all of them are listed; or they come in another order.
    ParameterError
        A layer does not fit its grid.
    """
    problems = unsupported(module)
    if problems:
        raise UnsupportedError("; ".join(map(str, problems)))
    leaves = list(_leaves(module))
    groups, head = _grouped(leaves)
    pooled = any(isinstance(layer, nn.AdaptiveAvgPool2d) for _, layer in leaves)
    spec = CnnSpec(name, shape, head.out_features, tuple(block for block, *_ in groups))
    _, rows, columns = spec.shapes()[-1]
    channels = spec.shapes()[-1][0]
    if head.in_features != channels or not (pooled or rows == columns == 1):
        raise UnsupportedError(
            f"the linear layer reads {head.in_features} features of a {rows}x{columns} grid of "
            f"{channels} channels; put AdaptiveAvgPool2d(1) before it"
        )
    net = Cnn(spec, bits=bits)
    with torch.no_grad():
        for block, (_, conv, norm) in zip(net.blocks, groups, strict=True):
            if isinstance(block, PlainBlock) and conv is not None:
                _copy(block, conv, norm)
        net.head.weight.copy_(head.weight)
        if head.bias is not None:
            net.head.bias.copy_(head.bias)
    return net.eval()


_Group = tuple[Block, nn.Conv2d | None, nn.BatchNorm2d | None]


def _leaves(module: nn.Module) -> Iterator[tuple[str, nn.Module]]:
    """Yield layers in order, looking into sequences only."""
    if not isinstance(module, nn.Sequential):
        yield "", module
        return
    for name, child in module.named_children():
        for inner, leaf in _leaves(child):
            yield f"{name}.{inner}" if inner else name, leaf


def _problem(layer: nn.Module) -> str | None:
    """Return what to use instead of a layer, or nothing if it can be taken."""
    for kinds, words in _REPLACEMENTS:
        if isinstance(layer, kinds):
            return words
    if isinstance(layer, nn.Conv2d):
        (kh, kw), (sh, sw), dilation = layer.kernel_size, layer.stride, layer.dilation
        square = kh == kw and sh == sw and not isinstance(layer.padding, str)
        square = square and layer.padding[0] == layer.padding[1] and tuple(dilation) == (1, 1)
        if not square or layer.padding_mode != "zeros":
            return "a square kernel, stride and zero padding given as numbers, without dilation"
    if isinstance(layer, nn.AvgPool2d):
        kernel, stride, pad = _one(layer.kernel_size), _one(layer.stride), _one(layer.padding)
        if kernel is None or stride != kernel or pad != 0 or layer.ceil_mode:
            return "a square mean with stride equal to its kernel and without padding"
    if isinstance(layer, nn.AdaptiveAvgPool2d) and _one(layer.output_size) != 1:
        return "AdaptiveAvgPool2d(1), or AvgPool2d with a kernel that divides the grid"
    return None if isinstance(layer, _TAKEN) else _OTHER


def _one(value: object) -> int | None:
    """Return the number that a size is, if both sides are equal."""
    if isinstance(value, int):
        return value
    sides = set(value) if isinstance(value, tuple) else set()
    side = sides.pop() if len(sides) == 1 else None
    return side if isinstance(side, int) else None


def _grouped(leaves: list[tuple[str, nn.Module]]) -> tuple[list[_Group], nn.Linear]:
    """Return blocks with their layers, and the last layer."""
    groups: list[_Group] = []
    pooled, head, open_until = False, None, 0
    for name, layer in leaves:
        if isinstance(layer, _IGNORED):
            continue
        if head is not None or (pooled and not isinstance(layer, nn.Linear)):
            raise UnsupportedError(f"{name}: only the linear layer may follow; it must be the last")
        if isinstance(layer, nn.Conv2d):
            pad = int(layer.padding[0])
            block = Plain(layer.out_channels, layer.kernel_size[0], layer.stride[0], pad,
                          layer.groups, relu=False)  # fmt: skip
            groups.append((block, layer, None))
            open_until = 2
        elif isinstance(layer, nn.BatchNorm2d) and open_until == 2:
            groups[-1] = (groups[-1][0], groups[-1][1], layer)
            open_until = 1
        elif isinstance(layer, nn.ReLU) and open_until and isinstance(groups[-1][0], Plain):
            groups[-1] = (replace(groups[-1][0], relu=True), groups[-1][1], groups[-1][2])
            open_until = 0
        elif isinstance(layer, nn.AvgPool2d) and groups:
            groups.append((MeanPool(_one(layer.kernel_size) or 1), None, None))
            open_until = 0
        elif isinstance(layer, nn.AdaptiveAvgPool2d) and groups:
            pooled = True
        elif isinstance(layer, nn.Linear) and groups:
            head = layer
        else:
            raise UnsupportedError(
                f"{name} ({type(layer).__name__}) comes in a place where it cannot be folded; the "
                "order is Conv2d, BatchNorm2d, ReLU, and a Linear at the end"
            )
    if head is None:
        raise UnsupportedError("the network has no last Linear layer; add one with its classes")
    return groups, head


def _copy(block: PlainBlock, conv: nn.Conv2d, norm: nn.BatchNorm2d | None) -> None:
    """Copy weights; a bias goes into normalisation."""
    own, target = block.conv.norm, block.conv
    target.weight.copy_(conv.weight)
    if own.running_mean is None or own.running_var is None:
        raise UnsupportedError("batch normalisation must keep running statistics")
    if norm is None:
        own.weight.fill_(math.sqrt(1.0 + own.eps))
    else:
        if norm.running_mean is None or norm.running_var is None:
            raise UnsupportedError(
                "batch normalisation must keep running statistics; use track_running_stats=True"
            )
        own.eps = norm.eps
        own.running_mean.copy_(norm.running_mean)
        own.running_var.copy_(norm.running_var)
        if norm.affine:
            own.weight.copy_(norm.weight)
            own.bias.copy_(norm.bias)
    if conv.bias is not None:
        if norm is None:
            own.bias.copy_(conv.bias)
        else:
            own.running_mean.sub_(conv.bias)
