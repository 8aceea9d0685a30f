"""Values after a deletion, with what is still valid reused; equal to a run from scratch."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
from sklearn.base import clone

from privml.valuation.errors import ProblemError, SettingError
from privml.valuation.links.recording import Recording, Reuse
from privml.valuation.links.survivors import Survivors
from privml.valuation.links.topm_deletion import (
    PULLS,
    Pulls,
    features_left,
    reusable,
    topm_without,
)
from privml.valuation.methods.base import Valuer
from privml.valuation.methods.data_oob import Bags, DataOOB
from privml.valuation.methods.semivalues import Semivalue
from privml.valuation.problem import Ints, PlayerId, Problem
from privml.valuation.result import ValuationResult
from privml.valuation.topm.estimator import TopM


@dataclass(frozen=True, eq=False)
class Deletion:
    """What is left after a deletion; nothing in it is computed with the deleted records.

    Attributes
    ----------
    problem, result
        Problem and values of the survivors.
    recording, method
        To go on from: the reduced recording, or the method fitted to the survivors.
    evaluations
        Coalitions, or bags, that were evaluated again.
    """

    problem: Problem
    result: ValuationResult
    recording: Recording | None
    method: Valuer | None
    evaluations: int


def after_delete(
    method: Valuer,
    problem: Problem,
    ids: Iterable[PlayerId],
    *,
    recording: Recording | None = None,
    reuse: Reuse = "auto",
    refill: bool = True,
    pulls: Pulls = "keep",
) -> Deletion:
    """Return the values without some players.

    Parameters
    ----------
    method
        The method, with its settings. A :class:`DataOOB` fitted with ``keep=True`` retrains only
        the bags that held a deleted player; the others stay as they are, as large as before. A
        fitted :class:`~privml.valuation.topm.TopM` keeps its units without the deleted players and
        scores those again that held one: a partial recomputation, see ``pulls``. Capped laws, and
        methods not fitted, run anew.
    problem
        The problem before the deletion.
    ids
        Names of the players to delete.
    recording
        Of a sampled method: walks are scored again behind a deleted player only, draws only if
        they held one. Without it, the reduced units are all evaluated.
    reuse, refill
        See :meth:`Recording.without`.
    pulls
        Focused pulls of a top-m run: ``"keep"``, though a run from scratch might have chosen
        others, or ``"drop"``, which leaves the sweeps, whose units never depended on a score.

    Notes
    -----
    KNN-Shapley, leave-one-out, enumeration and class-wise values are computed anew from the
    survivors, which is exact; for the first two that takes one pass. A class that only deleted
    records had is gone as well, see :meth:`privml.valuation.problem.Problem.without`.

    Raises
    ------
    ProblemError
        There is no such player, or none would be left.
    SettingError
        The method or its settings have no rule for deletions.
    """
    players = players_of(problem, ids)
    left = problem.without(players.tolist())
    if isinstance(method, DataOOB):
        return _bags(method, left, players)
    if pulls not in PULLS:
        raise SettingError(f"pulls={pulls!r}: use one of {PULLS}")
    if isinstance(method, TopM) and reusable(method, left):
        fitted, spent = topm_without(
            method, problem, players, left, pulls=pulls, reuse=reuse != "none"
        )
        return Deletion(left, fitted.result_, None, fitted, spent)
    if recording is not None:
        if recording.data_digest != problem.digest():
            raise SettingError("the recording is not of this problem; record it, or leave it out")
        reduced = recording.without(left, players, reuse=reuse, refill=refill)
        result = reduced.result(left)
        return Deletion(left, result, reduced, None, reduced.evaluations)
    again: Any = clone(method)
    if isinstance(method, Semivalue):
        base = method.sampler or method.default_sampler()
        before = base if isinstance(base, Survivors) else Survivors(base, problem.players, ())
        again.set_params(sampler=before.without(tuple(players.tolist())), checkpoint=None)
    if isinstance(method, TopM):
        features = features_left(method, problem, players)
        again.set_params(features=features, checkpoint=None)
    again.fit_problem(left)
    return Deletion(left, again.result_, None, again, again.result_.evaluations)


def players_of(problem: Problem, ids: Iterable[PlayerId]) -> Ints:
    """Return the numbers of named players, ascending; raises ``ProblemError``."""
    number = {name: at for at, name in enumerate(problem.ids)}
    if isinstance(ids, str | bytes) or not isinstance(ids, Iterable):
        raise ProblemError(f"ids is a list of names, not one {type(ids).__name__}")
    wanted = list(ids)
    unknown = [name for name in wanted if name not in number]
    if unknown:
        raise ProblemError(f"there is no player {unknown[0]!r}; give names of the problem's ids")
    if not wanted:
        raise ProblemError("no player is named; give at least one")
    return np.unique(np.array([number[name] for name in wanted], dtype=np.int64))


def _bags(method: DataOOB, left: Problem, players: Ints) -> Deletion:
    bags: Bags | None = method.__dict__.get("bags_")
    if bags is None:
        raise SettingError("fit the DataOOB method before the deletion, so that its bags are known")
    reduced, known = bags.without(players.tolist()), method.outcomes_
    if known is not None:
        known = known[:, ~np.isin(method.player_of_, players)].copy()
        stale = [bag for bag in range(len(known)) if bags.counts(bag)[players].any()]
        known[stale] = np.nan
    again: Any = clone(method)
    again.fit_bags(left, reduced, known=known)
    return Deletion(left, again.result_, None, again, again.result_.evaluations)
