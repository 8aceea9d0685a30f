"""Shapley values of any game that only looks at the k nearest rows, by all sets of at most k rows.

Let every row join with probability q. The k nearest are T, the farthest of them at place j, with
probability ``q^k (1-q)^(j-k)``; integrating the derivative over q gives the weight of T in each
value, a Beta function. Cost: binom(n, k) sets for each validation row.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import lru_cache
from itertools import chain, combinations
from typing import TypeAlias

import numpy as np
from scipy.special import beta

from privml.valuation.errors import SettingError
from privml.valuation.problem import Floats, Ints

MOST_SETS = 2_000_000
Worth: TypeAlias = Callable[[Ints], Floats]


def nearest_sets(worth: Worth, nothing: float, n: int, k: int) -> Floats:
    """Return (n,) float64 values by place.

    Parameters
    ----------
    worth
        U of coalitions given as (c, size) int64 places, ascending.
    nothing
        U(empty).
    n, k
        Rows, and how many of the nearest the game looks at.

    Raises
    ------
    SettingError
        There are more than two million sets.
    """
    total = sum(math.comb(n, size) for size in range(min(k, n) + 1))
    if total > MOST_SETS:
        raise SettingError(
            f"normalised weights with k={k} need all {total} sets of at most k of {n} rows: use a "
            "smaller k, normalised=False, or Shapley().fit_game(method.game(problem))"
        )
    out = np.full(n, -nothing / n)
    for size in range(1, min(k, n) + 1):
        sets = _sets(n, size)
        values = worth(sets)
        reach = sets[:, -1] + 1 if size == k else np.full(len(sets), n)
        inside = values * beta(size, reach - size + 1)
        outside = np.where(reach > size, values * beta(size + 1, np.maximum(reach - size, 1)), 0.0)
        out += np.bincount(sets.ravel(), weights=np.repeat(inside + outside, size), minlength=n)
        # every row nearer than the reach loses `outside`; members got it back above
        by_reach = np.bincount(reach, weights=outside, minlength=n + 1)
        out -= np.cumsum(by_reach[::-1])[::-1][1:]
    return out


@lru_cache(maxsize=8)
def _sets(n: int, size: int) -> Ints:
    flat = chain.from_iterable(combinations(range(n), size))
    count = math.comb(n, size)
    found = np.fromiter(flat, dtype=np.int64, count=count * size).reshape(count, size)
    found.flags.writeable = False
    return found
