"""What is known of an arm before any pull: its features and its label.

A group of rows is one arm: its features are the mean of its rows', its label the share of each
class among them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from privml.valuation.errors import SettingError
from privml.valuation.problem import Problem
from privml.valuation.topm.sums import Floats

_MATRIX = 2


@dataclass(frozen=True, eq=False)
class Arms:
    """Features and labels of n arms.

    Attributes
    ----------
    features
        (n, d) float64, standardised by column.
    labels
        (n, c) float64 class shares (one-hot for rows), or (n, 1) standardised targets of a
        regression.
    targets
        Whether ``labels`` are targets of a regression.
    """

    features: Floats
    labels: Floats
    targets: bool = False

    @property
    def count(self) -> int:
        """Number of arms n."""
        return len(self.features)

    def take(self, chosen: NDArray[Any]) -> Arms:
        """Return some of the arms."""
        return Arms(self.features[chosen], self.labels[chosen], self.targets)

    @classmethod
    def of(cls, problem: Problem, features: ArrayLike | None = None) -> Arms:
        """Return the arms of a problem.

        Parameters
        ----------
        problem
            Rows, labels and groups.
        features
            (rows, k) or (players, k) features to use instead of the columns of X: embeddings,
            gradients, activations of a layer.

        Raises
        ------
        SettingError
            The features have another number of rows, or are not finite.
        """
        if features is None:
            table = _by_player(problem, problem.X)
        else:
            table = np.ascontiguousarray(features, dtype=np.float64)
            if table.ndim != _MATRIX or len(table) not in {problem.n, problem.players}:
                raise SettingError(
                    f"features have shape {table.shape}; give one line for each of "
                    f"{problem.n} rows or {problem.players} players"
                )
            if not np.isfinite(table).all():
                raise SettingError("features hold NaN or infinity; impute them")
            if len(table) == problem.n:
                table = _by_player(problem, table)
        targets = problem.task == "regression"
        labels = problem.y[:, None] if targets else np.eye(len(problem.classes))[problem.codes]
        labels = _by_player(problem, labels)
        return cls(standardised(table), standardised(labels) if targets else labels, targets)


def standardised(table: Floats) -> Floats:
    """Return columns of mean 0 and variance 1; constant columns become 0."""
    # powers of two change no digit, and keep squares from overflow and underflow
    _, power = np.frexp(np.abs(table).max(axis=0, initial=0.0))
    table = np.ldexp(table, -power)
    centred = table - table.mean(axis=0)
    sd = centred.std(axis=0)
    flat = sd <= 1e-12 * np.maximum(np.abs(table).max(axis=0, initial=0.0), 1e-300)
    out: Floats = np.where(flat, 0.0, centred / np.where(flat, 1.0, sd))
    return np.ascontiguousarray(out)


def _by_player(problem: Problem, table: Floats) -> Floats:
    """Return (players, k) float64: mean over each player's rows; the table itself for rows."""
    if problem.group_mode == "row":
        return table
    total = np.zeros((problem.players, table.shape[1]))
    np.add.at(total, problem.player_of, table)
    mean: Floats = total / problem.row_counts[:, None]
    return mean
