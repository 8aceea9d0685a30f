"""A torch module as a scikit-learn classifier, for coresets, weights and anything else."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar, Final, Self

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from sklearn.base import BaseEstimator, ClassifierMixin
from torch import Tensor, nn
from torch.nn import functional as F

from privml.rng import Generator, ScienceSeed
from privml.valuation.errors import ProblemError, SettingError
from privml.valuation.methods.base import seed_of
from privml.valuation.problem import Floats, Ints

Build = Callable[[int, int], nn.Module]
Loss = Callable[[Tensor, Tensor, Tensor], Tensor]

_LEAST_CLASSES: Final = 2
_CHUNK: Final = 4_096


class TorchClassifier(ClassifierMixin, BaseEstimator):  # type: ignore[misc]
    """A module trained by stochastic gradients, with ``fit`` and ``predict_proba``.

    All randomness (start of the parameters, order of the rows) comes from ``random_state``: equal
    seeds give equal models on one machine. Matrices start uniform in +-1/sqrt(fan-in), biases at
    zero, other vectors as the module builds them.

    Parameters
    ----------
    build
        Function of the numbers of features and classes that returns a module from (rows, features)
        float32 to (rows, classes) logits. No dropout: it draws from torch's own generator.
    steps
        Gradient steps.
    batch_size
        Rows of a step; rows are shuffled for every pass.
    optimizer
        ``"adam"`` or ``"sgd"`` (momentum .9).
    lr, weight_decay
        As in ``torch.optim``.
    loss
        Function of (b, c) logits, (b,) codes and (b,) float32 ``sample_weight`` that returns a
        scalar; None for the mean of weight times cross-entropy. ``DIMPLoss()`` fits here, with
        the quality as ``sample_weight``.
    device
        Where the module runs.
    random_state
        Seed.

    Attributes
    ----------
    classes_
        (c,) sorted labels.
    module_
        The trained module, in evaluation mode.
    """

    _estimator_type: ClassVar[str] = "classifier"
    classes_: NDArray[Any]
    module_: nn.Module

    def __init__(
        self,
        build: Build,
        *,
        steps: int = 200,
        batch_size: int = 32,
        optimizer: str = "adam",
        lr: float = 1e-2,
        weight_decay: float = 0.0,
        loss: Loss | None = None,
        device: str = "cpu",
        random_state: int | ScienceSeed = 0,
    ) -> None:
        self.build = build
        self.steps = steps
        self.batch_size = batch_size
        self.optimizer = optimizer
        self.lr = lr
        self.weight_decay = weight_decay
        self.loss = loss
        self.device = device
        self.random_state = random_state

    def fit(self, X: ArrayLike, y: ArrayLike, sample_weight: ArrayLike | None = None) -> Self:
        """Train afresh.

        Parameters
        ----------
        X, y
            (n, d) finite numbers, (n,) labels of two classes at least.
        sample_weight
            (n,) weights of at least 0; 1 if not given.

        Raises
        ------
        ProblemError, SettingError
            The table or a setting does not fit.
        """
        self._check()
        table = _table(X)
        self.classes_, codes = np.unique(np.asarray(y), return_inverse=True)
        if codes.shape != (len(table),) or len(self.classes_) < _LEAST_CLASSES:
            raise ProblemError("y needs a label for every row, of two classes at least")
        weight = _weights(sample_weight, len(table))
        self.n_features_in_ = table.shape[1]
        seed = seed_of(self.random_state)
        module = self._fresh(seed.child("parameters").generator())
        self.module_ = self._train(
            module, table, codes.astype(np.int64), weight, seed.child("order").generator()
        )
        return self

    def predict_proba(self, X: ArrayLike) -> Floats:
        """Return (n, classes) float64 probabilities: the softmax of the logits."""
        table, parts = _table(X), []
        with torch.no_grad():
            for start in range(0, len(table), _CHUNK):
                part = torch.from_numpy(table[start : start + _CHUNK]).to(self.device)
                logits = self.module_(part)  # (rows, classes)
                parts.append(F.softmax(logits.double(), dim=1).cpu().numpy())
        return np.concatenate(parts)

    def predict(self, X: ArrayLike) -> NDArray[Any]:
        """Return the (n,) most probable labels."""
        return np.asarray(self.classes_[self.predict_proba(X).argmax(axis=1)])

    def _check(self) -> None:
        if self.steps < 1 or self.batch_size < 1 or not self.lr > 0 or self.weight_decay < 0:
            raise SettingError(
                "steps and batch_size are at least 1, lr positive, weight_decay at least 0"
            )
        if self.optimizer not in {"adam", "sgd"}:
            raise SettingError(f"optimizer={self.optimizer!r} is unknown; use 'adam' or 'sgd'")

    def _fresh(self, generator: Generator) -> nn.Module:
        module = self.build(self.n_features_in_, len(self.classes_)).float()
        if any(isinstance(m, nn.modules.dropout._DropoutNd) and m.p > 0 for m in module.modules()):
            raise SettingError("dropout draws from torch's own generator; build without it")
        with torch.no_grad():
            for name, parameter in module.named_parameters():
                if name.rpartition(".")[2].startswith("bias"):
                    parameter.zero_()
                elif parameter.ndim > 1:
                    bound = 1.0 / np.sqrt(np.prod(parameter.shape[1:]))
                    start = generator.uniform(-bound, bound, tuple(parameter.shape))
                    parameter.copy_(torch.from_numpy(start.astype(np.float32)))
        return module.to(self.device)

    def _train(
        self,
        module: nn.Module,
        table: NDArray[np.float32],
        codes: Ints,
        weight: NDArray[np.float32],
        generator: Generator,
    ) -> nn.Module:
        x = torch.from_numpy(table).to(self.device)
        target = torch.from_numpy(codes).to(self.device)
        weights = torch.from_numpy(weight).to(self.device)
        loss = weighted_cross_entropy if self.loss is None else self.loss
        stepper = self._stepper(module)
        order, at = generator.permutation(len(table)), 0
        module.train()
        for _ in range(self.steps):
            if at >= len(order):
                order, at = generator.permutation(len(table)), 0
            rows = torch.from_numpy(order[at : at + self.batch_size]).to(self.device)
            at += self.batch_size
            stepper.zero_grad()
            error = loss(module(x[rows]), target[rows], weights[rows])
            error.backward()  # type: ignore[no-untyped-call]
            stepper.step()
        return module.eval()

    def _stepper(self, module: nn.Module) -> torch.optim.Optimizer:
        decay, lr = self.weight_decay, self.lr
        if self.optimizer == "adam":
            return torch.optim.Adam(module.parameters(), lr=lr, weight_decay=decay)
        return torch.optim.SGD(module.parameters(), lr=lr, weight_decay=decay, momentum=0.9)


def weighted_cross_entropy(logits: Tensor, target: Tensor, weight: Tensor) -> Tensor:
    """Return the mean over rows of weight times cross-entropy."""
    return (weight * F.cross_entropy(logits, target, reduction="none")).mean()


def _table(X: ArrayLike) -> NDArray[np.float32]:
    try:
        table = np.array(X, dtype=np.float32, order="C")
    except (TypeError, ValueError) as error:
        raise ProblemError(f"X must be a table of numbers: {error}") from error
    if table.ndim != 2 or not len(table) or not np.isfinite(table).all():
        raise ProblemError("X must be a table of finite numbers with at least one row")
    return table


def _weights(given: ArrayLike | None, count: int) -> NDArray[np.float32]:
    if given is None:
        return np.ones(count, dtype=np.float32)
    weight = np.array(given, dtype=np.float32)
    if weight.shape != (count,) or not np.isfinite(weight).all() or weight.min() < 0:
        raise ProblemError(f"sample_weight needs {count} finite numbers of at least 0")
    return weight
