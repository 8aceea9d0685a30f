"""A DynFrs binary that the user names, and the reference measurements shown without one.

The public DynFrs code (commit 196f3ecf) has no licence, so this repository holds neither its code
nor a way to build it. Whoever has it may compile a small driver around it and name that with
``--dynfrs PATH``. It is called as ::

    PATH MODE TRAIN TEST DELETE T K D S M P

with MODE ``delete`` or ``alternate``, three files, and six decimal integers: trees, trees per row,
depth, thresholds, smallest node that is split, attributes per node. The files are little-endian.
TRAIN and TEST: u32 rows, u32 columns, rows x columns float32 row by row, then one byte 0 or 1 per
row. DELETE: a u32 count and so many u32 row numbers of TRAIN, counted from 0.

It trains on TRAIN with one thread and then, in mode ``delete``, predicts the rows of TEST one by
one and after that deletes the rows of DELETE one by one; in mode ``alternate`` it deletes row i of
DELETE and predicts row i of TEST (again from the first when TEST ends), for every i in turn. It
prints one JSON object::

    {"train_ns": 0, "rss_bytes": 0, "query_ns": [], "delete_ns": [], "scores": []}

``train_ns`` and every entry of the lists are thread CPU time (``CLOCK_THREAD_CPUTIME_ID``), not cut
to microseconds; ``rss_bytes`` is the growth of resident memory by training; ``scores`` are the
predicted probabilities of class 1 for all rows of TEST, ``[]`` in mode ``alternate``. A text
``"build"`` may say how it was compiled; it is shown with the figures.
"""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import numpy as np
from forest_clock import Latency
from forest_data import Table
from forest_speed import Case, Figures
from sklearn.metrics import accuracy_score, roc_auc_score

LIMIT_S = 900
ELSEWHERE = "reference measurement, another machine"
_NAMES = (
    "train_s", "memory_mb", "accuracy", "auc", "query_us", "delete_us", "delete_then_us",
    "query_after_us", "stream_add_us", "stream_delete_us", "stream_query_us", "batch_us",
)  # fmt: skip
_REFERENCE = {
    "shopping_onehot": (0.167, 37, 0.897, 0.932, 22, 69, 106, 182, 119, 121, 211, 23),
    "cardio": (1.24, 257, 0.735, 0.799, 240, 168, 215, 898, 270, 224, 915, 76),
    "adult_onehot": (0.66, 173, 0.862, 0.914, 112, 114, 178, 659, 171, 174, 584, 51),
    "syn100k": (6.0, 725, 0.914, 0.960, 235, 433, 645, 4105, 677, 664, 3841, 228),
}
REFERENCE = {name: dict(zip(_NAMES, row, strict=True)) for name, row in _REFERENCE.items()}
"""DynFrs 196f3ecf, g++ 12.2 -O3, one thread of an AMD EPYC (Zen 3), thread CPU time, +-15 %."""


class DynfrsFailed(Exception):
    """The binary that was named does not do what the module's documentation asks for."""


def write_files(case: Case, folder: Path) -> list[str]:
    """Write TRAIN, TEST and DELETE into a folder and return their paths."""
    paths = [folder / name for name in ("train.bin", "test.bin", "delete.bin")]
    for path, table in zip(paths, (case.train, case.test), strict=False):
        path.write_bytes(_packed(table))
    doomed = np.concatenate([[len(case.doomed)], case.doomed]).astype("<u4")
    paths[2].write_bytes(doomed.tobytes())
    return [str(path) for path in paths]


def _packed(table: Table) -> bytes:
    shape = np.array(table.X.shape, dtype="<u4").tobytes()
    return shape + table.X.astype("<f4").tobytes() + table.y.astype(np.uint8).tobytes()


def measure(binary: Path, case: Case, files: list[str]) -> Figures:
    """Return the binary's figures; it is started once per mode.

    Raises
    ------
    DynfrsFailed
        It ends with an error or prints something else than asked for.
    """
    clean, turn = (_run(binary, mode, case, files) for mode in ("delete", "alternate"))
    try:
        kinds = {
            "query": Latency.of(clean["query_ns"]),
            "delete": Latency.of(clean["delete_ns"]),
            "delete_before_query": Latency.of(turn["delete_ns"]),
            "query_after_delete": Latency.of(turn["query_ns"]),
        }
        scores = np.array(clean["scores"], dtype=np.float64)
        value = {
            "train_s": float(np.median([clean["train_ns"], turn["train_ns"]])) / 1e9,
            "memory_mb": clean["rss_bytes"] / 1e6,
            "query_us": kinds["query"].mean_us,
            "delete_us": kinds["delete"].mean_us,
            "delete_then_us": kinds["delete_before_query"].mean_us,
            "query_after_us": kinds["query_after_delete"].mean_us,
            "accuracy": float(accuracy_score(case.test.y, scores > 0.5)),
            "auc": float(roc_auc_score(case.test.y, scores)),
        }
    except (KeyError, TypeError, ValueError) as error:
        raise DynfrsFailed(f"{binary.name} printed something unexpected: {error!r}") from error
    if len(clean["delete_ns"]) != len(case.doomed):
        raise DynfrsFailed(f"{binary.name} timed {len(clean['delete_ns'])} deletions")
    detail: dict[str, object] = {kind: latency.as_dict() for kind, latency in kinds.items()}
    return Figures(value, detail | {"build": str(clean.get("build", "not stated"))})


def _run(binary: Path, mode: str, case: Case, files: list[str]) -> dict:
    s, columns = case.settings, case.train.X.shape[1]
    features = s.features or int(columns**0.5) + 1
    numbers = (s.trees, s.per_row, s.depth, s.thresholds, s.smallest, features)
    command = [str(binary), mode, *files, *map(str, numbers)]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=LIMIT_S)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise DynfrsFailed(f"{binary.name} does not run: {error}") from error
    if done.returncode:
        last = done.stderr.strip().splitlines()[-1:]
        raise DynfrsFailed(f"{binary.name} {mode} ended with {done.returncode}: {last}")
    try:
        return dict(json.loads(done.stdout))
    except ValueError as error:
        raise DynfrsFailed(f"{binary.name} {mode} printed no JSON object") from error
