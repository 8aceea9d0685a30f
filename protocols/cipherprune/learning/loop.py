"""The training loop that all stages share: AdamW, warm-up and linear decay, checkpoints."""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from privml.backbones.batch import Encoded
from privml.backbones.digests import Json
from privml.backbones.encoder import Encoder
from privml.errors import ParameterError
from privml.params import check, outside
from privml.protocols.cipherprune.learning import checkpoint
from privml.protocols.cipherprune.learning.checkpoint import Saved
from privml.protocols.cipherprune.learning.data import Rows
from privml.protocols.cipherprune.learning.machine import Fixed, Precision, choose, products
from privml.rng import ScienceSeed

FEW_STEPS = 10

Progress = Callable[[str, float], None]
"""Called with the name of a stage and how far it is, 0 to 1. May raise to stop the run."""


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """Hyper-parameters of one stage.

    Attributes
    ----------
    epochs
        Passes over the data.
    rate
        Peak learning rate of the weights.
    batch
        Rows per step.
    warm_up
        Share of the steps in which the rate rises linearly; it falls linearly afterwards.
    decay
        Weight decay of matrices.
    clip
        Largest norm of the gradient.
    """

    epochs: int
    rate: float
    batch: int = 48
    warm_up: float = 0.1
    decay: float = 0.01
    clip: float = 1.0

    def __post_init__(self) -> None:
        problems = outside("epochs", self.epochs, 0, 10_000)
        problems += outside("rate", self.rate, 0.0, 1.0) + outside("batch", self.batch, 1, 1 << 16)
        problems += outside("warm_up", self.warm_up, 0.0, 1.0) + outside("decay", self.decay, 0, 1)
        if not self.clip > 0:
            problems.append("clip must be positive")
        check("recipe", problems)

    def rate_at(self, done: float) -> float:
        """Return the learning rate after a share ``done`` of the steps."""
        if done < self.warm_up:
            return self.rate * done / self.warm_up
        return self.rate * (1.0 - done) / max(1.0 - self.warm_up, 1e-9)


@dataclass(frozen=True, eq=False)
class Step:
    """One batch and when it comes: ``done`` is the share of steps before it."""

    batch: Encoded
    which: NDArray[np.int64]
    labels: Tensor
    done: float


class Objective(Protocol):
    """What a stage minimises."""

    def own(self) -> Mapping[str, tuple[nn.Parameter, float]]:
        """Return parameters beside the model's, each with its learning rate."""
        ...

    def loss(self, step: Step) -> Tensor:
        """Return the loss of a batch."""
        ...

    def stepped(self) -> None:
        """Act after the weights have moved."""
        ...

    def numbers(self) -> dict[str, float]:
        """Return state that is no tensor."""
        ...

    def restore(self, numbers: Mapping[str, float]) -> None:
        """Take back what :meth:`numbers` returned."""
        ...


@dataclass
class Store:
    """Where and how often a run is saved; ``fixed`` is added to each checkpoint's state."""

    folder: Path
    run: str
    seconds: float
    fixed: dict[str, Json] = field(default_factory=dict)


@dataclass
class Loop:
    """One stage of training.

    Attributes
    ----------
    stage
        Name shown and stored.
    model, objective, rows, recipe
        What is trained, on what and how.
    seed
        Seed of the order of rows.
    precision
        Format of matrix products.
    progress
        Told about every step.
    store
        Checkpoints; none if not given.
    """

    stage: str
    model: Encoder
    objective: Objective
    rows: Rows
    recipe: Recipe
    seed: ScienceSeed
    precision: Fixed
    progress: Progress
    store: Store | None = None

    def __post_init__(self) -> None:
        own = self.objective.own()
        weights = dict(self.model.named_parameters())
        self.parameters = {**weights, **{name: p for name, (p, _) in own.items()}}
        decayed = [p for p in weights.values() if p.ndim > 1]
        plain = [p for p in weights.values() if p.ndim <= 1]
        groups = [{"params": decayed, "weight_decay": self.recipe.decay}]
        groups += [{"params": plain, "weight_decay": 0.0}]
        groups += [{"params": [p], "weight_decay": 0.0} for p, _ in own.values()]
        self.factors = [
            1.0,
            1.0,
            *(rate / max(self.recipe.rate, 1e-12) for _, rate in own.values()),
        ]
        self.optimiser = torch.optim.AdamW(groups, lr=self.recipe.rate, fused=True)

    def run(self, start: Saved | None = None) -> None:
        """Train, from the beginning or from a checkpoint of this stage.

        The result depends on seed, data, recipe and number format, on this machine and with this
        number of threads not on whether and where the run was interrupted.

        Warns
        -----
        UserWarning
            There are fewer than ``FEW_STEPS`` steps, which hardly move the weights.
        """
        at = 0 if start is None else self._restore(start)
        per_epoch = len(self._epoch(0))
        total = self.recipe.epochs * per_epoch
        if 0 < total < FEW_STEPS:
            warnings.warn(self._too_few(total), UserWarning, stacklevel=2)
        saved = time.monotonic()
        while at < total:
            epoch, first = divmod(at, per_epoch)
            for which in self._epoch(epoch)[first:]:
                self.progress(self.stage, at / total)
                self._step(which, at, total)
                at += 1
                if self.store is not None and time.monotonic() - saved >= self.store.seconds:
                    self._save(self.store, at)
                    saved = time.monotonic()
        self.progress(self.stage, 1.0)

    def _too_few(self, total: int) -> str:
        return (
            f"{self.stage}: {len(self.rows)} rows in batches of {self.recipe.batch} make "
            f"{total} step(s) of the optimiser, which hardly move the weights; give more rows, "
            "more epochs or smaller batches"
        )

    def _epoch(self, number: int) -> list[NDArray[np.int64]]:
        return self.rows.shuffled(self.recipe.batch, seed=self.seed.child("epoch", number))

    def _step(self, which: NDArray[np.int64], at: int, total: int) -> None:
        rate, done = self.recipe.rate_at((at + 0.5) / total), at / total
        for group, factor in zip(self.optimiser.param_groups, self.factors, strict=True):
            group["lr"] = rate * factor
        step = Step(
            self.rows.batch(which), which, torch.from_numpy(self.rows.labels[which]), done
        )  # fmt: skip
        with products(self.precision):
            loss = self.objective.loss(step)
        if not bool(loss.isfinite()):
            raise ParameterError(f"the loss of stage {self.stage} is not finite; lower the rate")
        self.optimiser.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        nn.utils.clip_grad_norm_(list(self.model.parameters()), self.recipe.clip)
        self.optimiser.step()
        self.objective.stepped()

    def _save(self, store: Store, at: int) -> None:
        arrays = {f"weight/{name}": _array(p) for name, p in self.parameters.items()}
        for name, parameter in self.parameters.items():
            moments = self.optimiser.state.get(parameter, {})  # none if it never had a gradient
            blank = torch.zeros_like(parameter)
            arrays[f"first/{name}"] = _array(moments.get("exp_avg", blank))
            arrays[f"second/{name}"] = _array(moments.get("exp_avg_sq", blank))
        numbers: Mapping[str, Json] = self.objective.numbers()
        state: dict[str, Json] = {
            **store.fixed, "stage": self.stage, "step": at, "numbers": numbers,
        }  # fmt: skip
        checkpoint.save(store.folder, run=store.run, arrays=arrays, state=state)

    def _restore(self, start: Saved) -> int:
        at = int(str(start.state["step"]))
        load_weights(self.parameters, start)
        for name, parameter in self.parameters.items() if at else ():
            self.optimiser.state[parameter] = {
                "step": torch.tensor(float(at)),
                "exp_avg": _tensor(start, f"first/{name}"),
                "exp_avg_sq": _tensor(start, f"second/{name}"),
            }
        numbers = start.state.get("numbers")
        if isinstance(numbers, dict):
            self.objective.restore({name: float(value) for name, value in numbers.items()})
        return at


def store_precision(store: Store | None, start: Saved | None, asked: Precision) -> Fixed:
    """Return the number format of a run, that of its checkpoint if there is one; store it."""
    before = None if start is None else start.state.get("precision")
    found = choose("bfloat16" if before == "bfloat16" else "float32" if before else asked)
    if store is not None:
        store.fixed["precision"] = found
    return found


def load_weights(parameters: Mapping[str, nn.Parameter], start: Saved) -> None:
    """Copy the weights of a checkpoint into parameters."""
    with torch.no_grad():
        for name, parameter in parameters.items():
            parameter.copy_(_tensor(start, f"weight/{name}"))


def save_weights(store: Store, model: Encoder, *, stage: str) -> None:
    """Save the weights as the start of a stage."""
    arrays = {f"weight/{name}": _array(p) for name, p in model.named_parameters()}
    state: dict[str, Json] = {**store.fixed, "stage": stage, "step": 0}
    checkpoint.save(store.folder, run=store.run, arrays=arrays, state=state)


def _array(tensor: Tensor) -> NDArray[np.generic]:
    array: NDArray[np.generic] = tensor.detach().contiguous().numpy()
    return array


def _tensor(start: Saved, name: str) -> Tensor:
    return torch.from_numpy(np.array(start.arrays[name]))
