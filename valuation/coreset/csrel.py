"""CSReL: rows chosen by what a reference knows of them and the coreset's model does not."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray
from sklearn.base import BaseEstimator

from privml.backbones.digests import Json, sha256
from privml.rng import ScienceSeed
from privml.valuation.coreset.crossfit import (
    Pool,
    checked_classifier,
    cross_fit,
    probabilities,
    trained,
)
from privml.valuation.coreset.picks import picked, round_ends
from privml.valuation.coreset.scores import reducible_loss
from privml.valuation.errors import ProblemError, SettingError
from privml.valuation.methods.base import seed_of, seed_text, spec_digest, versions
from privml.valuation.parallel import Workers
from privml.valuation.problem import Floats, Ints, PlayerId, Problem
from privml.valuation.utilities.estimator import described

PRESETS: Final[dict[str, dict[str, Any]]] = {
    "default": {
        "score": "prob",
        "reference": "cross-fit",
        "selection_steps": 25,
        "balanced": False,
    },
    "paper": {
        "score": "loss",
        "reference": "in-sample",
        "selection_steps": "size",
        "balanced": False,
    },
}
DEVIATIONS: Final = {
    "default": "score, cross-fitted reference and 25 rounds are ours",
    "paper": "before two classes are chosen, class shares stand in for an untrained network",
}


class CSReL(BaseEstimator):  # type: ignore[misc]
    """Coreset of a classification pool.

    A reference model is trained once. Then, round by round, a fresh model is trained on the rows
    chosen so far, and the rows with the best score join them: see
    :mod:`privml.valuation.coreset.scores`. Cost: one training per fold and one per round but the
    first, forward passes only for scoring.

    Parameters
    ----------
    estimator
        Unfitted classifier with ``predict_proba``; cloned, and seeded where it has a
        ``random_state``.
    size
        Rows to choose.
    reference_estimator
        Classifier of the reference; None takes ``estimator``. Train it briefly: one that
        interpolates wrong labels no longer filters them.
    preset
        ``"default"`` (ours) or ``"paper"``; sets what is None below.
    score
        ``"prob"``, ``"loss-capped"`` or ``"loss"``.
    cap
        Nats, for ``"loss-capped"``.
    reference
        ``"cross-fit"``: no model scores rows that it was trained on. ``"in-sample"``: one model of
        the whole pool, as in the paper.
    folds
        Models of a cross-fitted reference.
    selection_steps
        Rounds, or ``"size"`` for one row a round; at most one per row.
    balanced
        Whether classes are chosen in equal numbers, as far as the pool has them; costs accuracy
        where labels are wrong, because a class of suspect rows still gets its share.
    random_state
        Seed of folds, models and ties.
    n_jobs, backend
        Workers for the folds; no influence on the coreset.

    Attributes
    ----------
    indices_
        (size,) int64 rows in the order they were chosen.
    ids_
        Their names.
    rounds_, scores_
        (size,) round in which each was chosen, from 0, and its score then.
    reference_prob_
        (n,) float64 probability of each row's label under the reference: small for suspect labels.
    models_trained_, rows_trained_
        Cost.
    """

    indices_: Ints
    ids_: tuple[PlayerId, ...]
    rounds_: Ints
    scores_: Floats
    reference_prob_: Floats
    models_trained_: int
    rows_trained_: int

    def __init__(
        self,
        estimator: Any = None,  # noqa: ANN401 - any classifier
        size: int = 100,
        *,
        reference_estimator: Any = None,  # noqa: ANN401
        preset: str = "default",
        score: str | None = None,
        cap: float = 3.0,
        reference: str | None = None,
        folds: int = 5,
        selection_steps: int | str | None = None,
        balanced: bool | None = None,
        random_state: int | ScienceSeed = 0,
        n_jobs: int = 1,
        backend: str = "loky",
    ) -> None:
        self.estimator = estimator
        self.size = size
        self.reference_estimator = reference_estimator
        self.preset = preset
        self.score = score
        self.cap = cap
        self.reference = reference
        self.folds = folds
        self.selection_steps = selection_steps
        self.balanced = balanced
        self.random_state = random_state
        self.n_jobs = n_jobs
        self.backend = backend

    def fit(
        self,
        X: ArrayLike,
        y: ArrayLike,
        *,
        ids: Iterable[PlayerId] | None = None,
        groups: Iterable[PlayerId] | None = None,
        reference_prob: ArrayLike | None = None,
    ) -> Self:
        """Choose the coreset of a pool.

        Parameters
        ----------
        X, y
            (n, d) finite numbers and (n,) class labels, two classes at least; pandas accepted.
        ids
            Distinct name of each row.
        groups
            (n,) group of each row; reference models never score a group they were trained on.
        reference_prob
            (n,) probability of each row's label under a model trained elsewhere; no reference is
            trained then.

        Raises
        ------
        ProblemError, SettingError
            The table or a setting does not fit.
        UtilityFailed
            A model could not be trained, or gave no probabilities.
        """
        settings = self._settings()
        problem = Problem.of(X, y, X, y, ids=ids, groups=groups, task="classification")
        pool = Pool.of(problem)
        size = _checked_size(self.size, problem.n)
        ends = round_ends(size, settings["selection_steps"])
        self.models_trained_ = self.rows_trained_ = 0
        with Workers(self.n_jobs, backend=self.backend) as workers:
            known = self._reference(pool, settings, reference_prob, workers)
            self._select(pool, known, ends, settings)
        self.ids_ = tuple(problem.row_ids[row] for row in self.indices_)
        self.reference_prob_ = known
        self._record = self._described(problem, settings, given=reference_prob is not None)
        return self

    def fit_resample(self, X: ArrayLike, y: ArrayLike) -> tuple[NDArray[Any], NDArray[Any]]:
        """Return the rows and labels of the coreset, in the order they were chosen."""
        self.fit(X, y)
        return np.asarray(X)[self.indices_], np.asarray(y)[self.indices_]

    def as_json(self) -> dict[str, Json]:
        """Return what was computed and from what, fit for an audit log entry."""
        return dict(self._record)

    def _settings(self) -> dict[str, Any]:
        checked_classifier("estimator", self.estimator)
        if self.reference_estimator is not None:
            checked_classifier("reference_estimator", self.reference_estimator)
        if self.preset not in PRESETS:
            raise SettingError(f"preset={self.preset!r} is unknown; use {' or '.join(PRESETS)}")
        chosen = {
            "score": self.score,
            "reference": self.reference,
            "selection_steps": self.selection_steps,
            "balanced": self.balanced,
        }
        preset = PRESETS[self.preset]
        settings = {name: preset[name] if v is None else v for name, v in chosen.items()}
        if settings["reference"] not in {"cross-fit", "in-sample"}:
            raise SettingError(
                f"reference={settings['reference']!r} is unknown; use 'cross-fit' or 'in-sample'"
            )
        reducible_loss(np.empty(0), np.empty(0), score=str(settings["score"]), cap=self.cap)
        return settings

    def _reference(
        self,
        pool: Pool,
        settings: dict[str, Any],
        given: ArrayLike | None,
        workers: Workers,
    ) -> Floats:
        """Return the (n,) probability of each row's label under the reference."""
        n = len(pool.X)
        if given is not None:
            return _checked_prob(given, n)
        estimator = self.estimator if self.reference_estimator is None else self.reference_estimator
        seed = seed_of(self.random_state).child("csrel reference")
        if settings["reference"] == "cross-fit":
            found = cross_fit(estimator, pool, self.folds, seed, workers=workers)
            self.models_trained_ += self.folds
            self.rows_trained_ += (self.folds - 1) * n
        else:
            every = np.arange(n)
            model = trained(estimator, pool, every, seed, what="reference model")
            found = probabilities(model, pool, every, train=every, what="reference model")
            self.models_trained_ += 1
            self.rows_trained_ += n
        return pool.own(found)

    def _select(self, pool: Pool, known: Floats, ends: list[int], settings: dict[str, Any]) -> None:
        seed = seed_of(self.random_state).child("csrel selection")
        tie = seed.child("ties").generator().permutation(len(pool.X))
        chosen = np.empty(0, dtype=np.int64)
        rounds, scores = [], []
        for number, end in enumerate(ends):
            what = f"coreset model of round {number + 1}"
            left = np.setdiff1d(np.arange(len(pool.X)), chosen)
            model = trained(self.estimator, pool, chosen, seed.child("round", number), what=what)
            self.models_trained_ += model is not None
            self.rows_trained_ += len(chosen) if model is not None else 0
            found = probabilities(model, pool, left, train=chosen, what=what)
            score = np.full(len(pool.X), -np.inf)
            own = found[np.arange(len(left)), pool.codes[left]]
            score[left] = reducible_loss(known[left], own, score=settings["score"], cap=self.cap)
            new = picked(
                score,
                tie,
                end - len(chosen),
                codes=pool.codes if settings["balanced"] else None,
                chosen=chosen,
            )
            chosen = np.concatenate([chosen, new])
            rounds += [number] * len(new)
            scores += score[new].tolist()
        self.indices_ = chosen
        self.rounds_, self.scores_ = np.array(rounds, dtype=np.int64), np.array(scores)

    def _described(
        self, problem: Problem, settings: dict[str, Any], *, given: bool
    ) -> dict[str, Json]:
        preset = PRESETS[self.preset]
        changed = {
            k: f"{v!r} instead of {preset[k]!r}" for k, v in settings.items() if v != preset[k]
        }
        other = self.reference_estimator
        spec: dict[str, Json] = {
            "estimator": described(self.estimator),
            "reference_estimator": None if other is None else described(other),
            "size": len(self.indices_),
            "cap": float(self.cap),
            "folds": self.folds,
            **settings,
            "reference": "given" if given else settings["reference"],
        }
        return {
            "method": "CSReL",
            "preset": self.preset,
            "deviations": {"preset": DEVIATIONS[self.preset], **changed},
            "spec_digest": spec_digest(spec),
            "data_digest": problem.digest(),
            "coreset_digest": sha256(self.indices_.astype("<i8").tobytes()),
            "seed": seed_text(seed_of(self.random_state)),
            "models_trained": self.models_trained_,
            "rows_trained": self.rows_trained_,
            "versions": dict(versions()),
        }


def _checked_size(size: object, n: int) -> int:
    if isinstance(size, bool) or not isinstance(size, int | np.integer) or not 1 <= size <= n:
        raise SettingError(f"size={size!r} must be a whole number from 1 to {n}, the pool's rows")
    return int(size)


def _checked_prob(given: ArrayLike, n: int) -> Floats:
    found = np.array(given, dtype=np.float64)
    if found.shape != (n,) or not ((found >= 0) & (found <= 1)).all():
        raise ProblemError(f"reference_prob must hold {n} probabilities, one for each row's label")
    return found
