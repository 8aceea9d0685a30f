"""Equal rows: within the training rows, and across the split to the validation rows."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass

import numpy as np

from privml.valuation.problem import Floats, PlayerId, Problem


@dataclass(frozen=True)
class DuplicateGroup:
    """Training rows with equal features.

    Attributes
    ----------
    rows
        Their numbers.
    row_ids
        Their names.
    conflict
        Whether their labels or targets differ.
    """

    rows: tuple[int, ...]
    row_ids: tuple[PlayerId, ...]
    conflict: bool


def duplicates(problem: Problem) -> tuple[DuplicateGroup, ...]:
    """Return the groups of two or more training rows with equal features, largest first.

    Equal rows share the value that one of them would have, so copying a row lowers the value of
    its original. Cost O(n d).
    """
    found: dict[bytes, list[int]] = defaultdict(list)
    for row, key in enumerate(_keys(problem.X)):
        found[key].append(row)
    groups = [
        DuplicateGroup(
            tuple(rows),
            tuple(problem.row_ids[row] for row in rows),
            bool(np.ptp(problem.y[rows]) > 0),
        )
        for rows in found.values()
        if len(rows) > 1
    ]
    return tuple(sorted(groups, key=lambda group: (-len(group.rows), group.rows)))


def leaked_rows(problem: Problem) -> tuple[PlayerId, ...]:
    """Return the names of training rows whose features also stand in the validation rows."""
    held = set(_keys(problem.X_val))
    return tuple(
        name for name, key in zip(problem.row_ids, _keys(problem.X), strict=True) if key in held
    )


def _keys(rows: Floats) -> list[bytes]:
    return [row.tobytes() for row in rows + 0.0]  # -0.0 and 0.0 are one number
