"""scikit-learn models under fully homomorphic encryption, by concrete-ml in a process apart."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from privml.protocols.fhe.concrete_ml.environment import install, missing
    from privml.protocols.fhe.concrete_ml.estimator import EncryptedEstimator
    from privml.protocols.fhe.concrete_ml.parties import EstimatorClient, EstimatorServer
    from privml.protocols.fhe.concrete_ml.process import Limits

_HOMES = {
    "EncryptedEstimator": "estimator",
    "EstimatorClient": "parties",
    "EstimatorServer": "parties",
    "Limits": "process",
    "install": "environment",
    "missing": "environment",
}

__all__ = [
    "EncryptedEstimator",
    "EstimatorClient",
    "EstimatorServer",
    "Limits",
    "install",
    "missing",
]


def __getattr__(name: str) -> object:
    """Load a name on first use."""
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value: object = getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
    return value
