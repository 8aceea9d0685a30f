"""Which estimators have an encrypted form, and what of a fitted one crosses to the worker.

Estimators are told apart by class name and package, and read through their documented attributes;
nothing of them is pickled. Subclasses are refused, as they may compute something else.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any, Final

import numpy as np

from privml.errors import UnsupportedError
from privml.protocols.fhe.concrete_ml import trees
from privml.protocols.fhe.concrete_ml.heads import Label, Link
from privml.protocols.fhe.concrete_ml.trees import Ensemble
from privml.protocols.fhe.nodes import Floats


class Family(StrEnum):
    """How the worker rebuilds a model."""

    LINEAR = "linear"
    MLP = "mlp"
    FOREST = "forest"
    BOOSTED = "boosted"


@dataclass(frozen=True, eq=False)
class Layers:
    """Weights (inputs, outputs) and biases of a linear model or a net."""

    weights: tuple[Floats, ...]
    biases: tuple[Floats, ...]
    activation: str = "identity"

    def scores(self, rows: Floats) -> Floats:
        """Return the outputs of rows (n, features), (n, outputs)."""
        values = rows
        for number, (weights, bias) in enumerate(zip(self.weights, self.biases, strict=True)):
            values = values @ weights + bias
            if number < len(self.weights) - 1:
                values = _ACTIVATIONS[self.activation](values)
        return values

    def rescaled(self, centre: Floats, half: Floats) -> Layers:
        """Return the layers for inputs ``(x - centre) / half``."""
        first = self.weights[0]
        return replace(
            self,
            weights=(first * half[:, None], *self.weights[1:]),
            biases=(self.biases[0] + centre @ first, *self.biases[1:]),
        )


@dataclass(frozen=True, eq=False)
class Fitted:
    """What crosses to the worker of a fitted estimator, and what the client needs of it."""

    family: Family
    link: Link
    classes: tuple[Label, ...]
    content: Layers | Ensemble


_ACTIVATIONS: Final[Mapping[str, Callable[[Floats], Floats]]] = {
    "identity": lambda x: x,
    "relu": lambda x: np.maximum(x, 0.0),
    "tanh": np.tanh,
    "logistic": lambda x: 1.0 / (1.0 + np.exp(-x)),
}

_LINEAR_REGRESSION: Final = frozenset(
    {
        "ARDRegression", "BayesianRidge", "ElasticNet", "ElasticNetCV", "HuberRegressor", "Lars",
        "Lasso", "LassoCV", "LassoLars", "LinearRegression", "LinearSVR", "Ridge", "RidgeCV",
        "SGDRegressor", "TheilSenRegressor",
    }
)  # fmt: skip
_LOG_REGRESSION: Final = frozenset({"GammaRegressor", "PoissonRegressor", "TweedieRegressor"})
_LINEAR_CLASSIFIERS: Final = frozenset(
    {
        "LinearDiscriminantAnalysis", "LinearSVC", "LogisticRegression", "LogisticRegressionCV",
        "Perceptron", "RidgeClassifier", "RidgeClassifierCV", "SGDClassifier",
    }
)  # fmt: skip
_NETS: Final = frozenset({"MLPClassifier", "MLPRegressor"})
_TREES: Final = frozenset(
    {"DecisionTreeClassifier", "DecisionTreeRegressor", "ExtraTreeClassifier", "ExtraTreeRegressor"}
)
_FORESTS: Final = frozenset(
    {
        "ExtraTreesClassifier", "ExtraTreesRegressor", "RandomForestClassifier",
        "RandomForestRegressor",
    }
)  # fmt: skip
_BOOSTED: Final = frozenset({"GradientBoostingClassifier", "GradientBoostingRegressor"})
_HISTOGRAM: Final = frozenset({"HistGradientBoostingClassifier", "HistGradientBoostingRegressor"})
_XGBOOST: Final = frozenset({"XGBClassifier", "XGBRegressor"})

_FAMILIES: Final[Mapping[Family, frozenset[str]]] = {
    Family.LINEAR: _LINEAR_REGRESSION | _LOG_REGRESSION | _LINEAR_CLASSIFIERS,
    Family.MLP: _NETS,
    Family.FOREST: _TREES | _FORESTS,
    Family.BOOSTED: _BOOSTED | _HISTOGRAM | _XGBOOST,
}

_MOST_LABELS: Final = 64


def family(model: object) -> Family:
    """Return how a model is rebuilt.

    Raises
    ------
    UnsupportedError
        It has no encrypted form; the message names those that have.
    """
    kind, package = type(model).__name__, type(model).__module__.partition(".")[0]
    if package == ("xgboost" if kind in _XGBOOST else "sklearn"):
        for found, names in _FAMILIES.items():
            if kind in names:
                return found
    if kind == "Pipeline":
        raise UnsupportedError(
            "a Pipeline runs partly in the clear: give its last step, and rows that the steps "
            "before it transformed"
        )
    known = ", ".join(sorted(name for names in _FAMILIES.values() for name in names))
    raise UnsupportedError(f"{kind} of {package} has no encrypted form; those that have: {known}")


def read(model: Any, rows: Floats) -> Fitted:  # noqa: ANN401
    """Return what crosses of a fitted model.

    Parameters
    ----------
    model
        A fitted estimator.
    rows
        Some rows of its kind (n, features), on which sums of trees are compared with the model's.

    Raises
    ------
    UnsupportedError
        It is not fitted, or does something that has no encrypted form.
    """
    found = family(model)
    if not hasattr(model, _SIGN[found]) and not _has_booster(model):
        raise UnsupportedError(
            f"this {type(model).__name__} is not fitted; fit it first, or use fit(X, y)"
        )
    readers: Mapping[Family, Callable[[Any, Floats], Fitted]] = {
        Family.LINEAR: _linear,
        Family.MLP: _net,
        Family.FOREST: _forest,
        Family.BOOSTED: _boosted,
    }
    return readers[found](model, rows)


_SIGN: Final = {
    Family.LINEAR: "coef_",
    Family.MLP: "coefs_",
    Family.FOREST: "n_features_in_",
    Family.BOOSTED: "n_features_in_",
}


def _has_booster(model: Any) -> bool:  # noqa: ANN401
    return bool(getattr(model, "__sklearn_is_fitted__", lambda: False)())


def _linear(model: Any, rows: Floats) -> Fitted:  # noqa: ANN401
    del rows
    weights = np.atleast_2d(np.asarray(model.coef_, np.float64)).T
    bias = np.broadcast_to(np.asarray(model.intercept_, np.float64), weights.shape[1:]).copy()
    layers = Layers((weights,), (bias,))
    kind = type(model).__name__
    if kind in _LINEAR_CLASSIFIERS:
        return Fitted(Family.LINEAR, _linear_link(model, kind), _classes(model), layers)
    return Fitted(Family.LINEAR, _regression_link(model, kind), (), layers)


def _regression_link(model: Any, kind: str) -> Link:  # noqa: ANN401
    if kind not in _LOG_REGRESSION:
        return Link.IDENTITY
    if kind == "TweedieRegressor":
        plain = model.link == "identity" or (model.link == "auto" and model.power <= 0)
        return Link.IDENTITY if plain else Link.EXP
    return Link.EXP


def _linear_link(model: Any, kind: str) -> Link:  # noqa: ANN401
    two = len(model.classes_) == 2
    if kind in {"LogisticRegression", "LogisticRegressionCV", "LinearDiscriminantAnalysis"}:
        if two:
            return Link.SIGMOID
        rest = getattr(model, "solver", "") == "liblinear"
        rest = rest or getattr(model, "multi_class", "") == "ovr"
        return Link.REST if rest else Link.SOFTMAX
    if kind == "SGDClassifier" and model.loss == "log_loss":
        return Link.SIGMOID if two else Link.REST
    return Link.MARGIN


def _net(model: Any, rows: Floats) -> Fitted:  # noqa: ANN401
    del rows
    layers = Layers(
        tuple(np.asarray(w, np.float64) for w in model.coefs_),
        tuple(np.asarray(b, np.float64) for b in model.intercepts_),
        str(model.activation),
    )
    if type(model).__name__ == "MLPRegressor":
        if getattr(model, "loss", "squared_error") == "poisson":
            return Fitted(Family.MLP, Link.EXP, (), layers)
        return Fitted(Family.MLP, Link.IDENTITY, (), layers)
    single = layers.weights[-1].shape[1] == 1
    if model.out_activation_ == "logistic" and not single:
        raise UnsupportedError(
            "a net for several labels at once has no encrypted form; fit one each"
        )
    return Fitted(Family.MLP, Link.SIGMOID if single else Link.SOFTMAX, _classes(model), layers)


def _forest(model: Any, rows: Floats) -> Fitted:  # noqa: ANN401
    del rows
    if model.n_outputs_ != 1:
        raise UnsupportedError("a forest with several outputs has no encrypted form; fit one each")
    members = model.estimators_ if hasattr(model, "estimators_") else [model]
    if type(model).__name__.endswith("Regressor"):
        return Fitted(Family.FOREST, Link.IDENTITY, (), trees.forest(members, classes=0))
    classes = _classes(model)
    return Fitted(Family.FOREST, Link.SHARES, classes, trees.forest(members, classes=len(classes)))


def _boosted(model: Any, rows: Floats) -> Fitted:  # noqa: ANN401
    kind = type(model).__name__
    classes = _classes(model) if kind.endswith("Classifier") else ()
    outputs = len(classes) if len(classes) > 2 else 1
    link = Link.IDENTITY if not classes else Link.SIGMOID if outputs == 1 else Link.SOFTMAX
    probe = rows[:64].astype(np.float32).astype(np.float64)  # trees compare in single precision
    if kind in _XGBOOST:
        return _xgboost(model, probe, outputs, link, classes)
    if kind in _HISTOGRAM:
        ensemble = trees.histogram(model._predictors, outputs=outputs)
        if not classes and model.loss in {"poisson", "gamma"}:
            link = Link.EXP
    else:
        zeros = np.zeros(outputs)
        ensemble = trees.boosted(model.estimators_, rate=float(model.learning_rate), offset=zeros)
    raw = model.decision_function(probe) if classes else model.predict(probe)
    ensemble = trees.with_offset(ensemble, probe, np.log(raw) if link is Link.EXP else raw)
    if kind == "GradientBoostingClassifier" and model.loss == "exponential":
        ensemble = _doubled(ensemble)
    return Fitted(Family.BOOSTED, link, classes, ensemble)


def _xgboost(
    model: Any,  # noqa: ANN401
    probe: Floats,
    outputs: int,
    link: Link,
    classes: tuple[Label, ...],
) -> Fitted:
    objective = str(model.objective)
    known = {"binary:logistic", "multi:softprob", "multi:softmax", "reg:squarederror"}
    if objective not in known | {"reg:absoluteerror", "reg:pseudohubererror", "count:poisson"}:
        raise UnsupportedError(f"XGBoost's objective {objective!r} has no encrypted form")
    link = Link.EXP if objective == "count:poisson" else link
    raw = bytes(model.get_booster().save_raw(raw_format="json"))
    ensemble = trees.xgboost(raw, outputs=outputs)
    margins = np.asarray(model.predict(probe, output_margin=True), np.float64)
    return Fitted(Family.BOOSTED, link, classes, trees.with_offset(ensemble, probe, margins))


def _doubled(ensemble: Ensemble) -> Ensemble:
    """Exponential loss: its sums are half of the log-odds."""
    doubled = tuple(replace(tree, value=2.0 * tree.value) for tree in ensemble.trees)
    return replace(ensemble, trees=doubled, offset=2.0 * ensemble.offset)


def _classes(model: Any) -> tuple[Label, ...]:  # noqa: ANN401
    values = np.asarray(model.classes_)
    if values.ndim != 1 or values.dtype.kind not in "biufU":
        raise UnsupportedError("the classes of the model are no numbers or strings; encode them")
    if not 2 <= len(values) <= _MOST_LABELS:
        raise UnsupportedError(f"a classifier has 2 to {_MOST_LABELS} classes here")
    return tuple(values.tolist())
