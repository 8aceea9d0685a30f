"""Choose the audit's hyper-parameters, one after the other, on validation rows.

::

    python forest_tuning.py digits

Validation rows come from the training part of a seed that no reported number uses, or, of small
tables, from folds of such seeds; test rows of that seed stay out of sight. Splits of different
seeds overlap, so a row that was tuned on may be tested on later; test rows never train.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import replace

import forest_accuracy as accuracy
import forest_data as data
import numpy as np
from forest_settings import ACCURACY, Settings, estimator
from machine import usable_cores

HELD_BACK = 1000  # seeds from here on are for tuning only
CHOICES: dict[str, tuple[int | None, ...]] = {
    "per_row": (20, 40, 60, 80, 100),
    "thresholds": (1, 3, 5, 10, 30),
    "smallest": (2, 5, 10, 20, 40),
    "depth": (8, 12, 20, 30),
    "features": (None, 0),
}
ROUNDS = 2


def validation(name: str, settings: Settings, *, repeats: int) -> float:
    """Return the mean of the judged metric over validation rows."""
    table, found = data.load(name), []
    for number in range(HELD_BACK, HELD_BACK + repeats):
        pairs = accuracy.folds(len(table.y), number)
        if len(pairs) == 1:  # validate on a part of the training rows
            rows = pairs[0][0]
            cut = len(rows) * 4 // 5
            pairs = [(rows[:cut], rows[cut:])]
        model = estimator(table, settings, random_state=number, n_jobs=usable_cores())
        found.append(accuracy.scores(model, table, pairs)[accuracy.JUDGED[name]])
    return float(np.mean(found))


def search(start: Settings, score: Callable[[Settings], float]) -> tuple[float, Settings]:
    """Return the best settings found by changing one at a time, and their score."""
    best = score(start), start
    for _ in range(ROUNDS):
        before = best[1]
        for field, values in CHOICES.items():
            for value in values:
                if value != getattr(best[1], field):
                    tried = replace(best[1], **{field: value})
                    best = max(best, (score(tried), tried), key=lambda pair: pair[0])
        if best[1] == before:
            break
    return best


def main(name: str) -> None:
    """Search and print every improvement."""
    repeats = 5 if len(data.load(name).y) < accuracy.SMALL_ROWS else 1

    def score(settings: Settings) -> float:
        found = validation(name, settings, repeats=repeats)
        print(f"{found:.5f} {settings.words()}", flush=True)
        return found

    found, chosen = search(ACCURACY[name], score)
    print(f"best: {found:.5f} {chosen.words()}")


if __name__ == "__main__":
    main(sys.argv[1])
