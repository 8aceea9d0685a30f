"""Quantised networks, from :mod:`privml.backbones`; every name loads torch on first use."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from privml.backbones.cnn import Bits, Cnn
    from privml.backbones.cnn_saving import load_model, save_model
    from privml.backbones.cnn_training import Recipe, Training, fit
    from privml.backbones.quant import QuantAct, QuantConv2d, QuantLinear
    from privml.backbones.quant_model import QuantModel

_HOMES = {
    "Bits": "cnn",
    "Cnn": "cnn",
    "QuantAct": "quant",
    "QuantConv2d": "quant",
    "QuantLinear": "quant",
    "QuantModel": "quant_model",
    "Recipe": "cnn_training",
    "Training": "cnn_training",
    "fit": "cnn_training",
    "load_model": "cnn_saving",
    "save_model": "cnn_saving",
}

__all__ = [
    "Bits",
    "Cnn",
    "QuantAct",
    "QuantConv2d",
    "QuantLinear",
    "QuantModel",
    "Recipe",
    "Training",
    "fit",
    "load_model",
    "save_model",
]


def __getattr__(name: str) -> object:
    """Load a name on first use."""
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value: object = getattr(import_module(f"privml.backbones.{_HOMES[name]}"), name)
    return value
