"""Checkpoints of a learning run, see :mod:`privml.backbones.run_state`."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from privml.backbones.digests import Json
from privml.backbones.run_state import Arrays, Saved, load_run, save_run

__all__ = ["FILE", "Saved", "load", "save"]

FILE = "checkpoint.safetensors"


def save(folder: Path, *, run: str, arrays: Arrays, state: Mapping[str, Json]) -> None:
    """Replace the checkpoint in ``folder``."""
    save_run(folder / FILE, run=run, arrays=arrays, state=state)


def load(folder: Path, *, run: str) -> Saved | None:
    """Return the checkpoint in ``folder``, or nothing if there is none."""
    return load_run(folder / FILE, run=run)
