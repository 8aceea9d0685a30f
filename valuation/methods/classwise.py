"""Class-wise Shapley values: what a row does for its own class, and to the others.

After Schoch, Xu and Ji, CS-Shapley, NeurIPS 2022. For rows of class c and a context C of rows of
other classes, the worth of S is ``f(a_c) g(a_o)``: a_c and a_o are the validation rows of class c
and of other classes that the model of S and C predicts correctly, as shares of all validation rows.
The value of a row is its Shapley value among its class, averaged over random contexts.
"""

from __future__ import annotations

import math
import time
from dataclasses import dataclass, fields, replace
from functools import partial
from typing import Any, Final, Literal, Self, TypeAlias

import numpy as np

from privml.backbones.digests import Json
from privml.rng import Generator, ScienceSeed
from privml.valuation.errors import ProblemError, SettingError
from privml.valuation.intervals import half_width, largest_size, rounding
from privml.valuation.methods.base import (
    Valuer,
    checked_utility,
    seed_of,
    seed_text,
    spec_digest,
    versions,
)
from privml.valuation.parallel import Workers
from privml.valuation.problem import Floats, Ints, Problem
from privml.valuation.result import ValuationResult
from privml.valuation.utilities.base import Utility

ContextLaw: TypeAlias = Literal["size", "half", "all"]
Link: TypeAlias = Literal["identity", "exp"]
LAWS: Final = ("size", "half", "all")
LINKS: Final = ("identity", "exp")
NORMALISATIONS: Final = ("none", "class_share")


class ClasswiseShapley(Valuer):
    """Shapley values within each class, in contexts of the other classes.

    Parameters
    ----------
    utility
        A utility of classes with a ``metric`` setting, which must be accuracy.
    contexts
        Random contexts of each class, at least 2; each is walked once forwards and once backwards.
    context_law
        ``"size"``: a uniform size, then a uniform set of it; ``"half"``: each row with probability
        one half; ``"all"``: all rows of other classes.
    inner, outer
        f and g, ``"identity"`` or ``"exp"``.
    normalise
        ``"none"``; ``"class_share"``: values of class c are scaled to sum to a_c of all rows, and
        stay as they are if their sum is 0.
    random_state, n_jobs, backend, ci_level
        As elsewhere; workers have no influence on values.

    Notes
    -----
    A coalition is scored on both parts of the validation rows and counts two evaluations. Rows
    only, no groups. The interval of a normalised value takes its scale as given.
    """

    def __init__(
        self,
        utility: Utility | None = None,
        *,
        contexts: int = 20,
        context_law: ContextLaw = "size",
        inner: Link = "identity",
        outer: Link = "exp",
        normalise: Literal["none", "class_share"] = "none",
        random_state: int | ScienceSeed = 0,
        n_jobs: int = 1,
        backend: str = "loky",
        ci_level: float = 0.95,
    ) -> None:
        self.utility = utility
        self.contexts = contexts
        self.context_law = context_law
        self.inner = inner
        self.outer = outer
        self.normalise = normalise
        self.random_state = random_state
        self.n_jobs = n_jobs
        self.backend = backend
        self.ci_level = ci_level

    def fit_problem(self, problem: Problem) -> Self:
        """Value the rows of a problem."""
        started, utility = time.monotonic(), self._accuracy()
        self._check(problem)
        seed = seed_of(self.random_state)
        job = _Job(problem, utility, seed, self.context_law, self.inner, self.outer)
        values, stderr, largest = np.zeros(problem.n), np.zeros(problem.n), 1.0
        cost = np.zeros(2, dtype=np.int64)
        with Workers(self.n_jobs, backend=self.backend) as workers:
            for code in range(len(problem.classes)):
                own = np.flatnonzero(problem.codes == code)
                if not len(own):
                    continue
                units = [(code, number) for number in range(self.contexts)]
                found = workers.map(partial(_unit, job), units)
                each = np.stack([contribution for contribution, _ in found])
                cost += np.sum([spent for _, spent in found], axis=0, dtype=np.int64)
                scale, spent = self._scale(job, code, each.mean(axis=0).sum())
                cost += spent
                values[own] = scale * each.mean(axis=0)
                largest = max(largest, abs(scale) * max(1.0, largest_size(each)))
                stderr[own] = abs(scale) * each.std(axis=0, ddof=1) / math.sqrt(self.contexts)
        half = half_width(stderr, np.full(problem.n, self.contexts - 1.0), self.ci_level)
        floor = rounding(largest, 2 * problem.n + self.contexts)
        half += floor
        self.result_ = ValuationResult(
            ids=problem.ids,
            values=values,
            stderr=stderr,
            ci_low=values - half,
            ci_high=values + half,
            ci_level=self.ci_level,
            rounding=floor,
            counts=np.full(problem.n, self.contexts, dtype=np.int64),
            truncated_counts=np.zeros(problem.n, dtype=np.int64),
            evaluations=int(cost[0]),
            rows_trained=int(cost[1]),
            seconds=time.monotonic() - started,
            residual_reason="values of a class sum to its gain in a context, not to U(N)",
            status="budget",
            stop_reason=f"{self.contexts} contexts of each class",
            target="classwise-shapley",
            method="ClasswiseShapley",
            spec_digest=spec_digest(self._spec(utility)),
            data_digest=problem.digest(),
            seeds=(seed_text(seed),),
            versions=versions(),
        )
        return self

    def _spec(self, utility: Utility) -> dict[str, Json]:
        names = ("contexts", "context_law", "inner", "outer", "normalise")
        settings: dict[str, Json] = {name: self.get_params()[name] for name in names}
        return {"method": "classwise/1", "utility": utility.spec(), **settings}

    def _accuracy(self) -> Utility:
        utility: Any = checked_utility(self.utility)
        named = {field.name for field in fields(utility)}
        if "metric" not in named or utility.metric not in {None, "accuracy"}:
            raise SettingError("class-wise values need a utility with metric='accuracy'")
        found: Utility = replace(utility, metric="accuracy")
        return found

    def _check(self, problem: Problem) -> None:
        if problem.task != "classification":
            raise ProblemError("class-wise values need classes; this is a regression")
        if problem.group_mode != "row":
            raise ProblemError("class-wise values are for single rows, not for groups")
        if self.contexts < 2:
            raise SettingError(f"contexts={self.contexts}: give at least 2")
        if self.context_law not in LAWS or self.normalise not in NORMALISATIONS:
            raise SettingError(f"context_law is one of {LAWS}, normalise of {NORMALISATIONS}")
        if self.inner not in LINKS or self.outer not in LINKS:
            raise SettingError(f"inner and outer are one of {LINKS}")
        if not 0 < self.ci_level < 1:
            raise SettingError(f"ci_level={self.ci_level} must lie strictly between 0 and 1")

    def _scale(self, job: _Job, code: int, total: float) -> tuple[float, Ints]:
        """Return the factor of the values of a class, and its cost."""
        if self.normalise == "none" or total == 0.0:
            return 1.0, np.zeros(2, dtype=np.int64)
        problem = job.problem
        part = _validation(problem, problem.val_codes == code)
        if part is None:
            return 1.0, np.zeros(2, dtype=np.int64)
        game = job.utility.open(part)
        correct = float(game.score([np.arange(problem.n)])[0])
        share = correct * len(part.X_val) / len(problem.X_val)
        return share / total, np.array([1, problem.n], dtype=np.int64)


@dataclass(frozen=True, eq=False)
class _Job:
    problem: Problem
    utility: Utility
    seed: ScienceSeed
    context_law: ContextLaw
    inner: Link
    outer: Link


def _unit(job: _Job, unit: tuple[int, int]) -> tuple[Floats, Ints]:
    """Return (rows of the class,) mean marginals of a walk and its reverse; runs in a worker."""
    code, number = unit
    problem = job.problem
    own, others = np.flatnonzero(problem.codes == code), np.flatnonzero(problem.codes != code)
    generator = job.seed.child("class", code, "context", number).generator()
    context = draw_context(generator, others, job.context_law)
    walk = generator.permutation(len(own)).astype(np.int64)
    orders = np.stack([walk, walk[::-1]])
    worth, cost = class_worth(job.problem, job.utility, own, context, orders, code)
    score = _linked(worth[0], job.inner) * _linked(worth[1], job.outer)
    marginals = np.diff(score, axis=1)
    total = np.bincount(orders.ravel(), weights=marginals.ravel(), minlength=len(own))
    return total / len(orders), cost


def draw_context(generator: Generator, others: Ints, law: ContextLaw) -> Ints:
    """Return random rows of other classes, ascending."""
    if law == "all":
        return others
    if law == "half":
        return others[generator.random(len(others)) < 0.5]
    size = int(generator.integers(0, len(others) + 1))
    return np.sort(generator.permutation(others)[:size])


def class_worth(
    problem: Problem, utility: Utility, own: Ints, context: Ints, orders: Ints, code: int
) -> tuple[Floats, Ints]:
    """Return shares predicted correctly along walks of rows of one class in a context.

    Parameters
    ----------
    problem, utility
        The problem and a utility whose metric is accuracy.
    own, context
        Row numbers of the class and of the context.
    orders
        (w, L) places in ``own``.
    code
        The class.

    Returns
    -------
    shares : ndarray
        (2, w, L+1): validation rows of the class, and of other classes; column 0 is the context
        alone.
    cost : ndarray
        Evaluations and rows trained.
    """
    rows = np.concatenate([own, context])
    owner = np.minimum(np.arange(len(rows)), len(own)).astype(np.int64)
    players = len(own) + (1 if len(context) else 0)
    table = replace(
        problem,
        X=np.ascontiguousarray(problem.X[rows]),
        y=np.ascontiguousarray(problem.y[rows]),
        ids=tuple(range(players)),
        row_ids=problem.names_of(rows),
        player_of=owner,
        group_mode="player" if len(context) else "row",
        _digest="",
    )
    walks = orders
    if len(context):
        first = np.full((len(orders), 1), len(own), dtype=np.int64)
        walks = np.concatenate([first, orders], axis=1)
    out, cost = np.zeros((2, len(orders), orders.shape[1] + 1)), np.zeros(2, dtype=np.int64)
    for side, chosen in enumerate((problem.val_codes == code, problem.val_codes != code)):
        part = _validation(table, chosen)
        if part is None:
            continue
        game = utility.open(part)
        scores = game.walks(walks)[:, 1 if len(context) else 0 :]
        out[side] = scores * chosen.mean()
        cost += game.tally.evaluations, game.tally.rows_trained
    return out, cost


def _validation(problem: Problem, chosen: Any) -> Problem | None:  # noqa: ANN401 - a mask
    """Return the problem with some of its validation rows, None for no rows."""
    if not chosen.any():
        return None
    return replace(
        problem,
        X_val=np.ascontiguousarray(problem.X_val[chosen]),
        y_val=np.ascontiguousarray(problem.y_val[chosen]),
        _digest="",
    )


def _linked(share: Floats, link: Link) -> Floats:
    return np.exp(share) if link == "exp" else share
