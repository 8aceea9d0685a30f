"""Any scikit-learn estimator as a utility: one clone trained per coalition."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, Final

import numpy as np
from sklearn.base import clone

from privml.backbones.digests import Json
from privml.rng import ScienceSeed
from privml.valuation.errors import SettingError, UtilityFailed
from privml.valuation.problem import Floats, Ints, Problem
from privml.valuation.utilities.base import (
    Coalitions,
    Game,
    Utility,
    class_codes,
    class_shares,
    plain,
)
from privml.valuation.utilities.metrics import Empty, Scorer

_SEED_RANGE: Final = 1 << 31


@dataclass(frozen=True)
class EstimatorUtility(Utility):
    """Score of a clone of ``estimator`` trained on the coalition.

    Labels are handed over as codes 0..c-1. Every ``random_state`` among the parameters is set from
    ``seed`` and the names of the coalition's rows (``Problem.row_ids``), so equal coalitions get
    equal scores, also once other rows are deleted.

    Parameters
    ----------
    estimator
        Unfitted estimator; never changed.
    metric
        None for accuracy or R2. ``"log_likelihood"``, ``"margin"`` and ``"auc"`` need
        ``predict_proba``.
    empty
        U(empty).
    seed
        Seed of random estimators.
    """

    kind: ClassVar[str] = "estimator/2"
    estimator: Any
    metric: str | None = None
    empty: Empty = "chance"
    seed: int = 0

    def open(self, problem: Problem) -> EstimatorGame:
        """Return the game of a problem."""
        for name in ("fit", "predict", "get_params"):
            if not hasattr(self.estimator, name) or isinstance(self.estimator, type):
                raise SettingError(f"estimator={self.estimator!r} has no {name}(); give an object")
        return EstimatorGame(problem, self)

    def spec(self) -> dict[str, Json]:
        """Return the settings as JSON; raises ``SettingError`` for parameters without one."""
        return {
            "kind": self.kind,
            "estimator": described(self.estimator),
            "metric": self.metric,
            "empty": plain(self.empty),
            "seed": self.seed,
        }


class EstimatorGame(Game):
    """The game of :class:`EstimatorUtility`."""

    batch = 1
    local = True

    def __init__(self, problem: Problem, utility: EstimatorUtility) -> None:
        self._problem, self._estimator = problem, utility.estimator
        self._regression = problem.task == "regression"
        metric = utility.metric or ("r2" if self._regression else "accuracy")
        self._scorer = Scorer.of(metric, problem)
        self._seed = ScienceSeed(utility.seed)
        names = utility.estimator.get_params(deep=True)
        self._random = [name for name in names if name.rpartition("__")[2] == "random_state"]
        super().__init__(
            problem.players, self._scorer.of_empty(utility.empty), row_counts=problem.row_counts
        )

    def _score(self, coalitions: Coalitions) -> Floats:
        return np.array([self._one(self._problem.rows_of_all(c)) for c in coalitions])

    def _one(self, rows: Ints) -> float:
        problem = self._problem
        if self._regression:
            model = self._fitted(rows, problem.y[rows])
            return float(self._scorer.targets(np.asarray(model.predict(problem.X_val))[None])[0])
        codes = problem.codes[rows]
        if (codes == codes[0]).all():
            return self._scorer.of_class(int(codes[0]))
        model = self._fitted(rows, codes)
        if self._scorer.metric in {"accuracy", "balanced_accuracy"}:
            predicted = model.predict(problem.X_val)
            m, classes = len(problem.X_val), len(problem.classes)
            labels = class_codes(predicted, rows=m, classes=classes)
            return float(self._scorer.labels(labels[None])[0])
        found = class_shares(model, problem.X_val, classes=len(problem.classes))
        return float(self._scorer.probabilities(found[None])[0])

    def _fitted(self, rows: Ints, target: Any) -> Any:  # noqa: ANN401 - an estimator
        model = clone(self._estimator)
        if self._random:
            draw = self._seed.child(*self._problem.names_of(rows)).generator()
            model.set_params(**{name: int(draw.integers(_SEED_RANGE)) for name in self._random})
        try:
            return model.fit(self._problem.X[rows], target)
        except Exception as error:
            raise UtilityFailed(
                f"{type(model).__name__}.fit raised {type(error).__name__}: {error}",
                coalition=np.unique(self._problem.player_of[rows]).tolist(),
            ) from error


def described(value: Any) -> Json:  # noqa: ANN401 - parameters of any estimator
    """Return an estimator, or one of its parameters, as JSON."""
    if hasattr(value, "get_params") and not isinstance(value, type):
        name = f"{type(value).__module__}.{type(value).__qualname__}"
        return {"class": name, "params": described(value.get_params(deep=False))}
    if isinstance(value, dict):
        return {str(k): described(v) for k, v in sorted(value.items())}
    if isinstance(value, list | tuple):
        return [described(v) for v in value]
    if callable(value):
        return f"{value.__module__}.{value.__qualname__}"
    if isinstance(value, np.ndarray):
        return described(value.tolist())
    if isinstance(value, float) and not np.isfinite(value):
        return repr(value)
    return plain(value)
