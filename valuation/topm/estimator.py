"""``TopM``: the m records of largest value, as a scikit-learn style estimator."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Self

from numpy.typing import ArrayLike

from privml.backbones.digests import Json
from privml.backbones.run_state import arrays_digest
from privml.rng import ScienceSeed
from privml.valuation.errors import SettingError, naming
from privml.valuation.laws import SizeLaw
from privml.valuation.methods.base import (
    Valuer,
    checked_utility,
    path_of,
    require_level,
    require_whole,
    seed_of,
)
from privml.valuation.parallel import Workers
from privml.valuation.problem import Problem
from privml.valuation.result import ValuationResult
from privml.valuation.stopping import MaxEvaluations, Progress, Stopping
from privml.valuation.topm.arms import Arms
from privml.valuation.topm.engine import Engine
from privml.valuation.topm.run import Plan, Run
from privml.valuation.topm.settings import Settings, from_preset
from privml.valuation.topm.target import Target
from privml.valuation.utilities.base import Game, Utility
from privml.valuation.utilities.ridge import RidgeUtility

_EXPLICIT = (
    "m", "eps", "delta", "sign", "rule", "paired", "pull", "width", "posterior", "kernel", "switch"
)  # fmt: skip
_BETA = 3


class TopM(Valuer):
    """Find the m records (or groups) of largest value within a budget of trainings.

    Walks over all records come first, smoothed by a Gaussian process on features and labels; then
    pairs of records on common coalitions where the answer is least certain. The run can be stopped
    at any time: it always has an answer, the epsilon that it is within (as far as the widths hold)
    and the probability of each record to belong to the answer.

    Parameters
    ----------
    m
        Number of records to find, below the number of players.
    utility
        What a coalition is worth; the ridge classifier (or regression) if not given.
    law
        Value to rank by: ``"shapley"``, ``"banzhaf"``, ``"loo"``, ``("beta", a, b)`` or a
        :class:`~privml.valuation.laws.SizeLaw`.
    cap
        Only coalitions below this size count (Shapley law): cheaper trainings and less noise, of
        another target, which the result names.
    features
        (rows or players, k) features for the kernel; the columns of X if not given.
    preset
        ``"default"``, ``"paper"``: where settings come from that are not given.
    eps, delta, sign, rule, paired, pull, width, posterior, kernel, switch
        See :class:`~privml.valuation.topm.settings.Settings`; None takes the preset's. ``sign=-1``
        finds the records of smallest value.
    options
        Further fields of the settings by name.
    batch
        Units that are asked for together after the switch; 1 is fully sequential.
    budget
        Most utility evaluations: a number, or a text like ``"40n"`` for 40 per player; None for no
        limit but ``stopping`` and the certificate. A unit that would exceed it is not begun.
    stopping
        A further :class:`~privml.valuation.stopping.Stopping` rule.
    n_jobs, backend
        Workers that score requests asked for together; see
        :class:`~privml.valuation.parallel.Workers`. Without effect on the result.
    checkpoint
        File of the checkpoint; a run with the same settings, data and seed is taken up from there.
    checkpoint_every
        Seconds between two checkpoints.
    ci_level
        Level of the posterior intervals.
    random_state
        Integer or seed; the result depends on it, the settings and the data only.

    Attributes
    ----------
    result_
        :class:`~privml.valuation.result.ValuationResult`: posterior means and standard deviations
        as values and errors; members, membership probabilities and certificate.
    engine_
        The engine, to go on with or to inspect.

    Examples
    --------
    >>> import numpy as np
    >>> from privml.valuation.topm import TopM
    >>> X = np.array([[-2.0], [-1.5], [-1.0], [1.0], [1.5], [2.0]])
    >>> y = np.array([0, 0, 1, 1, 1, 1])
    >>> wrong = TopM(m=1, sign=-1, budget="40n", random_state=3)
    >>> wrong.fit(X, y, X, (X[:, 0] > 0).astype(int)).result_.members
    array([2])
    """

    def __init__(
        self,
        m: int = 10,
        *,
        utility: Utility | None = None,
        law: Any = "shapley",  # noqa: ANN401 - name, tuple or law, checked at fit
        cap: int | None = None,
        features: ArrayLike | None = None,
        preset: str = "default",
        eps: float | None = None,
        delta: float | None = None,
        sign: int | None = None,
        rule: str | None = None,
        paired: bool | None = None,
        pull: str | None = None,
        width: float | str | None = None,
        posterior: str | None = None,
        kernel: Any = None,  # noqa: ANN401 - name or function, checked at fit
        switch: str | None = None,
        options: Mapping[str, Any] | None = None,
        batch: int = 1,
        budget: str | int | None = "40n",
        stopping: Stopping | None = None,
        n_jobs: int = 1,
        backend: str = "loky",
        checkpoint: str | Path | None = None,
        checkpoint_every: float = 30.0,
        ci_level: float = 0.95,
        random_state: int | ScienceSeed = 0,
    ) -> None:
        self.m = m
        self.utility = utility
        self.law = law
        self.cap = cap
        self.features = features
        self.preset = preset
        self.eps = eps
        self.delta = delta
        self.sign = sign
        self.rule = rule
        self.paired = paired
        self.pull = pull
        self.width = width
        self.posterior = posterior
        self.kernel = kernel
        self.switch = switch
        self.options = options
        self.batch = batch
        self.budget = budget
        self.stopping = stopping
        self.n_jobs = n_jobs
        self.backend = backend
        self.checkpoint = checkpoint
        self.checkpoint_every = checkpoint_every
        self.ci_level = ci_level
        self.random_state = random_state

    def fit_problem(self, problem: Problem) -> Self:
        """Run until the answer is certified or the budget is used.

        Ctrl-C ends the run with a valid partial result (``status`` is ``"interrupted"``).

        Raises
        ------
        SettingError
            A parameter is out of range.
        RunMismatch
            The checkpoint belongs to other settings, data or another seed.
        UtilityFailed
            The model or metric failed.
        """
        require_whole("batch", self.batch)
        target = Target.of(self.size_law(problem.players), warm=self.settings().warm)
        run = self._run(problem, lambda: self.engine_for(problem, target))
        with naming(problem.ids):
            status, reason = run.until_done()
        self.engine_ = run.engine
        self.result_ = run.result(problem, status=status, reason=reason, level=self.ci_level)
        return self

    def engine_for(self, problem: Problem, target: Target) -> Engine:
        """Return a new engine for a target on the players of a problem."""
        settings = self.settings()
        require_level(self.ci_level)
        seed = seed_of(self.random_state).child("top-m")
        return Engine(self._arms(problem), target, settings, seed=seed)

    def size_law(self, players: int) -> SizeLaw:
        """Return the size law of the target for a number of players."""
        return _law(self.law, self.cap, players)

    def utility_used(self) -> Utility:
        """Return the utility, the default one if none was given."""
        return RidgeUtility() if self.utility is None else checked_utility(self.utility)

    def result_from(
        self, engine: Engine, problem: Problem, game: Game, *, described: str
    ) -> ValuationResult:
        """Return the result of an engine that took its units over; the cost is the game's tally."""
        run = self._run(problem, lambda: engine, game)
        run.rows_trained = game.tally.rows_trained
        done = run.result(problem, status="budget", reason=described, level=self.ci_level)
        return replace(done, evaluations=game.tally.evaluations, seconds=0.0)

    def _run(self, problem: Problem, begin: Callable[[], Engine], game: Game | None = None) -> Run:
        utility, arms = self.utility_used(), self._arms(problem)
        plan = Plan(
            stopping=_stopping(self.budget, self.stopping, problem.players),
            batch=self.batch,
            workers=Workers(self.n_jobs, backend=self.backend),
            checkpoint=path_of("checkpoint", self.checkpoint),
            every_s=self.checkpoint_every,
            spec={
                "utility": utility.spec(),
                "data": problem.digest(),
                "features": _features_digest(arms),
            },
        )
        return Run(begin, utility.open(problem) if game is None else game, plan)

    def _arms(self, problem: Problem) -> Arms | None:
        alone = self.settings().back_end(problem.players) == "independent"
        return None if alone else Arms.of(problem, self.features)

    def settings(self) -> Settings:
        """Return the settings: the preset's, with what was given in their place."""
        own = self.get_params(deep=False)
        given = {name: own[name] for name in _EXPLICIT if own[name] is not None}
        return from_preset(self.preset, {**given, **(self.options or {})})


def _law(law: Any, cap: int | None, players: int) -> SizeLaw:  # noqa: ANN401
    """Return the size law of the target."""
    if cap is not None:
        if law != "shapley":
            raise SettingError("cap is for the Shapley law; give law='shapley'")
        return SizeLaw.capped(players, cap)
    if isinstance(law, SizeLaw):
        if law.n != players:
            raise SettingError(f"the law is of {law.n} players, the problem has {players}")
        return law
    if law == "shapley":
        return SizeLaw.shapley(players)
    if law == "banzhaf":
        return SizeLaw.banzhaf(players)
    if law == "loo":
        return SizeLaw.loo(players)
    if isinstance(law, tuple | list) and len(law) == _BETA and law[0] == "beta":
        return SizeLaw.beta(players, law[1], law[2])
    raise SettingError(f"law={law!r}: give shapley, banzhaf, loo, ('beta', a, b) or a SizeLaw")


class _Never(Stopping):
    """No limit: the certificate alone ends the run."""

    def verdict(self, progress: Progress) -> None:
        """Return None."""
        del progress

    def spec(self) -> Json:
        """Return the rule as JSON."""
        return "never"


def _stopping(budget: str | int | None, rule: Stopping | None, players: int) -> Stopping:
    """Return budget and rule as one stopping rule."""
    if budget is None:
        return _Never() if rule is None else rule
    count: float
    try:
        text = str(budget)
        count = float(text.removesuffix("n")) * (players if text.endswith("n") else 1)
    except ValueError:
        count = -1.0
    if not 1 <= count < float("inf"):
        raise SettingError(f"budget={budget!r}: give a number, or one like '40n'")
    limit = MaxEvaluations(int(count))
    return limit if rule is None else limit | rule


def _features_digest(arms: Arms | None) -> str:
    """Return the digest of the arms' features and labels, empty without."""
    if arms is None:
        return ""
    return arrays_digest({"features": arms.features, "labels": arms.labels})
