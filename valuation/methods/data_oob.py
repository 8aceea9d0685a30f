"""Data-OOB: how well models that never saw a row predict it (Kwon and Zou, ICML 2023)."""

from __future__ import annotations

import math
import time
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Final, Literal, Self, TypeAlias

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import ndtri
from sklearn.base import clone
from sklearn.tree import (
    DecisionTreeClassifier,
    DecisionTreeRegressor,
    ExtraTreeClassifier,
    ExtraTreeRegressor,
)
from sklearn.utils.validation import has_fit_parameter

from privml.backbones.digests import Json
from privml.rng import ScienceSeed
from privml.valuation.errors import ProblemError, SettingError, UtilityFailed
from privml.valuation.intervals import half_width, largest_size, rounding
from privml.valuation.methods.base import Valuer, seed_of, seed_text, spec_digest, versions
from privml.valuation.parallel import Workers
from privml.valuation.problem import Floats, Ints, PlayerId, Problem, Task
from privml.valuation.result import ValuationResult
from privml.valuation.utilities.base import batches, class_codes, plain, single

Score: TypeAlias = Literal["match", "probability"]
_CHUNK: Final = 8
_SEEDS: Final = 1 << 31
_TREES: Final[dict[tuple[str, str], Any]] = {
    ("extra", "classification"): ExtraTreeClassifier,
    ("extra", "regression"): ExtraTreeRegressor,
    ("best", "classification"): DecisionTreeClassifier,
    ("best", "regression"): DecisionTreeRegressor,
}


@dataclass(frozen=True)
class Bags:
    """Bootstrap bags as functions of seed and number, also after deletions.

    Attributes
    ----------
    seed
        Seed of all bags.
    players
        Players that bags are drawn from; each bag makes as many draws.
    gone
        Players deleted since. A draw of one of them is made again, so a bag without them stays as
        it was, and the outcome does not depend on the order of deletions.
    """

    seed: ScienceSeed
    players: int
    gone: tuple[int, ...] = ()

    def counts(self, bag: int) -> Ints:
        """Return (survivors,) int64 draws of each player that is left, in order."""
        draws = self._draw(bag, 0)
        lost = np.isin(draws, self.gone)
        turn = 0
        while lost.any():
            turn += 1
            draws[lost] = self._draw(bag, turn)[lost]
            lost = np.isin(draws, self.gone)
        return np.delete(np.bincount(draws, minlength=self.players), list(self.gone))

    def without(self, survivors: Iterable[int]) -> Bags:
        """Return the bags after a deletion; players are numbered as survivors of the last one."""
        left = np.delete(np.arange(self.players), list(self.gone))
        gone = {*self.gone, *(int(left[player]) for player in survivors)}
        return Bags(self.seed, self.players, tuple(sorted(gone)))

    def model_seed(self, bag: int) -> int:
        """Return the seed of the model of a bag."""
        return int(self.seed.child("bag", bag, "model").generator().integers(_SEEDS))

    def _draw(self, bag: int, turn: int) -> Ints:
        generator = self.seed.child("bag", bag, "turn", turn).generator()
        return generator.integers(0, self.players, size=self.players)


class DataOOB(Valuer):
    """Mean score of a row over the bags that do not hold it.

    Parameters
    ----------
    model
        A scikit-learn classifier or regressor, cloned for each bag; None for trees.
    tree
        ``"extra"``: random thresholds, fastest; ``"best"``: best thresholds.
    bags
        Models to train. A row is out of a bag with probability 0.37.
    max_features, min_samples_leaf
        Of the trees.
    score
        ``"match"``: 1 if the class is predicted, else 0; ``"probability"`` of the own class. A
        regression scores ``-(y - prediction)^2``.
    random_state
        Integer or :class:`privml.rng.ScienceSeed`.
    n_jobs, backend
        Workers; no influence on values.
    ci_level
        Confidence of each interval: Wilson's for matches, else Student's over bags.
    keep
        Keep the outcome of every row in every bag, so that a deletion retrains only the bags that
        held what is deleted; 4 bytes each.

    Notes
    -----
    Rows that are in every bag have NaN. Where no bag that left a row out held its class, no model
    could predict it: its score is 0, which says nothing, and ``extras["label_in_no_bag"]`` names
    it. Models are trained with the classes of their bag as 0, 1, ... and may know no others. Groups
    are drawn as a whole; the value of one is the mean over its rows. Validation rows are not used
    and may be left out. Intervals are about more bags on the same rows. Not a semivalue: values do
    not sum to anything.
    """

    def __init__(
        self,
        model: Any = None,  # noqa: ANN401 - a scikit-learn estimator
        *,
        tree: Literal["extra", "best"] = "extra",
        bags: int = 100,
        max_features: float | str | None = "sqrt",
        min_samples_leaf: int = 1,
        score: Score = "match",
        random_state: int | ScienceSeed = 0,
        n_jobs: int = 1,
        backend: str = "loky",
        ci_level: float = 0.95,
        keep: bool = False,
    ) -> None:
        self.model = model
        self.tree = tree
        self.bags = bags
        self.max_features = max_features
        self.min_samples_leaf = min_samples_leaf
        self.score = score
        self.random_state = random_state
        self.n_jobs = n_jobs
        self.backend = backend
        self.ci_level = ci_level
        self.keep = keep

    def fit(
        self,
        X: ArrayLike,
        y: ArrayLike,
        X_val: ArrayLike | None = None,
        y_val: ArrayLike | None = None,
        *,
        groups: Iterable[PlayerId] | None = None,
        ids: Iterable[PlayerId] | None = None,
        task: Task | None = None,
    ) -> Self:
        """Value the rows, or groups of rows, of a table; validation rows are not used."""
        if X_val is None or y_val is None:
            try:
                rows, labels = np.asarray(X), np.asarray(y)
            except ValueError as error:
                raise ProblemError(f"X and y are no tables: {error}") from error
            if rows.ndim != 2 or not labels.ndim:
                raise ProblemError("X is a table of rows and columns, y one label for each row")
            X_val, y_val = np.zeros((1, rows.shape[1])), labels[:1]
        return super().fit(X, y, X_val, y_val, groups=groups, ids=ids, task=task)

    def fit_problem(self, problem: Problem) -> Self:
        """Value the players of a problem."""
        return self.fit_bags(problem, Bags(seed_of(self.random_state), problem.players))

    def fit_bags(
        self, problem: Problem, bags: Bags, *, known: NDArray[np.float32] | None = None
    ) -> Self:
        """Value the players of a problem with given bags.

        Parameters
        ----------
        problem
            The problem; its players are the survivors of the bags.
        bags
            The bags.
        known
            (bags, n) outcomes of bags that are still as they were, NaN rows where a bag is to be
            trained.
        """
        started = time.monotonic()
        self._check(problem, bags)
        spec: dict[str, Json] = {
            "method": "data-oob/1", **self._spec(), "players": bags.players,
            "gone": list(bags.gone),
        }  # fmt: skip
        job = _Job(problem, self._model(problem), bags, self.score, known)
        sums = np.zeros((4, problem.players))
        kept, trained = [], np.zeros(2, dtype=np.int64)
        parts = [(job, part.start, part.stop, self.keep) for part in batches(self.bags, _CHUNK)]
        with Workers(self.n_jobs, backend=self.backend) as workers:
            for some in batches(len(parts), 4 * max(1, workers.n_jobs)):
                for found, outcomes, cost in workers.map(_chunk, parts[some]):
                    sums += found
                    trained += cost
                    kept.append(outcomes)
        self.bags_, self.player_of_ = bags, problem.player_of
        self.outcomes_ = np.concatenate(kept) if self.keep else None
        self.result_ = self._result(
            problem,
            sums,
            evaluations=int(trained[0]),
            rows_trained=int(trained[1]),
            seconds=time.monotonic() - started,
            spec_digest=spec_digest(spec),
            seeds=(seed_text(bags.seed),),
        )
        return self

    def _check(self, problem: Problem, bags: Bags) -> None:
        if self.bags < 1:
            raise SettingError(f"bags={self.bags}: give at least 1")
        if self.tree not in {"extra", "best"} or self.score not in {"match", "probability"}:
            raise SettingError("tree is 'extra' or 'best', score 'match' or 'probability'")
        if not 0 < self.ci_level < 1:
            raise SettingError(f"ci_level={self.ci_level} must lie strictly between 0 and 1")
        if problem.players != bags.players - len(bags.gone):
            raise SettingError("the bags are of another number of players than the problem")

    def _spec(self) -> dict[str, Json]:
        if self.model is None:
            named: Json = {
                "tree": self.tree, "max_features": plain(self.max_features),
                "min_samples_leaf": self.min_samples_leaf,
            }  # fmt: skip
        else:
            kind = type(self.model)
            settings = {k: repr(v) for k, v in self.model.get_params().items()}
            named = {"model": f"{kind.__module__}.{kind.__qualname__}", "settings": plain(settings)}
        return {"bags": self.bags, "score": self.score, "model": named}

    def _model(self, problem: Problem) -> Any:  # noqa: ANN401 - a scikit-learn estimator
        if self.model is not None:
            return self.model
        return _TREES[self.tree, problem.task](
            max_features=self.max_features, min_samples_leaf=self.min_samples_leaf
        )

    def _result(self, problem: Problem, sums: Floats, **others: Any) -> ValuationResult:  # noqa: ANN401
        count, total, squares, seen = sums
        unseen = [problem.ids[at] for at in np.flatnonzero((seen == 0) & (count > 0))]
        with np.errstate(invalid="ignore", divide="ignore"):
            values = total / count
            spread = np.maximum(squares - total * values, 0.0) / (count - 1)
            stderr = np.sqrt(np.where(count > 1, spread, np.nan) / count)
        floor = rounding(math.sqrt(largest_size(squares)), largest_size(count))
        if self._counts_matches(problem):
            low, high = wilson(values, count, self.ci_level)
            low, high = low - floor, high + floor
        else:
            half = half_width(stderr, count - 1, self.ci_level) + floor
            low, high = values - half, values + half
        return ValuationResult(
            ids=problem.ids,
            values=values,
            stderr=stderr,
            ci_low=low,
            ci_high=high,
            ci_level=self.ci_level,
            rounding=floor,
            counts=count.astype(np.int64),
            truncated_counts=np.zeros(len(count), dtype=np.int64),
            residual_reason="out-of-bag scores need not sum to anything",
            status="budget",
            stop_reason=f"{self.bags} bags",
            target="data-oob",
            method="DataOOB",
            group_mode=problem.group_mode,
            data_digest=problem.digest(),
            versions=versions(),
            extras={"label_in_no_bag": unseen} if unseen else {},
            **others,
        )

    def _counts_matches(self, problem: Problem) -> bool:
        single = problem.group_mode == "row"
        return problem.task == "classification" and self.score == "match" and single


def wilson(share: Floats, count: Floats, level: float) -> tuple[Floats, Floats]:
    """Return (n,) ends of Wilson's intervals of shares of ``count`` trials; NaN for none."""
    z = float(ndtri((1.0 + level) / 2.0))
    with np.errstate(invalid="ignore", divide="ignore"):
        middle = (share + z * z / (2 * count)) / (1 + z * z / count)
        half = z * np.sqrt(share * (1 - share) / count + (z / (2 * count)) ** 2)
        half = half / (1 + z * z / count)
    return middle - half, middle + half


@dataclass(frozen=True, eq=False)
class _Job:
    problem: Problem
    model: Any
    bags: Bags
    score: Score
    known: NDArray[np.float32] | None


def _chunk(part: tuple[_Job, int, int, bool]) -> tuple[Floats, NDArray[np.float32], Ints]:
    """Return sums over some bags, their outcomes if kept, and their cost; runs in a worker."""
    job, start, stop, keep = part
    problem = job.problem
    sums, cost = np.zeros((4, problem.players)), np.zeros(2, dtype=np.int64)
    kept = np.full((stop - start if keep else 0, problem.n), np.nan, dtype=np.float32)
    rows = single("X", problem.X) if job.model.__class__ in _TREES.values() else problem.X
    for bag in range(start, stop):
        counts = job.bags.counts(bag)[problem.player_of]
        out = counts == 0
        known = None if job.known is None else job.known[bag]
        if known is not None and not np.isnan(known[out]).any():
            outcome = known[out].astype(np.float64)
        else:
            outcome = _outcomes(job, rows, counts, bag)
            cost += 1, int((counts > 0).sum())
        if keep:
            kept[bag - start, out] = outcome
        _note_labels(sums, problem, out)
        # kept outcomes have single precision; what is added is the same with and without them
        _add(sums, problem, out, outcome.astype(np.float32).astype(np.float64))
    return sums, kept, cost


def _outcomes(job: _Job, rows: NDArray[Any], counts: Ints, bag: int) -> Floats:
    """Return the scores of the rows out of a bag, by a model trained on the rows in it."""
    problem, inside, out = job.problem, counts > 0, counts == 0
    if not out.any():
        return np.empty(0)
    regression = problem.task == "regression"
    target: NDArray[Any] = problem.y if regression else problem.codes
    model = clone(job.model)
    if "random_state" in model.get_params():
        model.set_params(random_state=job.bags.model_seed(bag))
    left = np.unique(target[inside])
    if not regression and len(left) == 1:
        return np.asarray(target[out] == left[0]).astype(np.float64)
    if not regression:  # some models take nothing but 0, 1, ...
        target = np.searchsorted(left, target)
        target[~np.isin(problem.codes, left)] = len(left)
    try:
        if has_fit_parameter(model, "sample_weight"):
            weight = counts[inside].astype(np.float64)
            model.fit(rows[inside], target[inside], sample_weight=weight)
        else:
            model.fit(np.repeat(rows, counts, axis=0), np.repeat(target, counts))
        if regression:
            return np.asarray(-((problem.y[out] - model.predict(rows[out])) ** 2))
        if job.score == "match":
            found = class_codes(model.predict(rows[out]), rows=int(out.sum()), classes=len(left))
            return np.asarray(found == target[out]).astype(np.float64)
        shares = np.zeros((int(out.sum()), len(left) + 1))
        shares[:, np.asarray(model.classes_, np.int64)] = model.predict_proba(rows[out])
        return np.asarray(shares[np.arange(len(shares)), target[out]])
    except (MemoryError, KeyboardInterrupt):
        raise
    except Exception as error:
        raise UtilityFailed(f"the model of bag {bag} raised: {error}") from error


def _note_labels(sums: Floats, problem: Problem, out: NDArray[np.bool_]) -> None:
    """Count the bags that leave a player out and hold the class of one of its rows."""
    known = out.copy()
    if problem.task == "classification":
        known &= np.isin(problem.codes, problem.codes[~out])
    sums[3, np.unique(problem.player_of[known])] += 1.0


def _add(sums: Floats, problem: Problem, out: NDArray[np.bool_], outcome: Floats) -> None:
    if not np.isfinite(outcome).all():
        raise UtilityFailed("a model gave a prediction that is not finite")
    if problem.group_mode == "row":
        place = np.flatnonzero(out)
        each = outcome
    else:
        owner = problem.player_of[out]
        place = np.unique(owner)
        total = np.bincount(owner, weights=outcome, minlength=problem.players)[place]
        each = total / problem.row_counts[place]
    sums[0, place] += 1.0
    sums[1, place] += each
    sums[2, place] += each * each
