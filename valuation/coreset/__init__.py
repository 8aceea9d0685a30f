"""Coresets: the few rows that summarise a pool. Names load their module on first use."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from privml.valuation.coreset.crossfit import cross_fitted
    from privml.valuation.coreset.csrel import CSReL
    from privml.valuation.coreset.scores import reducible_loss
    from privml.valuation.coreset.torch_models import TorchClassifier

_HOMES = {
    "CSReL": "csrel",
    "TorchClassifier": "torch_models",
    "cross_fitted": "crossfit",
    "reducible_loss": "scores",
}

__all__ = ["CSReL", "TorchClassifier", "cross_fitted", "reducible_loss"]


def __getattr__(name: str) -> object:
    """Load a name on first use, so that torch loads only where needed."""
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    found: object = getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
    return found
