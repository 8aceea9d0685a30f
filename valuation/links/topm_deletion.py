"""The m records of largest value after a deletion, from the units of the run before.

Each unit without the deleted players is a proper unit on the survivors, see
:mod:`privml.valuation.topm.survivors`; it is scored again only where a coalition of it held one of
them, and the posterior is computed anew from all of them. Pulls of a deleted record are dropped.

What is not from scratch: which records the focused pulls looked at was chosen while the deleted
ones were there. Every observation is still unbiased, but a run from scratch would have chosen
others. ``pulls="drop"`` keeps the sweeps only, whose units never depended on any score.
"""

from __future__ import annotations

from typing import Any, Final, Literal, TypeAlias

import numpy as np
from sklearn.base import clone

from privml.valuation.errors import RunMismatch
from privml.valuation.parallel import Workers
from privml.valuation.problem import Floats, Ints, Problem
from privml.valuation.result import ValuationResult
from privml.valuation.topm.engine import Engine
from privml.valuation.topm.estimator import TopM
from privml.valuation.topm.survivors import SurvivorTarget, stays_valid
from privml.valuation.topm.target import Request, evaluate
from privml.valuation.utilities.base import Game

Pulls: TypeAlias = Literal["keep", "drop"]
PULLS: Final = ("keep", "drop")


def reusable(method: TopM, left: Problem) -> bool:
    """Return whether a method was fitted, and to a law whose units stay valid."""
    engine: Engine | None = method.__dict__.get("engine_")
    return engine is not None and stays_valid(engine.target, method.size_law(left.players))


def topm_without(
    method: TopM, problem: Problem, players: Ints, left: Problem, *, pulls: Pulls, reuse: bool
) -> tuple[TopM, int]:
    """Return the method with engine and result for the survivors, and the evaluations made.

    Raises
    ------
    SettingError
        No more than m players are left.
    RunMismatch
        The method was fitted to another problem.
    """
    engine: Engine = method.engine_
    if method.result_.data_digest != problem.digest():
        raise RunMismatch("the method was fitted to another problem")
    lines, sweeps = engine.lines, engine.sweep_units
    gone = set(players.tolist())
    kept = [
        at
        for at, line in enumerate(lines)
        if not gone & set(line.arms) and (pulls == "keep" or at < sweeps)
    ]
    again: Any = clone(method)
    again.set_params(features=features_left(method, problem, players), checkpoint=None)
    law = again.size_law(left.players)
    target = SurvivorTarget.after(engine.target, law, players, tuple(kept))
    new: Engine = again.engine_for(left, target)
    number = np.delete(np.arange(problem.players), players)
    units = [
        (lines[at].kind, tuple(int(np.searchsorted(number, arm)) for arm in lines[at].arms))
        for at in kept
    ]
    with Workers(1):
        game = again.utility_used().open(left)
        valid = reuse and game.local and len(left.classes) == len(problem.classes)
        scores = []
        for unit, (at, (kind, arms)) in enumerate(zip(kept, units, strict=True)):
            before = engine.target.request(engine.seed, at, kind, lines[at].arms)
            after = target.request(engine.seed, unit, kind, arms)
            known = lines[at].scores if valid else None
            scores.append(_scored(game, before, after, gone, known))
        new.adopt(units, scores, sweeps=sum(at < sweeps for at in kept))
    result = again.result_from(new, left, game, described=_described(pulls, len(lines), len(kept)))
    again.engine_, again.result_ = new, result
    return again, game.tally.evaluations


def topm_rescored(method: TopM, left: Problem) -> TopM:
    """Return the method with every unit scored by a game that never saw a deleted record."""
    again: Any = clone(method)
    old: Engine = method.engine_
    new: Engine = again.engine_for(left, old.target)
    with Workers(1):
        game = again.utility_used().open(left)
        units = [(line.kind, line.arms) for line in old.lines]
        requests = [old.target.request(old.seed, at, *unit) for at, unit in enumerate(units)]
        scores = [evaluate(game, [request])[0] for request in requests]
        new.adopt(units, scores, sweeps=old.sweep_units)
    again.engine_ = new
    again.result_ = again.result_from(new, left, game, described="every unit scored again")
    return again  # type: ignore[no-any-return]


def topm_findings(method: TopM, players: Ints, after: TopM, scratch: ValuationResult) -> list[str]:
    """Return what a result of top-m after a deletion claims without ground.

    Its certificate, errors, members and probabilities are those of ``scratch``, computed without
    the deleted; and its units are those of the run before that no pull of a deleted record is
    among, with the players that were deleted taken out and no others.
    """
    found, claimed = [], after.result_
    for name in ("members", "membership_prob", "stderr", "eps_certificate", "certificate_kind"):
        one, other = getattr(claimed, name), getattr(scratch, name)
        plain = one is None or other is None or isinstance(one, str)
        if not (one == other if plain else np.array_equal(one, other, equal_nan=True)):
            found.append(f"{name} differs from that computed without the records")
    new = after.engine_
    if not isinstance(new.target, SurvivorTarget):
        return found  # a run of its own
    old, target, gone = method.engine_, new.target, set(players.tolist())
    if target.base is not old.target and target.base.described() != old.target.described():
        found.append("the units are of another run")
    elif not stays_valid(target.base, target.law):
        found.append("the units do not stay valid for the law of the survivors")
    elif target.gone != tuple(players.tolist()) or new.seed != old.seed:
        found.append("the units are not those of the run before, without the deleted records")
    else:
        left = np.delete(np.arange(target.base.arms), players).tolist()
        before = [old.lines[at] for at in target.units]
        kinds = [(line.kind, line.arms) for line in before]
        own = [(line.kind, tuple(left[arm] for arm in line.arms)) for line in new.lines]
        if kinds != own[: len(kinds)] or any(gone & set(line.arms) for line in before):
            found.append("a unit that was kept is not the unit of the run before")
    return found


def _scored(
    game: Game, before: Request, after: Request, gone: set[int], known: Floats | None
) -> Floats:
    """Return the scores of a reduced unit; known ones where no deleted player took part."""
    if known is None:
        return evaluate(game, [after])[0]
    if not before.orders.size:
        held = bool(gone & set(np.concatenate(before.coalitions).tolist()))
        return evaluate(game, [after])[0] if held else known
    if type(game)._walks is not Game._walks:  # prefixes share work: a walk is scored as a whole
        return evaluate(game, [after])[0]
    order = before.orders[0]
    clear = int(np.isin(order, list(gone)).argmax())
    prefixes = [after.orders[0, : k + 1] for k in range(clear, after.orders.shape[1])]
    rest = game.score(prefixes) if prefixes else np.empty(0)
    return np.concatenate([known[: clear + 1], rest])


def features_left(method: TopM, problem: Problem, players: Ints) -> Any:  # noqa: ANN401 - a table
    """Return the features that were given, without the lines of the deleted players."""
    if method.features is None:
        return None
    table = np.ascontiguousarray(method.features, dtype=np.float64)
    by_row = len(table) == problem.n
    stays = ~np.isin(problem.player_of if by_row else np.arange(problem.players), players)
    return table[stays]


def _described(pulls: Pulls, units: int, kept: int) -> str:
    chosen = "sweeps alone" if pulls == "drop" else "pulls chosen while the deleted were there"
    return f"after a deletion: {kept} of {units} units, {chosen}"
