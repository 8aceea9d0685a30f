"""What a coalition of rows is worth to a nearest-neighbour model, and the setting that says so.

For one validation row with truth t, the rows of a coalition S by distance, w their weights, u their
match ``[y = t]`` or, in a regression, their target:

* k neighbours, divided by k: ``sum of w u / k``; in a regression ``-(sum of w u / k - t)^2``. Rows
  that are missing count as 0, so U(empty) is 0, in a regression ``-t^2`` (Jia et al., PVLDB 2019).
* k neighbours, ``normalised``: divided by the sum of w instead, with uniform weights
  ``min(k, |S|)`` (Wang and Jia 2023); U(empty) is a stated constant.
* ``radius``: the share of matching rows within the radius, U(empty) a stated constant, which also
  holds where no row is near (Wang et al., NeurIPS 2023).

U(S) is the mean over validation rows. They never see each other.
"""

from __future__ import annotations

import math
import sys
from dataclasses import dataclass
from typing import Any, Final, Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray

from privml.backbones.digests import Json
from privml.valuation.errors import ProblemError, SettingError
from privml.valuation.problem import Floats, Ints, Problem
from privml.valuation.utilities.base import settings_json

Weights: TypeAlias = Literal["uniform", "inverse", "gaussian"]
WEIGHTS: Final = ("uniform", "inverse", "gaussian")
_FLOOR: Final = 1e-200


@dataclass(frozen=True)
class KnnRule:
    """Settings of a nearest-neighbour utility.

    Attributes
    ----------
    k
        Neighbours, at least 1.
    radius
        Distance up to which a row counts; then ``k`` and the weights are not used.
    weights
        ``"uniform"``, ``"inverse"``: ``1 / (1 + distance / bandwidth)``, or ``"gaussian"``:
        ``exp(-distance^2 / (2 bandwidth^2))``.
    bandwidth
        Unit of distance of the weights.
    normalised
        Divide by the sum of weights instead of k.
    empty
        U(empty) where the formula leaves it open: ``"chance"`` (1 / classes; in a regression
        ``-t^2``, the score of predicting 0) or a number.
    """

    k: int = 5
    radius: float | None = None
    weights: Weights = "uniform"
    bandwidth: float = 1.0
    normalised: bool = False
    empty: Literal["chance"] | float = "chance"

    def check(self, problem: Problem) -> None:
        """Raise ``SettingError`` or ``ProblemError`` if a setting is out of range."""
        if not _whole(self.k) or self.k < 1:
            raise SettingError(f"k={self.k!r} must be a whole number of at least 1")
        if self.weights not in WEIGHTS:
            raise SettingError(f"weights={self.weights!r} is unknown; use one of {WEIGHTS}")
        if not 0 < _number(self.bandwidth) < math.inf:
            raise SettingError(f"bandwidth={self.bandwidth!r} must be a positive number")
        if self.empty != "chance" and not math.isfinite(_number(self.empty)):
            raise SettingError(f"empty={self.empty!r}: give 'chance' or a finite number")
        if self.radius is not None:
            if not 0 <= _number(self.radius) < math.inf:
                raise SettingError(f"radius={self.radius!r} must be a number of at least 0")
            if self.weights != "uniform" or self.normalised:
                raise SettingError("weights and normalised belong to k neighbours, not to a radius")
            if problem.task != "classification":
                raise ProblemError("a radius needs classes; use k neighbours for a regression")

    def spec(self) -> dict[str, Json]:
        """Return the settings as JSON."""
        return settings_json(self)

    def weigh(self, squares: Floats) -> Floats | float:
        """Return weights of squared distances; 1 for uniform ones."""
        if self.weights == "uniform":
            return 1.0
        if self.weights == "inverse":
            with np.errstate(over="ignore"):
                near = 1.0 / (1.0 + np.sqrt(squares) / self.bandwidth)
            return np.asarray(np.maximum(near, _FLOOR))
        unit = 2.0 * self.bandwidth * self.bandwidth
        with np.errstate(over="ignore"):
            # the square of a bandwidth may be 0 or infinite where the bandwidth is not
            plain = sys.float_info.min <= unit < math.inf
            scaled = squares / unit if plain else squares / self.bandwidth / self.bandwidth / 2.0
        return np.asarray(np.maximum(np.exp(-scaled), _FLOOR))

    def nothing(self, problem: Problem, truth: Floats) -> Floats:
        """Return (m,) U(empty) of each validation row."""
        regression = problem.task == "regression"
        if self.radius is None and not self.normalised:
            return -(truth**2) if regression else np.zeros(len(truth))
        if self.empty != "chance":
            return np.full(len(truth), float(self.empty))
        return -(truth**2) if regression else np.full(len(truth), 1.0 / len(problem.classes))

    def worth(
        self,
        problem: Problem,
        truth: Floats,
        labels: Floats,
        squares: Floats,
        there: Any,  # noqa: ANN401
    ) -> Floats:
        """Return U of one coalition for each of some validation rows, by definition.

        Parameters
        ----------
        problem
            The problem.
        truth
            (b,) truths.
        labels, squares, there
            (b, s) labels and squared distances of rows by distance, and which of them belong to
            the coalition.
        """
        there = np.broadcast_to(there, labels.shape)
        if self.radius is None:
            there = there & (np.cumsum(there, axis=1) <= self.k)
        else:
            there = there & (squares <= self.radius * self.radius)
        regression = problem.task == "regression"
        own = labels if regression else (labels == truth[:, None]).astype(np.float64)
        weight = np.where(there, self.weigh(squares), 0.0)
        total = (weight * own).sum(axis=1)
        divisor = weight.sum(axis=1)
        if self.radius is None and not self.normalised:
            divisor = np.full(len(truth), float(self.k))
        answer = total / np.where(divisor > 0, divisor, 1.0)
        score = -((answer - truth) ** 2) if regression else answer
        return np.where(there.any(axis=1), score, self.nothing(problem, truth))


def harmonic(count: int) -> Floats:
    """Return (count + 1,) float64 the harmonic numbers H_0 = 0 to H_count."""
    return np.concatenate([[0.0], np.cumsum(1.0 / np.arange(1, count + 1))])


def scattered(order: NDArray[Any], values: Floats, count: int) -> Floats:
    """Return (count,) sums over validation rows of (b, s) values that belong to (b, s) rows."""
    total = np.bincount(order.ravel(), weights=values.ravel(), minlength=count)
    return total.astype(np.float64, copy=False)


def places(order: NDArray[Any]) -> Ints:
    """Return (b, n) the place of each row in a (b, n) order of all rows."""
    out = np.empty(order.shape, dtype=np.int64)
    np.put_along_axis(out, order.astype(np.int64), np.arange(order.shape[1])[None], axis=1)
    return out


def _whole(value: object) -> bool:
    return isinstance(value, int | np.integer) and not isinstance(value, bool)


def _number(value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float | np.number):
        return math.nan
    return float(value)
