"""Scaling laws: how much more collecting helps, and what to collect. Names load on first use."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from privml.valuation.scaling.diversity import Curve, DiversityReport, diversity_report
    from privml.valuation.scaling.law import ExtrapolationWarning, ScalingLaw
    from privml.valuation.scaling.pilot import Saturation, saturation
    from privml.valuation.scaling.plan import Plan

_HOMES = {
    "Curve": "diversity",
    "DiversityReport": "diversity",
    "ExtrapolationWarning": "law",
    "Plan": "plan",
    "Saturation": "pilot",
    "ScalingLaw": "law",
    "diversity_report": "diversity",
    "saturation": "pilot",
}

__all__ = [
    "Curve",
    "DiversityReport",
    "ExtrapolationWarning",
    "Plan",
    "Saturation",
    "ScalingLaw",
    "diversity_report",
    "saturation",
]


def __getattr__(name: str) -> object:
    """Load a name on first use."""
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    found: object = getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
    return found
