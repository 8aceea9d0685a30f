"""Timing on a shared machine: warm-up, median with spread, and interleaved pairs.

A *sample* is a function that does the work once and returns its seconds; it may time itself, e.g.
inside a peer's process. :func:`stopwatch` makes one of any function.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import median
from typing import TypeAlias

Sample: TypeAlias = Callable[[], float]


@dataclass(frozen=True)
class Timing:
    """Seconds of repeated runs, in the order they were taken."""

    samples: tuple[float, ...]

    @property
    def median(self) -> float:
        """Middle value, s."""
        return median(self.samples)

    @property
    def minimum(self) -> float:
        """Least value, s."""
        return min(self.samples)

    @property
    def maximum(self) -> float:
        """Greatest value, s."""
        return max(self.samples)

    def as_dict(self) -> dict[str, object]:
        """Return median, range and number of runs."""
        return {
            "median_s": self.median,
            "min_s": self.minimum,
            "max_s": self.maximum,
            "runs": len(self.samples),
        }


@dataclass(frozen=True)
class Paired:
    """Runs of two subjects, taken in turn so that other load on the machine hits both."""

    ours: Timing
    theirs: Timing

    @property
    def ratios(self) -> tuple[float, ...]:
        """How many times longer the other side took, pair by pair."""
        pairs = zip(self.theirs.samples, self.ours.samples, strict=True)
        return tuple(b / a for b, a in pairs)

    @property
    def ratio(self) -> float:
        """Median of the pairs' ratios."""
        return median(self.ratios)

    def as_dict(self) -> dict[str, object]:
        """Return both timings and the spread of the ratio."""
        return {
            "ours": self.ours.as_dict(),
            "theirs": self.theirs.as_dict(),
            "ratio_min": min(self.ratios),
            "ratio_max": max(self.ratios),
        }


def stopwatch(work: Callable[[], object]) -> Sample:
    """Return a sample that takes the wall time of one call of `work`."""

    def sample() -> float:
        start = time.perf_counter()
        work()
        return time.perf_counter() - start

    return sample


def timed(sample: Sample, *, repeats: int = 5, warmup: int = 1) -> Timing:
    """Run `sample` `repeats` times after `warmup` runs that do not count.

    Raises
    ------
    ValueError
        `repeats` is below 1.
    """
    if repeats < 1:
        raise ValueError(f"repeats is {repeats}; give at least 1")
    for _ in range(warmup):
        sample()
    return Timing(tuple(sample() for _ in range(repeats)))


def paired(ours: Sample, theirs: Sample, *, repeats: int = 5, warmup: int = 1) -> Paired:
    """Run both samples in turn; who goes first alternates from pair to pair.

    Raises
    ------
    ValueError
        `repeats` is below 1.
    """
    if repeats < 1:
        raise ValueError(f"repeats is {repeats}; give at least 1")
    for _ in range(warmup):
        ours()
        theirs()
    pairs: list[Sequence[float]] = []
    for turn in range(repeats):
        if turn % 2 == 0:
            mine = ours()
            pairs.append((mine, theirs()))
        else:
            other = theirs()
            pairs.append((ours(), other))
    return Paired(Timing(tuple(p[0] for p in pairs)), Timing(tuple(p[1] for p in pairs)))
