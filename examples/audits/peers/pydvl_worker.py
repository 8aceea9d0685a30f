"""pyDVL as a peer: Shapley walks, single utilities and KNN-Shapley; JSON lines.

Runs in the peer's environment. One class only in a coalition: ridge predicts it by itself, logistic
regression is made to, where pyDVL would count a failure as U(empty).
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping
from functools import partial
from importlib.metadata import version
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray
from pydvl.valuation import (
    Dataset,
    KNNShapleyValuation,
    MinUpdates,
    ModelUtility,
    PermutationSampler,
    ShapleyValuation,
    SupervisedScorer,
)
from pydvl.valuation.types import Sample
from sklearn.linear_model import LogisticRegression, RidgeClassifier
from sklearn.neighbors import KNeighborsClassifier
from threadpoolctl import threadpool_info
from valuation_serve import rows, serve, timed

warnings.filterwarnings("ignore")


class Logistic(LogisticRegression):
    """Logistic regression that answers with the only class where there is one."""

    def fit(self, X: NDArray, y: NDArray, sample_weight: NDArray | None = None) -> Self:
        """Fit, or remember the only class."""
        self.only_ = y[0] if (y == y[0]).all() else None
        self.classes_ = np.unique(y)
        return self if self.only_ is not None else super().fit(X, y, sample_weight)

    def predict(self, X: NDArray) -> NDArray:
        """Return labels."""
        return super().predict(X) if self.only_ is None else np.full(len(X), self.only_)


class Walks(PermutationSampler):
    """pyDVL's own sampler, which also remembers its walks."""

    def generate(self, indices: NDArray) -> Iterator[Sample]:
        """Yield samples and keep their orders."""
        self.orders: list[NDArray] = []
        for sample in super().generate(indices):
            self.orders.append(sample.subset)
            yield sample


MODELS = {
    "ridge": partial(RidgeClassifier, alpha=1.0),
    "logistic": partial(Logistic, C=1.0),
}


def _utility(asked: Mapping[str, Any]) -> tuple[ModelUtility, Dataset]:
    table = rows(asked)
    train, test = Dataset(table["X"], table["y"]), Dataset(table["X_val"], table["y_val"])
    scorer = SupervisedScorer("accuracy", test, default=asked["empty"], range=(0.0, 1.0))
    model = MODELS[asked["model"]](**asked.get("solver", {}))
    return ModelUtility(model, scorer, catch_errors=False, show_warnings=False), train


def shapley(asked: Mapping[str, Any]) -> dict[str, Any]:
    """Return time, values and orders of ``walks`` walks with seed ``seed``.

    ``solver``: further arguments of the model.
    """
    utility, train = _utility(asked)
    sampler = Walks(seed=asked["seed"])
    method = ShapleyValuation(
        utility, sampler, MinUpdates(asked["walks"]), progress=False, show_warnings=False
    )
    _, spent = timed(lambda: method.fit(train))
    found = method.result
    done = int(found.counts.sum())
    by_index = np.argsort(found.indices)
    orders = sampler.orders[: asked["walks"]]
    return {**spent, "updates": done, "values": found.values[by_index], "orders": orders}


def scores(asked: Mapping[str, Any]) -> dict[str, Any]:
    """Return U of each coalition."""
    utility, train = _utility(asked)
    utility = utility.with_dataset(train)
    sets = [np.array(members, dtype=np.int64) for members in asked["coalitions"]]
    found, spent = timed(lambda: [utility(Sample(None, members)) for members in sets])
    return {**spent, "scores": found}


def knn(asked: Mapping[str, Any]) -> dict[str, Any]:
    """Return time and values of KNN-Shapley."""
    table = rows(asked)
    train, test = Dataset(table["X"], table["y"]), Dataset(table["X_val"], table["y_val"])
    method = KNNShapleyValuation(KNeighborsClassifier(asked["k"]), test, progress=False)
    _, spent = timed(lambda: method.fit(train))
    found = method.result
    return {**spent, "values": found.values[np.argsort(found.indices)]}


if __name__ == "__main__":
    threads = {pool["internal_api"]: pool["num_threads"] for pool in threadpool_info()}
    packages = ("pyDVL", "scikit-learn", "numpy")
    serve(
        {"shapley": shapley, "scores": scores, "knn": knn},
        {"versions": {name: version(name) for name in packages}, "threads": threads},
    )
