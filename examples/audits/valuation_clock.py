"""Costs of valuations: CPU and wall seconds, ours and a peer's in turn, on one pinned core."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from statistics import median
from typing import Any


@dataclass(frozen=True)
class Cost:
    """What a piece of work took.

    Attributes
    ----------
    cpu_s, wall_s
        CPU seconds of the process and seconds that passed.
    units
        Pieces, for a cost per piece.
    """

    cpu_s: float
    wall_s: float
    units: float = 1.0

    @property
    def each_us(self) -> float:
        """CPU microseconds of one piece."""
        return self.cpu_s / self.units * 1e6


def costed(work: Callable[[], Any], units: float = 1.0) -> tuple[Any, Cost]:
    """Return what `work` returns, and its cost."""
    wall, cpu = time.perf_counter(), time.process_time()
    found = work()
    return found, Cost(time.process_time() - cpu, time.perf_counter() - wall, units)


def told(answer: Mapping[str, Any], units: float = 1.0) -> Cost:
    """Return the cost that a peer's worker measured."""
    return Cost(float(answer["cpu_s"]), float(answer["wall_s"]), units)


@dataclass(frozen=True)
class Duel:
    """Costs of both sides, turn by turn."""

    ours: tuple[Cost, ...]
    theirs: tuple[Cost, ...]

    @property
    def ratio(self) -> float:
        """Median over turns of the peer's CPU time per piece over ours."""
        return median(b.each_us / a.each_us for a, b in zip(self.ours, self.theirs, strict=True))

    def as_dict(self) -> dict[str, object]:
        """Return what a reader may check: costs, turns and the ratio by wall time."""
        pairs = list(zip(self.ours, self.theirs, strict=True))
        wall = [(b.wall_s / b.units) / (a.wall_s / a.units) for a, b in pairs]
        cpu = [b.each_us / a.each_us for a, b in pairs]
        return {
            "ours_us": median(c.each_us for c in self.ours),
            "theirs_us": median(c.each_us for c in self.theirs),
            "turns": len(pairs),
            "ratio_min": min(cpu),
            "ratio_max": max(cpu),
            "ratio_by_wall_time": median(wall),
            "pieces": [self.ours[0].units, self.theirs[0].units],
        }


def duel(ours: Callable[[int], Cost], theirs: Callable[[int], Cost], turns: int) -> Duel:
    """Run both sides in turn; who goes first alternates. One turn before does not count for ours.

    Parameters
    ----------
    ours, theirs
        Do the work of one turn and return its cost.
    turns
        Pairs to run.
    """
    ours(0)
    mine, others = [], []
    for turn in range(turns):
        if turn % 2:
            others.append(theirs(turn))
            mine.append(ours(turn))
        else:
            mine.append(ours(turn))
            others.append(theirs(turn))
    return Duel(tuple(mine), tuple(others))


@contextmanager
def pinned() -> Iterator[None]:
    """Keep this process, and children started meanwhile, on one core, where the system can."""
    if not hasattr(os, "sched_setaffinity"):
        yield
        return
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {max(before)})
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)
