"""Networks of affine maps and squares in torch: layers, validation, conversion to plain matrices.

Such a network runs under CKKS without bootstrapping (:mod:`privml.protocols.he`). Everything
between two activations is one affine map, found by sending zero and the unit vectors through it:
convolution, normalisation, mean, flattening and linear layers cost what one matrix costs.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from privml.backbones.cnn_blocks import Draw
from privml.backbones.convert import Unsupported
from privml.errors import ParameterError, UnsupportedLayer
from privml.rng import ScienceSeed

_LEAST_CURVATURE = 1e-2
_CHUNK = 256
_AFFINE = (
    nn.Conv2d, nn.BatchNorm1d, nn.BatchNorm2d, nn.AvgPool2d, nn.AdaptiveAvgPool2d, nn.Flatten,
    nn.Linear, nn.Dropout, nn.Dropout2d, nn.Identity,
)  # fmt: skip
_ACTIVATIONS = (
    nn.ReLU, nn.ReLU6, nn.GELU, nn.SiLU, nn.LeakyReLU, nn.ELU, nn.PReLU, nn.Sigmoid, nn.Tanh,
    nn.Hardswish, nn.Softplus,
)  # fmt: skip
_POOLS = (nn.MaxPool1d, nn.MaxPool2d, nn.AdaptiveMaxPool2d)
_NORMS = (nn.LayerNorm, nn.GroupNorm, nn.InstanceNorm2d)


class Square(nn.Module):
    """``y = x^2``, one multiplicative level."""

    def forward(self, x: Tensor) -> Tensor:
        """Return the square."""
        return x.square()


class Quadratic(nn.Module):
    """``y = a x^2 + b x + c`` with trained numbers for each feature; one multiplicative level.

    Parameters
    ----------
    features
        Size of axis 1. It starts as ``x^2 / 4 + x / 2``.
    """

    def __init__(self, features: int) -> None:
        super().__init__()
        self.curvature = nn.Parameter(torch.full((features,), 0.25))
        self.slope = nn.Parameter(torch.full((features,), 0.5))
        self.offset = nn.Parameter(torch.zeros(features))

    def coefficients(self) -> tuple[Tensor, Tensor, Tensor]:
        """Return a, b and c; a keeps away from zero, so that the square can be completed."""
        sign = torch.where(self.curvature.detach() < 0, -1.0, 1.0)
        return sign * self.curvature.abs().clamp_min(_LEAST_CURVATURE), self.slope, self.offset

    def forward(self, x: Tensor) -> Tensor:
        """Return the quadratic of (n, features, ...)."""
        shape = (1, -1, *[1] * (x.ndim - 2))
        a, b, c = (v.view(shape) for v in self.coefficients())
        return (a * x + b) * x + c


@dataclass(frozen=True, eq=False)
class AffineMap:
    """``y = weight x + bias`` on flattened images, float64; squares come between two of them."""

    name: str
    weight: NDArray[np.float64]
    bias: NDArray[np.float64]


def square_mlp(
    shape: Sequence[int], hidden: Sequence[int] = (64,), *, classes: int = 10,
    seed: ScienceSeed | None = None,
) -> nn.Sequential:  # fmt: skip
    """Return linear layers with normalised, trained quadratics between them.

    Parameters
    ----------
    shape
        Shape of one input.
    hidden
        Widths; each costs two multiplicative levels.
    """
    draw = Draw(ScienceSeed(0) if seed is None else seed)
    layers: list[nn.Module] = [nn.Flatten()]
    width = math.prod(shape)
    for number, size in enumerate((*hidden, classes)):
        linear = nn.Linear(width, size)
        with torch.no_grad():
            linear.weight.copy_(draw(f"polynomial{number}", (size, width), fan=2 * width))
            linear.bias.zero_()
        layers.append(linear)
        if number < len(hidden):
            layers += [nn.BatchNorm1d(size), Quadratic(size)]
        width = size
    return nn.Sequential(*layers).eval()


def unsupported(module: nn.Module) -> tuple[Unsupported, ...]:
    """Return every layer that is neither affine nor a square, in order."""
    return tuple(
        Unsupported(name or "the module", type(layer).__name__, words)
        for name, layer in _leaves(module)
        if (words := _replacement(layer)) is not None
    )


def affine_maps(module: nn.Sequential, shape: Sequence[int]) -> tuple[AffineMap, ...]:
    """Return the maps of a sequence in evaluation mode; squares come between them.

    Parameters
    ----------
    module
        Affine layers with :class:`Square` or :class:`Quadratic` between them.
    shape
        Shape of one input.

    Raises
    ------
    UnsupportedLayer
        Layers are neither; all of them are listed with replacements.
    ParameterError
        Layers do not fit each other, or two activations follow each other.
    """
    problems = unsupported(module)
    if problems:
        raise UnsupportedLayer("; ".join(map(str, problems)), layer=problems[0].name)
    parts, size, found = _parts(module), tuple(shape), []
    scale, shift = np.ones(()), np.zeros(())
    for number, (name, layers, activation) in enumerate(parts):
        if not layers:
            raise ParameterError(f"{name}: an activation must follow a linear layer")
        weight, bias, size = _matrix(name, layers, size)
        bias = bias + weight @ np.broadcast_to(shift, weight.shape[1:])
        weight = weight * scale
        scale, shift, move = _completed(activation, size)
        last = number == len(parts) - 1
        if last and activation is not None:
            raise ParameterError(f"{name}: the last layer must be linear")
        found.append(AffineMap(_label(name, number), weight, bias + move))
    return tuple(found)


_Part = tuple[str, list[nn.Module], nn.Module | None]


def _parts(module: nn.Sequential) -> list[_Part]:
    """Return name, affine layers and activation of each stretch."""
    parts: list[_Part] = []
    name, layers = "", list[nn.Module]()
    for own, layer in _leaves(module):
        if isinstance(layer, Square | Quadratic):
            parts.append((name or own, layers, layer))
            name, layers = "", []
        else:
            if not name and isinstance(layer, nn.Conv2d | nn.Linear):
                name = own
            layers.append(layer)
    parts.append((name or "head", layers, None))
    return parts


def _matrix(
    name: str, layers: list[nn.Module], shape: tuple[int, ...]
) -> tuple[NDArray[np.float64], NDArray[np.float64], tuple[int, ...]]:
    """Return matrix, offset and output shape of affine layers in float64."""
    features = math.prod(shape)
    run = nn.Sequential(*layers)
    kind = next((p.dtype for p in run.parameters()), torch.float32)
    modes = [layer.training for layer in layers]
    run.double().eval()
    try:
        with torch.no_grad():
            zero = run(torch.zeros(1, *shape, dtype=torch.float64))
            units = torch.eye(features, dtype=torch.float64).view(features, *shape)
            firsts = range(0, features, _CHUNK)
            rows = [run(units[first : first + _CHUNK]) - zero for first in firsts]
    except RuntimeError as error:
        raise ParameterError(f"{name}: the layers do not fit an input of {shape}") from error
    finally:
        run.to(kind)
        for layer, mode in zip(layers, modes, strict=True):
            layer.train(mode)
    matrix = torch.cat(rows).flatten(1).T.contiguous().numpy()
    return matrix, zero.flatten().numpy().copy(), tuple(zero.shape[1:])


def _completed(
    activation: nn.Module | None, shape: tuple[int, ...]
) -> tuple[NDArray[np.float64], NDArray[np.float64], NDArray[np.float64]]:
    """Return what ``a x^2 + b x + c = a (x + b/2a)^2 + c - b^2/4a`` asks of the maps around it.

    Returns
    -------
    Factor and addend of the square, and what is added before squaring.
    """
    if not isinstance(activation, Quadratic):
        return np.ones(()), np.zeros(()), np.zeros(())
    a, b, c = (v.detach().double().numpy() for v in activation.coefficients())
    inner = math.prod(shape[1:])
    a, b, c = (np.repeat(v, inner) for v in (a, b, c))
    return a, c - b * b / (4 * a), b / (2 * a)


def _replacement(layer: nn.Module) -> str | None:
    if isinstance(layer, _ACTIVATIONS):
        return "Square or Quadratic of privml.backbones.polynomial, and train again"
    if isinstance(layer, _POOLS):
        return "AvgPool2d, and train again"
    if isinstance(layer, _NORMS):
        return "BatchNorm2d or BatchNorm1d, and train again"
    if isinstance(layer, nn.Softmax | nn.LogSoftmax):
        return "nothing: the client computes it from the scores"
    if isinstance(layer, nn.BatchNorm1d | nn.BatchNorm2d) and not layer.track_running_stats:
        return "batch normalisation with track_running_stats=True"
    if isinstance(layer, (*_AFFINE, Square, Quadratic)):
        return None
    return "convolutions, means, BatchNorm, Flatten, Linear and Square in an nn.Sequential"


def _leaves(module: nn.Module) -> Iterator[tuple[str, nn.Module]]:
    if not isinstance(module, nn.Sequential):
        yield "", module
        return
    for name, child in module.named_children():
        for inner, leaf in _leaves(child):
            yield f"{name}.{inner}" if inner else name, leaf


def _label(name: str, number: int) -> str:
    return f"map{number}" if name in ("", "head") else f"map{number}.{name}"
