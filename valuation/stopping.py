"""When a valuation stops: budgets and precision, combined with ``|`` (first) and ``&`` (all).

Rules are asked after fixed numbers of units, never in between, so a run stops at the same unit
whatever the number of processes. :class:`MaxSeconds` alone depends on the machine.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Literal

import numpy as np

from privml.backbones.digests import Json
from privml.valuation.checks import is_finite
from privml.valuation.errors import SettingError
from privml.valuation.problem import Floats


@dataclass(frozen=True)
class Verdict:
    """Why a run stops: ``status`` as in results, and the reason in words."""

    status: Literal["converged", "budget"]
    reason: str


@dataclass(frozen=True, eq=False)
class Progress:
    """State of a run.

    Attributes
    ----------
    units, evaluations, rows_trained
        Done so far.
    seconds
        Wall-clock time, including that before a resumption.
    values, stderr
        (n,) float64 estimates so far; NaN where unknown.
    """

    units: int
    evaluations: int
    rows_trained: int
    seconds: float
    values: Floats
    stderr: Floats


class Stopping(ABC):
    """A stopping rule."""

    @abstractmethod
    def verdict(self, progress: Progress) -> Verdict | None:
        """Return why to stop now, or None."""

    def evaluations(self) -> float:
        """Return the evaluations that may be spent in all; infinite if not limited."""
        return math.inf

    def units(self) -> float:
        """Return the units that may be done in all; infinite if not limited."""
        return math.inf

    @abstractmethod
    def spec(self) -> Json:
        """Return the rule as JSON."""

    def __or__(self, other: Stopping) -> Stopping:
        return AnyOf((self, other))

    def __and__(self, other: Stopping) -> Stopping:
        return AllOf((self, other))


@dataclass(frozen=True)
class MaxEvaluations(Stopping):
    """Stop before a unit would bring the evaluations above ``count``; never spend more."""

    count: int

    def __post_init__(self) -> None:
        _positive("MaxEvaluations", self.count, whole=True)

    def verdict(self, progress: Progress) -> Verdict | None:
        """Return the budget verdict once it is spent."""
        if progress.evaluations < self.count:
            return None
        return Verdict("budget", f"{self.count} evaluations")

    def evaluations(self) -> float:
        """Return the budget."""
        return float(self.count)

    def spec(self) -> Json:
        """Return the rule as JSON."""
        return {"max_evaluations": self.count}


@dataclass(frozen=True)
class MaxUnits(Stopping):
    """Stop after ``count`` units (walks, pairs of walks, draws)."""

    count: int

    def __post_init__(self) -> None:
        _positive("MaxUnits", self.count, whole=True)

    def verdict(self, progress: Progress) -> Verdict | None:
        """Return the budget verdict once the units are done."""
        if progress.units < self.count:
            return None
        beyond = progress.units > self.count  # of a checkpoint that had gone further
        done = f"{progress.units} units, more than the {self.count} asked for"
        return Verdict("budget", done if beyond else f"{self.count} units")

    def units(self) -> float:
        """Return the number."""
        return float(self.count)

    def spec(self) -> Json:
        """Return the rule as JSON."""
        return {"max_units": self.count}


@dataclass(frozen=True)
class MaxRows(Stopping):
    """Stop once ``count`` rows were trained, summed over coalitions."""

    count: int

    def __post_init__(self) -> None:
        _positive("MaxRows", self.count, whole=True)

    def verdict(self, progress: Progress) -> Verdict | None:
        """Return the budget verdict once it is spent."""
        if progress.rows_trained < self.count:
            return None
        return Verdict("budget", f"{self.count} rows trained")

    def spec(self) -> Json:
        """Return the rule as JSON."""
        return {"max_rows": self.count}


@dataclass(frozen=True)
class MaxSeconds(Stopping):
    """Stop after ``seconds`` of wall-clock time; the unit it stops at depends on the machine."""

    seconds: float

    def __post_init__(self) -> None:
        _positive("MaxSeconds", self.seconds)

    def verdict(self, progress: Progress) -> Verdict | None:
        """Return the budget verdict once the time is over."""
        if progress.seconds < self.seconds:
            return None
        return Verdict("budget", f"{self.seconds:g} s")

    def spec(self) -> Json:
        """Return the rule as JSON."""
        return {"max_seconds": float(self.seconds)}


@dataclass(frozen=True)
class StdErr(Stopping):
    """Stop once the standard error of every value is at most ``largest``.

    Parameters
    ----------
    largest
        > 0, in units of the metric.
    quantile
        Share of the players that must be that precise, 1 for all.
    least_units
        Units before the rule may speak: standard errors of few units are unreliable, and a rule
        that asks often stops early by luck.
    """

    largest: float
    quantile: float = 1.0
    least_units: int = 30

    def __post_init__(self) -> None:
        _positive("StdErr", self.largest)
        if not 0 < self.quantile <= 1 or self.least_units < 2:
            raise SettingError("StdErr: quantile lies in (0, 1] and least_units is at least 2")

    def verdict(self, progress: Progress) -> Verdict | None:
        """Return the verdict once enough players are precise enough."""
        if progress.units < self.least_units or np.isnan(progress.stderr).any():
            return None
        now = float(np.quantile(progress.stderr, self.quantile, method="inverted_cdf"))
        if now > self.largest:
            return None
        return Verdict("converged", f"standard error {now:.3g} <= {self.largest:g}")

    def spec(self) -> Json:
        """Return the rule as JSON."""
        return {"stderr": [float(self.largest), float(self.quantile), self.least_units]}


@dataclass(frozen=True)
class AnyOf(Stopping):
    """Stop when the first of several rules says so; made by ``|``."""

    rules: tuple[Stopping, ...]

    def verdict(self, progress: Progress) -> Verdict | None:
        """Return the first verdict there is."""
        return next((v for rule in self.rules if (v := rule.verdict(progress))), None)

    def evaluations(self) -> float:
        """Return the smallest budget."""
        return min(rule.evaluations() for rule in self.rules)

    def units(self) -> float:
        """Return the smallest number."""
        return min(rule.units() for rule in self.rules)

    def spec(self) -> Json:
        """Return the rule as JSON."""
        return {"any": [rule.spec() for rule in self.rules]}


@dataclass(frozen=True)
class AllOf(Stopping):
    """Stop when all of several rules say so; made by ``&``."""

    rules: tuple[Stopping, ...]

    def verdict(self, progress: Progress) -> Verdict | None:
        """Return the joint verdict: converged if each part is."""
        found = [rule.verdict(progress) for rule in self.rules]
        if any(verdict is None for verdict in found):
            return None
        known = [verdict for verdict in found if verdict is not None]
        all_converged = all(verdict.status == "converged" for verdict in known)
        reason = " and ".join(verdict.reason for verdict in known)
        return Verdict("converged" if all_converged else "budget", reason)

    def evaluations(self) -> float:
        """Return the largest budget."""
        return max(rule.evaluations() for rule in self.rules)

    def units(self) -> float:
        """Return the largest number."""
        return max(rule.units() for rule in self.rules)

    def spec(self) -> Json:
        """Return the rule as JSON."""
        return {"all": [rule.spec() for rule in self.rules]}


def _positive(name: str, value: float, *, whole: bool = False) -> None:
    if not is_finite(value) or not value > 0:
        raise SettingError(f"{name}({value}): give a positive number")
    if whole and int(value) != value:
        raise SettingError(f"{name}({value}): give a whole number")
