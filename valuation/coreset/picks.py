"""Which rows join the coreset in a round."""

from __future__ import annotations

import numpy as np

from privml.valuation.errors import SettingError
from privml.valuation.problem import Floats, Ints


def round_ends(size: int, steps: int | str) -> list[int]:
    """Return the number of chosen rows after each round; every round adds at least one.

    Raises
    ------
    SettingError
        ``steps`` is neither a whole number of at least 1 nor ``"size"``.
    """
    if steps == "size":
        return list(range(1, size + 1))
    if isinstance(steps, bool) or not isinstance(steps, int | np.integer) or steps < 1:
        raise SettingError(f"selection_steps={steps!r}: give a whole number or 'size'")
    rounds = min(int(steps), size)
    return [size * (number + 1) // rounds for number in range(rounds)]


def picked(score: Floats, tie: Ints, count: int, *, codes: Ints | None, chosen: Ints) -> Ints:
    """Return the ``count`` best rows, best first.

    Parameters
    ----------
    score
        (n,) float64; -inf for rows that may not be picked.
    tie
        (n,) permutation that decides among equal scores.
    count
        Rows to pick.
    codes
        (n,) class of each row: the class with the fewest chosen rows picks next, the better best
        row first. None: no balance.
    chosen
        Rows of earlier rounds.
    """
    order = np.lexsort((tie, -score))
    order = order[np.isfinite(score[order])]
    if codes is None:
        return np.asarray(order[:count], dtype=np.int64)
    classes = int(codes.max()) + 1
    have = np.bincount(codes[chosen], minlength=classes)
    waiting = [order[codes[order] == code] for code in range(classes)]
    best = np.empty(len(score), dtype=np.int64)
    best[order] = np.arange(len(order))
    taken, out = [0] * classes, []
    for _ in range(min(count, len(order))):
        able = [c for c in range(classes) if taken[c] < len(waiting[c])]
        code = min(able, key=lambda c: (have[c], best[waiting[c][taken[c]]]))
        out.append(int(waiting[code][taken[code]]))
        taken[code] += 1
        have[code] += 1
    return np.array(out, dtype=np.int64)
