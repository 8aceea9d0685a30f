"""Weights for generated or noisy rows. Names load their module on first use."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from privml.valuation.weighting.ratios import importance
    from privml.valuation.weighting.torch_losses import DIMPLoss, ImportanceLoss
    from privml.valuation.weighting.weighter import ImportanceWeighter

_HOMES = {
    "DIMPLoss": "torch_losses",
    "ImportanceLoss": "torch_losses",
    "ImportanceWeighter": "weighter",
    "importance": "ratios",
}

__all__ = ["DIMPLoss", "ImportanceLoss", "ImportanceWeighter", "importance"]


def __getattr__(name: str) -> object:
    """Load a name on first use, so that torch loads only where needed."""
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    found: object = getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
    return found
