"""Which coalition made a game fail: they are scored again, one by one."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np

from privml.valuation.problem import Ints


def culprit(
    asked: Sequence[Ints] | Ints, score: Callable[..., Any], walks: Callable[..., Any]
) -> list[int]:
    """Return the first coalition, or prefix of a walk, that fails when it is scored alone.

    Of walks whose prefixes do not fail alone it is the whole walk, if that fails; of several
    coalitions that do not fail alone none. A single coalition is not scored again.

    Parameters
    ----------
    asked
        Coalitions, or (w, L) walks.
    score, walks
        What scores a list of coalitions, and (1, L) walks; uncounted.
    """
    if len(asked) == 1 and not isinstance(asked, np.ndarray):
        return list(map(int, asked[0]))
    for members in asked:
        if not isinstance(asked, np.ndarray):
            if _fails(partial(score, [members])):
                return list(map(int, members))
        elif _fails(partial(walks, members[None])):
            prefixes = (np.sort(members[: k + 1]) for k in range(len(members)))
            alone = (prefix for prefix in prefixes if _fails(partial(score, [prefix])))
            return list(map(int, next(alone, members)))
    return []


def _fails(evaluate: Callable[[], object]) -> bool:
    try:
        evaluate()
    except Exception:  # noqa: BLE001 - whatever a model raises, it has failed
        return True
    return False
