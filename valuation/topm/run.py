"""The loop between engine and game: budget, checkpoints, interrupts, trace and result."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Final, Literal, cast

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtri

from privml.backbones import run_state
from privml.backbones.digests import Json
from privml.errors import Corrupt, ParameterError
from privml.valuation.errors import CorruptResult, RunMismatch
from privml.valuation.methods.base import seed_text, spec_digest, versions
from privml.valuation.parallel import Workers
from privml.valuation.problem import Problem
from privml.valuation.result import ValuationResult
from privml.valuation.stopping import Progress, Stopping
from privml.valuation.topm.engine import Engine
from privml.valuation.topm.journal import Snapshot
from privml.valuation.topm.settings import deviations
from privml.valuation.topm.sums import Floats
from privml.valuation.topm.target import Kind, Request, evaluate
from privml.valuation.utilities.base import Game, walk_cost

Ended = Literal["certified", "converged", "budget", "interrupted"]

_TRACED_JOINT: Final = 1_000
_COLUMNS: Final = ("evaluations", "rows_trained", "eps", "seconds")


@dataclass(frozen=True, eq=False)
class Plan:
    """How a run is carried out; nothing here but ``stopping`` and ``batch`` changes the answer.

    Attributes
    ----------
    stopping
        When to stop before the certificate.
    batch
        Units asked for together after the switch.
    workers
        Processes or threads that score requests.
    checkpoint, every_s
        File of the checkpoint, and seconds between two of them.
    spec
        What fixes the scores: utility and data.
    """

    stopping: Stopping
    batch: int
    workers: Workers
    checkpoint: Path | None
    every_s: float
    spec: Mapping[str, Json]


class Run:
    """One run of an engine on a game.

    Parameters
    ----------
    begin
        Makes a new engine.
    game
        Scores coalitions.
    plan
        How.
    """

    def __init__(self, begin: Callable[[], Engine], game: Game, plan: Plan) -> None:
        self._begin, self._game, self._plan = begin, game, plan
        self.engine = begin()
        self.rows_trained = 0
        self._trace: list[tuple[float, ...]] = []
        self._traced = 0  # evaluations when a line was last due
        self._seconds_before = 0.0
        self._started = self._saved = time.monotonic()

    def until_done(self) -> tuple[Ended, str]:
        """Run until certified, stopped or interrupted; return how it ended, and why."""
        self._take_up()
        try:
            with self._plan.workers:  # BLAS held at one thread
                ended = self._loop()
        except KeyboardInterrupt:
            again = self._begin()  # a change may have been cut short: replay the journal
            again.resume(self.engine.snapshot())
            self.engine = again
            ended = "interrupted", f"interrupted after {again.evaluations} evaluations"
        self._save()
        return ended

    def _loop(self) -> tuple[Ended, str]:
        engine, players = self.engine, self._game.players
        while True:
            if engine.live and engine.certified:
                return "certified", f"certificate at or below eps={engine.settings.eps:g}"
            verdict = self._plan.stopping.verdict(self._progress())
            if verdict is not None:
                return verdict.status, verdict.reason
            amount = self._amount()
            if not amount:
                return "budget", f"{engine.evaluations} evaluations; the next unit needs more"
            requests = engine.ask(amount)
            for request, scores in zip(requests, self._scores(requests), strict=True):
                engine.tell(request, scores)
                self.rows_trained += _rows(request, scores, self._game)
            if engine.evaluations - self._traced >= players:
                self._traced = engine.evaluations
                self._note()
            if time.monotonic() - self._saved >= self._plan.every_s:
                self._save()

    def _amount(self) -> int:
        """Return how many units to ask for inside the budget; sweeps come in batches."""
        engine = self.engine
        kind, cost = engine.next_kind, engine.next_cost
        wish = self._plan.batch
        if kind in {Kind.WALK, Kind.BLOCKS}:
            wish = max(wish, self._game.batch)
        left = self._plan.stopping.evaluations() - engine.asked_evaluations
        return min(wish, int(left // cost)) if math.isfinite(left) else wish

    def _scores(self, requests: Sequence[Request]) -> list[Floats]:
        """Return the scores of requests; those in flight share the workers."""
        jobs = self._plan.workers
        if jobs.n_jobs == 1 or len(requests) == 1:
            return evaluate(self._game, requests)
        found = jobs.map(partial(evaluate, self._game), [[request] for request in requests])
        return [scores for part in found for scores in part]

    @property
    def seconds(self) -> float:
        """Seconds of this run, those before a resume included."""
        return self._seconds_before + time.monotonic() - self._started

    def _progress(self) -> Progress:
        engine = self.engine
        nothing = np.full(self._game.players, np.nan)
        mean, stderr = engine.moments() if engine.ready and engine.live else (nothing, nothing)
        return Progress(
            units=engine.applied,
            evaluations=engine.evaluations,
            rows_trained=self.rows_trained,
            seconds=self.seconds,
            values=engine.settings.sign * mean,
            stderr=stderr,
        )

    def _note(self) -> None:
        """Add a line to the trace; where a state costs an n^3 step, only after the switch."""
        engine = self.engine
        if engine.ready and (engine.live or self._game.players <= _TRACED_JOINT):
            eps = engine.state(draws=0).eps
            line = (float(engine.evaluations), float(self.rows_trained), eps, self.seconds)
            self._trace.append(line)

    # ------------------------------------------------------------------ checkpoints

    def digest(self) -> str:
        """Return the digest of all that the answer depends on, but for when the run stops."""
        batch = self._plan.batch
        return spec_digest({"run": self.engine.spec_digest(), "batch": batch, **self._plan.spec})

    def _take_up(self) -> None:
        path = self._plan.checkpoint
        if path is None:
            return
        try:
            saved = run_state.load_run(path, run=self.digest())
        except Corrupt as error:
            raise CorruptResult(str(error)) from error
        except ParameterError as error:
            raise RunMismatch(
                f"{path} belongs to a run with other settings, data or seed; choose another path, "
                "or remove it to start again"
            ) from error
        if saved is None:
            return
        state = cast("Mapping[str, Any]", saved.state)
        arrays = cast("Mapping[str, NDArray[Any]]", saved.arrays)
        try:
            self.engine.resume(Snapshot(arrays, state["head"]))
            self.rows_trained = int(state["rows_trained"])
            self._seconds_before = float(state["seconds"])
            self._trace = [tuple(float(value) for value in line) for line in state["trace"]]
            self._traced = int(state["traced"])
        except (KeyError, TypeError, ValueError) as error:
            raise CorruptResult(f"{path} cannot be read: {error}; remove it") from error

    def _save(self) -> None:
        self._saved = time.monotonic()
        if self._plan.checkpoint is None:
            return
        snapshot = self.engine.snapshot()
        state: dict[str, Json] = {
            "head": dict(snapshot.head),
            "rows_trained": self.rows_trained,
            "seconds": self.seconds,
            "trace": [list(line) for line in self._trace],
            "traced": self._traced,
        }
        run_state.save_run(
            self._plan.checkpoint, run=self.digest(), arrays=snapshot.arrays, state=state
        )

    # ------------------------------------------------------------------ result

    def result(
        self, problem: Problem, *, status: Ended, reason: str, level: float
    ) -> ValuationResult:
        """Return posterior means and deviations as a result, in the sign of the target."""
        engine, sign = self.engine, self.engine.settings.sign
        state = engine.state() if engine.ready else None
        nothing = np.full(problem.players, np.nan)
        values = sign * state.mean if state else nothing
        stderr = state.stderr if state else nothing
        half = float(ndtri((1 + level) / 2)) * stderr
        trace = np.array(self._trace, dtype=np.float64).reshape(-1, len(_COLUMNS))
        return ValuationResult(
            ids=problem.ids,
            values=values,
            stderr=stderr,
            ci_low=values - half,
            ci_high=values + half,
            ci_level=level,
            counts=engine.pulls_of_arms,
            truncated_counts=np.zeros(problem.players, dtype=np.int64),
            evaluations=engine.evaluations,
            rows_trained=self.rows_trained,
            seconds=self.seconds,
            residual_reason="values are posterior means; efficiency is a property of plain means",
            status=status,
            stop_reason=reason,
            target=engine.target.law.name,
            method="TopM",
            group_mode=problem.group_mode,
            spec_digest=self.digest(),
            data_digest=problem.digest(),
            seeds=(seed_text(engine.seed),),
            versions=versions(),
            members=state.members if state else None,
            membership_prob=state.membership_prob if state else None,
            eps_certificate=state.eps if state else math.nan,
            certificate_kind=state.certificate_kind if state else "",
            trace={name: trace[:, at].copy() for at, name in enumerate(_COLUMNS)},
            extras=self._extras(),
        )

    def _extras(self) -> dict[str, Json]:
        """Return what else was chosen: preset, deviations, hyperparameters, units."""
        engine = self.engine
        hyper, kinds = engine.hyperparameters, engine.units_by_kind()
        return {
            "preset": engine.settings.preset,
            "deviations": dict(deviations(engine.settings)),
            "settings": engine.settings.as_json(),
            "kernel": engine.kernel,
            "back_end": engine.back_end,
            "hyperparameters": None if hyper is None else hyper.as_json(),
            "units": {kind.name.lower(): kinds[kind] for kind in Kind},
            "posterior_drift": engine.drift,
        }


def _rows(request: Request, scores: Floats, game: Game) -> int:
    """Return the rows trained for one request."""
    rows = sum(int(game.row_counts[members].sum()) for members in request.coalitions)
    if request.orders.size:
        width = request.orders.shape[1] + 1
        rows += walk_cost(request.orders, scores.reshape(-1, width), game.row_counts)[1]
    return rows
