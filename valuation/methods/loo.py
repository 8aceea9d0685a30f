"""Leave-one-out: what the trained model loses without a player."""

from __future__ import annotations

import math
import time
from dataclasses import replace
from typing import Any, Self

import numpy as np

from privml.backbones.digests import Json
from privml.valuation import engine
from privml.valuation.errors import naming
from privml.valuation.intervals import largest_size
from privml.valuation.laws import SizeLaw
from privml.valuation.methods.base import Valuer, checked_utility, exact_result, spec_digest
from privml.valuation.parallel import Workers
from privml.valuation.problem import Floats, PlayerId, Problem
from privml.valuation.utilities.base import Game, Utility, batches
from privml.valuation.utilities.hat import RidgeHat
from privml.valuation.utilities.ridge import RidgeGame

_CHUNK = 64


class LeaveOneOut(Valuer):
    """``f(i) = U(N) - U(N - i)``: exact, n + 1 evaluations; in closed form for ridge.

    The closed form deletes rows R from the trained model: ``theta - A^-1 Z_R' (I - H_RR)^-1 e_R``
    with A the penalised Gram matrix, H the hat matrix and e the residuals. Its cost is that of one
    training and one prediction per player.

    Parameters
    ----------
    utility
        What a coalition is worth.
    closed_form
        Use the closed form where there is one; False evaluates every coalition.
    n_jobs, backend
        Workers where there is none; no influence on values.
    """

    def __init__(
        self,
        utility: Utility | None = None,
        *,
        closed_form: bool = True,
        n_jobs: int = 1,
        backend: str = "loky",
    ) -> None:
        self.utility = utility
        self.closed_form = closed_form
        self.n_jobs = n_jobs
        self.backend = backend

    def fit_problem(self, problem: Problem) -> Self:
        """Value the players of a problem."""
        utility = checked_utility(self.utility)
        described: dict[str, Json] = {"utility": utility.spec()}
        token = spec_digest({**described, "data": problem.digest()})
        source = engine.Source(token, utility, problem)
        names = {"data_digest": problem.digest(), "group_mode": problem.group_mode}
        return self._value(source, problem.ids, described, names)

    def fit_game(self, game: Game, *, ids: tuple[PlayerId, ...] | None = None) -> Self:
        """Value the players of a game."""
        named = tuple(range(game.players)) if ids is None else ids
        return self._value(engine.Source("", game=game), named, {"game": type(game).__name__}, {})

    def _value(
        self,
        source: engine.Source,
        ids: tuple[PlayerId, ...],
        described: dict[str, Json],
        names: dict[str, Any],
    ) -> Self:
        started, game = time.monotonic(), source.open()
        workers = Workers(self.n_jobs, backend=self.backend)
        n = game.players
        if self.closed_form and isinstance(game, RidgeGame):
            method = "LeaveOneOut (closed form)"
            full, without = Workers(1).map(lambda hat: hat.scores(), [RidgeHat(game)])[0]
        else:
            method = "LeaveOneOut"
            parts = [(source, part.start, part.stop) for part in batches(n + 1, _CHUNK)]
            with naming(ids):
                scores = np.concatenate(workers.map(score_without, parts))
            full, without = float(scores[n]), scores[:n]
        law = SizeLaw.loo(n)
        all_rows = int(game.row_counts.sum())
        result = exact_result(
            game,
            full - without,
            ids=ids,
            counts=1,
            largest=largest_size(full, without),
            seconds=time.monotonic() - started,
            efficiency_residual=math.nan,
            residual_reason=f"{law.name} values need not sum to U(N) - U(empty)",
            stop_reason="all players",
            target=law.name,
            method=method,
            spec_digest=spec_digest({"law": law.name, "sampler": "all", **described}),
            **names,
        )
        evaluations = n + 1 if n > 1 else 1  # U(empty) is not evaluated
        self.result_ = replace(result, evaluations=evaluations, rows_trained=n * all_rows)
        return self


def score_without(part: tuple[engine.Source, int, int]) -> Floats:
    """Return U without each player of a range; number n stands for leaving nobody out."""
    source, start, stop = part
    game = source.open()
    everybody = np.arange(game.players)
    left_out = [[k] if k < game.players else [] for k in range(start, stop)]
    return game.score([np.delete(everybody, out) for out in left_out])
