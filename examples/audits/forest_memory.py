"""What one forest adds to a process: prints JSON. Started fresh by the forest audit.

::

    python forest_memory.py cardio
"""

from __future__ import annotations

import gc
import json
import os
import sys
from pathlib import Path

import forest_data as data
from forest_settings import SPEED, estimator


def resident_bytes() -> int:
    """Return the resident memory of this process."""
    pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


def warm_up() -> None:
    """Fit and drop a small forest, so that libraries and their tables are loaded."""
    small = data.load("iris")
    estimator(small, SPEED["cardio"], random_state=1).fit(small.X, small.y)


def growth(name: str) -> dict[str, object]:
    """Return resident growth by fitting a table's training rows, and what the forest counts."""
    table = data.load(name)
    train = table.take(data.split(len(table.y), data.SEED)[0])
    warm_up()
    model = estimator(train, SPEED[name], random_state=1)
    gc.collect()
    before = resident_bytes()
    model.fit(train.X, train.y)
    gc.collect()
    after = resident_bytes()
    return {
        "rss_bytes": after - before,
        "parts_bytes": dict(model.memory_usage()),
        "pairs": len(train.y) * SPEED[name].per_row,
    }


if __name__ == "__main__":
    print(json.dumps(growth(sys.argv[1])))
