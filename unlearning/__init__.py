"""Exact unlearning: models that are, after a deletion, the models that never saw the rows."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from privml.unlearning.base import Impact, Unlearner
    from privml.unlearning.forest import DynForestClassifier, DynForestRegressor, ForestKey

_HOMES = {
    "DynForestClassifier": "forest",
    "DynForestRegressor": "forest",
    "ForestKey": "forest",
    "Impact": "base",
    "Unlearner": "base",
}

__all__ = ["DynForestClassifier", "DynForestRegressor", "ForestKey", "Impact", "Unlearner"]


def __getattr__(name: str) -> object:
    """Load a name on first use, so that importing the area loads no scikit-learn."""
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    found: object = getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
    return found
