"""Checkpoints of a run: one safetensors file, replaced whole or not at all.

A file names the digest of everything the values depend on, and another run refuses it; a digest
over its content finds damage. What it holds are sums over units: the rest follows from the seed.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from numpy.typing import NDArray

from privml.backbones import run_state
from privml.backbones.digests import Json
from privml.errors import Corrupt, ParameterError
from privml.valuation.errors import CorruptResult, RunMismatch

_NUMBERS = {"units": int, "evaluations": int, "rows_trained": int, "seconds": float, "full": float}


@dataclass(frozen=True, eq=False)
class State:
    """What a run continues from.

    Attributes
    ----------
    units
        Units done; the next one has this index.
    evaluations, rows_trained, seconds
        Cost so far.
    full
        U of all players, NaN if it was not needed.
    arrays
        State of the estimate.
    """

    units: int
    evaluations: int
    rows_trained: int
    seconds: float
    full: float
    arrays: Mapping[str, NDArray[Any]]


def write(path: Path, run: str, state: State) -> None:
    """Replace the checkpoint at ``path`` durably; a crash leaves the old or the new one."""
    plain: dict[str, Json] = {
        "units": state.units,
        "evaluations": state.evaluations,
        "rows_trained": state.rows_trained,
        "seconds": float(state.seconds),
        "full": None if state.full != state.full else float(state.full),
    }
    run_state.save_run(path, run=run, arrays=state.arrays, state=plain)


def read(path: Path, run: str) -> State | None:
    """Return the checkpoint at ``path``, None if there is none.

    Raises
    ------
    CorruptResult
        The file is damaged.
    RunMismatch
        It belongs to another problem, utility, sampler or seed.
    StorageError
        It cannot be read.
    """
    try:
        saved = run_state.load_run(path, run=run)
    except Corrupt as error:
        raise CorruptResult(str(error)) from error
    except ParameterError as error:
        raise RunMismatch(
            f"{path} belongs to a run with other data, utility, sampler, law or seed; choose "
            "another path, or remove it to start again"
        ) from error
    if saved is None:
        return None
    plain = dict(saved.state)
    full = plain.pop("full", None)
    plain["full"] = float("nan") if full is None else full
    if set(plain) != set(_NUMBERS):
        raise CorruptResult(f"{path} holds other fields than a checkpoint; remove it")
    for name, value in plain.items():
        wanted = (int, float) if _NUMBERS[name] is float else (int,)
        fits = isinstance(value, wanted) and not isinstance(value, bool)
        if not fits or (name != "full" and value < 0):  # type: ignore[operator]
            raise CorruptResult(f"{path}: {name} has no valid value; remove it to start again")
    return State(**plain, arrays=saved.arrays)  # type: ignore[arg-type]
