"""Polynomial network: clear affine maps with squares between them, as plain arrays. No torch.

``y = A_n sq(... sq(A_1 x + b_1) ...) + b_n``. Convolutions, normalisation and means before an
activation are one matrix; a trained quadratic becomes a square by completing it, so that its
constants go into the maps around it (:mod:`privml.backbones.polynomial`). Inputs are cut to
``[-limit, limit]``, from which bounds of every value follow.
"""

from __future__ import annotations

import itertools
import re
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Final

import numpy as np
from numpy.typing import NDArray

from privml.backbones.base import HexDigest
from privml.backbones.digests import Json, canonical_json, sha256, tensor_digest
from privml.errors import ParameterError
from privml.protocols.he.packing import power_of_two

Floats = NDArray[np.float64]

MAX_FEATURES: Final = 8192
MAX_LAYERS: Final = 16
_NAME: Final = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.\-]{0,63}", re.ASCII)


@dataclass(frozen=True, eq=False)
class Layer:
    """An affine map; every layer but the last is followed by a square.

    Attributes
    ----------
    name
        For messages.
    weight, bias
        (outputs, inputs) and (outputs,) float64, read-only.
    """

    name: str
    weight: Floats
    bias: Floats

    def __post_init__(self) -> None:
        weight = np.array(self.weight, np.float64, order="C")
        bias = np.array(self.bias, np.float64)
        if not _NAME.fullmatch(self.name):
            raise ParameterError(f"{self.name!r} is no layer name; use letters, digits, _ . -")
        if weight.ndim != 2 or bias.shape != weight.shape[:1] or not weight.size:
            raise ParameterError(
                f"{self.name}: weight (outputs, inputs) and bias (outputs,) are needed, not "
                f"{weight.shape} and {bias.shape}"
            )
        if max(weight.shape) > MAX_FEATURES:
            raise ParameterError(
                f"{self.name}: {max(weight.shape)} features, the limit is {MAX_FEATURES}"
            )
        if not (np.isfinite(weight).all() and np.isfinite(bias).all()):
            raise ParameterError(f"{self.name}: weights must be finite")
        if not weight.any():
            raise ParameterError(f"{self.name}: all weights are zero; its result is a constant")
        weight.flags.writeable = bias.flags.writeable = False
        object.__setattr__(self, "weight", weight)
        object.__setattr__(self, "bias", bias)


@dataclass(frozen=True, eq=False)
class PolynomialNetwork:
    """A network of affine maps and squares.

    Parameters
    ----------
    layers
        1 to 16, each taking what the one before gives; no map is all zero.
    limit
        Inputs are cut to [-limit, limit].
    shape
        Shape of one image; its elements, row-major, are the inputs of the first layer.
    front
        Digest of the front end it was trained behind, or an empty string.

    Raises
    ------
    ParameterError
        Layers do not fit each other, or names repeat.
    """

    layers: tuple[Layer, ...]
    limit: float
    shape: tuple[int, ...]
    front: str = ""

    def __post_init__(self) -> None:
        object.__setattr__(self, "layers", tuple(self.layers))
        object.__setattr__(self, "shape", tuple(self.shape))
        if not 1 <= len(self.layers) <= MAX_LAYERS:
            raise ParameterError(f"a network has 1 to {MAX_LAYERS} layers, not {len(self.layers)}")
        if len({layer.name for layer in self.layers}) != len(self.layers):
            raise ParameterError("two layers have the same name")
        if not (np.isfinite(self.limit) and self.limit > 0):
            raise ParameterError("limit must be positive")
        if re.fullmatch(r"([0-9a-f]{64})?", self.front) is None:
            raise ParameterError("front is a SHA-256 in hexadecimal, or empty")
        sizes = [(1, *self.shape), *[layer.weight.shape for layer in self.layers]]
        wanted = int(np.prod(self.shape))
        for layer, size in zip(self.layers, sizes[1:], strict=True):
            if size[1] != wanted:
                raise ParameterError(f"{layer.name} takes {size[1]} features, it gets {wanted}")
            wanted = size[0]

    @property
    def features(self) -> int:
        """Inputs of one image."""
        return int(self.layers[0].weight.shape[1])

    @property
    def classes(self) -> int:
        """Scores of one image."""
        return int(self.layers[-1].weight.shape[0])

    @property
    def depth(self) -> int:
        """Multiplicative levels: one for each map, one for each square."""
        return 2 * len(self.layers) - 1

    @property
    def dimension(self) -> int:
        """Slots of one image."""
        return power_of_two(max(max(layer.weight.shape) for layer in self.layers))

    @cached_property
    def bounds(self) -> tuple[float, ...]:
        """Largest absolute value after each map, over all inputs in range."""
        top = np.full(self.features, self.limit)
        low, high = -top, top
        found = []
        for layer in self.layers:
            plus, minus = np.maximum(layer.weight, 0), np.minimum(layer.weight, 0)
            low, high = (
                plus @ low + minus @ high + layer.bias,
                plus @ high + minus @ low + layer.bias,
            )
            found.append(float(np.maximum(np.abs(low), np.abs(high)).max()))
            zero = (low <= 0) & (high >= 0)
            ends = np.square(low), np.square(high)
            low, high = np.where(zero, 0.0, np.minimum(*ends)), np.maximum(*ends)
        return tuple(found)

    def check(self, x: NDArray[np.floating]) -> Floats:
        """Return images (n, *shape) as C-contiguous (n, features), cut to the limit.

        Raises
        ------
        ParameterError
            Another shape, or values that are not finite.
        """
        array = np.asarray(x)
        if array.dtype.kind not in "iuf" or array.ndim < 2 or array.shape[1:] != self.shape:
            raise ParameterError(
                f"images are real numbers of shape (n, {', '.join(map(str, self.shape))}), not "
                f"{array.dtype} of shape {array.shape}"
            )
        flat = np.ascontiguousarray(array, np.float64).reshape(len(array), self.features)
        if not np.isfinite(flat).all():
            raise ParameterError("images must be finite")
        return np.clip(flat, -self.limit, self.limit)

    def run(self, x: NDArray[np.floating]) -> Floats:
        """Return scores (n, classes) in float64."""
        value = self.check(x)
        for layer, last in self.marked():
            value = value @ layer.weight.T + layer.bias
            value = value if last else np.square(value)
        return value

    def marked(self) -> list[tuple[Layer, bool]]:
        """Return each layer with whether it is the last."""
        marks = itertools.chain([False] * (len(self.layers) - 1), [True])
        return list(zip(self.layers, marks, strict=True))

    def shrunk(self, divisor: float) -> PolynomialNetwork:
        """Return the network with scores divided by ``divisor``."""
        last = self.layers[-1]
        small = Layer(last.name, last.weight / divisor, last.bias / divisor)
        return replace(self, layers=(*self.layers[:-1], small))

    def digest(self) -> HexDigest:
        """Return the SHA-256 of the content in hexadecimal."""
        return sha256(canonical_json(self.description()))

    def description(self) -> dict[str, Json]:
        """Return names, shapes and digests as plain values."""
        layers: list[Json] = [
            {
                "name": layer.name,
                "weight": tensor_digest("weight", layer.weight).sha256,
                "bias": tensor_digest("bias", layer.bias).sha256,
            }
            for layer in self.layers
        ]
        return {
            "format": "privml.polynomial.1", "limit": float(self.limit),
            "shape": list(self.shape), "front": self.front, "layers": layers,
        }  # fmt: skip
