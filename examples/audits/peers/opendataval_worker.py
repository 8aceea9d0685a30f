"""OpenDataVal as a peer: KNN-Shapley and Data Shapley; JSON lines.

Runs in the peer's environment. Its Data Shapley starts at coalitions of ``least`` rows and ends a
walk after ten increments that are tiny against their sum; both belong to its estimator. One class
only in a coalition: that class is predicted, where its wrapper would predict the first of all.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping
from importlib.metadata import version
from typing import Any, Self

import numpy as np
import torch
from opendataval.dataval.knnshap import KNNShapley
from opendataval.dataval.margcontrib.datashap import DataShapley
from opendataval.dataval.margcontrib.sampler import MonteCarloSampler
from opendataval.metrics import accuracy
from opendataval.model.api import ClassifierSkLearnWrapper
from sklearn.linear_model import LogisticRegression
from valuation_serve import rows, serve, timed

warnings.filterwarnings("ignore")
torch.set_num_threads(1)


class Counted(MonteCarloSampler):
    """OpenDataVal's own sampler, which also counts the models."""

    models = 0

    def set_evaluator(self, value_func: Callable[[list[int]], float]) -> None:
        """Take the utility and count its calls."""

        def counting(subset: list[int]) -> float:
            self.models += 1
            return value_func(subset)

        super().set_evaluator(counting)


class Only:
    """Predicts one class."""

    def __init__(self, code: int, classes: int) -> None:
        self.row = np.eye(classes)[code]

    def predict_proba(self, x: np.ndarray) -> np.ndarray:
        """Return probabilities."""
        return np.tile(self.row, (len(x), 1))


class Logistic(ClassifierSkLearnWrapper):
    """OpenDataVal's own wrapper, which also predicts the right class where there is only one."""

    def fit(self, x_train: Any, y_train: Any, *args: Any, **more: Any) -> Self:  # noqa: ANN401
        """Fit, or remember the only class."""
        super().fit(x_train, y_train, *args, **more)
        if len(self.model.classes_) == 1:
            self.model = Only(int(self.model.classes_[0]), self.num_classes)
        return self


def _tensors(asked: Mapping[str, Any], kind: torch.dtype) -> list[torch.Tensor]:
    table = rows(asked)
    classes = int(max(table["y"].max(), table["y_val"].max())) + 1
    eye = torch.eye(classes, dtype=kind)
    return [
        torch.from_numpy(table["X"]).to(kind), eye[torch.from_numpy(table["y"])],
        torch.from_numpy(table["X_val"]).to(kind), eye[torch.from_numpy(table["y_val"])],
    ]  # fmt: skip


def knn(asked: Mapping[str, Any]) -> dict[str, Any]:
    """Return time and values of KNN-Shapley."""
    method = KNNShapley(k_neighbors=asked["k"])
    method.input_data(*_tensors(asked, torch.float32))  # it takes nothing else
    method.embedding_model = None
    _, spent = timed(method.train_data_values)
    return {**spent, "values": method.evaluate_data_values()}


def shapley(asked: Mapping[str, Any]) -> dict[str, Any]:
    """Return time and values of ``walks`` walks with logistic regression and accuracy.

    ``solver``: arguments of scikit-learn's logistic regression.
    """
    tensors = _tensors(asked, torch.float64)
    sampler = Counted(
        mc_epochs=asked["walks"], min_cardinality=asked["least"], cache_name=None,
        random_state=asked["seed"],
    )  # fmt: skip
    method = DataShapley(sampler)
    solver = {"C": 1.0, **asked.get("solver", {})}
    method.input_model(Logistic(LogisticRegression, tensors[1].shape[1], **solver))
    method.input_metric(accuracy)
    method.input_data(*tensors)
    _, spent = timed(method.train_data_values)
    return {**spent, "models": sampler.models, "values": method.evaluate_data_values()}


if __name__ == "__main__":
    packages = ("opendataval", "torch", "scikit-learn", "numpy")
    serve(
        {"knn": knn, "shapley": shapley},
        {"versions": {name: version(name) for name in packages}, "threads": {"torch": 1}},
    )
