"""What a top-m run has to remember: one line per unit of work, and where its model was refitted.

Coalitions are not stored: a unit is a function of (seed, index, kind, arms). A snapshot is a few
arrays and a JSON head, and running it again gives the same state bit for bit.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import cast

import numpy as np

from privml.backbones.digests import Json
from privml.valuation.errors import CorruptResult
from privml.valuation.topm.evidence import Hyperparameters
from privml.valuation.topm.sums import Floats, Ints
from privml.valuation.topm.target import Kind


@dataclass(frozen=True, eq=False)
class Line:
    """One applied unit: its kind, its arms and the scores that were told."""

    kind: Kind
    arms: tuple[int, ...]
    scores: Floats


@dataclass(frozen=True)
class Fit:
    """A refit: after how many applied units, which kernel, which hyperparameters."""

    units: int
    kernel: int
    hyper: Hyperparameters


@dataclass(frozen=True, eq=False)
class Snapshot:
    """A run that can be taken up again.

    Attributes
    ----------
    arrays
        ``kinds`` (U,) int64, ``arms`` (U, 2) int64 with -1 for none, ``lengths`` (U,) int64 and
        ``scores`` (sum of lengths,) float64.
    head
        JSON: digest of the settings, fits, units before the last rebuild, requests in flight.
    """

    arrays: Mapping[str, Ints | Floats]
    head: Mapping[str, Json]


@dataclass
class Journal:
    """Lines and fits of a run, in the order they were applied."""

    lines: list[Line] = field(default_factory=list)
    fits: list[Fit] = field(default_factory=list)

    def arrays(self) -> dict[str, Ints | Floats]:
        """Return the lines as arrays."""
        arms = np.full((len(self.lines), 2), -1, dtype=np.int64)
        for row, line in enumerate(self.lines):
            arms[row, : len(line.arms)] = line.arms
        scores = [line.scores for line in self.lines]
        return {
            "kinds": np.array([line.kind for line in self.lines], dtype=np.int64),
            "arms": arms,
            "lengths": np.array([len(part) for part in scores], dtype=np.int64),
            "scores": np.concatenate(scores) if scores else np.empty(0),
        }

    def kinds(self) -> dict[Kind, int]:
        """Return how many units of each kind there are."""
        kinds = [line.kind for line in self.lines]
        return {kind: kinds.count(kind) for kind in Kind}

    def fits_json(self) -> list[Json]:
        """Return the fits as JSON."""
        return [
            {"units": fit.units, "kernel": fit.kernel, "hyper": fit.hyper.as_json()}
            for fit in self.fits
        ]


def read_lines(arrays: Mapping[str, Ints | Floats]) -> list[Line]:
    """Return the lines of a snapshot.

    Raises
    ------
    CorruptResult
        The arrays do not fit together.
    """
    try:
        kinds, arms = arrays["kinds"], arrays["arms"]
        lengths, scores = arrays["lengths"], arrays["scores"]
    except KeyError as error:
        raise CorruptResult(f"the snapshot has no array {error}; run again") from None
    sound = (
        kinds.ndim == lengths.ndim == scores.ndim == 1
        and arms.shape == (len(kinds), 2)
        and len(lengths) == len(kinds)
        and kinds.dtype == arms.dtype == lengths.dtype == np.int64
        and scores.dtype == np.float64
        and bool((lengths >= 0).all())
        and int(lengths.sum()) == len(scores)
        and bool(np.isin(kinds, list(Kind)).all())
        and bool(np.isfinite(scores).all())
    )
    if not sound:
        raise CorruptResult("the arrays of the snapshot do not fit together; run again")
    parts = np.split(scores.astype(np.float64), np.cumsum(lengths)[:-1]) if len(kinds) else []
    return [
        Line(Kind(int(kind)), tuple(int(a) for a in pair if a >= 0), part)
        for kind, pair, part in zip(kinds, arms, parts, strict=True)
    ]


def read_fits(given: Json) -> list[Fit]:
    """Return the fits of a snapshot's head; raises ``CorruptResult``."""
    try:
        return [_fit(cast("Mapping[str, object]", e)) for e in cast("list[Json]", given)]
    except (KeyError, TypeError, ValueError) as error:
        raise CorruptResult("the fits of the snapshot cannot be read; run again") from error


def _fit(entry: Mapping[str, object]) -> Fit:
    hyper = entry["hyper"]
    if not isinstance(hyper, Mapping):
        raise TypeError("hyper")
    weights = tuple(float(value) for value in hyper["weights"])
    rest = {name: float(hyper[name]) for name in ("own", "noise", "pair_noise", "mean")}
    hyper_read = Hyperparameters(weights, **rest)
    return Fit(int(str(entry["units"])), int(str(entry["kernel"])), hyper_read)
