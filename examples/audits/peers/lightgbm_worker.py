"""LightGBM as a peer: one training with default settings on one thread; prints JSON.

Runs in the peer's environment, on the arrays of an ``.npz`` file::

    python lightgbm_worker.py rows.npz '{}'
"""

from __future__ import annotations

import json
import sys
import time

import lightgbm
import numpy as np

ROUNDS = 100


def main(path: str) -> dict[str, object]:
    """Return CPU seconds of training and the scores of the test rows."""
    with np.load(path) as rows:
        X, y, T = (rows[name] for name in ("X", "y", "T"))
    settings = {"objective": "binary", "num_threads": 1, "verbosity": -1, "seed": 1}
    lightgbm.train(settings, lightgbm.Dataset(X[:500], y[:500]), 2)  # loads its library
    start = time.process_time_ns()
    model = lightgbm.train(settings, lightgbm.Dataset(X, y), ROUNDS)
    train_s = (time.process_time_ns() - start) / 1e9
    scores = np.asarray(model.predict(T)).tolist()
    return {"train_cpu_s": train_s, "version": lightgbm.__version__, "scores": scores}


if __name__ == "__main__":
    print(json.dumps(main(sys.argv[1])))
