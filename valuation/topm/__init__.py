"""Top-m identification: the m records of largest or smallest value, with a certificate."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from privml.valuation.topm.arms import Arms
    from privml.valuation.topm.engine import Engine
    from privml.valuation.topm.estimator import TopM
    from privml.valuation.topm.evidence import FitSettings, Hyperparameters
    from privml.valuation.topm.settings import Settings, deviations, from_preset
    from privml.valuation.topm.state import State
    from privml.valuation.topm.target import Kind, Request, Target, evaluate

_HOMES = {
    "Arms": "arms",
    "Engine": "engine",
    "FitSettings": "evidence",
    "Hyperparameters": "evidence",
    "Kind": "target",
    "Request": "target",
    "Settings": "settings",
    "State": "state",
    "Target": "target",
    "TopM": "estimator",
    "deviations": "settings",
    "evaluate": "target",
    "from_preset": "settings",
}

__all__ = [
    "Arms",
    "Engine",
    "FitSettings",
    "Hyperparameters",
    "Kind",
    "Request",
    "Settings",
    "State",
    "Target",
    "TopM",
    "deviations",
    "evaluate",
    "from_preset",
]


def __getattr__(name: str) -> object:
    """Load a name on first use."""
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    found: object = getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
    return found
