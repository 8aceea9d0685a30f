"""A small torch module as a utility: trained afresh, in full batches, for each coalition."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import torch
from torch import nn
from torch.nn import functional as F

from privml.backbones.digests import Json
from privml.rng import Generator, ScienceSeed
from privml.valuation.errors import SettingError
from privml.valuation.problem import Floats, Ints, Problem
from privml.valuation.utilities.base import Coalitions, Game, Utility, plain, single
from privml.valuation.utilities.metrics import Empty, Scorer, softmax

Build = Callable[[int, int], nn.Module]


@dataclass(frozen=True)
class TorchUtility(Utility):
    """Score of a module trained by Adam on all rows of the coalition at once.

    Parameters are drawn anew for every coalition from ``seed`` and the names of its rows (matrices
    uniform in +-1/sqrt(fan-in), biases zero, other vectors as the module builds them), so equal
    coalitions get equal scores, also once other rows are deleted.

    Parameters
    ----------
    build
        Function of the numbers of features and outputs (classes, or 1) that returns a module from
        (rows, features) to (rows, outputs), float32.
    steps
        Adam steps, at least 1.
    lr, weight_decay
        As in ``torch.optim.Adam``.
    metric, empty
        As for :class:`privml.valuation.utilities.ridge.RidgeUtility`; probabilities are the
        softmax of the outputs.
    seed
        Randomness of the start.
    """

    kind: ClassVar[str] = "torch/2"
    build: Build
    steps: int = 100
    lr: float = 0.01
    weight_decay: float = 0.0
    metric: str | None = None
    empty: Empty = "chance"
    seed: int = 0

    def open(self, problem: Problem) -> TorchGame:
        """Return the game of a problem."""
        if self.steps < 1 or not self.lr > 0 or self.weight_decay < 0:
            raise SettingError("steps is at least 1, lr positive and weight_decay at least 0")
        return TorchGame(problem, self)

    def spec(self) -> dict[str, Json]:
        """Return the settings as JSON."""
        return {
            "kind": self.kind,
            "build": f"{self.build.__module__}.{self.build.__qualname__}",
            "steps": self.steps,
            "lr": float(self.lr),
            "weight_decay": float(self.weight_decay),
            "metric": self.metric,
            "empty": plain(self.empty),
            "seed": self.seed,
        }


class TorchGame(Game):
    """The game of :class:`TorchUtility`."""

    batch = 1
    local = True

    def __init__(self, problem: Problem, utility: TorchUtility) -> None:
        self._problem, self._settings = problem, utility
        self._regression = problem.task == "regression"
        metric = utility.metric or ("r2" if self._regression else "accuracy")
        self._scorer = Scorer.of(metric, problem)
        self._outputs = 1 if self._regression else len(problem.classes)
        self._seed = ScienceSeed(utility.seed)
        self._x = torch.from_numpy(single("X", problem.X))
        self._x_val = torch.from_numpy(single("X_val", problem.X_val))
        target = single("y", problem.y) if self._regression else problem.y.astype(np.int64)
        self._target = torch.from_numpy(target)
        super().__init__(
            problem.players, self._scorer.of_empty(utility.empty), row_counts=problem.row_counts
        )
        self._fresh(np.zeros(1, dtype=np.int64))

    def _fresh(self, rows: Ints) -> nn.Module:
        module = self._settings.build(self._problem.d, self._outputs).float()
        if any(isinstance(m, nn.modules.dropout._DropoutNd) and m.p > 0 for m in module.modules()):
            raise SettingError("dropout draws from torch's own generator; build without it")
        generator = self._seed.child(*self._problem.names_of(rows)).generator()
        with torch.no_grad():
            for name, parameter in module.named_parameters():
                if name.rpartition(".")[2].startswith("bias"):
                    parameter.zero_()
                elif parameter.ndim > 1:
                    parameter.copy_(_uniform(tuple(parameter.shape), generator))
        return module

    def _score(self, coalitions: Coalitions) -> Floats:
        return np.array([self._one(self._problem.rows_of_all(c)) for c in coalitions])

    def _one(self, rows: Ints) -> float:
        if not self._regression:
            codes = self._problem.codes[rows]
            if (codes == codes[0]).all():
                return self._scorer.of_class(int(codes[0]))
        module = self._trained(rows)
        with torch.no_grad():
            outputs = module(self._x_val).double().numpy()
        if self._regression:
            return float(self._scorer.targets(outputs[None, :, 0])[0])
        return float(self._scorer.probabilities(softmax(outputs)[None])[0])

    def _trained(self, rows: Ints) -> nn.Module:
        settings, module = self._settings, self._fresh(rows)
        x, target = self._x[rows], self._target[rows]
        decay, lr = settings.weight_decay, settings.lr
        adam = torch.optim.Adam(module.parameters(), lr=lr, weight_decay=decay)
        module.train()
        for _ in range(settings.steps):
            adam.zero_grad()
            out = module(x)
            error = (
                F.mse_loss(out[:, 0], target) if self._regression else F.cross_entropy(out, target)
            )
            error.backward()  # type: ignore[no-untyped-call]
            adam.step()
        return module.eval()


def _uniform(shape: tuple[int, ...], generator: Generator) -> torch.Tensor:
    bound = 1.0 / np.sqrt(np.prod(shape[1:]))
    return torch.from_numpy(generator.uniform(-bound, bound, shape).astype(np.float32))
