"""Cases of the valuation audit: rows to value, rows to score on, and which labels were flipped.

Tabular columns are standardised by the training rows; text is 384-dimensional MiniLM-L6 embeddings
of unit length, as the encoder gives them, of the first 240 characters. Flips are exact in number
and go to another class.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import forest_data
import numpy as np
from forest_data import DataMissing
from frame import Options
from numpy.typing import NDArray
from sklearn.datasets import make_classification

from privml.errors import PrivmlError
from privml.rng import ScienceSeed
from privml.valuation import Problem

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
SEED = ScienceSeed(11).child("audit", "valuation")
FIVE = ("breast_cancer", "digits", "adult", "sst2", "agnews")
TEXTS = {"sst2": ("sst2-train.tsv", 1), "agnews": ("agnews-train.tsv", 0)}  # file, head lines
POOL = 800
CHARACTERS = 240  # of each text
SCORED = 200


@dataclass(frozen=True, eq=False)
class Case:
    """One problem with known flips.

    Attributes
    ----------
    name
        Data set.
    problem
        Training rows with noisy labels, validation rows with clean ones.
    flipped
        (n,) bool.
    clean
        (n,) int64 labels before the flips.
    rows, others
        Which rows of :func:`pool` are valued, and all others.
    """

    name: str
    problem: Problem
    flipped: NDArray[np.bool_]
    clean: Ints
    rows: Ints
    others: Ints

    @property
    def arrays(self) -> dict[str, NDArray[np.float64] | Ints]:
        """X, y, X_val and y_val, labels as codes, for a peer's worker."""
        problem = self.problem
        return {
            "X": problem.X, "y": problem.codes, "X_val": problem.X_val, "y_val": problem.val_codes,
        }  # fmt: skip


def use_data(options: Options) -> None:
    """Let the readers look into the folder that the user named, if any."""
    if "data" in options.paths:
        os.environ["PRIVML_DATA"] = str(options.paths["data"])


@cache
def pool(name: str) -> tuple[Floats, Ints]:
    """Return all rows that cases of a data set are drawn from, and their labels.

    Raises
    ------
    DataMissing
        Its file, or the encoder for texts, is not there.
    """
    if name == "synthetic":
        return make_classification(
            3000, 10, n_informative=5, n_redundant=2, class_sep=1.0, random_state=5
        )
    if name in TEXTS:
        return _texts(name)
    table = forest_data.load("adult_onehot" if name == "adult" else name)
    return np.nan_to_num(table.X.astype(np.float64)), np.asarray(table.y, dtype=np.int64)


def _texts(name: str) -> tuple[Floats, Ints]:
    file, head = TEXTS[name]
    lines = _text_file(file).read_text(encoding="utf-8").splitlines()[head:]
    chosen = SEED.child("pool", name).generator().permutation(len(lines))[:POOL]
    pairs = [lines[i].rpartition("\t") for i in chosen]
    texts = [text.strip()[:CHARACTERS] for text, _, _ in pairs]
    labels = [label.strip() for _, _, label in pairs]
    codes = np.unique(labels, return_inverse=True)[1].astype(np.int64)
    try:
        from privml.backbones import load_encoder

        by_length = np.argsort([len(text) for text in texts], kind="stable")
        found = load_encoder("minilm-l6").encode([texts[i] for i in by_length], truncate=True)
        vectors = np.empty_like(found)
        vectors[by_length] = found
    except (ImportError, PrivmlError) as error:
        raise DataMissing(f"no MiniLM-L6 encoder: {error}") from error
    return np.asarray(vectors, dtype=np.float64), codes


def _text_file(file: str) -> Path:
    beside = Path(__file__).resolve().parents[3] / "shared/data"
    for folder in (os.environ.get("PRIVML_DATA"), beside):
        path = Path(folder) / "text" / file if folder else None
        if path is not None and path.is_file():
            return path
    raise DataMissing(f"no text/{file}; name its folder with --data")


def case(name: str, turn: int, *, players: int, flips: float, scored: int = SCORED) -> Case:
    """Return the case of a data set for one seed.

    Parameters
    ----------
    name
        Data set.
    turn
        Number of the seed.
    players, scored
        Rows to value and rows to score on.
    flips
        Share of training labels to flip.
    """
    X, y = pool(name)
    draw = SEED.child("case", name, turn).generator()
    order = draw.permutation(len(X))
    train, test = order[:players], order[players : players + scored]
    middle, spread = (0.0, 1.0) if name in TEXTS else _scale(X[train])
    labels, clean = y[train].copy(), y[train].copy()
    doomed = draw.permutation(players)[: round(flips * players)]
    classes = int(y.max()) + 1
    labels[doomed] = (labels[doomed] + draw.integers(1, classes, len(doomed))) % classes
    problem = Problem.of((X[train] - middle) / spread, labels, (X[test] - middle) / spread, y[test])
    return Case(name, problem, labels != clean, clean, train, order[players:])


def _scale(X: Floats) -> tuple[Floats, Floats]:
    spread = X.std(axis=0)
    return X.mean(axis=0), np.where(spread > 0, spread, 1.0)
