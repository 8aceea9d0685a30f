"""Forests that forget a row exactly: see :class:`DynForestClassifier`."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from privml.unlearning.forest.audit import AuditReport, Level, verify_file
    from privml.unlearning.forest.certificate import Certificate
    from privml.unlearning.forest.estimators import DynForestClassifier, DynForestRegressor
    from privml.unlearning.forest.keys import ForestKey
    from privml.unlearning.forest.persistence import Limits
    from privml.unlearning.forest.predictor import ForestPredictor

_HOMES = {
    "AuditReport": "audit",
    "Certificate": "certificate",
    "DynForestClassifier": "estimators",
    "DynForestRegressor": "estimators",
    "ForestKey": "keys",
    "ForestPredictor": "predictor",
    "Level": "audit",
    "Limits": "persistence",
    "verify_file": "audit",
}

__all__ = [
    "AuditReport",
    "Certificate",
    "DynForestClassifier",
    "DynForestRegressor",
    "ForestKey",
    "ForestPredictor",
    "Level",
    "Limits",
    "verify_file",
]


def __getattr__(name: str) -> object:
    """Load a name on first use, so that importing the package loads no scikit-learn."""
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    found: object = getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
    return found
