"""Exact semivalues of few players, by all 2^n coalitions."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from typing import Self

from privml.backbones.digests import Json
from privml.valuation.errors import naming
from privml.valuation.games import enumerate_utilities, table_values
from privml.valuation.intervals import largest_size
from privml.valuation.laws import SizeLaw
from privml.valuation.methods.base import (
    Valuer,
    checked_utility,
    exact_result,
    residual,
    spec_digest,
)
from privml.valuation.parallel import pinned
from privml.valuation.problem import PlayerId, Problem
from privml.valuation.utilities.base import Game, Utility


class ExactValues(Valuer):
    """Semivalues by enumeration: ``f(i) = sum over S of p_|S| / C(n-1, |S|) (U(S+i) - U(S))``.

    Parameters
    ----------
    utility
        What a coalition is worth.
    law
        Size law as a function of the number of players; None for Shapley.
    """

    def __init__(
        self,
        utility: Utility | None = None,
        *,
        law: Callable[[int], SizeLaw] | None = None,
    ) -> None:
        self.utility = utility
        self.law = law

    def fit_problem(self, problem: Problem) -> Self:
        """Value the players of a problem; at most 20."""
        utility = checked_utility(self.utility)
        described: dict[str, Json] = {"utility": utility.spec()}
        with pinned():
            return self._value(
                utility.open(problem),
                problem.ids,
                described,
                data=problem.digest(),
                group_mode=problem.group_mode,
            )

    def fit_game(self, game: Game, *, ids: tuple[PlayerId, ...] | None = None) -> Self:
        """Value the players of a game; at most 20."""
        names = tuple(range(game.players)) if ids is None else ids
        return self._value(game, names, {"game": type(game).__name__})

    def _value(
        self,
        game: Game,
        ids: tuple[PlayerId, ...],
        described: dict[str, Json],
        *,
        data: str = "",
        group_mode: str = "row",
    ) -> Self:
        started = time.monotonic()
        law = (self.law or SizeLaw.shapley)(game.players)
        with naming(ids):
            table = enumerate_utilities(game)
        values = table_values(table, law)
        efficient = law.efficient
        self.result_ = exact_result(
            game,
            values,
            ids=ids,
            counts=1 << (game.players - 1),
            largest=largest_size(table),
            seconds=time.monotonic() - started,
            efficiency_residual=residual(values, table[-1], game.empty) if efficient else math.nan,
            residual_reason="" if efficient else f"{law.name} values need not sum to U(N)",
            stop_reason=f"all 2^{game.players} coalitions",
            target=law.name,
            method="ExactValues",
            group_mode=group_mode,
            spec_digest=spec_digest({"law": law.name, "sampler": "all", **described}),
            data_digest=data,
        )
        return self
