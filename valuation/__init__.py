"""Data valuation: which rows, or sources, a model owes its quality to.

``Shapley(RidgeUtility()).fit(X, y, X_val, y_val).result_`` is the shortest way in. Names load
their module on first use.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from privml.valuation.laws import SizeLaw
    from privml.valuation.methods.exact import ExactValues
    from privml.valuation.methods.loo import LeaveOneOut
    from privml.valuation.methods.semivalues import Banzhaf, BetaShapley
    from privml.valuation.methods.shapley import Shapley
    from privml.valuation.problem import Problem
    from privml.valuation.result import ValuationResult
    from privml.valuation.samplers import MSR, TMC, Antithetic, Permutation, Stratified
    from privml.valuation.stopping import (
        MaxEvaluations,
        MaxRows,
        MaxSeconds,
        MaxUnits,
        StdErr,
    )
    from privml.valuation.utilities import (
        EstimatorUtility,
        ForestUtility,
        KnnUtility,
        LogisticUtility,
        NaiveBayesUtility,
        NearestCentroidUtility,
        RidgeUtility,
        TorchUtility,
    )

_HOMES = {
    "MSR": "samplers",
    "TMC": "samplers",
    "Antithetic": "samplers",
    "Banzhaf": "methods.semivalues",
    "BetaShapley": "methods.semivalues",
    "EstimatorUtility": "utilities",
    "ExactValues": "methods.exact",
    "ForestUtility": "utilities",
    "KnnUtility": "utilities",
    "LeaveOneOut": "methods.loo",
    "LogisticUtility": "utilities",
    "MaxEvaluations": "stopping",
    "MaxRows": "stopping",
    "MaxSeconds": "stopping",
    "MaxUnits": "stopping",
    "NaiveBayesUtility": "utilities",
    "NearestCentroidUtility": "utilities",
    "Permutation": "samplers",
    "Problem": "problem",
    "RidgeUtility": "utilities",
    "Shapley": "methods.shapley",
    "SizeLaw": "laws",
    "StdErr": "stopping",
    "Stratified": "samplers",
    "TorchUtility": "utilities",
    "ValuationResult": "result",
}

__all__ = [
    "MSR",
    "TMC",
    "Antithetic",
    "Banzhaf",
    "BetaShapley",
    "EstimatorUtility",
    "ExactValues",
    "ForestUtility",
    "KnnUtility",
    "LeaveOneOut",
    "LogisticUtility",
    "MaxEvaluations",
    "MaxRows",
    "MaxSeconds",
    "MaxUnits",
    "NaiveBayesUtility",
    "NearestCentroidUtility",
    "Permutation",
    "Problem",
    "RidgeUtility",
    "Shapley",
    "SizeLaw",
    "StdErr",
    "Stratified",
    "TorchUtility",
    "ValuationResult",
]


def __getattr__(name: str) -> object:
    """Load a name on first use, so that importing the area loads neither torch nor scikit-learn."""
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    found: object = getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
    return found
