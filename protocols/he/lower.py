"""From affine maps with squares between them to a polynomial network, bound to its front end."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from privml.protocols.fhe.frequency import Frequency
from privml.protocols.he.network import Layer, PolynomialNetwork


class Affine(Protocol):
    """One map; :class:`privml.backbones.polynomial.AffineMap` is one."""

    @property
    def name(self) -> str:
        """Name for messages."""
        ...

    @property
    def weight(self) -> NDArray[np.float64]:
        """Matrix (outputs, inputs)."""
        ...

    @property
    def bias(self) -> NDArray[np.float64]:
        """Vector (outputs,)."""
        ...


def lower(
    maps: Sequence[Affine],
    shape: Sequence[int],
    *,
    limit: float,
    front: Frequency | None = None,
) -> PolynomialNetwork:
    """Return the network of trained maps.

    Parameters
    ----------
    maps
        From :func:`privml.backbones.polynomial.affine_maps`.
    shape
        Shape of one input.
    limit
        Inputs were cut to [-limit, limit] in training.
    front
        Fitted front end that the network was trained behind.

    Raises
    ------
    ParameterError
        Maps do not fit each other.
    """
    layers = tuple(Layer(one.name, one.weight, one.bias) for one in maps)
    return PolynomialNetwork(layers, limit, tuple(shape), "" if front is None else front.digest())
