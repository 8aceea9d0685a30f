"""Encrypted token pruning and polynomial reduction on the two-party engine."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from privml.protocols.cipherprune.learning.calibrate import calibrate_thresholds
    from privml.protocols.cipherprune.learning.data import TaskData
    from privml.protocols.cipherprune.learning.finetune import fine_tune, with_classifier
    from privml.protocols.cipherprune.learning.learn import Learned, learn_thresholds
    from privml.protocols.cipherprune.learning.options import Options
    from privml.protocols.cipherprune.spec import PruneSpec
    from privml.protocols.cipherprune.thresholds import Thresholds

_HOMES = {
    "Learned": "learning.learn",
    "Options": "learning.options",
    "PruneSpec": "spec",
    "TaskData": "learning.data",
    "Thresholds": "thresholds",
    "calibrate_thresholds": "learning.calibrate",
    "fine_tune": "learning.finetune",
    "learn_thresholds": "learning.learn",
    "with_classifier": "learning.finetune",
}

__all__ = [
    "Learned",
    "Options",
    "PruneSpec",
    "TaskData",
    "Thresholds",
    "calibrate_thresholds",
    "fine_tune",
    "learn_thresholds",
    "with_classifier",
]


def __getattr__(name: str) -> object:
    """Load a name on first use; those of learning load torch, the others do not."""
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value: object = getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
    return value
