"""Image classification under fully homomorphic encryption, from frequency coefficients."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from privml.protocols.fhe.classifier import EncryptedClassifier
    from privml.protocols.fhe.faults import Fault
    from privml.protocols.fhe.frequency import Frequency
    from privml.protocols.fhe.graph import Graph
    from privml.protocols.fhe.planned import Machine, Plan, Rounding
    from privml.protocols.fhe.prediction import Prediction
    from privml.protocols.fhe.reliability import Disagreement
    from privml.protocols.fhe.service import Service
    from privml.protocols.fhe.sides import FheClient, FheServer

_HOMES = {
    "Disagreement": "reliability",
    "EncryptedClassifier": "classifier",
    "Fault": "faults",
    "FheClient": "sides",
    "FheServer": "sides",
    "Frequency": "frequency",
    "Graph": "graph",
    "Machine": "planned",
    "Plan": "planned",
    "Prediction": "prediction",
    "Rounding": "planned",
    "Service": "service",
}

__all__ = [
    "Disagreement",
    "EncryptedClassifier",
    "Fault",
    "FheClient",
    "FheServer",
    "Frequency",
    "Graph",
    "Machine",
    "Plan",
    "Prediction",
    "Rounding",
    "Service",
]


def __getattr__(name: str) -> object:
    """Load a name on first use."""
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value: object = getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
    return value
