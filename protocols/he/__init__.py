"""Polynomial networks under CKKS: shallow, approximate, many images in one ciphertext."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from privml.protocols.he.classifier import PolynomialClassifier
    from privml.protocols.he.contexts import ClientContext, ServerContext
    from privml.protocols.he.network import Layer, PolynomialNetwork
    from privml.protocols.he.parameters import CkksParameters
    from privml.protocols.he.plan import CkksPlan

_HOMES = {
    "CkksParameters": "parameters",
    "CkksPlan": "plan",
    "ClientContext": "contexts",
    "Layer": "network",
    "PolynomialClassifier": "classifier",
    "PolynomialNetwork": "network",
    "ServerContext": "contexts",
}

__all__ = [
    "CkksParameters",
    "CkksPlan",
    "ClientContext",
    "Layer",
    "PolynomialClassifier",
    "PolynomialNetwork",
    "ServerContext",
]


def __getattr__(name: str) -> object:
    """Load a name on first use."""
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value: object = getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
    return value
