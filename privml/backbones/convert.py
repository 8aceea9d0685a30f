"""A user's torch network as one that can be quantised, with its weights.

Taken are ``Conv2d``, ``BatchNorm2d``, ``ReLU``, ``AvgPool2d``, a last ``AdaptiveAvgPool2d(1)``,
``Flatten``, one ``Linear``, ``Dropout`` and ``Identity``, which do nothing here, and residual
blocks of two 3x3 convolutions; in a sequence, or in any module whose forward pass can be traced.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import TypeAlias

import numpy as np
import torch
from torch import nn

from privml.backbones.cnn import Bits, Cnn
from privml.backbones.cnn_blocks import BasicBlock, PlainBlock
from privml.backbones.cnn_spec import Basic, Block, CnnSpec, MeanPool, Plain, Shape
from privml.backbones.convert_graph import Named, Residual, Unknown, traced
from privml.backbones.quant import QuantConv2d
from privml.errors import UnsupportedLayer
from privml.rng import ScienceSeed

Module: TypeAlias = nn.Module
"""Any torch network; a name for callers that do not import torch."""

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
    """Return every layer of a module that cannot be taken, in order.

    Raises
    ------
    UnsupportedLayer
        The forward pass of a module other than a sequence cannot be followed.
    """
    found = []
    for name, layer in _steps(module):
        if isinstance(layer, Unknown):
            found.append(Unsupported(name, layer.kind, layer.replacement))
        elif isinstance(layer, Residual):
            problem = _residual_problem(layer)
            if problem is not None:
                found.append(Unsupported(name, "residual block", problem))
        elif (problem := _problem(layer)) is not None:
            found.append(Unsupported(name or "the module", type(layer).__name__, problem))
    return tuple(found)


def from_module(
    module: nn.Module, shape: Shape, *, name: str = "network", bits: Bits | None = None
) -> Cnn:
    """Return a network with the layers and weights of any module; the module stays as it is.

    Parameters
    ----------
    module
        Its forward pass takes one image tensor and has no conditions on values. Layers as for
        :func:`from_sequential`, and residual blocks.
    shape
        (channels, rows, columns) of the input.

    Raises
    ------
    UnsupportedLayer
        Layers cannot be taken, all of them are listed with replacements; or they come in another
        order.
    ParameterError
        A layer does not fit its grid.
    """
    problems = unsupported(module)
    if problems:
        raise UnsupportedLayer("; ".join(map(str, problems)), layer=problems[0].name)
    net = _built(_steps(module), shape, name=name, bits=bits)
    _check_equal(net, module)
    return net


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
    UnsupportedLayer
        Layers cannot be taken, all of them are listed; or they come in another order.
    ParameterError
        A layer does not fit its grid.
    """
    return from_module(module, shape, name=name, bits=bits)


def _built(leaves: list[Named], shape: Shape, *, name: str, bits: Bits | None) -> Cnn:
    groups, head = _grouped(leaves)
    pooled = any(isinstance(layer, nn.AdaptiveAvgPool2d) for _, layer in leaves)
    spec = CnnSpec(name, shape, head.out_features, tuple(block for block, _ in groups))
    _, rows, columns = spec.shapes()[-1]
    channels = spec.shapes()[-1][0]
    if head.in_features != channels or not (pooled or rows == columns == 1):
        raise UnsupportedLayer(
            f"the linear layer reads {head.in_features} features of a {rows}x{columns} grid of "
            f"{channels} channels; put AdaptiveAvgPool2d(1) before it"
        )
    net = Cnn(spec, bits=bits)
    with torch.no_grad():
        for block, (_, source) in zip(net.blocks, groups, strict=True):
            if isinstance(block, PlainBlock) and isinstance(source, tuple):
                _copy(block.conv, *source)
            elif isinstance(block, BasicBlock) and isinstance(source, Residual):
                _copy(block.conv1, *source.first)
                _copy(block.conv2, *source.second)
                if block.skip is not None and source.skip is not None:
                    _copy(block.skip, *source.skip)
        net.head.weight.copy_(head.weight)
        if head.bias is not None:
            net.head.bias.copy_(head.bias)
    return net.eval()


_Weights = tuple[nn.Conv2d, nn.BatchNorm2d | None]
_Group = tuple[Block, _Weights | Residual | None]


def _steps(module: nn.Module) -> list[Named]:
    """Return the steps of a sequence as they stand, of any other module by tracing it."""
    if not isinstance(module, nn.Sequential):
        return traced(module) if list(module.children()) else [("", module)]
    found: list[Named] = []
    for name, child in _leaves(module):
        own = [(name, child)] if not list(child.children()) else traced(child)
        deep = own and own[0][1] is not child
        found += [(f"{name}.{inner}", layer) for inner, layer in own] if deep else own
    return found


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


def _check_equal(net: Cnn, module: nn.Module) -> None:
    """Compare both networks on drawn inputs: a step that was misread must not pass unseen."""
    shape = net.spec.shape
    draw = ScienceSeed(0).child("conversion").generator().standard_normal((4, *shape))
    x = torch.from_numpy(draw.astype(np.float32))
    modes = {layer: layer.training for layer in module.modules()}
    module.eval()
    try:
        with torch.no_grad():
            want, found = module(x), net(x)
    except RuntimeError as error:
        raise UnsupportedLayer(f"the network does not take inputs of shape {shape}") from error
    finally:
        for layer, mode in modes.items():
            layer.training = mode
    scale = float(want.abs().max()) + 1e-12
    if want.shape != found.shape or not float((want - found).abs().max()) <= 1e-3 * scale:
        raise UnsupportedLayer(
            "the converted network gives other scores than the original; reshape only to flatten, "
            "and use each layer once"
        )


def _residual_problem(block: Residual) -> str | None:
    """Return what a residual block must look like, or nothing if it does."""
    convs = [block.first[0], block.second[0], *([] if block.skip is None else [block.skip[0]])]
    for conv in convs:
        if (words := _problem(conv)) is not None:
            return words
    first, second = convs[:2]
    square = all(c.kernel_size == (3, 3) and c.padding == (1, 1) for c in (first, second))
    same = second.stride == (1, 1) and all(c.groups == 1 for c in convs)
    if block.skip is None:
        fits = first.stride == (1, 1) and first.in_channels == second.out_channels
    else:
        skip = convs[2]
        fits = skip.kernel_size == (1, 1) and skip.stride == first.stride
        fits = fits and skip.padding == (0, 0)
        fits = fits and (first.stride != (1, 1) or first.in_channels != second.out_channels)
    if square and same and fits:
        return None
    return (
        "3x3 convolutions padded by 1, the stride in the first, and beside them the input, or a "
        "1x1 convolution of the same stride where the shape changes"
    )


def _one(value: object) -> int | None:
    """Return the number that a size is, if both sides are equal."""
    if isinstance(value, int):
        return value
    sides = set(value) if isinstance(value, tuple) else set()
    side = sides.pop() if len(sides) == 1 else None
    return side if isinstance(side, int) else None


def _grouped(leaves: list[Named]) -> tuple[list[_Group], nn.Linear]:
    """Return blocks with their layers, and the last layer."""
    groups: list[_Group] = []
    pooled, head, open_until = False, None, 0
    for name, layer in leaves:
        if isinstance(layer, _IGNORED):
            continue
        if head is not None or (pooled and not isinstance(layer, nn.Linear)):
            raise UnsupportedLayer(f"{name}: only the linear layer may follow; it must be the last")
        if isinstance(layer, nn.Conv2d):
            pad = int(layer.padding[0])
            block = Plain(layer.out_channels, layer.kernel_size[0], layer.stride[0], pad,
                          layer.groups, relu=False)  # fmt: skip
            groups.append((block, (layer, None)))
            open_until = 2
        elif isinstance(layer, nn.BatchNorm2d) and open_until == 2:
            last, source = groups[-1]
            groups[-1] = (last, (source[0], layer) if isinstance(source, tuple) else source)
            open_until = 1
        elif isinstance(layer, nn.ReLU) and open_until and isinstance(groups[-1][0], Plain):
            groups[-1] = (replace(groups[-1][0], relu=True), groups[-1][1])
            open_until = 0
        elif isinstance(layer, nn.AvgPool2d) and groups:
            groups.append((MeanPool(_one(layer.kernel_size) or 1), None))
            open_until = 0
        elif isinstance(layer, Residual) and groups:
            conv = layer.first[0]
            groups.append((Basic(conv.out_channels, conv.stride[0]), layer))
            open_until = 0
        elif isinstance(layer, nn.AdaptiveAvgPool2d) and groups:
            pooled = True
        elif isinstance(layer, nn.Linear) and groups:
            head = layer
        else:
            raise UnsupportedLayer(
                f"{name} ({type(layer).__name__}) comes in a place where it cannot be folded; the "
                "order is Conv2d, BatchNorm2d, ReLU, and a Linear at the end"
            )
    if head is None:
        raise UnsupportedLayer("the network has no last Linear layer; add one with its classes")
    return groups, head


def _copy(target: QuantConv2d, conv: nn.Conv2d, norm: nn.BatchNorm2d | None) -> None:
    """Copy weights; a bias goes into normalisation."""
    own = target.norm
    if target.weight.shape != conv.weight.shape:
        raise UnsupportedLayer(
            f"a convolution takes {conv.in_channels} channels where the one before it gives "
            f"{target.weight.shape[1] * target.groups}; reshape only to flatten"
        )
    target.weight.copy_(conv.weight)
    if own.running_mean is None or own.running_var is None:
        raise UnsupportedLayer("batch normalisation must keep running statistics")
    if norm is None:
        own.weight.fill_(math.sqrt(1.0 + own.eps))
    else:
        if norm.running_mean is None or norm.running_var is None:
            raise UnsupportedLayer(
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
