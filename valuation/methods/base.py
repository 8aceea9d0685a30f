"""Shared parts of the methods: problem from a table, digests, results."""

from __future__ import annotations

import math
import platform
from abc import abstractmethod
from collections.abc import Iterable, Mapping
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, Final, Self

import numpy as np
from numpy.typing import ArrayLike
from sklearn.base import BaseEstimator

from privml.backbones.digests import Json, canonical_json, sha256
from privml.rng import ScienceSeed
from privml.valuation.checks import is_finite, is_whole
from privml.valuation.errors import SettingError
from privml.valuation.intervals import rounding
from privml.valuation.problem import Floats, PlayerId, Problem, Task
from privml.valuation.result import ValuationResult
from privml.valuation.utilities.base import Game, Utility

_SEED_LIMIT: Final = 1 << 128


class Valuer(BaseEstimator):  # type: ignore[misc]
    """A method after the conventions of scikit-learn: settings in the constructor, then ``fit``.

    Attributes
    ----------
    result_
        The :class:`privml.valuation.result.ValuationResult` of the last fit.
    """

    result_: ValuationResult

    def fit(
        self,
        X: ArrayLike,
        y: ArrayLike,
        X_val: ArrayLike,
        y_val: ArrayLike,
        *,
        groups: Iterable[PlayerId] | None = None,
        ids: Iterable[PlayerId] | None = None,
        task: Task | None = None,
    ) -> Self:
        """Value the rows, or groups of rows, of a table.

        Parameters
        ----------
        X, y, X_val, y_val, groups, ids, task
            As :meth:`privml.valuation.problem.Problem.of` takes them.

        Raises
        ------
        ProblemError, SettingError
            The table or a setting does not fit.
        UtilityFailed
            A model could not be trained or scored.
        """
        problem = Problem.of(X, y, X_val, y_val, ids=ids, groups=groups, task=task)
        return self.fit_problem(problem)

    @abstractmethod
    def fit_problem(self, problem: Problem) -> Self:
        """Value the players of a problem."""

    @property
    def values_(self) -> Floats:
        """(players,) float64 values of the last fit."""
        return self.result_.values


def seed_of(random_state: int | ScienceSeed) -> ScienceSeed:
    """Return the seed that ``random_state`` stands for; raises ``SettingError``."""
    if isinstance(random_state, ScienceSeed):
        return random_state
    if isinstance(random_state, bool) or not isinstance(random_state, int | np.integer):
        raise SettingError(f"random_state={random_state!r}: give an integer or a ScienceSeed")
    if not 0 <= int(random_state) < _SEED_LIMIT:
        raise SettingError(f"random_state={random_state} must lie in [0, 2^128)")
    return ScienceSeed(int(random_state))


def seed_text(seed: ScienceSeed) -> str:
    """Return a seed as results show it."""
    return f"{seed.value:x}"


def path_of(name: str, path: object) -> Path | None:
    """Return the path that a setting gives, None for None; raises ``SettingError``."""
    if path is None:
        return None
    if not isinstance(path, str | Path) or not str(path) or "\0" in str(path):
        raise SettingError(f"{name}={path!r}: give a path, without zero characters")
    return Path(path)


def require_whole(name: str, value: object, *, least: int = 1) -> None:
    """Raise ``SettingError`` unless a setting is a whole number of at least ``least``."""
    if not is_whole(value) or int(value) < least:  # type: ignore[call-overload]
        raise SettingError(f"{name}={value!r}: give at least {least}, a whole number")


def require_level(level: object) -> None:
    """Raise ``SettingError`` unless a confidence lies strictly between 0 and 1."""
    if not is_finite(level) or not 0 < level < 1:  # type: ignore[operator]
        raise SettingError(f"ci_level={level!r} must lie strictly between 0 and 1")


def checked_utility(utility: object) -> Utility:
    """Return the utility; raises ``SettingError`` if it is something else, as a class."""
    if not isinstance(utility, Utility):
        raise SettingError(
            f"utility={utility!r} is no utility: give an object such as RidgeUtility()"
        )
    return utility


def spec_digest(spec: Mapping[str, Json]) -> str:
    """Return the digest of a specification."""
    return sha256(canonical_json(dict(spec)))


def versions() -> dict[str, str]:
    """Return the versions that a result records."""
    return dict(_versions())


@cache
def _versions() -> dict[str, str]:
    out = {"python": platform.python_version(), "numpy": np.__version__}
    for name in ("privml", "scikit-learn"):
        try:
            out[name] = version(name)
        except PackageNotFoundError:
            out[name] = "unknown"
    return out


def residual(values: Floats, full: float, empty: float) -> float:
    """Return sum of values - (U(N) - U(empty)), summed exactly."""
    return math.fsum([*values.tolist(), -full, empty])


def exact_result(
    game: Game,
    values: Floats,
    *,
    ids: tuple[PlayerId, ...],
    counts: int,
    largest: float,
    **others: Any,  # noqa: ANN401 - remaining fields
) -> ValuationResult:
    """Return a result without uncertainty but rounding; the cost is the game's tally.

    ``largest`` is the largest size of a utility.
    """
    n = game.players
    floor = rounding(largest, 2 * n)
    return ValuationResult(
        ids=ids,
        values=values,
        stderr=np.zeros(n),
        ci_low=values - floor,
        ci_high=values + floor,
        rounding=floor,
        counts=np.full(n, counts, dtype=np.int64),
        truncated_counts=np.zeros(n, dtype=np.int64),
        evaluations=game.tally.evaluations,
        rows_trained=game.tally.rows_trained,
        status="exact",
        versions=versions(),
        **others,
    )
