"""The loop behind every sampled method: units in rounds, sums in unit order, stop, checkpoint.

A round is a fixed number of units. It is split over the workers, and its outcomes are added in
unit order, so values do not depend on the number of workers, nor on where a run was cut and
resumed. An interrupt discards the round in progress and returns what was there before it.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import pairwise
from pathlib import Path
from typing import Any, Final, Literal, TypeAlias

from privml.errors import internal
from privml.rng import ScienceSeed
from privml.valuation import checkpoint as checkpoints
from privml.valuation.errors import SettingError
from privml.valuation.laws import SizeLaw
from privml.valuation.parallel import Workers, pinned
from privml.valuation.problem import Floats, Ints, Problem
from privml.valuation.samplers.base import Sampler, evaluate
from privml.valuation.samplers.estimates import Estimate, SplitEstimate, WalkEstimate
from privml.valuation.stopping import Progress, Stopping, Verdict
from privml.valuation.utilities.base import Game, Truncation, Utility

EndStatus: TypeAlias = Literal["converged", "budget", "interrupted"]
Listener: TypeAlias = Callable[[Progress], None]
_PIECES_PER_JOB: Final = 2


@dataclass(frozen=True, eq=False)
class Source:
    """Where a worker gets the game from: a utility and a problem, or the game itself.

    Attributes
    ----------
    token
        Equal for equal games; workers open a game once per token. Empty for a game given as such.
    """

    token: str
    utility: Utility | None = None
    problem: Problem | None = None
    game: Game | None = None

    def __hash__(self) -> int:
        return hash(self.token)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Source) and self.token == other.token

    def open(self) -> Game:
        """Return the game."""
        if self.game is not None:
            return self.game
        return _opened(self)


@dataclass(frozen=True, eq=False)
class Plan:
    """Everything that fixes the units of a run.

    Attributes
    ----------
    source, sampler, law, seed
        What is sampled.
    run
        Digest of all of it, for checkpoints.
    needs_full
        Whether U of all players is evaluated (once).
    """

    source: Source
    sampler: Sampler
    law: SizeLaw
    seed: ScienceSeed
    run: str
    needs_full: bool


@dataclass(eq=False)
class Run:
    """State and outcome of a run."""

    estimate: Estimate
    evaluations: int = 0
    rows_trained: int = 0
    seconds: float = 0.0
    full: float = math.nan
    status: EndStatus = "interrupted"
    reason: str = ""
    resumed_at: int = 0
    _spent_before: float = field(default=0.0, repr=False)

    def progress(self) -> Progress:
        """Return the state that stopping rules and listeners see."""
        return Progress(
            self.estimate.units,
            self.evaluations,
            self.rows_trained,
            self.seconds,
            self.estimate.values(),
            self.estimate.stderr(),
        )


@dataclass(frozen=True, eq=False)
class Piece:
    """Consecutive units for one worker."""

    plan: Plan
    start: int
    stop: int
    truncation: Truncation | None


def run(
    plan: Plan,
    stopping: Stopping,
    *,
    workers: Workers,
    round_units: int,
    checkpoint: Path | None = None,
    every_s: float = 30.0,
    listener: Listener | None = None,
) -> Run:
    """Sample until the stopping rule speaks or an interrupt comes.

    Parameters
    ----------
    plan
        What to sample.
    stopping
        When to stop; asked when the number of units is a multiple of ``round_units``.
    workers
        Who evaluates.
    round_units
        Units of a round, at least 1.
    checkpoint
        File to continue from, if it is there, and to write.
    every_s
        Seconds between two writes; the end of a run is always written.
    listener
        Called after every round.

    Raises
    ------
    SettingError
        The budget does not pay for one unit.
    RunMismatch, CorruptResult
        The checkpoint belongs to another run or is damaged.
    UtilityFailed
        The utility failed; the checkpoint holds the rounds before.
    """
    with workers:
        loop = _Loop(plan, stopping, workers, round_units, checkpoint, every_s, listener)
        return loop.run()


class _Loop:
    def __init__(
        self,
        plan: Plan,
        stopping: Stopping,
        workers: Workers,
        round_units: int,
        checkpoint: Path | None,
        every_s: float,
        listener: Listener | None,
    ) -> None:
        plan.sampler.check(plan.law)
        self._plan, self._stopping, self._workers = plan, stopping, workers
        self._round, self._path, self._every = round_units, checkpoint, every_s
        self._listener = listener
        self._game = plan.source.open()
        self._run = Run(plan.sampler.estimate(plan.law, self._game.empty))
        self._written = self._started = time.monotonic()

    def run(self) -> Run:
        state = self._run
        try:
            self._resume()
            self._full()
            self._check_budget()
            while True:
                verdict = self._verdict()
                if verdict is not None:
                    state.status, state.reason = verdict.status, verdict.reason
                    break
                self._advance()
        except KeyboardInterrupt:
            state.status = "interrupted"
            state.reason = f"interrupted after {state.estimate.units} units"
        self._clock()
        self._write()
        return state

    def _resume(self) -> None:
        saved = None if self._path is None else checkpoints.read(self._path, self._plan.run)
        if saved is None:
            return
        state = self._run
        state.estimate.restore(saved.units, saved.arrays)
        state.evaluations, state.rows_trained = saved.evaluations, saved.rows_trained
        state.full, state.resumed_at = saved.full, saved.units
        state._spent_before = state.seconds = saved.seconds

    def _full(self) -> None:
        """Evaluate U of all players once, in this process."""
        if not self._plan.needs_full or not math.isnan(self._run.full):
            return
        source = self._plan.source
        self._run.full = Workers(1).map(lambda _: _score_all(source), [0])[0]
        self._run.evaluations += 1
        self._run.rows_trained += int(self._game.row_counts.sum())

    def _check_budget(self) -> None:
        cost = self._plan.sampler.evaluations(self._plan.law)
        limit = self._stopping.evaluations()
        if self._run.estimate.units == 0 and self._run.evaluations + cost > limit:
            raise SettingError(
                f"one unit costs {cost} evaluations (and U of all players "
                f"{self._run.evaluations}): allow at least {self._run.evaluations + cost}"
            )

    def _verdict(self) -> Verdict | None:
        units = self._run.estimate.units
        affordable = self._affordable()
        if units and (units % self._round == 0 or affordable == 0):
            verdict = self._stopping.verdict(self._run.progress())
            if verdict is not None:
                return verdict
        if affordable == 0:
            return Verdict("budget", f"{self._stopping.evaluations():g} evaluations")
        return None

    def _affordable(self) -> int:
        """Units up to the end of this round that the budget pays for and the rule wants."""
        units = self._run.estimate.units
        room = self._round - units % self._round
        wanted = self._stopping.units() - units
        if wanted < room:
            room = max(0, math.ceil(wanted))
        limit = self._stopping.evaluations()
        if math.isinf(limit):
            return room
        cost = self._plan.sampler.evaluations(self._plan.law)
        return max(0, min(room, int(limit - self._run.evaluations) // cost))

    def _advance(self) -> None:
        """Evaluate a round and add its outcomes in unit order."""
        start = self._run.estimate.units
        stop = start + self._affordable()
        found = self._workers.map(evaluate_piece, self._pieces(start, stop))
        adding = [outcome for piece in found for outcome in piece]
        internal(len(adding) == stop - start, "every unit of a round came back")
        self._add(adding)
        self._clock()
        if self._listener is not None:
            self._listener(self._run.progress())
        if time.monotonic() - self._written >= self._every:
            self._write()

    def _add(self, adding: list[tuple[int, int, Any]]) -> None:
        """Add a round as a whole or, if interrupted, not at all."""
        state = self._run
        units, spent = state.estimate.units, (state.evaluations, state.rows_trained)
        before = {name: array.copy() for name, array in state.estimate.arrays().items()}
        try:
            for evaluations, rows, observed in adding:
                add(state.estimate, observed)
                state.evaluations += evaluations
                state.rows_trained += rows
        except BaseException:
            state.estimate.restore(units, before)
            state.evaluations, state.rows_trained = spent
            raise

    def _pieces(self, start: int, stop: int) -> list[Piece]:
        jobs = self._workers.n_jobs if self._workers.n_jobs > 0 else self._round
        count = 1 if jobs == 1 else min(stop - start, jobs * _PIECES_PER_JOB)
        edges = [start + (stop - start) * part // count for part in range(count + 1)]
        cut = self._truncation()
        return [Piece(self._plan, a, b, cut) for a, b in pairwise(edges)]

    def _truncation(self) -> Truncation | None:
        tolerance = self._plan.sampler.cut_below
        return None if tolerance is None else Truncation(self._run.full, tolerance)

    def _clock(self) -> None:
        self._run.seconds = self._run._spent_before + time.monotonic() - self._started

    def _write(self) -> None:
        if self._path is None:
            return
        state = self._run
        saved = checkpoints.State(
            state.estimate.units,
            state.evaluations,
            state.rows_trained,
            state.seconds,
            state.full,
            state.estimate.arrays(),
        )
        checkpoints.write(self._path, self._plan.run, saved)
        self._written = time.monotonic()


Observed: TypeAlias = tuple[Floats, Ints] | tuple[Ints, float]


def evaluate_piece(piece: Piece) -> list[tuple[int, int, Any]]:
    """Return cost and observation of each unit of a piece; runs in a worker."""
    plan = piece.plan
    game = plan.source.open()
    estimate = plan.sampler.estimate(plan.law, game.empty)
    out: list[tuple[int, int, Any]] = []
    for start in range(piece.start, piece.stop, game.batch):
        numbers = range(start, min(start + game.batch, piece.stop))
        units = [plan.sampler.unit(number, plan.seed, plan.law) for number in numbers]
        for unit, found in zip(units, evaluate(game, units, piece.truncation), strict=True):
            if isinstance(estimate, WalkEstimate):
                observed: Any = estimate.contribution(unit.orders, found.scores)
            else:
                observed = unit.coalitions[0], float(found.scores[0])
            out.append((found.evaluations, found.rows_trained, observed))
    return out


def add(estimate: Estimate, observed: Any) -> None:  # noqa: ANN401 - what evaluate_piece gave
    """Add the observation of one unit."""
    if isinstance(estimate, WalkEstimate | SplitEstimate):
        estimate.add(*observed)


def _score_all(source: Source) -> float:
    game = source.open()
    return float(game.score([range(game.players)])[0])


@lru_cache(maxsize=2)
def _opened(source: Source) -> Game:
    """Open a game once per process; the token stands for utility and data."""
    internal(source.utility is not None and source.problem is not None, "a source has a game")
    utility: Any = source.utility
    with pinned():
        game: Game = utility.open(source.problem)
    return game
