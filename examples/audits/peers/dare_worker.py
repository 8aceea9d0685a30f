"""dare-rf 1.1.4 as a peer: trains, then deletes rows one by one; prints JSON.

Runs in the peer's environment, on the arrays of an ``.npz`` file::

    python dare_worker.py rows.npz '{"trees": 100, "depth": 10, ...}'
"""

from __future__ import annotations

import json
import sys
import time

import numpy as np
from dare import Forest

WARM_UP = 5


def main(path: str, settings: dict[str, int]) -> dict[str, object]:
    """Return CPU seconds of training and us of deletions and one-row queries."""
    with np.load(path) as rows:
        X, y, T, doomed = (rows[name] for name in ("X", "y", "T", "doomed"))
    forest = Forest(
        n_estimators=settings["trees"], max_depth=settings["depth"], k=settings["thresholds"],
        max_features=settings["features"], min_samples_split=settings["smallest"], topd=0,
        random_state=1,
    )  # fmt: skip
    start = time.thread_time_ns()
    forest.fit(X.astype(np.float32), y.astype(np.int32))
    train_s = (time.thread_time_ns() - start) / 1e9
    queries = [_ns(forest.predict_proba, T[i : i + 1].astype(np.float32)) for i in range(50)]
    deletes = [_ns(forest.delete, int(i)) for i in doomed[: settings["deletes"]]][WARM_UP:]
    return {
        "train_cpu_s": train_s,
        "query_mean_us": float(np.mean(queries)) / 1e3,
        "delete_mean_us": float(np.mean(deletes)) / 1e3,
        "delete_p50_us": float(np.quantile(deletes, 0.5)) / 1e3,
        "delete_p99_us": float(np.quantile(deletes, 0.99)) / 1e3,
        "deletes": len(deletes),
    }


def _ns(work, argument) -> int:  # noqa: ANN001 - a bound method of the peer
    start = time.thread_time_ns()
    work(argument)
    return time.thread_time_ns() - start


if __name__ == "__main__":
    print(json.dumps(main(sys.argv[1], json.loads(sys.argv[2]))))
