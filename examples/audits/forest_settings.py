"""Hyper-parameters of the audit's forests, and the models made from them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from forest_data import Table

from privml.unlearning import DynForestClassifier, DynForestRegressor


@dataclass(frozen=True)
class Settings:
    """Hyper-parameters in the design's letters.

    Attributes
    ----------
    trees
        T.
    per_row
        k, trees that hold a row.
    depth
        d_max.
    thresholds
        s.
    smallest
        m, smallest node that is split.
    features
        P, attributes per node; None for floor(sqrt(p)) + 1, 0 for all.
    """

    trees: int
    per_row: int
    depth: int
    thresholds: int
    smallest: int = 10
    features: int | None = None

    def words(self) -> str:
        """Return the settings for a report."""
        return (
            f"T={self.trees} k={self.per_row} d={self.depth} s={self.thresholds} "
            f"m={self.smallest} P={'p' if self.features == 0 else self.features or 'sqrt'}"
        )


SPEED = {
    "shopping_onehot": Settings(100, 10, 10, 30),
    "cardio": Settings(150, 15, 15, 5),
    "adult_onehot": Settings(100, 10, 20, 30),
    "syn100k": Settings(150, 15, 40, 30),
}
"""As the reference measurements were taken: shopping is the paper's Purchase, cardio its Heart."""

ACCURACY = {
    "adult": Settings(100, 40, 20, 10, 20),
    "cardio": Settings(100, 40, 12, 30),
    "shopping": Settings(100, 40, 12, 5, 40, 0),
    "breast_cancer": Settings(100, 100, 20, 3, 2),
    "digits": Settings(100, 100, 30, 1, 2),
    "diabetes": Settings(100, 20, 8, 5, 5, 0),
    "california_like": Settings(100, 60, 20, 30, 5, 0),
}
"""Chosen by ``forest_tuning.py`` on validation rows. Shopping would gain .002 AUC with k = 100, at
2.5 times the cost of a deletion."""

EXTRA_TREES: dict[str, dict[str, Any]] = {
    "adult": {"max_features": None, "min_samples_leaf": 5},
    "cardio": {"max_features": None, "min_samples_split": 100},
    "shopping": {"max_features": None, "min_samples_split": 100},
    "breast_cancer": {"max_features": None},
    "digits": {},
    "diabetes": {"max_features": 0.5, "min_samples_split": 10},
    "california_like": {"max_features": 0.5},
}
"""Best of ten settings of scikit-learn's ExtraTrees on the same validation rows."""


def estimator(table: Table, settings: Settings, **more: Any) -> Any:  # noqa: ANN401 - either class
    """Return an unfitted forest; `more` goes to its constructor.

    ``occurrence`` lies half a tree below k / T, so that rounding up gives k whatever k / T is in
    binary.
    """
    columns = table.X.shape[1]
    kind = DynForestRegressor if table.regression else DynForestClassifier
    return kind(
        settings.trees,
        occurrence=(settings.per_row - 0.5) / settings.trees,
        max_depth=settings.depth,
        n_thresholds=settings.thresholds,
        min_samples_split=settings.smallest,
        max_features=columns if settings.features == 0 else settings.features,
        categorical_features=list(table.categorical) or None,
        **more,
    )
