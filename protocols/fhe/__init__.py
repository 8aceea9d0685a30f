"""Image classification under fully homomorphic encryption, from frequency coefficients."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from privml.protocols.fhe.faults import Fault
    from privml.protocols.fhe.frequency import Frequency
    from privml.protocols.fhe.graph import Graph
    from privml.protocols.fhe.planned import Machine, Plan, Rounding
    from privml.protocols.fhe.reliability import Disagreement

_HOMES = {
    "Disagreement": "reliability",
    "Fault": "faults",
    "Frequency": "frequency",
    "Graph": "graph",
    "Machine": "planned",
    "Plan": "planned",
    "Rounding": "planned",
}

__all__ = [
    "Disagreement",
    "Fault",
    "Frequency",
    "Graph",
    "Machine",
    "Plan",
    "Rounding",
]


def __getattr__(name: str) -> object:
    """Load a name on first use."""
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value: object = getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
    return value
