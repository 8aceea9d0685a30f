"""Training of quantised networks: floating point first, then with the integer forward pass.

Both stages share one loop with a one-cycle rate. The order of samples, their augmentation and the
initial weights come from seeds; a run that was interrupted and resumed gives the same network, on
this machine with this number of threads.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Literal

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from privml.backbones.cnn_data import Source
from privml.backbones.cnn_saving import (
    load_checkpoint,
    network_arrays,
    save_checkpoint,
    set_network,
)
from privml.backbones.digests import Json, canonical_json, sha256
from privml.backbones.quant_model import QuantModel
from privml.backbones.run_state import Saved, arrays_digest
from privml.errors import Corrupt, ParameterError
from privml.params import check, outside
from privml.rng import ScienceSeed

Progress = Callable[[str, float], None]
"""Called with the name of a stage and how far it is, 0 to 1. May raise to stop the run."""
Stage = Literal["float", "quantised"]

_STAGES: tuple[Stage, ...] = ("float", "quantised")
_CHUNK = 256


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """Hyper-parameters of one stage.

    Attributes
    ----------
    epochs
        Passes over the data; 0 leaves the stage out.
    rate
        Peak learning rate.
    batch
        Samples per step.
    warm_up
        Share of the steps in which the rate rises linearly; it falls linearly afterwards.
    decay
        Weight decay of convolutions and of the last layer.
    optimiser
        ``"sgd"`` with Nesterov momentum 0.9, or ``"adamw"``.
    smoothing
        Label smoothing.
    frozen
        Share of the steps, at the end, with frozen statistics of batch normalisation.
    """

    epochs: int
    rate: float
    batch: int = 128
    warm_up: float = 0.2
    decay: float = 5e-4
    optimiser: Literal["sgd", "adamw"] = "sgd"
    smoothing: float = 0.0
    frozen: float = 0.0

    def __post_init__(self) -> None:
        problems = outside("epochs", self.epochs, 0, 10_000) + outside("rate", self.rate, 0, 10)
        problems += outside("batch", self.batch, 1, 1 << 16)
        problems += outside("warm_up", self.warm_up, 0, 1) + outside("decay", self.decay, 0, 1)
        problems += outside("smoothing", self.smoothing, 0, 0.9)
        problems += outside("frozen", self.frozen, 0, 1)
        if self.optimiser not in ("sgd", "adamw"):
            problems.append(f"optimiser {self.optimiser!r}: choose sgd or adamw")
        check("recipe", problems)

    def rate_at(self, done: float) -> float:
        """Return the learning rate after a share ``done`` of the steps."""
        if done < self.warm_up:
            return self.rate * max(done, 0.02 * self.warm_up) / self.warm_up
        return self.rate * max(1.0 - done, 0.0) / max(1.0 - self.warm_up, 1e-9)


@dataclass(frozen=True, kw_only=True)
class Training:
    """Both stages.

    Attributes
    ----------
    first, second
        Floating point, then quantised.
    calibration
        Samples from which the scales are first set.
    """

    first: Recipe = field(default_factory=lambda: Recipe(epochs=20, rate=0.2, smoothing=0.1))
    second: Recipe = field(
        default_factory=lambda: Recipe(
            epochs=8, rate=1e-3, optimiser="adamw", decay=1e-4, warm_up=0.1, frozen=1 / 3
        )
    )
    calibration: int = 512

    def recipe(self, stage: Stage) -> Recipe:
        """Return the recipe of a stage."""
        return self.first if stage == "float" else self.second


@dataclass(frozen=True)
class Epoch:
    """What one epoch gave; ``accuracy`` on the validation data, none without them."""

    stage: Stage
    loss: float
    accuracy: float | None


@dataclass(frozen=True)
class Store:
    """Where checkpoints go, and the least seconds between two of them."""

    folder: Path
    seconds: float = 120.0


def fit(
    model: QuantModel, train: Source, valid: Source | None = None, *,
    training: Training | None = None, seed: ScienceSeed, progress: Progress | None = None,
    store: Store | None = None,
) -> list[Epoch]:  # fmt: skip
    """Train a model in place, or go on where an interrupted run of the same kind stopped.

    Parameters
    ----------
    model
        Its network is trained; initial weights come from its own constructor.
    train, valid
        Data; accuracy on ``valid`` is reported after each epoch and steers nothing.
    seed
        Of the order of samples and of augmentation.
    progress
        Told about every step.
    store
        Checkpoints; none if not given.

    Returns
    -------
    list
        One entry for each epoch.

    Raises
    ------
    ParameterError
        The loss is no longer finite, a label is no class, the data went through another front
        end than the model's, or the checkpoint is another run's.
    Corrupt
        The checkpoint is damaged.
    """
    recipes = Training() if training is None else training
    if int(train.labels.max()) >= model.net.spec.classes:
        raise ParameterError(f"label {int(train.labels.max())} is none of the network's classes")
    for source in (train, valid):
        if source is not None:
            model.check_front(source.front_digest)
    run = _Run(model, train, valid, recipes, seed, progress or _silent, store)
    return run.go()


def accuracy(model: QuantModel, data: Source, *, stage: Stage = "quantised") -> float:
    """Return the share of right predictions, of the quantised or the floating-point pass."""
    right = 0
    net = model.net.eval()
    device = net.head.weight.device
    for which in np.array_split(np.arange(len(data.labels)), -(-len(data.labels) // _CHUNK)):
        x = torch.from_numpy(data.batch(which, rng=None)).to(device)
        with torch.no_grad():
            scores = net(x) if stage == "float" else net.scores(x)
        right += int((scores.argmax(1).numpy(force=True) == data.labels[which]).sum())
    return right / len(data.labels)


def _silent(stage: str, done: float) -> None:
    """Report nothing."""


class _Run:
    """One call of :func:`fit`."""

    def __init__(
        self, model: QuantModel, train: Source, valid: Source | None, training: Training,
        seed: ScienceSeed, progress: Progress, store: Store | None,
    ) -> None:  # fmt: skip
        self.model, self.net, self.train, self.valid = model, model.net, train, valid
        self.training, self.seed, self.progress, self.store = training, seed, progress, store
        self.net.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        self.history: list[Epoch] = []
        self.loss, self.saved = 0.0, time.monotonic()
        self.digest = "" if store is None else self._digest()

    def go(self) -> list[Epoch]:
        start = None if self.store is None else load_checkpoint(self.store.folder, run=self.digest)
        stage, at = ("float", 0) if start is None else self._place(start)
        for name in _STAGES[_STAGES.index(stage) :]:
            self._stage(name, at, start)
            at, start = 0, None
        self.net.eval()
        return self.history

    def _stage(self, stage: Stage, at: int, start: Saved | None) -> None:
        recipe = self.training.recipe(stage)
        if start is not None:
            set_network(self.net, _part(start, "net/"))
        elif stage == "quantised":
            self._calibrate()
        optimiser = self._optimiser(stage)
        if start is not None:
            _restore(optimiser, start)
        per_epoch = len(self._order(stage, 0))
        total = recipe.epochs * per_epoch
        while at < total:
            epoch, first = divmod(at, per_epoch)
            for which in self._order(stage, epoch)[first:]:
                self.progress(stage, at / total)
                self._step(stage, optimiser, which, at, total)
                at += 1
                self._finish_epoch(stage, at, per_epoch)
                self._save(stage, optimiser, at, last=at == total)
        self.progress(stage, 1.0)

    def _calibrate(self) -> None:
        count = min(self.training.calibration, len(self.train.labels))
        order = self.seed.child("calibration").generator().permutation(len(self.train.labels))
        self.model.calibrate(self.train.batch(np.sort(order[:count]), rng=None))

    def _order(self, stage: Stage, epoch: int) -> list[NDArray[np.int64]]:
        batch = self.training.recipe(stage).batch
        count = len(self.train.labels)
        order = self.seed.child(stage, "order", epoch).generator().permutation(count)
        whole = max(count // batch, 1) * batch  # a short last batch would disturb statistics
        return [order[first : first + batch] for first in range(0, min(whole, count), batch)]

    def _step(
        self, stage: Stage, optimiser: torch.optim.Optimizer, which: NDArray[np.int64], at: int,
        total: int,
    ) -> None:  # fmt: skip
        recipe = self.training.recipe(stage)
        for group in optimiser.param_groups:
            group["lr"] = recipe.rate_at(at / total)
        self.net.train()
        if at >= (1.0 - recipe.frozen) * total:
            self.net.freeze_statistics()
        device = self.net.head.weight.device
        rng = self.seed.child(stage, "augment", at).generator()
        x = torch.from_numpy(self.train.batch(which, rng=rng)).to(device)
        x = x.contiguous(memory_format=torch.channels_last)
        labels = torch.from_numpy(self.train.labels[which]).to(device)
        scores = self.net(x) if stage == "float" else self.net.scores(x)
        loss = F.cross_entropy(scores.float(), labels, label_smoothing=recipe.smoothing)
        if not bool(loss.isfinite()):
            raise ParameterError(f"the loss of stage {stage} is not finite; lower the rate")
        optimiser.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        torch.nn.utils.clip_grad_norm_(self.net.parameters(), 5.0)
        optimiser.step()
        self.loss += loss.item()

    def _finish_epoch(self, stage: Stage, at: int, per_epoch: int) -> None:
        if at % per_epoch:
            return
        right = None if self.valid is None else accuracy(self.model, self.valid, stage=stage)
        self.history.append(Epoch(stage, self.loss / per_epoch, right))
        self.loss = 0.0

    def _optimiser(self, stage: Stage) -> torch.optim.Optimizer:
        recipe = self.training.recipe(stage)
        named = list(self.net.named_parameters())
        if stage == "float":
            named = [(name, p) for name, p in named if not name.endswith("log_scale")]
        groups = [
            {"params": [p for _, p in named if p.ndim > 1], "weight_decay": recipe.decay},
            {"params": [p for _, p in named if p.ndim <= 1], "weight_decay": 0.0},
        ]
        if recipe.optimiser == "sgd":
            return torch.optim.SGD(groups, lr=recipe.rate, momentum=0.9, nesterov=True)
        return torch.optim.AdamW(groups, lr=recipe.rate)

    def _save(self, stage: Stage, optimiser: torch.optim.Optimizer, at: int, *, last: bool) -> None:
        if self.store is None:
            return
        if not last and time.monotonic() - self.saved < self.store.seconds:
            return
        arrays = {f"net/{name}": array for name, array in network_arrays(self.net).items()}
        for number, parameter in enumerate(_parameters(optimiser)):
            for key, value in optimiser.state.get(parameter, {}).items():
                if isinstance(value, Tensor):
                    array = value.detach().cpu().contiguous().numpy().copy()
                    arrays[f"optimiser/{number}/{key}"] = array
        history: list[Json] = [asdict(epoch) for epoch in self.history]
        state: dict[str, Json] = {
            "stage": stage, "step": at, "loss": self.loss, "history": history,
        }  # fmt: skip
        save_checkpoint(self.store.folder, run=self.digest, arrays=arrays, state=state)
        self.saved = time.monotonic()

    def _place(self, start: Saved) -> tuple[Stage, int]:
        state = start.state
        try:
            stage: Stage = "float" if state["stage"] == "float" else "quantised"
            self.loss, at = float(str(state["loss"])), int(str(state["step"]))
            history = state["history"]
            if not isinstance(history, list):
                raise TypeError("no history")
            self.history = [Epoch(**entry) for entry in history]
        except (KeyError, TypeError, ValueError) as error:
            raise Corrupt(f"the checkpoint misses its place: {error}; remove it") from error
        return stage, at

    def _digest(self) -> str:
        model = self.model
        return sha256(
            canonical_json(
                {
                    "network": model.net.spec.to_json(), "bits": asdict(model.bits),
                    "training": asdict(self.training), "seed": str(self.seed.value),
                    "front": model.front, "train": self.train.digest(),
                    "valid": "" if self.valid is None else self.valid.digest(),
                    "weights": arrays_digest(network_arrays(self.net)),
                }
            )
        )  # fmt: skip


def _parameters(optimiser: torch.optim.Optimizer) -> list[Tensor]:
    return [p for group in optimiser.param_groups for p in group["params"]]


def _part(start: Saved, prefix: str) -> dict[str, NDArray[np.generic]]:
    return {n.removeprefix(prefix): a for n, a in start.arrays.items() if n.startswith(prefix)}


def _restore(optimiser: torch.optim.Optimizer, start: Saved) -> None:
    parameters = _parameters(optimiser)
    for name, array in _part(start, "optimiser/").items():
        number, _, key = name.partition("/")
        parameter = parameters[int(number)]
        value = torch.from_numpy(np.array(array))
        if value.ndim:
            value = torch.empty_like(parameter).copy_(value)
        optimiser.state[parameter][key] = value
