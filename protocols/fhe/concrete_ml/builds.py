"""What is sent to the builder to compile a model, and the head made of its answer."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, Self, TypeAlias

import numpy as np
from numpy.typing import NDArray

from privml.protocols.fhe.concrete_ml.heads import Head
from privml.protocols.fhe.concrete_ml.kinds import Family, Fitted, Layers
from privml.protocols.fhe.concrete_ml.trees import Ensemble
from privml.protocols.fhe.nodes import Floats, Ints

Arrays: TypeAlias = Mapping[str, NDArray[Any]]

_GRID: Final = ("in_scale", "in_zero", "in_low", "in_high")


@dataclass(frozen=True)
class Options:
    """How a model is compiled; see :class:`~.estimator.EncryptedEstimator`."""

    family: Family
    bits: int
    leaf_bits: int
    rounding: int
    p_error: float


@dataclass(frozen=True, eq=False)
class Request:
    """Fields and arrays of a request, and the arrays of the head that are known before it."""

    fields: Mapping[str, Any]
    arrays: Arrays
    columns: Arrays


@dataclass(frozen=True, eq=False)
class Grid:
    """The quantisers of each feature, as concrete-ml fits them: float64 and int64 (features,)."""

    in_scale: Floats
    in_zero: Floats
    in_low: Ints
    in_high: Ints

    @classmethod
    def from_worker(cls, arrays: Arrays) -> Self:
        """Take the answer to ``quantise``."""
        return cls(*(arrays[name] for name in _GRID))

    def quantise(self, rows: Floats) -> Ints:
        """Return the integers of rows, as :meth:`Head.quantise` does."""
        places = np.rint(rows / self.in_scale + self.in_zero)
        return np.ascontiguousarray(places.clip(self.in_low, self.in_high), np.int64)

    def moved(self, ensemble: Ensemble) -> Ensemble:
        """Return an ensemble whose thresholds are integers of this grid."""
        return ensemble.on_grid(self.in_scale, self.in_zero, self.in_low, self.in_high)

    def columns(self) -> dict[str, NDArray[Any]]:
        """Return the arrays of a head."""
        zeros = np.zeros(len(self.in_scale))
        return {
            "centre": zeros,
            "half": zeros + 1.0,
            "in_scale": self.in_scale,
            "in_zero": self.in_zero,
            "in_low": self.in_low,
            "in_high": self.in_high,
        }


def layers_request(layers: Layers, rows: Floats, options: Options) -> Request:
    """Return the request for a linear model or a net.

    Features are moved to [-1, 1] by their own ranges in ``rows``, and the first layer with them, so
    that one quantiser serves features of any unit.
    """
    low, high = rows.min(axis=0), rows.max(axis=0)
    half = np.where(high > low, (high - low) / 2, 1.0)
    centre = (low + high) / 2
    scaled = layers.rescaled(centre, half)
    # Rows that drive each first accumulator to its ends, so that no input can make it wrap.
    ends = np.where(scaled.weights[0].T >= 0, 1.0, -1.0)
    inputs = np.clip((rows - centre) / half, -1.0, 1.0)
    fields: dict[str, Any] = {
        "family": options.family.value,
        "bits": options.bits,
        "p_error": options.p_error,
    }
    arrays = {"rows": inputs, "ends": np.concatenate([ends, -ends])}
    if options.family is Family.LINEAR:
        arrays |= {"weights": scaled.weights[0], "bias": scaled.biases[0]}
    else:
        fields |= {
            "layers": len(scaled.weights),
            "activation": scaled.activation,
            "rounding": options.rounding,
        }
        for number, pair in enumerate(zip(scaled.weights, scaled.biases, strict=True)):
            arrays |= {f"weights{number}": pair[0], f"bias{number}": pair[1]}
    return Request(fields, arrays, {"centre": centre, "half": half})


def trees_request(
    ensemble: Ensemble, rows: Floats, grid: Grid, options: Options, *, regression: bool
) -> Request:
    """Return the request for trees whose thresholds are integers of the grid."""
    fields = {
        "family": options.family.value,
        "leaf_bits": options.leaf_bits,
        "p_error": options.p_error,
        "groups": ensemble.outputs,
        "regression": regression,
    }
    corners = np.stack([grid.in_low, grid.in_high])
    integers = np.concatenate([grid.quantise(rows), corners])
    return Request(fields, {**ensemble.arrays(), "rows": integers}, grid.columns())


def make_head(fitted: Fitted, columns: Arrays, there: Arrays) -> Head:
    """Return the head of a model from the builder's answer ``there``."""
    known = {**{name: there[name] for name in _GRID if name in there}, **columns}
    ensemble = fitted.content if isinstance(fitted.content, Ensemble) else None
    return Head(
        link=fitted.link,
        classes=fitted.classes,
        centre=known["centre"],
        half=known["half"],
        in_scale=known["in_scale"],
        in_zero=known["in_zero"],
        in_low=known["in_low"],
        in_high=known["in_high"],
        out_scale=float(there["out_scale"]),
        out_zero=np.atleast_1d(there["out_zero"]),
        summed=ensemble is not None,
        offset=np.zeros(1) if ensemble is None else ensemble.offset,
    )
