"""Runs whose scores are kept, so that a deletion evaluates only what held the deleted record.

Coalitions are not stored: they follow from seed and number. Scores are derived from every record
that took part; a recording is purged with them, by replacing it.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final, Literal, Self, TypeAlias

import numpy as np

from privml.backbones import run_state
from privml.backbones.digests import Json
from privml.errors import Corrupt, ParameterError
from privml.rng import ScienceSeed
from privml.valuation import engine
from privml.valuation.errors import CorruptResult, RunMismatch, SettingError
from privml.valuation.laws import SizeLaw
from privml.valuation.links.survivors import Survivors
from privml.valuation.methods.base import (
    checked_utility,
    path_of,
    residual,
    seed_of,
    seed_text,
    spec_digest,
    versions,
)
from privml.valuation.methods.semivalues import Semivalue
from privml.valuation.parallel import Workers
from privml.valuation.problem import Floats, Ints, Problem
from privml.valuation.result import ValuationResult
from privml.valuation.samplers import MSR
from privml.valuation.samplers.base import evaluate
from privml.valuation.samplers.estimates import Estimate, SplitEstimate, WalkEstimate
from privml.valuation.utilities.base import Game, Utility, batches

Reuse: TypeAlias = Literal["auto", "suffix", "none"]
REUSES: Final = ("auto", "suffix", "none")


@dataclass(frozen=True, eq=False)
class Recording:
    """A finished run with the scores of all units.

    Attributes
    ----------
    utility, sampler, law, seed
        What was sampled; the sampler names the deletions since.
    scores
        (units, w, L+1) of walks, or (units, 1) of draws.
    used
        (units,) which units count: without a refill, draws that held a deleted player do not.
    full, empty
        U of all players and of none.
    evaluations, rows_trained
        Cost of the last step: of the run, or of the deletion.
    data_digest
        Digest of the problem of the survivors.
    classes
        Number of its classes.
    """

    utility: Utility
    sampler: Survivors
    law: SizeLaw
    seed: ScienceSeed
    scores: Floats
    used: Ints
    full: float
    empty: float
    evaluations: int
    rows_trained: int
    data_digest: str
    classes: int

    @property
    def units(self) -> int:
        """Number of units."""
        return len(self.scores)

    def spec_digest(self) -> str:
        """Return the digest that a run from scratch on the survivors has."""
        return spec_digest(
            {
                "law": self.law.name,
                "sampler": self.sampler.spec(),
                "utility": self.utility.spec(),
            }
        )

    def contributions(self) -> Floats:
        """Return (units, players) mean marginals of each unit of walks."""
        estimate = self._empty_estimate()
        if not isinstance(estimate, WalkEstimate):
            raise SettingError("only walks have contributions of single units")
        return np.stack(
            [
                estimate.contribution(self._unit(number).orders, self.scores[number])[0]
                for number in range(self.units)
            ]
        )

    def result(self, problem: Problem, *, ci_level: float = 0.95) -> ValuationResult:
        """Return the values of the survivors, from their problem."""
        if problem.digest() != self.data_digest:
            raise RunMismatch("the recording belongs to another problem")
        estimate = self._empty_estimate()
        for number in np.flatnonzero(self.used):
            self._add(estimate, int(number))
        low, high = estimate.interval(ci_level)
        values = estimate.values()
        efficient = self.law.efficient and not np.isnan(values).any()
        left = residual(values, self.full, self.empty) if efficient else float("nan")
        return ValuationResult(
            ids=problem.ids,
            values=values,
            stderr=estimate.stderr(),
            ci_low=low,
            ci_high=high,
            ci_level=ci_level,
            rounding=estimate.rounding(),
            counts=estimate.counts(),
            truncated_counts=estimate.truncated(),
            evaluations=self.evaluations,
            rows_trained=self.rows_trained,
            seconds=0.0,
            efficiency_residual=left,
            residual_reason="" if efficient else f"{self.law.name} values need not sum to anything",
            status="budget",
            stop_reason=f"{estimate.units} units",
            target=self.law.name,
            method=type(self.sampler.base).__name__,
            group_mode=problem.group_mode,
            spec_digest=self.spec_digest(),
            data_digest=self.data_digest,
            seeds=(seed_text(self.seed),),
            versions=versions(),
        )

    def without(
        self, problem: Problem, players: Ints, *, reuse: Reuse = "auto", refill: bool = True
    ) -> Recording:
        """Return the recording without some players; see :func:`after_delete`.

        Parameters
        ----------
        problem
            The problem of the survivors, players among them already taken out.
        players
            Their numbers before.
        reuse
            ``"suffix"``: each prefix behind a deleted player is scored on its own; ``"none"``:
            walks are scored as a whole; ``"auto"``: as a whole where the utility shares work along
            a walk, which is then cheaper and equal bit for bit to a run from scratch. With
            ``"none"`` draws are scored anew as well. Nothing is reused where a score may depend on
            more than the rows of its coalition: for games that are not
            :attr:`~privml.valuation.utilities.base.Game.local`, and if a class is gone.
        refill
            Score draws again that held a deleted player; else they no longer count.
        """
        if reuse not in REUSES:
            raise SettingError(f"reuse={reuse!r} is unknown; use one of {REUSES}")
        sampler = self.sampler.without(tuple(players.tolist()))
        law = _law_like(self.law, problem.players)
        sampler.check(law)
        with Workers(1):
            game = self.utility.open(problem)
            valid = reuse != "none" and game.local and len(problem.classes) == self.classes
            if isinstance(sampler.base, MSR):
                scores, used = self._draws(game, sampler, law, refill=refill, valid=valid)
            else:
                share = valid and (reuse == "suffix" or type(game)._walks is Game._walks)
                scores = self._walks(game, sampler, law, single=share)
                used = self.used
            full = _all_players(game, scores, walks=not isinstance(sampler.base, MSR))
        return replace(
            self,
            sampler=sampler,
            law=law,
            scores=scores,
            used=used,
            full=full,
            empty=game.empty,
            evaluations=game.tally.evaluations,
            rows_trained=game.tally.rows_trained,
            data_digest=problem.digest(),
            classes=len(problem.classes),
        )

    def save(self, path: Path | str) -> None:
        """Replace the file at ``path`` by this recording, durably."""
        state: dict[str, Json] = {
            "full": self.full, "empty": self.empty, "evaluations": self.evaluations,
            "rows_trained": self.rows_trained, "gone": list(self.sampler.gone),
            "players": self.sampler.players,
        }  # fmt: skip
        arrays = {"scores": self.scores, "used": self.used}
        run_state.save_run(_path(path), run=self._run(), arrays=arrays, state=state)

    def load(self, path: Path | str) -> Self:
        """Return the recording saved at ``path``; this one states which run it must be.

        Raises
        ------
        CorruptResult
            The file is missing or damaged.
        RunMismatch
            It belongs to another run, or to the run before or after a deletion.
        """
        file = _path(path)
        try:
            saved = run_state.load_run(file, run=self._run())
        except Corrupt as error:
            raise CorruptResult(str(error)) from error
        except ParameterError as error:
            raise RunMismatch(f"{path} belongs to another run") from error
        if saved is None:
            raise CorruptResult(f"{path} holds no recording")
        same = all(
            saved.arrays.get(name, np.empty(0)).shape == own.shape
            and saved.arrays[name].dtype == own.dtype
            for name, own in (("scores", self.scores), ("used", self.used))
        )
        if not same:
            raise CorruptResult(f"{path} holds arrays of another form; record the run again")
        scores, used = saved.arrays["scores"], saved.arrays["used"]
        return replace(self, scores=scores.astype(np.float64), used=used.astype(np.int64))

    def _run(self) -> str:
        return spec_digest(
            {"spec": self.spec_digest(), "data": self.data_digest, "seed": seed_text(self.seed)}
        )

    def _empty_estimate(self) -> Estimate:
        return self.sampler.estimate(self.law, self.empty)

    def _unit(self, number: int) -> Any:  # noqa: ANN401 - a unit
        return self.sampler.unit(number, self.seed, self.law)

    def _add(self, estimate: Estimate, number: int) -> None:
        unit = self._unit(number)
        if isinstance(estimate, WalkEstimate):
            estimate.add(*estimate.contribution(unit.orders, self.scores[number]))
        elif isinstance(estimate, SplitEstimate):
            estimate.add(unit.coalitions[0], float(self.scores[number, 0]))

    def _draws(
        self, game: Game, sampler: Survivors, law: SizeLaw, *, refill: bool, valid: bool
    ) -> tuple[Floats, Ints]:
        scores, used = self.scores.copy(), self.used.copy()
        for number in range(self.units):
            before, after = self._unit(number), sampler.unit(number, self.seed, law)
            if not len(after.coalitions[0]):
                scores[number, 0] = game.empty
            held = len(before.coalitions[0]) != len(after.coalitions[0])
            if held and not refill:
                used[number] = 0
            if not used[number]:
                scores[number] = np.nan
            elif held or not valid:
                scores[number] = game.score(after.coalitions)
        return scores, used

    def _walks(self, game: Game, sampler: Survivors, law: SizeLaw, *, single: bool) -> Floats:
        w, length = self.scores.shape[1], law.n + 1
        out = np.full((self.units, w, length), game.empty)
        for number in range(self.units):
            orders = sampler.unit(number, self.seed, law).orders
            left = self._kept(number, sampler)
            if not single:
                out[number] = game.walks(orders)
                continue
            for walk, order in enumerate(orders):
                kept = int(left[walk])
                out[number, walk, 1 : kept + 1] = self.scores[number, walk, 1 : kept + 1]
                prefixes = [order[: k + 1] for k in range(kept, law.n)]
                if prefixes:
                    out[number, walk, kept + 1 :] = game.score(prefixes)
        return out

    def _kept(self, number: int, sampler: Survivors) -> Ints:
        """Return (w,) length of each walk before the first player deleted now."""
        orders = self._unit(number).orders
        left = np.flatnonzero(self.sampler.numbers() >= 0)
        gone = np.isin(left[orders], sampler.gone)
        return np.asarray(np.where(gone.any(axis=1), gone.argmax(axis=1), orders.shape[1]))


def record(method: Semivalue, problem: Problem, *, units: int) -> Recording:
    """Run a sampled method for a number of units and keep all scores.

    Values equal those of ``method`` stopped by ``MaxUnits(units)``, bit for bit.

    Raises
    ------
    SettingError
        The sampler truncates, or the law is capped: their units do not stay valid.
    """
    if units < 1:
        raise SettingError(f"units={units}: give at least 1")
    utility, seed = checked_utility(method.utility), seed_of(method.random_state)
    law = method.law(problem.players)
    sampler = Survivors(method.sampler or method.default_sampler(), problem.players, ())
    sampler.check(law)
    token = spec_digest({"utility": utility.spec(), "data": problem.digest()})
    source = engine.Source(token, utility, problem)
    parts = [(source, sampler, law, seed, part.start, part.stop) for part in batches(units, _PIECE)]
    found = Workers(method.n_jobs, backend=method.backend).map(_scores, parts)
    scores = np.concatenate([piece for piece, _ in found])
    cost = np.stack([spent for _, spent in found]).sum(axis=0)
    with Workers(1):
        game = utility.open(problem)
        full = _all_players(game, scores, walks=scores.ndim > 2)
    return Recording(
        utility, sampler, law, seed, scores, np.ones(units, dtype=np.int64), full, game.empty,
        int(cost[0]) + game.tally.evaluations, int(cost[1]) + game.tally.rows_trained,
        problem.digest(), len(problem.classes),
    )  # fmt: skip


def _path(path: Path | str) -> Path:
    found = path_of("path", path)
    if found is None:
        raise SettingError("path=None: give a path")
    return found


_PIECE: Final = 16
_Part: TypeAlias = tuple[engine.Source, Survivors, SizeLaw, ScienceSeed, int, int]


def _scores(part: _Part) -> tuple[Floats, Ints]:
    """Return scores of some units and their cost; runs in a worker."""
    source, sampler, law, seed, start, stop = part
    game = source.open()
    # threads share a game and its tally, so cost is what the units say
    out, cost = [], np.zeros(2, dtype=np.int64)
    for number in range(start, stop):
        [found] = evaluate(game, [sampler.unit(number, seed, law)], None)
        out.append(found.scores)
        cost += found.evaluations, found.rows_trained
    return np.stack(out), cost


def _all_players(game: Game, scores: Floats, *, walks: bool) -> float:
    """Return U of all players: a walk has scored it, draws have not."""
    return float(scores[0, 0, -1]) if walks else float(game.score([range(game.players)])[0])


def _law_like(law: SizeLaw, players: int) -> SizeLaw:
    if law.name == "banzhaf":
        return SizeLaw.banzhaf(players)
    if law.name == "shapley":
        return SizeLaw.shapley(players)
    if law.name.startswith("beta("):
        a, b = law.name[5:-1].split(",")
        return SizeLaw.beta(players, float(a), float(b))
    raise SettingError(f"the law {law.name} is not kept under deletion; run it again")
