"""Class probabilities of any classifier, and of models that never saw the row they judge."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import ArrayLike, NDArray
from sklearn.base import clone

from privml.rng import ScienceSeed
from privml.valuation.errors import ProblemError, SettingError, UtilityFailed
from privml.valuation.methods.base import seed_of
from privml.valuation.parallel import Workers
from privml.valuation.problem import Floats, Ints, PlayerId, Problem

_SEED_RANGE: Final = 1 << 31
_ROUNDING: Final = 1e-3
_LEAST_FOLDS: Final = 2


def cross_fitted(
    estimator: Any,  # noqa: ANN401 - any classifier
    X: ArrayLike,
    y: ArrayLike,
    *,
    folds: int = 5,
    groups: Iterable[PlayerId] | None = None,
    random_state: int | ScienceSeed = 0,
    n_jobs: int = 1,
    backend: str = "loky",
) -> Floats:
    """Return the (n, classes) probabilities of each row under models trained without it.

    Parameters
    ----------
    estimator
        Unfitted classifier with ``predict_proba``; it is cloned.
    X, y
        (n, d) numbers and (n,) labels; columns of the result follow the sorted labels.
    folds
        Models; each is trained without one fold. Folds hold the classes in equal shares.
    groups
        (n,) group of each row: no model judges a row of a group that it was trained on.
    random_state, n_jobs, backend
        Seed of folds and models; workers, without influence on the result.

    Raises
    ------
    ProblemError, SettingError
        The table or a setting does not fit.
    UtilityFailed
        A model could not be trained, or gave no probabilities.
    """
    checked_classifier("estimator", estimator)
    problem = Problem.of(X, y, X, y, groups=groups, task="classification")
    pool = Pool.of(problem)
    seed = seed_of(random_state)
    return cross_fit(estimator, pool, folds, seed, workers=Workers(n_jobs, backend=backend))


@dataclass(frozen=True, eq=False)
class Pool:
    """A checked table: (n, d) features, (n,) codes and labels, group numbers, sorted classes."""

    X: Floats
    codes: Ints
    groups: Ints
    classes: NDArray[Any]

    @classmethod
    def of(cls, problem: Problem) -> Pool:
        """Return the training rows of a problem; raises ``ProblemError`` for a single class."""
        classes = np.array(problem.classes)
        if len(classes) < _LEAST_FOLDS:
            raise ProblemError("y holds a single class; there is nothing to tell apart")
        return cls(problem.X, problem.codes, problem.player_of, classes)

    def own(self, probability: Floats) -> Floats:
        """Return the (n,) probability of each row's own label."""
        return np.asarray(probability[np.arange(len(self.codes)), self.codes])


def checked_classifier(name: str, estimator: object) -> None:
    """Raise ``SettingError`` unless this is an unfitted classifier object with probabilities."""
    for method in ("fit", "predict_proba", "get_params"):
        if isinstance(estimator, type) or not hasattr(estimator, method):
            raise SettingError(
                f"{name}={estimator!r} has no {method}(); give a classifier object with "
                "probabilities, for example LogisticRegression() or TorchClassifier(build)"
            )


def trained(
    estimator: Any,  # noqa: ANN401 - any classifier
    pool: Pool,
    rows: Ints,
    seed: ScienceSeed,
    *,
    what: str,
) -> Any:  # noqa: ANN401
    """Return a clone trained on rows of a pool; None while they hold fewer than two classes.

    Every ``random_state`` among the parameters is set from the seed.
    """
    if len(np.unique(pool.codes[rows])) < _LEAST_FOLDS:
        return None
    model = seeded(estimator, seed)
    try:
        return model.fit(pool.X[rows], pool.classes[pool.codes[rows]])
    except Exception as error:
        raise _failed(what, model, "fit", error) from error


def seeded(estimator: Any, seed: ScienceSeed) -> Any:  # noqa: ANN401 - any classifier
    """Return a clone with every ``random_state`` among its parameters set from the seed."""
    model = clone(estimator)
    names = [n for n in model.get_params(deep=True) if n.rpartition("__")[2] == "random_state"]
    if names:
        draw = seed.generator()
        model.set_params(**{name: int(draw.integers(_SEED_RANGE)) for name in sorted(names)})
    return model


def probabilities(
    model: Any,  # noqa: ANN401 - any classifier
    pool: Pool,
    rows: Ints,
    *,
    train: Ints,
    what: str,
) -> Floats:
    """Return (rows, classes) probabilities; without a model, shares of ``train`` plus one each."""
    if model is None:
        counts = np.bincount(pool.codes[train], minlength=len(pool.classes)) + 1.0
        return np.tile(counts / counts.sum(), (len(rows), 1))
    return of_model(model, pool.X[rows], pool.classes, what=what)


def of_model(
    model: Any,  # noqa: ANN401 - any classifier
    X: Floats,
    classes: NDArray[Any],
    *,
    what: str,
) -> Floats:
    """Return the (n, classes) probabilities of a trained model; classes it lacks get 0."""
    try:
        found = np.asarray(model.predict_proba(X), dtype=np.float64)
    except Exception as error:
        raise _failed(what, model, "predict_proba", error) from error
    known = np.asarray(model.classes_)
    place = np.minimum(np.searchsorted(classes, known), len(classes) - 1)
    whole = found.shape == (len(X), len(known)) and np.isfinite(found).all()
    if not whole or found.min() < -_ROUNDING or found.max() > 1 + _ROUNDING:
        raise UtilityFailed(f"{what}: {type(model).__name__}.predict_proba gave no probabilities")
    if not np.array_equal(classes[place], known):
        raise UtilityFailed(f"{what}: {type(model).__name__} knows labels that are not in y")
    out = np.zeros((len(X), len(classes)))
    out[:, place] = np.clip(found, 0.0, 1.0)
    return out


def cross_fit(
    estimator: Any,  # noqa: ANN401 - any classifier
    pool: Pool,
    folds: int,
    seed: ScienceSeed,
    *,
    workers: Workers,
) -> Floats:
    """Return (n, classes) probabilities; see :func:`cross_fitted`."""
    fold_of = assigned(pool, checked_folds(folds, pool), seed.child("folds"))
    parts = [
        _Part(estimator, pool, np.flatnonzero(fold_of == fold), seed.child("fold", fold), fold)
        for fold in range(folds)
    ]
    out = np.empty((len(pool.X), len(pool.classes)))
    for part, found in zip(parts, workers.map(_judge, parts), strict=True):
        out[part.held] = found
    return out


def checked_folds(folds: object, pool: Pool) -> int:
    """Return the number of folds; raises ``SettingError``."""
    groups = int(pool.groups.max()) + 1
    if isinstance(folds, bool) or not isinstance(folds, int | np.integer) or folds < _LEAST_FOLDS:
        raise SettingError(f"folds={folds!r} must be a whole number, at least 2")
    if folds > groups:
        raise SettingError(f"folds={folds}: there are only {groups} rows or groups to hold out")
    return int(folds)


def assigned(pool: Pool, folds: int, seed: ScienceSeed) -> Ints:
    """Return the (n,) fold of each row: classes in equal shares, groups kept together."""
    groups, generator = int(pool.groups.max()) + 1, seed.generator()
    if groups < len(pool.groups):
        sizes, fold_of_group = np.zeros(folds), np.empty(groups, dtype=np.int64)
        order = generator.permutation(groups)
        count = np.bincount(pool.groups)
        for group in order[np.argsort(-count[order], kind="stable")]:
            fold_of_group[group] = np.argmin(sizes)
            sizes[fold_of_group[group]] += count[group]
        return np.asarray(fold_of_group[pool.groups])
    order = generator.permutation(len(pool.codes))
    by_class = order[np.argsort(pool.codes[order], kind="stable")]
    fold_of = np.empty(len(order), dtype=np.int64)
    fold_of[by_class] = np.arange(len(order)) % folds  # dealt class after class
    return fold_of


@dataclass(frozen=True, eq=False)
class _Part:
    estimator: Any
    pool: Pool
    held: Ints
    seed: ScienceSeed
    fold: int


def _judge(part: _Part) -> Floats:
    what = f"reference model {part.fold + 1}"
    train = np.setdiff1d(np.arange(len(part.pool.X)), part.held)
    model = trained(part.estimator, part.pool, train, part.seed, what=what)
    return probabilities(model, part.pool, part.held, train=train, what=what)


def _failed(what: str, model: object, method: str, error: Exception) -> UtilityFailed:
    name = f"{type(model).__name__}.{method}"
    return UtilityFailed(f"{what}: {name} raised {type(error).__name__}: {error}")
