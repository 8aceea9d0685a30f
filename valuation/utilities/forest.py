"""A forest that learns and forgets rows as a utility: updates instead of trainings.

The forest comes from the caller; this module knows it by structure only. It must be exact: what it
answers depends on the rows it holds, never on the order of its updates. Then a coalition may be
reached from any other by the rows in which they differ.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, Protocol, Self

import numpy as np
from numpy.typing import NDArray

from privml.backbones.digests import Json
from privml.valuation.errors import SettingError
from privml.valuation.problem import Floats, Ints, PlayerId, Problem
from privml.valuation.utilities.base import (
    Coalitions,
    Game,
    Truncation,
    Utility,
    class_codes,
    class_shares,
    plain,
    single,
)
from privml.valuation.utilities.metrics import Empty, Scorer


class Forest(Protocol):
    """What a forest must offer; ids are the names of rows: an int64 array, or a list with texts."""

    def fit(self, X: Any, y: Any, *, ids: Any = None) -> Self:  # noqa: ANN401
        """Replace all rows."""

    def learn(self, X: Any, y: Any, *, ids: Any = None) -> Any:  # noqa: ANN401
        """Add rows."""

    def unlearn(self, ids: Any) -> Any:  # noqa: ANN401
        """Remove rows exactly."""

    def predict(self, X: Any) -> NDArray[Any]:  # noqa: ANN401
        """Return one answer per row."""


@dataclass(frozen=True)
class ForestUtility(Utility):
    """Score of an exactly updatable forest.

    Parameters
    ----------
    make
        Class or function that returns an unfitted forest from keyword arguments; it gets
        ``params``, ``random_state=seed`` and, for classes, ``classes=[0, 1, ...]``. Forests made
        with equal arguments must be equal.
    params
        Keyword arguments, plain values.
    metric
        None for accuracy or R2. Others than those need ``predict_proba`` and ``classes_``.
    empty
        U(empty).
    seed
        Randomness of the forest.
    """

    kind: ClassVar[str] = "forest/2"
    make: Callable[..., Any]
    params: Mapping[str, Any] = field(default_factory=dict)
    metric: str | None = None
    empty: Empty = "chance"
    seed: int = 0

    def open(self, problem: Problem) -> ForestGame:
        """Return the game of a problem."""
        if not callable(self.make):
            raise SettingError("make must be a class or function that returns a forest")
        return ForestGame(problem, self)

    def spec(self) -> dict[str, Json]:
        """Return the settings as JSON."""
        return {
            "kind": self.kind,
            "make": f"{self.make.__module__}.{self.make.__qualname__}",
            "params": plain(dict(self.params)),
            "metric": self.metric,
            "empty": plain(self.empty),
            "seed": self.seed,
        }


class ForestGame(Game):
    """The game of :class:`ForestUtility`."""

    batch = 4
    local = True

    def __init__(self, problem: Problem, utility: ForestUtility) -> None:
        self._problem, self._utility = problem, utility
        self._regression = problem.task == "regression"
        metric = utility.metric or ("r2" if self._regression else "accuracy")
        self._scorer = Scorer.of(metric, problem)
        self._lock = threading.Lock()
        self._x = single("X", problem.X)
        self._x_val = single("X_val", problem.X_val)
        self._target = problem.y if self._regression else problem.codes
        self._living: frozenset[int] = frozenset()
        self._forest: Any = None
        super().__init__(
            problem.players, self._scorer.of_empty(utility.empty), row_counts=problem.row_counts
        )
        self._make()

    def _make(self) -> Forest:
        arguments = dict(self._utility.params) | {"random_state": self._utility.seed}
        if not self._regression:
            arguments["classes"] = list(range(len(self._problem.classes)))
        forest: Forest = self._utility.make(**arguments)
        for name in ("fit", "learn", "unlearn", "predict"):
            if not hasattr(forest, name):
                raise SettingError(f"the forest has no {name}(); give one that learns and forgets")
        return forest

    def _score(self, coalitions: Coalitions) -> Floats:
        with self._lock:
            return np.array([self._moved_to(self._problem.rows_of_all(c)) for c in coalitions])

    def _walks(self, orders: Ints) -> Floats:
        return self._steps(orders, None)

    def _truncated_walks(self, orders: Ints, truncation: Truncation) -> Floats:
        return self._steps(orders, truncation)

    def _steps(self, orders: Ints, truncation: Truncation | None) -> Floats:
        """Grow a forest of its own along each walk."""
        out = np.full(orders.shape, np.nan)
        for walk, order in enumerate(orders):
            forest, codes, before = self._make(), set[int](), self.empty
            for step, player in enumerate(order.tolist()):
                if truncation and abs(truncation.full - before) < truncation.tolerance:
                    break
                rows = self._problem.rows_of(player)
                add = forest.learn if step else forest.fit
                add(self._x[rows], self._target[rows], ids=self._names(rows))
                codes.update(self._target[rows].astype(np.int64).tolist())
                before = out[walk, step] = self._answer(forest, codes)
        return out

    def _moved_to(self, rows: Ints) -> float:
        """Bring the kept forest to a set of rows by the shorter way, and score it."""
        wanted = frozenset(rows.tolist())
        adding = np.array(sorted(wanted - self._living), dtype=np.int64)
        removing = np.array(sorted(self._living - wanted), dtype=np.int64)
        if self._forest is None or len(adding) + len(removing) >= len(rows):
            self._forest = self._make()
            self._forest.fit(self._x[rows], self._target[rows], ids=self._names(rows))
        else:
            if len(adding):
                names = self._names(adding)
                self._forest.learn(self._x[adding], self._target[adding], ids=names)
            if len(removing):
                self._forest.unlearn(self._names(removing))
        self._living = wanted
        return self._answer(self._forest, set(self._target[rows].astype(np.int64).tolist()))

    def _names(self, rows: Ints) -> Ints | list[PlayerId]:
        """Return what a forest knows rows by: they keep it when others are deleted."""
        names = list(self._problem.names_of(rows))
        whole = all(isinstance(name, int) for name in names)
        return np.array(names, dtype=np.int64) if whole else names

    def _answer(self, forest: Any, codes: set[int]) -> float:  # noqa: ANN401 - a forest
        if self._regression:
            return float(self._scorer.targets(np.asarray(forest.predict(self._x_val))[None])[0])
        if len(codes) == 1:
            return self._scorer.of_class(next(iter(codes)))
        if self._scorer.metric in {"accuracy", "balanced_accuracy"}:
            m, classes = len(self._x_val), len(self._problem.classes)
            labels = class_codes(forest.predict(self._x_val), rows=m, classes=classes)
            return float(self._scorer.labels(labels[None])[0])
        shares = class_shares(forest, self._x_val, classes=len(self._problem.classes))
        return float(self._scorer.probabilities(shares[None])[0])
