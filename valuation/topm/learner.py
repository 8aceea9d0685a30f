"""The learning half of a run: units in, posterior out, in a way that can be replayed exactly.

The posterior is a function of the pooled sums at the last rebuild and of the updates since. Before
the switch it is made from the sums whenever someone looks; after it every observation is one
rank-1 update. Refits happen when every arm was observed and then at each doubling of the
observations, whether or not anyone looks.
"""

from __future__ import annotations

import math

import numpy as np

from privml.errors import internal
from privml.rng import ScienceSeed
from privml.valuation.errors import SettingError
from privml.valuation.topm.arms import Arms
from privml.valuation.topm.evidence import Hyperparameters
from privml.valuation.topm.journal import Fit, Journal, Line
from privml.valuation.topm.model import Model
from privml.valuation.topm.posterior import Observation, Posterior, relative_change
from privml.valuation.topm.settings import Settings
from privml.valuation.topm.sums import Floats, PooledSums
from privml.valuation.topm.target import Kind, Request, Target


class Learner:
    """Sums, journal, hyperparameters and posterior of a run.

    Parameters
    ----------
    arms, target, settings, seed
        As for the engine.

    Attributes
    ----------
    sums, journal, model
        Pooled observations, units and fits so far, and the maker of posteriors.
    hyper
        Hyperparameters in use, None before the first fit.
    evaluations
        Utility evaluations of the applied units.
    live
        Whether gap-focused pulls have begun.
    live_at
        Units applied when they began; -1 before.
    rebuilt_at
        Units applied when the posterior was last computed from scratch.
    drift
        Largest change that a rebuild has found, in units of the prior's scale.
    """

    def __init__(
        self, arms: Arms | None, target: Target, settings: Settings, *, seed: ScienceSeed
    ) -> None:
        self._target, self._settings = target, settings
        self.model = Model(target.arms, arms, settings, seed=seed)
        self.sums = PooledSums(target.arms)
        self.journal = Journal()
        self.hyper: Hyperparameters | None = settings.hyperparameters
        self.evaluations = 0
        self.live = False
        self.live_at = -1
        self.rebuilt_at = 0
        self.drift = 0.0
        self._posterior: Posterior | None = None
        self._peek: tuple[int, Posterior] | None = None
        self._since = 0
        self._fitted_at = 0

    @property
    def applied(self) -> int:
        """Units applied so far."""
        return len(self.journal.lines)

    @property
    def observations(self) -> int:
        """Observations of single arms and of pairs."""
        return self.sums.pulls + int(self.sums.pair_count.sum())

    def apply(self, request: Request, scores: Floats) -> None:
        """Add one unit; refit or rebuild if it is time."""
        self._record(request, scores)
        if self.sums.count.all() and self.observations >= 2 * self._fitted_at:
            self._fit()
        elif self.live and self._since >= self._settings.rebuild_every:
            self._rebuild()

    def go_live(self) -> None:
        """Begin with focused pulls, on hyperparameters of all that was seen."""
        if not self.live:
            self.live_at = self.applied
            if self.sums.count.all() and self.observations > self._fitted_at:
                self._fit()
            self._begin()

    def now(self) -> Posterior:
        """Return the current posterior."""
        if self.live and self._posterior is not None:
            return self._posterior
        if self._peek is None or self._peek[0] != self.applied:
            self._peek = self.applied, self._made()
        return self._peek[1]

    def replay(
        self, requests: list[Request], scores: list[Floats], fits: list[Fit], *, rebuilt_at: int
    ) -> None:
        """Bring a new learner to a recorded state.

        No fit is repeated, and single updates are made only after the last rebuild.

        Parameters
        ----------
        requests, scores
            The applied units in order.
        fits
            Hyperparameters and when they were fitted.
        rebuilt_at
            Units applied at the last rebuild; -1 if focused pulls had not begun.
        """
        by_units = {fit.units: fit for fit in fits}
        for at in range(len(requests) + 1):
            if at in by_units:
                fit = by_units[at]
                self.hyper, self.model.chosen = fit.hyper, fit.kernel
                self.journal.fits.append(fit)
                self._fitted_at = self.observations
            if at == rebuilt_at:
                self._begin()
            if at < len(requests):
                self._record(requests[at], scores[at])

    def _begin(self) -> None:
        self.live = True
        self._posterior = self._made()
        self.rebuilt_at, self._since = self.applied, 0

    def _record(self, request: Request, scores: Floats) -> None:
        """Add one unit to journal and sums, and to a live posterior."""
        self.journal.lines.append(Line(request.kind, request.arms, scores))
        self.evaluations += request.evaluations
        sign = self._settings.sign
        if request.kind in {Kind.WALK, Kind.BLOCKS}:
            internal(not self.live, "a sweep was applied after the switch")
            for arms, values in self._target.marginals(request, scores):
                self.sums.add(arms, sign * values)
            return
        value = sign * float(scores[1] - scores[0])
        first, second = request.arms[0], -1
        if request.kind is Kind.PAIR:
            second, value = request.arms[1], -value  # the scores are U(S+b), U(S+c)
        if self.live:
            self.now().observe(Observation(first, second, value), self.sums)
            self._since += 1
        if second >= 0:
            self.sums.add_pair(first, second, value)
        else:
            self.sums.add_one(first, value)

    def _fit(self) -> None:
        self._fitted_at = self.observations
        old = self._posterior if self.live else None
        self.hyper = self.model.fitted(self.sums, self.hyper, old)
        self.journal.fits.append(Fit(self.applied, self.model.chosen, self.hyper))
        if self.live:
            self._begin()

    def _rebuild(self) -> None:
        """Compute the posterior from scratch and note how far the updates had drifted.

        Where noise variances are renewed as well, both posteriors differ for that reason.
        """
        old = self.now().settled()
        self._begin()
        new = self.now()
        if not np.array_equal(old.noises, new.noises):
            return
        scale = float(new.variance.max(initial=0.0))
        drift = max(
            relative_change(new.mean, old.mean, math.sqrt(scale)),
            relative_change(new.variance, old.variance, scale),
        )
        self.drift = max(self.drift, drift)

    def _made(self) -> Posterior:
        if self.hyper is None:
            raise SettingError(
                "hyperparameters are needed before every arm was observed; give them, or let the "
                "switch come after one sweep"
            )
        return self.model.posterior(self.sums, self.hyper, live=self.live)
