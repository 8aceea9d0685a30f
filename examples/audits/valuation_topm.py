"""One run of every top-m scheme on one case: same game, same budget, members at several budgets.

Schemes, all with hyperparameters from their own data:

* ``walks``: permutation walks, means of marginals;
* ``walks+gp``: the same, smoothed by the posterior on features and labels;
* ``ugape``: independent arms, gap index, single pulls after one walk, multiplier 2;
* ``gpgape``: our reading of GPGapE (``preset="paper"``), single pulls after one walk, multiplier 2
  (the theory width of the preset only explores at such budgets);
* ``hybrid``: ours (``preset="default"``): walks with smoothing, then pairs of equal coalitions.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from valuation_data import SEED, Case, Floats, Ints

from privml.rng import ScienceSeed
from privml.valuation import RidgeUtility, SizeLaw
from privml.valuation.topm import Arms, Engine, Settings, Target, evaluate, from_preset
from privml.valuation.utilities.base import Game

UTILITY = RidgeUtility(alpha=1.0)
BUDGETS = (2, 4, 10, 20, 40)
"""Utility evaluations per player."""
SCHEMES: Mapping[str, tuple[str, Mapping[str, Any]] | None] = {
    "walks": None,
    "walks+gp": ("default", {"switch": "never"}),
    "ugape": ("default", {
        "rule": "ugape", "posterior": "independent", "pull": "largest_variance", "width": 2.0,
        "switch": "evaluations:1n", "noise": "pooled",
    }),
    "gpgape": ("paper", {"width": 2.0}),
    "hybrid": ("default", {}),
}  # fmt: skip
"""Preset and settings of each scheme."""
OTHERS = tuple(name for name in SCHEMES if name != "hybrid")
_CHUNK = 256


@dataclass(frozen=True, eq=False)
class Reference:
    """Values by many walks, and by each half of them.

    Attributes
    ----------
    values, errors
        (n,) means of marginals and their standard errors.
    halves
        (2, n) means of the first and of the second half.
    """

    values: Floats
    errors: Floats
    halves: Floats

    @classmethod
    def of(cls, game: Game, walks: int, seed: ScienceSeed) -> Reference:
        """Take an even number of walks."""
        draw, n = seed.child("reference").generator(), game.players
        sums, squares, half = np.zeros((2, n)), np.zeros(n), walks // 2
        for start in range(0, 2 * half, _CHUNK):
            count = min(_CHUNK, 2 * half - start)
            orders = np.array([draw.permutation(n) for _ in range(count)])
            steps = by_player(orders, game.walks(orders))
            first = np.arange(start, start + count) < half
            sums += np.stack([steps[first].sum(axis=0), steps[~first].sum(axis=0)])
            squares += (steps**2).sum(axis=0)
        mean = sums.sum(axis=0) / (2 * half)
        variance = np.maximum(squares / (2 * half) - mean**2, 0.0)
        return cls(mean, np.sqrt(variance / (2 * half)), sums / half)

    def judge(self, members: Ints) -> dict[str, float]:
        """Return how good an answer is.

        Returns
        -------
        dict
            ``right``: share of the m largest; ``near``: share within two standard errors of the
            m-th largest or above it; ``captured``: gain over a random choice, 1 for the best.
        """
        m = len(members)
        best = np.argsort(-self.values, kind="stable")[:m]
        chosen = self.values[members]
        floor = self.values[best[-1]] - 2 * self.errors[members]
        span = self.values[best].mean() - self.values.mean()
        return {
            "right": len(np.intersect1d(best, members)) / m,
            "near": float((chosen >= floor).mean()),
            "captured": float((chosen.mean() - self.values.mean()) / span),
        }

    def ceiling(self, m: int) -> float:
        """Return the share of the m largest that both halves agree on."""
        first, second = (np.argsort(-half, kind="stable")[:m] for half in self.halves)
        return len(np.intersect1d(first, second)) / m


def by_player(orders: Ints, scores: Floats) -> Floats:
    """Return (w, n) marginals by player from scores of prefixes."""
    steps = np.diff(scores, axis=1)
    out = np.empty_like(steps)
    np.put_along_axis(out, orders, steps, axis=1)
    return out


def settings_of(scheme: str, m: int) -> Settings | None:
    """Return the settings of a scheme; None for plain walks."""
    known = SCHEMES[scheme]
    return None if known is None else from_preset(known[0], {**known[1], "m": m})


def run_all(case: Case, turn: int, *, m: int, walks: int, most: int = 40) -> dict[str, Any]:
    """Run every scheme on one case.

    Parameters
    ----------
    case
        The problem.
    turn
        Number of the seed.
    m
        Size of the answer.
    walks
        Walks of the reference.
    most
        Largest budget, in evaluations per player.

    Returns
    -------
    dict
        ``schemes``: by scheme and budget what :meth:`Reference.judge` says; ``ceiling`` and
        ``spread`` of the reference; ``evaluations`` by scheme.
    """
    seed = SEED.child("topm", case.name, turn)
    reference = Reference.of(UTILITY.open(case.problem), walks, seed)
    budgets = [budget for budget in BUDGETS if budget <= most]
    schemes, spent = {}, {}
    for scheme in SCHEMES:
        game = UTILITY.open(case.problem)
        settings = settings_of(scheme, m)
        child = seed.child(scheme)
        if settings is None:
            answers = _by_walks(game, m, budgets, child)
        else:
            answers = answers_of(case, game, settings, budgets, child)
        schemes[scheme] = {b: reference.judge(members) for b, members in answers.items()}
        spent[scheme] = game.tally.evaluations
    return {
        "schemes": schemes, "ceiling": reference.ceiling(m), "evaluations": spent,
        "error_over_spread": float(reference.errors.mean() / reference.values.std()),
    }  # fmt: skip


def _by_walks(game: Game, m: int, budgets: Sequence[int], seed: ScienceSeed) -> dict[int, Ints]:
    draw = seed.generator()
    orders = np.array([draw.permutation(game.players) for _ in range(budgets[-1])])
    steps = by_player(orders, game.walks(orders))
    return {b: np.argsort(-steps[:b].mean(axis=0), kind="stable")[:m] for b in budgets}


def answers_of(
    case: Case, game: Game, settings: Settings, budgets: Sequence[int], seed: ScienceSeed
) -> dict[int, Ints]:
    """Run an engine through all budgets, one unit at a time; return its members at each."""
    n = game.players
    target = Target.of(SizeLaw.shapley(n), warm=settings.warm)
    arms = None if settings.back_end(n) == "independent" else Arms.of(case.problem)
    engine = Engine(arms, target, settings, seed=seed)
    found: dict[int, Ints] = {}
    for budget in budgets:
        while engine.asked_evaluations + engine.next_cost <= budget * n:
            requests = engine.ask(1)
            for request, scores in zip(requests, evaluate(game, requests), strict=True):
                engine.tell(request, scores)
        found[budget] = engine.members
    return found
