"""Deletion-robust values: what a player is worth if others may ask to be deleted.

After Tian et al., DeRDaVa, AAAI 2024: ``tau_i = E_D[1(i in D) phi_i(U restricted to D)]`` over a
random set D of players that stay. With everybody staying it is the Shapley value.
"""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from typing import Final, Self

import numpy as np
from numpy.typing import NDArray

from privml.backbones.digests import Json
from privml.rng import ScienceSeed
from privml.valuation import engine
from privml.valuation.errors import SettingError
from privml.valuation.intervals import half_width, largest_size, rounding
from privml.valuation.methods.base import (
    Valuer,
    checked_utility,
    seed_of,
    seed_text,
    spec_digest,
    versions,
)
from privml.valuation.parallel import Workers
from privml.valuation.problem import Floats, Ints, PlayerId, Problem
from privml.valuation.result import ValuationResult
from privml.valuation.utilities.base import Game, Utility, batches, walk_cost

_PIECE: Final = 32


class DeRDaVa(Valuer):
    """Monte Carlo of deletion-robust Shapley values.

    Parameters
    ----------
    utility
        What a coalition is worth.
    staying
        Probability that each player stays: one for all, or one each; players decide on their own.
    tail
        None for the mean over staying sets. A number a in (0, 1] takes the mean over the share a
        of staying sets of least U(D) only: a conditional value at risk, averse to bad outcomes.
        Negative a takes those of largest U(D). This definition is ours.
    units
        Staying sets; each is walked forwards and backwards.
    random_state, n_jobs, backend, ci_level
        As elsewhere; workers have no influence on values.

    Notes
    -----
    Values sum to the mean of U(D) - U(empty) over the sets that count: the residual says by how
    much the estimates miss the mean over the same sets. With a tail, the interval takes the sets
    that count as given.
    """

    def __init__(
        self,
        utility: Utility | None = None,
        *,
        staying: float | Sequence[float] = 0.9,
        tail: float | None = None,
        units: int = 1_000,
        random_state: int | ScienceSeed = 0,
        n_jobs: int = 1,
        backend: str = "loky",
        ci_level: float = 0.95,
    ) -> None:
        self.utility = utility
        self.staying = staying
        self.tail = tail
        self.units = units
        self.random_state = random_state
        self.n_jobs = n_jobs
        self.backend = backend
        self.ci_level = ci_level

    def fit_problem(self, problem: Problem) -> Self:
        """Value the players of a problem."""
        utility = checked_utility(self.utility)
        token = spec_digest({"utility": utility.spec(), "data": problem.digest()})
        source = engine.Source(token, utility, problem)
        return self._value(
            source,
            problem.ids,
            {"utility": utility.spec()},
            data=problem.digest(),
            group_mode=problem.group_mode,
        )

    def fit_game(self, game: Game, *, ids: tuple[PlayerId, ...] | None = None) -> Self:
        """Value the players of a game."""
        named = tuple(range(game.players)) if ids is None else ids
        return self._value(engine.Source("", game=game), named, {"game": type(game).__name__})

    def _value(
        self,
        source: engine.Source,
        ids: tuple[PlayerId, ...],
        described: dict[str, Json],
        *,
        data: str = "",
        group_mode: str = "row",
    ) -> Self:
        started, chance = time.monotonic(), self._chances(len(ids))
        seed = seed_of(self.random_state)
        parts = [(source, seed, chance, p.start, p.stop) for p in batches(self.units, _PIECE)]
        found = Workers(self.n_jobs, backend=self.backend).map(_sets, parts)
        each = np.concatenate([values for values, _, _ in found])
        worth = np.concatenate([scores for _, scores, _ in found])
        cost = np.stack([spent for _, _, spent in found]).sum(axis=0)
        counted = self._counted(worth)
        each, worth = each[counted], worth[counted]
        values = each.mean(axis=0)
        spread = each.std(axis=0, ddof=1) if len(each) > 1 else np.full(len(ids), np.nan)
        stderr = spread / math.sqrt(len(each))
        half = half_width(stderr, np.full(len(ids), len(each) - 1.0), self.ci_level)
        floor = rounding(largest_size(each, worth), 2 * len(ids) + len(each))
        half += floor
        self.result_ = ValuationResult(
            ids=ids,
            values=values,
            stderr=stderr,
            ci_low=values - half,
            ci_high=values + half,
            ci_level=self.ci_level,
            rounding=floor,
            counts=np.full(len(ids), len(each), dtype=np.int64),
            truncated_counts=np.zeros(len(ids), dtype=np.int64),
            evaluations=int(cost[0]),
            rows_trained=int(cost[1]),
            seconds=time.monotonic() - started,
            efficiency_residual=float(values.sum() - worth.mean()),
            status="budget",
            stop_reason=f"{len(each)} of {self.units} staying sets",
            target="derdava" if self.tail is None else f"derdava[tail={self.tail:g}]",
            method="DeRDaVa",
            group_mode=group_mode,
            spec_digest=spec_digest(
                {
                    "method": "derdava/1",
                    "units": self.units,
                    "tail": self.tail,
                    "staying": chance.tolist(),
                    **described,
                }
            ),
            data_digest=data,
            seeds=(seed_text(seed),),
            versions=versions(),
        )
        return self

    def _chances(self, players: int) -> Floats:
        chance = np.array(self.staying, dtype=np.float64)
        if chance.ndim == 0:
            chance = np.full(players, float(chance))
        if chance.shape != (players,) or not ((chance >= 0) & (chance <= 1)).all():
            raise SettingError(f"staying: give a probability, or one for each of {players} players")
        if self.units < 2:
            raise SettingError(f"units={self.units}: give at least 2")
        if self.tail is not None and not (0 < abs(self.tail) <= 1):
            raise SettingError(f"tail={self.tail}: give None or a share in (0, 1] or [-1, 0)")
        if not 0 < self.ci_level < 1:
            raise SettingError(f"ci_level={self.ci_level} must lie strictly between 0 and 1")
        return chance

    def _counted(self, worth: Floats) -> Ints:
        """Return the numbers of the staying sets that count, ascending."""
        if self.tail is None:
            return np.arange(len(worth))
        count = max(1, math.ceil(abs(self.tail) * len(worth)))
        order = np.argsort(worth if self.tail > 0 else -worth, kind="stable")
        return np.sort(order[:count])


_Part = tuple[engine.Source, ScienceSeed, Floats, int, int]


def _sets(part: _Part) -> tuple[Floats, Floats, NDArray[np.int64]]:
    """Return (units, n) marginals, (units,) U(D) - U(empty), and cost; runs in a worker."""
    source, seed, chance, start, stop = part
    game = source.open()
    # threads share a game and its tally, so cost is counted here
    cost = np.zeros(2, dtype=np.int64)
    each, worth = np.zeros((stop - start, game.players)), np.zeros(stop - start)
    for number in range(start, stop):
        generator = seed.child("staying", number).generator()
        stays = generator.random(game.players) < chance
        walk = generator.permutation(np.flatnonzero(stays)).astype(np.int64)
        if not len(walk):
            continue
        orders = np.stack([walk, walk[::-1]])
        scores = game.walks(orders)
        cost += walk_cost(orders, scores, game.row_counts)
        marginals = np.diff(scores, axis=1) / 2
        np.add.at(each[number - start], orders.ravel(), marginals.ravel())
        worth[number - start] = scores[:, -1].mean() - game.empty
    return each, worth, cost
