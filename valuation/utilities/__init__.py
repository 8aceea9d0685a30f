"""Utilities: what a coalition of rows is worth. Names load their module on first use."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from privml.valuation.utilities.base import Game, Tally, Truncation, Utility
    from privml.valuation.utilities.estimator import EstimatorUtility
    from privml.valuation.utilities.forest import ForestUtility
    from privml.valuation.utilities.knn import KnnUtility
    from privml.valuation.utilities.logistic import LogisticUtility
    from privml.valuation.utilities.ridge import RidgeUtility
    from privml.valuation.utilities.statistics import NaiveBayesUtility, NearestCentroidUtility
    from privml.valuation.utilities.torch_utility import TorchUtility

_HOMES = {
    "EstimatorUtility": "estimator",
    "ForestUtility": "forest",
    "Game": "base",
    "KnnUtility": "knn",
    "LogisticUtility": "logistic",
    "NaiveBayesUtility": "statistics",
    "NearestCentroidUtility": "statistics",
    "RidgeUtility": "ridge",
    "Tally": "base",
    "TorchUtility": "torch_utility",
    "Truncation": "base",
    "Utility": "base",
}

__all__ = [
    "EstimatorUtility",
    "ForestUtility",
    "Game",
    "KnnUtility",
    "LogisticUtility",
    "NaiveBayesUtility",
    "NearestCentroidUtility",
    "RidgeUtility",
    "Tally",
    "TorchUtility",
    "Truncation",
    "Utility",
]


def __getattr__(name: str) -> object:
    """Load a name on first use, so that torch and scikit-learn load only where needed."""
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    found: object = getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
    return found
