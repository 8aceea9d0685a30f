"""Tables of the forest audit: read, made up or bundled with scikit-learn, all as float32.

Category codes are the ranks of a column's texts in the whole file; that is fit for a benchmark only
(a product hands the texts to the forest, which hashes them) and gives all systems the same numbers.
"""

from __future__ import annotations

import csv
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from sklearn import datasets

from privml.rng import ScienceSeed

Floats = NDArray[np.float32]
Rows = NDArray[np.intp]
MISSING = ("", "?", "NA")
SEED = ScienceSeed(3).child("audit", "forest")


class DataMissing(Exception):
    """A table's file is not there; the text is the reason shown in the report."""


@dataclass(frozen=True)
class Table:
    """Rows and targets.

    Attributes
    ----------
    X
        (n, p) float32, categories as codes, NaN where missing.
    y
        (n,) int64 classes or float64 targets.
    categorical
        Columns that hold codes.
    """

    name: str
    X: Floats
    y: NDArray[np.int64] | NDArray[np.float64]
    categorical: tuple[int, ...] = ()

    @property
    def regression(self) -> bool:
        """Whether the targets are numbers."""
        return self.y.dtype.kind == "f"

    def take(self, rows: Rows) -> Table:
        """Return the table of some rows."""
        return Table(self.name, self.X[rows], self.y[rows], self.categorical)


def data_file(name: str) -> Path:
    """Return a file of ``tabular/``: in ``PRIVML_DATA``, or ``shared/data`` beside the checkout.

    Raises
    ------
    DataMissing
        It is in neither.
    """
    folders = [os.environ.get("PRIVML_DATA"), Path(__file__).resolve().parents[3] / "shared/data"]
    for folder in folders:
        path = Path(folder) / "tabular" / name if folder else None
        if path is not None and path.is_file():
            return path
    raise DataMissing(f"no tabular/{name}; put its folder into PRIVML_DATA")


def _columns(name: str, delimiter: str = ",") -> dict[str, list[str]]:
    with data_file(name).open(newline="", encoding="utf-8") as handle:
        head, *lines = list(csv.reader(handle, delimiter=delimiter))
    return {title: [line[i].strip() for line in lines] for i, title in enumerate(head)}


def _codes(values: Sequence[str]) -> Floats:
    known = sorted(set(values) - set(MISSING))
    place = {value: float(i) for i, value in enumerate(known)}
    return np.array([place.get(value, np.nan) for value in values], dtype=np.float32)


def _table(name: str, columns: dict[str, list[str]], y: Sequence[bool], by_code: set[str]) -> Table:
    parts = [
        _codes(values) if title in by_code else np.array(values, dtype=np.float32)
        for title, values in columns.items()
    ]
    flags = tuple(i for i, title in enumerate(columns) if title in by_code)
    return Table(name, np.column_stack(parts), np.array(y, dtype=np.int64), flags)


def _adult() -> Table:
    columns = _columns("adult.csv")
    y = [value.startswith(">50K") for value in columns.pop("income")]
    numbers = {"age", "fnlwgt", "education_num", "capital_gain", "capital_loss", "hours_per_week"}
    return _table("adult", columns, y, set(columns) - numbers)


def _cardio() -> Table:
    columns = _columns("cardio.csv", ";")
    columns.pop("id")  # names the row, is no feature
    y = [value == "1" for value in columns.pop("cardio")]
    return _table("cardio", columns, y, set())


def _shopping() -> Table:
    columns = _columns("shopping.csv")
    y = [value == "TRUE" for value in columns.pop("Revenue")]
    coded = {"Month", "OperatingSystems", "Browser", "Region", "TrafficType", "VisitorType",
             "Weekend"}  # fmt: skip
    return _table("shopping", columns, y, coded)


def one_hot(table: Table, only: Sequence[int] | None = None) -> Table:
    """Return the table with an indicator column per category; missing is one of them.

    Parameters
    ----------
    only
        Columns to spread out; the other categorical ones stay numbers. None for all.
    """
    chosen = table.categorical if only is None else only
    parts = []
    for a in range(table.X.shape[1]):
        x = table.X[:, a]
        if a not in chosen:
            parts.append(x[:, None])
            continue
        codes = np.where(np.isnan(x), -1, x)
        parts.append((codes[:, None] == np.unique(codes)).astype(np.float32))
    return Table(f"{table.name}_onehot", np.ascontiguousarray(np.hstack(parts)), table.y)


def _shopping_onehot() -> Table:
    table = _shopping()
    return one_hot(table, [10, 15, 16])  # Month, VisitorType, Weekend; the rest has numbers


def _bundled(name: str) -> Table:
    data = getattr(datasets, f"load_{name}")()
    kind = np.float64 if name == "diabetes" else np.int64
    return Table(name, data.data.astype(np.float32), data.target.astype(kind))


def _syn100k() -> Table:
    X, y = datasets.make_classification(
        100_000, 40, n_informative=5, n_redundant=5, n_clusters_per_class=2, flip_y=0.05,
        random_state=1,
    )  # fmt: skip
    return Table("syn100k", X.round(5).astype(np.float32), y.astype(np.int64))


def california_like(rows: int = 20_640) -> Table:
    """Return a made-up regression of eight columns with the shape of the Californian housing data.

    Incomes and occupancies are log-normal, places lie around four towns; the target is a smooth
    function of income, distance from the nearest town and age, with noise, cut at 5.
    """
    draw = SEED.child("california").generator()
    income = np.exp(draw.normal(1.2, 0.45, rows))
    age = draw.integers(1, 53, rows).astype(np.float64)
    rooms = np.exp(draw.normal(1.6, 0.3, rows)) + 0.15 * income
    bedrooms = 1 + np.abs(draw.normal(0.07, 0.1, rows))
    people = np.exp(draw.normal(7.0, 0.7, rows)).round()
    occupancy = np.exp(draw.normal(1.05, 0.25, rows))
    towns = np.array([[34.0, -118.2], [37.7, -122.3], [32.8, -117.1], [38.6, -121.4]])
    home = draw.choice(4, rows, p=[0.45, 0.27, 0.16, 0.12])
    place = towns[home] + draw.normal(0, 0.6, (rows, 2))
    away = np.sqrt(((place[:, None] - towns) ** 2).sum(axis=2)).min(axis=1)
    value = 0.42 * income + 1.3 * np.exp(-2 * away) + 0.012 * age - 0.25 * np.log(occupancy)
    value += 0.35 * (place[:, 1] < -121) + 0.1 * np.log(rooms) + draw.normal(0, 0.35, rows)
    X = np.column_stack([income, age, rooms, bedrooms, people, occupancy, place])
    return Table("california_like", X.astype(np.float32), np.clip(value, 0.15, 5.0))


def large(rows: int, columns: int = 28) -> Table:
    """Return made-up rows for the scale run: half of the columns matter, products included."""
    draw = SEED.child("large").generator()
    X = draw.standard_normal((rows, columns), dtype=np.float32)
    half = columns // 2
    score = X[:, :half] @ draw.standard_normal(half, dtype=np.float32)
    score += 2 * X[:, 0] * X[:, 1] + np.abs(X[:, 2]) - X[:, 3] ** 2
    score += draw.standard_normal(rows, dtype=np.float32)
    return Table("large", X, (score > np.median(score)).astype(np.int64))


_MADE: dict[str, Callable[[], Table]] = {
    "adult": _adult,
    "adult_onehot": lambda: one_hot(_adult()),
    "cardio": _cardio,
    "shopping": _shopping,
    "shopping_onehot": _shopping_onehot,
    "syn100k": _syn100k,
    "california_like": california_like,
}
BUNDLED = ("breast_cancer", "wine", "iris", "digits", "diabetes")
NAMES = (*_MADE, *BUNDLED)


@cache
def load(name: str) -> Table:
    """Return a table by name.

    Raises
    ------
    DataMissing
        Its file is not there.
    """
    return _bundled(name) if name in BUNDLED else _MADE[name]()


def split(n: int, seed: ScienceSeed, share: float = 0.2) -> tuple[Rows, Rows]:
    """Return the rows to train and to test on, in random order."""
    order = seed.child("split").generator().permutation(n)
    cut = n - round(n * share) if n % 5 == 0 else int(n * (1 - share))
    return order[:cut], order[cut:]
