"""The one return type of encrypted classifiers, whatever the scheme and the mode."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from privml.backbones.digests import Json
from privml.errors import ParameterError
from privml.protocols.fhe.costs import Range
from privml.protocols.fhe.entry import Mode
from privml.protocols.fhe.planned import SHARE_RESULTS
from privml.protocols.fhe.reliability import Disagreement

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

_LABELS = {
    Mode.CLEAR: "clear numbers, not encrypted",
    Mode.SIMULATE: "simulated, not encrypted",
    Mode.EXECUTE: "encrypted",
}


@dataclass(frozen=True, eq=False, kw_only=True)
class Prediction:
    """Scores of images and how they came about.

    Attributes
    ----------
    scheme, mode
        ``"tfhe"`` or ``"ckks"``; clear, simulated or encrypted.
    scores
        Shape (n, classes), float64.
    names
        Names of the classes, or empty.
    failure_probability
        Per image. TFHE: at least one table is off, which seldom changes the class. CKKS: a score
        is off by more than ``error_bound``. 0 in clear mode.
    error_bound
        Largest error of a score that is expected (CKKS); none for TFHE.
    disagreement
        Measured share of images whose class changes (TFHE, contract ``measured``).
    simulator
        What drew the errors of a simulation.
    seconds, core_s
        Wall time and CPU time of this call, both parties, without key generation.
    predicted_core_s
        What the plan said about all images of this call; none in other modes than execute.
    program
        Digest of the graph or network.
    licence
        Licence notice of the back end.
    """

    scheme: str
    mode: Mode
    scores: Floats
    names: tuple[str, ...]
    failure_probability: float
    error_bound: float | None
    disagreement: Disagreement | None
    simulator: str | None
    seconds: float
    core_s: float
    predicted_core_s: Range | None
    program: str
    licence: str

    @property
    def classes(self) -> Ints:
        """Index of the highest score of each image, shape (n,); the first one of equals."""
        result: Ints = self.scores.argmax(axis=1).astype(np.int64)
        return result

    @property
    def labels(self) -> tuple[str, ...]:
        """Name of the class of each image; its number where classes have no names."""
        return tuple(self.names[k] if self.names else str(k) for k in self.classes.tolist())

    @property
    def note(self) -> str:
        """What to print beside any figure that comes from these scores."""
        by = "" if self.simulator is None else f" (by the {self.simulator})"
        return _LABELS[self.mode] + by

    def to_dict(self) -> dict[str, Json]:
        """Return plain values for a report; scores included."""
        cost = self.predicted_core_s
        return {
            "scheme": self.scheme, "mode": self.mode.value, "note": self.note,
            "scores": self.scores.tolist(), "labels": list(self.labels),
            "failure_probability": self.failure_probability, "error_bound": self.error_bound,
            "disagreement": None if self.disagreement is None else self.disagreement.to_dict(),
            "simulator": self.simulator,
            "seconds": self.seconds, "core_s": self.core_s,
            "predicted_core_s": None if cost is None else [cost.low, cost.expected, cost.high],
            "program": self.program, "share_results": SHARE_RESULTS, "licence": self.licence,
        }  # fmt: skip


def parse_mode(mode: Mode | str) -> Mode:
    """Return the mode of that name; there is no default and no fallback.

    Raises
    ------
    ParameterError
        There is no such mode.
    """
    if mode not in list(Mode):
        raise ParameterError(f"mode must be one of {', '.join(Mode)}, not {mode!r}")
    return Mode(mode)
