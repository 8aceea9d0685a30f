"""What an engine tells about its learner, without changing it."""

from __future__ import annotations

import numpy as np

from privml.valuation.topm.evidence import Hyperparameters
from privml.valuation.topm.learner import Learner
from privml.valuation.topm.sums import Floats, Ints
from privml.valuation.topm.target import Kind


class EngineView:
    """The part of an engine that only reads."""

    _learner: Learner

    def moments(self) -> tuple[Floats, Floats]:
        """Return (n,) posterior means and standard deviations, for the sign of the run."""
        posterior = self._learner.now().settled()
        return posterior.mean, np.sqrt(posterior.variance)

    @property
    def live(self) -> bool:
        """Whether gap-focused pulls have begun."""
        return self._learner.live

    @property
    def ready(self) -> bool:
        """Whether there is an answer: hyperparameters were given, or every arm was observed."""
        return self._learner.hyper is not None

    @property
    def drift(self) -> float:
        """Largest change that a rebuild of the posterior has found, relative to its scale."""
        return self._learner.drift

    @property
    def back_end(self) -> str:
        """Posterior back end in use."""
        return self._learner.model.back_end

    @property
    def kernel(self) -> str:
        """Kernel in use; ``function`` for a user's."""
        kernel = self._learner.model.kernels[self._learner.model.chosen]
        return kernel if isinstance(kernel, str) else "function"

    @property
    def hyperparameters(self) -> Hyperparameters | None:
        """Hyperparameters in use, None before the first fit."""
        return self._learner.hyper

    @property
    def counts(self) -> tuple[int, int]:
        """Observations of single arms and of pairs."""
        sums = self._learner.sums
        return sums.pulls, int(sums.pair_count.sum())

    @property
    def pulls_of_arms(self) -> Ints:
        """(n,) int64: observations that involve each arm, pairs included."""
        sums = self._learner.sums
        count = sums.count.copy()
        for side in sums.pair_arms.T:
            np.add.at(count, side, sums.pair_count.astype(np.int64))
        return count

    def units_by_kind(self) -> dict[Kind, int]:
        """Return how many units of each kind were applied."""
        return self._learner.journal.kinds()
