"""Sampled semivalues: one loop, many size laws.

``f(i) = sum_k p_k · mean over S without i, |S| = k, of U(S+i) - U(S)``; see
:mod:`privml.valuation.laws`. A method is its law, a sampler and a stopping rule.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from pathlib import Path
from typing import Any, Self

import numpy as np

from privml.backbones.digests import Json
from privml.rng import ScienceSeed
from privml.valuation import engine
from privml.valuation.errors import NotConverged, SettingError, naming
from privml.valuation.laws import SizeLaw
from privml.valuation.methods.base import (
    Valuer,
    checked_utility,
    path_of,
    require_level,
    require_whole,
    residual,
    seed_of,
    seed_text,
    spec_digest,
    versions,
)
from privml.valuation.parallel import Workers
from privml.valuation.problem import PlayerId, Problem
from privml.valuation.result import ValuationResult
from privml.valuation.samplers import MSR, Antithetic, Sampler
from privml.valuation.stopping import MaxEvaluations, Stopping
from privml.valuation.utilities.base import Game, Utility

_DEFAULT_ROUND = 64
_PER_PLAYER = 200


class Semivalue(Valuer):
    """Base of the sampled semivalues; not used itself.

    Parameters
    ----------
    utility
        What a coalition is worth, for example ``RidgeUtility()``.
    sampler
        Which coalitions are looked at; None for the method's default.
    stopping
        When to stop, for example ``MaxEvaluations(20_000) | StdErr(0.005)``; None for 200
        evaluations per player.
    random_state
        Integer or :class:`privml.rng.ScienceSeed`; equal settings, data and seed give equal bits.
    n_jobs
        Processes or threads; has no influence on values.
    backend
        ``"loky"``, ``"threading"``, ``"multiprocessing"`` or ``"dask"``.
    round_units
        Units between two questions to the stopping rule; None for 64. Part of the result only
        through where a rule stops.
    checkpoint
        File to continue from, if it is there, and to write.
    checkpoint_every_s
        Seconds between two writes.
    ci_level
        Confidence of each interval.
    must_converge
        Raise ``NotConverged`` if a budget ends the run.
    listener
        Called with a :class:`privml.valuation.stopping.Progress` after every round.
    """

    def __init__(
        self,
        utility: Utility | None = None,
        *,
        sampler: Sampler | None = None,
        stopping: Stopping | None = None,
        random_state: int | ScienceSeed = 0,
        n_jobs: int = 1,
        backend: str = "loky",
        round_units: int | None = None,
        checkpoint: str | Path | None = None,
        checkpoint_every_s: float = 30.0,
        ci_level: float = 0.95,
        must_converge: bool = False,
        listener: engine.Listener | None = None,
    ) -> None:
        self.utility = utility
        self.sampler = sampler
        self.stopping = stopping
        self.random_state = random_state
        self.n_jobs = n_jobs
        self.backend = backend
        self.round_units = round_units
        self.checkpoint = checkpoint
        self.checkpoint_every_s = checkpoint_every_s
        self.ci_level = ci_level
        self.must_converge = must_converge
        self.listener = listener

    @abstractmethod
    def law(self, n: int) -> SizeLaw:
        """Return the size law for n players."""

    def default_sampler(self) -> Sampler:
        """Return the sampler used if none is given."""
        return Antithetic()

    def fit_problem(self, problem: Problem) -> Self:
        """Value the players of a problem; see :meth:`fit`."""
        utility = checked_utility(self.utility)
        token = spec_digest({"utility": utility.spec(), "data": problem.digest()})
        source = engine.Source(token, utility, problem)
        described: dict[str, Json] = {"utility": utility.spec()}
        self.result_ = self._value(
            source, problem.ids, described, data=problem.digest(), group_mode=problem.group_mode
        )
        return self

    def fit_game(self, game: Game, *, ids: tuple[PlayerId, ...] | None = None) -> Self:
        """Value the players of a game.

        A game has no digest: checkpoints and results of games are told apart by their class only.
        """
        names = tuple(range(game.players)) if ids is None else ids
        described: dict[str, Json] = {"game": type(game).__name__, "players": game.players}
        self.result_ = self._value(engine.Source("", game=game), names, described)
        return self

    def plan(self, players: int) -> dict[str, float]:
        """Return what a run costs at most, before it is started.

        Returns
        -------
        dict
            ``evaluations_per_unit``, and with a limited budget ``units`` and ``evaluations``.
        """
        law, sampler = self.law(players), self.sampler or self.default_sampler()
        each = sampler.evaluations(law)
        limit = self._stopping(players).evaluations()
        spare = 1 if self._needs_full(law, sampler) else 0
        units = math.inf if math.isinf(limit) else (limit - spare) // each
        return {"evaluations_per_unit": each, "units": units, "evaluations": units * each + spare}

    def _stopping(self, players: int) -> Stopping:
        return MaxEvaluations(_PER_PLAYER * players + 1) if self.stopping is None else self.stopping

    @staticmethod
    def _needs_full(law: SizeLaw, sampler: Sampler) -> bool:
        return law.efficient or sampler.cut_below is not None

    def _value(
        self,
        source: engine.Source,
        ids: tuple[PlayerId, ...],
        described: dict[str, Json],
        *,
        data: str = "",
        group_mode: str = "row",
    ) -> ValuationResult:
        rounds = _DEFAULT_ROUND if self.round_units is None else self.round_units
        require_whole("round_units", rounds)
        require_level(self.ci_level)
        law, sampler = self.law(len(ids)), self.sampler or self.default_sampler()
        seed, stopping = seed_of(self.random_state), self._stopping(len(ids))
        kinds: list[tuple[object, type]] = [(sampler, Sampler), (stopping, Stopping)]
        if not all(isinstance(value, kind) for value, kind in kinds):
            raise SettingError(
                "sampler and stopping are objects such as Antithetic() and MaxUnits(9)"
            )
        checkpoint = path_of("checkpoint", self.checkpoint)
        sampler.check(law)
        spec = spec_digest({"law": law.name, "sampler": sampler.spec(), **described})
        plan = engine.Plan(
            source,
            sampler,
            law,
            seed,
            spec_digest({"spec": spec, "data": data, "seed": seed_text(seed)}),
            self._needs_full(law, sampler),
        )
        with naming(ids):
            run = engine.run(
                plan,
                stopping,
                workers=Workers(self.n_jobs, backend=self.backend),
                round_units=rounds,
                checkpoint=checkpoint,
                every_s=self.checkpoint_every_s,
                listener=self.listener,
            )
        if self.must_converge and run.status != "converged":
            raise NotConverged(f"the run ended by {run.reason}; allow more or ask for less")
        names = {"spec_digest": spec, "data_digest": data, "group_mode": group_mode}
        return self._result(plan, run, ids, stopping, names)

    def _result(
        self,
        plan: engine.Plan,
        run: engine.Run,
        ids: tuple[PlayerId, ...],
        stopping: Stopping,
        names: dict[str, Any],
    ) -> ValuationResult:
        estimate = run.estimate
        low, high = estimate.interval(self.ci_level)
        left, why = self._residual(plan, run)
        return ValuationResult(
            ids=ids,
            values=estimate.values(),
            stderr=estimate.stderr(),
            ci_low=low,
            ci_high=high,
            ci_level=self.ci_level,
            rounding=estimate.rounding(),
            counts=estimate.counts(),
            truncated_counts=estimate.truncated(),
            evaluations=run.evaluations,
            rows_trained=run.rows_trained,
            seconds=run.seconds,
            efficiency_residual=left,
            residual_reason=why,
            status=run.status,
            stop_reason=run.reason,
            target=plan.law.name,
            method=type(plan.sampler).__name__,
            seeds=(seed_text(plan.seed),),
            versions=versions(),
            extras={"stopping": stopping.spec(), "units": estimate.units},
            **names,
        )

    def _residual(self, plan: engine.Plan, run: engine.Run) -> tuple[float, str]:
        values = run.estimate.values()
        if not plan.law.efficient:
            return math.nan, f"{plan.law.name} values need not sum to U(N) - U(empty)"
        if np.isnan(values).any():
            return math.nan, "some values are unknown"
        return residual(values, run.full, plan.source.open().empty), ""


class BetaShapley(Semivalue):
    """Beta(a, b) Shapley (Kwon and Zou, AISTATS 2022): ``p_k`` beta-binomial in k.

    Parameters
    ----------
    a, b
        > 0. Large a stresses small coalitions, large b large ones; (1, 1) is Shapley.
    utility, sampler, stopping, ...
        As for :class:`Semivalue`.
    """

    def __init__(
        self,
        utility: Utility | None = None,
        *,
        a: float = 16.0,
        b: float = 1.0,
        sampler: Sampler | None = None,
        stopping: Stopping | None = None,
        random_state: int | ScienceSeed = 0,
        n_jobs: int = 1,
        backend: str = "loky",
        round_units: int | None = None,
        checkpoint: str | Path | None = None,
        checkpoint_every_s: float = 30.0,
        ci_level: float = 0.95,
        must_converge: bool = False,
        listener: engine.Listener | None = None,
    ) -> None:
        super().__init__(
            utility,
            sampler=sampler,
            stopping=stopping,
            random_state=random_state,
            n_jobs=n_jobs,
            backend=backend,
            round_units=round_units,
            checkpoint=checkpoint,
            checkpoint_every_s=checkpoint_every_s,
            ci_level=ci_level,
            must_converge=must_converge,
            listener=listener,
        )
        self.a = a
        self.b = b

    def law(self, n: int) -> SizeLaw:
        """Return the beta-binomial law."""
        return SizeLaw.beta(n, self.a, self.b)


class Banzhaf(Semivalue):
    """Banzhaf value (Wang and Jia, AISTATS 2023): ``p_k = C(n-1, k) / 2^(n-1)``.

    The default sampler reuses every draw for all players. No efficiency; the semivalue with the
    largest safety margin against noise in U.
    """

    def law(self, n: int) -> SizeLaw:
        """Return the binomial law."""
        return SizeLaw.banzhaf(n)

    def default_sampler(self) -> Sampler:
        """Return :class:`privml.valuation.samplers.MSR`."""
        return MSR()
