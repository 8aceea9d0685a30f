"""Data valuation: which rows, or sources, a model owes its quality to.

``Shapley(RidgeUtility()).fit(X, y, X_val, y_val).result_`` is the shortest way in. Names load
their module on first use.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from privml.valuation.laws import SizeLaw
    from privml.valuation.links import (
        DeRDaVa,
        after_delete,
        audit_deletion,
        audit_unlearning,
        cost_of_forgetting,
        record,
    )
    from privml.valuation.methods.classwise import ClasswiseShapley
    from privml.valuation.methods.data_oob import DataOOB
    from privml.valuation.methods.exact import ExactValues
    from privml.valuation.methods.knn import KNNShapley
    from privml.valuation.methods.loo import LeaveOneOut
    from privml.valuation.methods.semivalues import Banzhaf, BetaShapley
    from privml.valuation.methods.shapley import Shapley
    from privml.valuation.problem import Problem
    from privml.valuation.result import ValuationResult
    from privml.valuation.samplers import MSR, TMC, Antithetic, Permutation, Stratified
    from privml.valuation.stopping import MaxEvaluations, MaxRows, MaxSeconds, MaxUnits, StdErr
    from privml.valuation.topm import TopM
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
    "Antithetic": "samplers",
    "Banzhaf": "methods.semivalues",
    "BetaShapley": "methods.semivalues",
    "ClasswiseShapley": "methods.classwise",
    "DataOOB": "methods.data_oob",
    "DeRDaVa": "links",
    "EstimatorUtility": "utilities",
    "ExactValues": "methods.exact",
    "ForestUtility": "utilities",
    "KNNShapley": "methods.knn",
    "KnnUtility": "utilities",
    "LeaveOneOut": "methods.loo",
    "LogisticUtility": "utilities",
    "MSR": "samplers",
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
    "TMC": "samplers",
    "TopM": "topm",
    "TorchUtility": "utilities",
    "ValuationResult": "result",
    "after_delete": "links",
    "audit_deletion": "links",
    "audit_unlearning": "links",
    "cost_of_forgetting": "links",
    "record": "links",
}

__all__ = [
    "MSR",
    "TMC",
    "Antithetic",
    "Banzhaf",
    "BetaShapley",
    "ClasswiseShapley",
    "DataOOB",
    "DeRDaVa",
    "EstimatorUtility",
    "ExactValues",
    "ForestUtility",
    "KNNShapley",
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
    "TopM",
    "TorchUtility",
    "ValuationResult",
    "after_delete",
    "audit_deletion",
    "audit_unlearning",
    "cost_of_forgetting",
    "record",
]


def __getattr__(name: str) -> object:
    """Load a name on first use, so that importing the area loads neither torch nor scikit-learn."""
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    found: object = getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
    return found
