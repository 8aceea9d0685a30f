"""A model that was rebuilt and compiled."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from .frames import Array  # noqa: TID251


@dataclass(frozen=True)
class Built:
    """What the builder keeps of a model.

    Attributes
    ----------
    circuit
        The compiled circuit of concrete-python.
    clear
        Clear evaluation, from integers (n, features) to integers (n, *shape).
    features
        Number of features.
    quantisers
        Arrays for the client: quantisation of inputs, dequantisation of outputs.
    """

    circuit: Any
    clear: Callable[[Array], Any]
    features: int
    quantisers: Mapping[str, Array]
