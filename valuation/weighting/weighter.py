"""Weights of generated or noisy rows, learned from a small clean sample."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final, Self

import numpy as np
from numpy.typing import ArrayLike
from sklearn.base import BaseEstimator
from sklearn.utils.validation import has_fit_parameter

from privml.rng import ScienceSeed
from privml.valuation.coreset.crossfit import (
    Pool,
    checked_classifier,
    cross_fit,
    of_model,
    seeded,
    trained,
)
from privml.valuation.errors import ProblemError, SettingError, UtilityFailed
from privml.valuation.methods.base import seed_of
from privml.valuation.parallel import Workers
from privml.valuation.problem import Floats, Ints, PlayerId, Problem
from privml.valuation.weighting.ratios import checked_settings, importance

MODES: Final = ("quality", "imp", "dimp")


class ImportanceWeighter(BaseEstimator):  # type: ignore[misc]
    """Weighs rows of doubtful origin by what a model of a small clean sample thinks of them.

    With q(y|x) of a model of the real rows (the quality checker):

    * ``"quality"``: ``w = q``. Wrong labels get little weight.
    * ``"imp"``: ``w = q / d``, d of a model of the generated rows (the diversity checker): what
      they repeat often gets less.
    * ``"dimp"``: ``w = q / p``, p of the model in training: what it knows gets less.

    The weights go to any estimator as ``sample_weight`` or to the losses of
    :mod:`privml.valuation.weighting.torch_losses`.

    Parameters
    ----------
    quality_checker
        Unfitted classifier with ``predict_proba``, for the real rows.
    mode
        ``"quality"``, ``"imp"`` or ``"dimp"``.
    diversity_checker
        Classifier for the generated rows, mode ``"imp"``; None takes the quality checker's kind.
    clip, normalise, temperature
        As for :func:`privml.valuation.weighting.importance`.
    cross_fit
        Folds of the diversity checker, so that it judges no row that it has memorised; 0 trains one
        on all rows, as the authors' code does.
    rounds
        Trainings of :meth:`fit_model` in mode ``"dimp"``.
    random_state
        Seed of checkers, folds and models.
    n_jobs, backend
        Workers for the folds; no influence on the weights.

    Attributes
    ----------
    quality_
        (n,) float64 probability of each generated row's label under the quality checker.
    weights_
        (n,) float64 weights; in mode ``"dimp"`` those of the last round of :meth:`fit_model`, and
        the quality before it.
    classes_
        Sorted labels of the generated rows.
    """

    quality_: Floats
    weights_: Floats

    def __init__(
        self,
        quality_checker: Any = None,  # noqa: ANN401 - any classifier
        mode: str = "quality",
        *,
        diversity_checker: Any = None,  # noqa: ANN401
        clip: float | None = None,
        normalise: str | None = "batch",
        temperature: float = 1.0,
        cross_fit: int = 5,
        rounds: int = 5,
        random_state: int | ScienceSeed = 0,
        n_jobs: int = 1,
        backend: str = "loky",
    ) -> None:
        self.quality_checker = quality_checker
        self.mode = mode
        self.diversity_checker = diversity_checker
        self.clip = clip
        self.normalise = normalise
        self.temperature = temperature
        self.cross_fit = cross_fit
        self.rounds = rounds
        self.random_state = random_state
        self.n_jobs = n_jobs
        self.backend = backend

    def fit(
        self,
        X: ArrayLike,
        y: ArrayLike,
        X_real: ArrayLike,
        y_real: ArrayLike,
        *,
        groups: Iterable[PlayerId] | None = None,
    ) -> Self:
        """Train the checkers and weigh the generated rows.

        Parameters
        ----------
        X, y
            (n, d) numbers and (n,) labels of the generated or noisy rows.
        X_real, y_real
            (m, d) and (m,) of a clean sample; two classes at least.
        groups
            (n,) group of each generated row; folds keep groups together.

        Raises
        ------
        ProblemError, SettingError
            The tables or a setting do not fit; every weight would be 0.
        UtilityFailed
            A checker could not be trained, or gave no probabilities.
        """
        self._check()
        problem = Problem.of(X, y, X_real, y_real, groups=groups, task="classification")
        pool = Pool.of(problem)
        seed = seed_of(self.random_state).child("weighting")
        real = Pool(problem.X_val, problem.val_codes, problem.val_codes, pool.classes)
        checker = trained(
            self.quality_checker,
            real,
            np.arange(len(real.X)),
            seed.child("quality"),
            what="quality checker",
        )
        if checker is None:
            raise ProblemError("y_real holds a single class; a quality checker needs two")
        self.classes_ = pool.classes
        self.quality_ = pool.own(of_model(checker, pool.X, pool.classes, what="quality checker"))
        if not self.quality_.any():
            raise ProblemError("the quality checker gives every label probability 0; check labels")
        self._pool = pool
        seen = self._seen(pool, seed) if self.mode == "imp" else None
        self.weights_ = self._weigh(seen)
        return self

    def weights_for(self, probability: ArrayLike) -> Floats:
        """Return the (n,) weights of mode ``"dimp"`` for a model in its present state.

        Parameters
        ----------
        probability
            (n, classes) probabilities that the model gives the generated rows now, or (n,) of their
            own labels.

        Raises
        ------
        SettingError
            Another mode: its weights are fixed, in ``weights_``.
        ProblemError
            The shape does not fit, or something is no probability.
        """
        pool = self._fitted()
        if self.mode != "dimp":
            raise SettingError(f"mode={self.mode!r} has fixed weights: use weights_")
        found = np.asarray(probability, dtype=np.float64)
        if found.shape == (len(pool.X), len(pool.classes)):
            found = pool.own(found)
        return self._weigh(found)

    def fit_model(
        self,
        estimator: Any,  # noqa: ANN401 - any estimator
        *,
        weight_name: str = "sample_weight",
    ) -> Any:  # noqa: ANN401
        """Return a clone of an estimator trained on the weighted rows.

        Mode ``"dimp"`` trains ``rounds`` times: first by quality, then with the weights of the last
        model. Where these settle, the model is a stationary point of the DIMP loss.

        Parameters
        ----------
        estimator
            Unfitted estimator whose ``fit`` takes weights.
        weight_name
            Its argument for weights; for a pipeline ``"<step>__sample_weight"``.

        Raises
        ------
        SettingError
            ``fit`` takes no such argument.
        UtilityFailed
            The model could not be trained, or gave no probabilities.
        """
        pool = self._fitted()
        takes = "__" in weight_name or has_fit_parameter(estimator, weight_name)
        if not takes or isinstance(estimator, type):
            raise SettingError(
                f"fit of {estimator!r} takes no {weight_name!r}; choose an estimator with weights, "
                "or name the argument: '<step>__sample_weight' for a pipeline"
            )
        if self.mode != "dimp":
            return self._model(estimator, pool, weight_name, 0)
        checked_classifier("estimator", estimator)
        self.weights_ = self._weigh(None)
        model = self._model(estimator, pool, weight_name, 0)
        for number in range(1, self.rounds):
            found = of_model(model, pool.X, pool.classes, what=f"model of round {number}")
            self.weights_ = self._weigh(pool.own(found))
            model = self._model(estimator, pool, weight_name, number)
        return model

    def _check(self) -> None:
        checked_classifier("quality_checker", self.quality_checker)
        if self.diversity_checker is not None:
            checked_classifier("diversity_checker", self.diversity_checker)
        if self.mode not in MODES:
            raise SettingError(f"mode={self.mode!r} is unknown; use one of {MODES}")
        checked_settings(self.clip, self.normalise, self.temperature)
        counts: list[tuple[str, object, int]]
        counts = [("cross_fit", self.cross_fit, 0), ("rounds", self.rounds, 1)]
        for name, value, least in counts:
            if isinstance(value, bool) or not isinstance(value, int) or value < least:
                raise SettingError(f"{name}={value!r} must be a whole number of at least {least}")

    def _fitted(self) -> Pool:
        if not hasattr(self, "_pool"):
            raise SettingError("the weighter has seen no rows yet: call fit() first")
        return self._pool

    def _seen(self, pool: Pool, seed: ScienceSeed) -> Floats:
        """Return the (n,) probability of each label under the diversity checker."""
        checker = self.diversity_checker
        checker = self.quality_checker if checker is None else checker
        own_seed = seed.child("diversity")
        if self.cross_fit:
            workers = Workers(self.n_jobs, backend=self.backend)
            found = cross_fit(checker, pool, self.cross_fit, own_seed, workers=workers)
            return pool.own(found)
        every: Ints = np.arange(len(pool.X))
        model = trained(checker, pool, every, own_seed, what="diversity checker")
        if model is None:
            raise ProblemError("y holds a single class; a diversity checker needs two")
        return pool.own(of_model(model, pool.X, pool.classes, what="diversity checker"))

    def _weigh(self, seen: Floats | None) -> Floats:
        return importance(
            self.quality_,
            seen,
            clip=self.clip,
            normalise=self.normalise,
            temperature=self.temperature,
        )

    def _model(self, estimator: Any, pool: Pool, name: str, number: int) -> Any:  # noqa: ANN401
        model = seeded(estimator, seed_of(self.random_state).child("weighted model", number))
        labels = pool.classes[pool.codes]
        try:
            return model.fit(pool.X, labels, **{name: self.weights_})
        except Exception as error:
            kind = type(model).__name__
            raise UtilityFailed(f"{kind}.fit raised {type(error).__name__}: {error}") from error
