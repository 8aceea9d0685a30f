"""Shapley values by walks, in full or over small coalitions only."""

from __future__ import annotations

from pathlib import Path

from privml.rng import ScienceSeed
from privml.valuation import engine
from privml.valuation.laws import SizeLaw
from privml.valuation.methods.semivalues import Semivalue
from privml.valuation.samplers import Sampler
from privml.valuation.stopping import Stopping
from privml.valuation.utilities.base import Utility


class Shapley(Semivalue):
    """Shapley value: ``p_k = 1/n``; values sum to U(N) - U(empty).

    Parameters
    ----------
    utility, sampler, stopping, ...
        As for :class:`privml.valuation.methods.semivalues.Semivalue`; the default sampler is
        :class:`privml.valuation.samplers.Antithetic`.
    cap
        Count coalitions of fewer than ``cap`` players only (``p_k = 1/cap`` for k < cap): another
        target, cheaper and less noisy, which results name ``shapley[s=cap]``. None for all.

    Examples
    --------
    >>> from privml.valuation.games import AirportGame
    >>> game = AirportGame([1.0, 2.0, 4.0])
    >>> result = Shapley(random_state=1).fit_game(game).result_
    >>> bool(abs(result.values - game.shapley()).max() < 0.2), result.efficiency_residual < 1e-12
    (True, True)
    """

    def __init__(
        self,
        utility: Utility | None = None,
        *,
        sampler: Sampler | None = None,
        stopping: Stopping | None = None,
        cap: int | None = None,
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
        self.cap = cap

    def law(self, n: int) -> SizeLaw:
        """Return the uniform law, up to the cap."""
        return SizeLaw.shapley(n) if self.cap is None else SizeLaw.capped(n, self.cap)
