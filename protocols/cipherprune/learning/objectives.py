"""What each stage minimises: the task alone, the task with soft masks, the task with hard masks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from privml.backbones.blocks import Observer
from privml.backbones.encoder import Encoder
from privml.backbones.pruned import pruned_forward
from privml.protocols.cipherprune.learning.loop import Step
from privml.protocols.cipherprune.learning.masks import SoftThresholds, soft_shares
from privml.protocols.cipherprune.thresholds import Thresholds

_MEMORY = 0.9


@dataclass(frozen=True, eq=False)
class Teacher:
    """What the unpruned model says about every row of the data.

    Attributes
    ----------
    logits
        ``(N, classes)``.
    pooled
        ``(N, d)``, half precision: what the head reads.
    spread
        Mean variance of ``pooled`` over the rows, the unit of its error.
    """

    logits: Tensor
    pooled: Tensor
    spread: float


@dataclass
class TaskLoss:
    """Cross entropy, mixed with the distance from a teacher.

    Attributes
    ----------
    smoothing
        Label smoothing of the cross entropy.
    teacher
        The teacher, if there is one.
    weight
        Weight of the divergence from the teacher's classes; the cross entropy has the rest.
    likeness
        Weight of the relative squared error of what the head reads.
    """

    smoothing: float = 0.0
    teacher: Teacher | None = None
    weight: float = 0.5
    likeness: float = 0.0

    def of(self, logits: Tensor, step: Step, pooled: Tensor | None = None) -> Tensor:
        """Return the mean loss of a batch."""
        logits = logits.float()
        loss = F.cross_entropy(logits, step.labels, label_smoothing=self.smoothing)
        if self.teacher is None:
            return loss
        which = torch.from_numpy(step.which)
        target = self.teacher.logits[which].softmax(dim=-1)
        gap = F.kl_div(logits.log_softmax(dim=-1), target, reduction="batchmean")
        loss = self.weight * gap + (1 - self.weight) * loss
        if pooled is None or not self.likeness:
            return loss
        error = F.mse_loss(pooled.float(), self.teacher.pooled[which].float())
        return loss + self.likeness * error / self.teacher.spread


def seen_by_head() -> tuple[Observer, list[Tensor]]:
    """Return an observer and the list to which it adds what the head reads."""
    found: list[Tensor] = []

    def observe(name: str, value: Tensor) -> None:
        if name == "pool":
            found.append(value)

    return observe, found


@dataclass
class PlainObjective:
    """The task, without pruning."""

    model: Encoder
    task: TaskLoss

    def own(self) -> Mapping[str, tuple[nn.Parameter, float]]:
        """Return no parameters beside the model's."""
        return {}

    def loss(self, step: Step) -> Tensor:
        """Return the task's loss of the plain model."""
        return self.task.of(self.model(step.batch), step)

    def stepped(self) -> None:
        """Do nothing."""

    def numbers(self) -> dict[str, float]:
        """Return nothing."""
        return {}

    def restore(self, numbers: Mapping[str, float]) -> None:
        """Take nothing."""


@dataclass
class Price:
    """Price of tokens above a target share, raised while the share is above it (dual ascent).

    Attributes
    ----------
    value
        Present price of the whole share.
    gain
        Change of the price per step and unit of excess.
    stiffness
        Weight of the squared excess, which damps the price.
    seen
        Running mean of the share; negative before the first step.
    """

    value: float
    gain: float
    stiffness: float = 4.0
    seen: float = -1.0

    def cost(self, share: Tensor, target: float) -> Tensor:
        """Return the cost of a share; takes note of it for :meth:`move`."""
        now = float(share.detach())
        self.seen = now if self.seen < 0 else _MEMORY * self.seen + (1 - _MEMORY) * now
        excess = share - target
        return self.value * excess + self.stiffness * excess.clamp(min=0.0).square()

    def move(self, target: float) -> None:
        """Raise or lower the price once a share was seen; it is never negative."""
        if self.seen < 0:
            return
        self.value = max(0.0, self.value + self.gain * (self.seen - target))


@dataclass
class SoftObjective:
    """Stage 1: weights and thresholds, soft masks, prices on kept and on high tokens.

    Attributes
    ----------
    budget, high
        Target shares of tokens kept and of high importance at the end; both fall from what they
        are at the first step during the first ``ramp`` of the stage.
    widths
        Width of the masks at the beginning and at the end, in units of each layer's spread; falls
        geometrically.
    rate
        Learning rate of the thresholds.
    shortest
        Texts of at most so many tokens are not pruned, and do not count for the shares.
    """

    model: Encoder
    task: TaskLoss
    masks: SoftThresholds
    budget: float
    high: float
    widths: tuple[float, float]
    rate: float
    ramp: float
    shortest: int = 0
    kept_price: Price = field(default_factory=lambda: Price(0.0, 0.01))
    high_price: Price = field(default_factory=lambda: Price(0.0, 0.01))
    first: tuple[float, float] | None = None
    targets: tuple[float, float] = (1.0, 1.0)

    def own(self) -> Mapping[str, tuple[nn.Parameter, float]]:
        """Return the thresholds."""
        return {name: (p, self.rate) for name, p in self.masks.named().items()}

    def loss(self, step: Step) -> Tensor:
        """Return task loss and price of the tokens."""
        first, last = self.widths
        observe, pooled = seen_by_head()
        self.masks.way = min(step.done / max(self.ramp, 1e-9), 1.0)
        out = pruned_forward(
            self.model, step.batch, *self.masks.pair(), reference=self.masks.reference,
            shortest=self.shortest, reduce=self.masks.reduce, masks="soft", observe=observe,
            temperature=(self.masks.spread * first * (last / first) ** step.done).tolist(),
        )  # fmt: skip
        loss = self.task.of(out.output, step, pooled[0])
        texts = torch.from_numpy(step.batch.lengths > self.shortest)
        return loss + self._cost(*soft_shares(out, texts)) if bool(texts.any()) else loss

    def _cost(self, kept: Tensor, high: Tensor) -> Tensor:
        """Return the price of the tokens at the present targets."""
        if self.first is None:
            self.first = float(kept.detach()), float(high.detach())
        way, goal = self.masks.way, (self.budget, self.high)
        kept_goal, high_goal = (
            (1 - way) * a + way * b for a, b in zip(self.first, goal, strict=True)
        )
        self.targets = kept_goal, high_goal
        cost = self.kept_price.cost(kept, kept_goal)
        return cost + self.high_price.cost(high, high_goal) if self.masks.reduce else cost

    def stepped(self) -> None:
        """Move the prices."""
        self.kept_price.move(self.targets[0])
        self.high_price.move(self.targets[1])

    def numbers(self) -> dict[str, float]:
        """Return the prices and the first shares, negative before there are any."""
        kept, high = self.first or (-1.0, -1.0)
        numbers = _numbers({"kept": self.kept_price, "high": self.high_price})
        return {**numbers, "first.kept": kept, "first.high": high}

    def restore(self, numbers: Mapping[str, float]) -> None:
        """Take the prices and the first shares back."""
        _restore({"kept": self.kept_price, "high": self.high_price}, numbers)
        first = numbers["first.kept"], numbers["first.high"]
        self.first = first if first[0] >= 0 else None


@dataclass
class HardObjective:
    """Stage 2: weights under hard masks; the thresholds stay.

    Gradients pass straight through the masks as if they were soft, so that the weights still learn
    which tokens to keep. The price keeps them from drifting towards more tokens than the budget.
    """

    model: Encoder
    task: TaskLoss
    thresholds: Thresholds
    budget: float
    widths: Sequence[float]
    reduce: bool
    price: Price = field(default_factory=lambda: Price(0.0, 0.02))

    def own(self) -> Mapping[str, tuple[nn.Parameter, float]]:
        """Return no parameters beside the model's."""
        return {}

    def loss(self, step: Step) -> Tensor:
        """Return task loss and price of the tokens above the budget."""
        found = self.thresholds
        observe, pooled = seen_by_head()
        out = pruned_forward(
            self.model, step.batch, found.theta, found.beta, reference=found.reference,
            shortest=found.shortest, reduce=self.reduce, masks="straight",
            temperature=self.widths, observe=observe,
        )  # fmt: skip
        loss = self.task.of(out.output, step, pooled[0])
        texts = torch.from_numpy(step.batch.lengths > found.shortest)
        if not bool(texts.any()):
            return loss
        return loss + self.price.cost(soft_shares(out, texts)[0], self.budget)

    def stepped(self) -> None:
        """Move the price."""
        self.price.move(self.budget)

    def numbers(self) -> dict[str, float]:
        """Return the price."""
        return _numbers({"kept": self.price})

    def restore(self, numbers: Mapping[str, float]) -> None:
        """Take the price back."""
        _restore({"kept": self.price}, numbers)


def _numbers(prices: Mapping[str, Price]) -> dict[str, float]:
    values: dict[str, float] = {}
    for name, price in prices.items():
        values |= {f"{name}.value": price.value, f"{name}.seen": price.seen}
    return values


def _restore(prices: Mapping[str, Price], numbers: Mapping[str, float]) -> None:
    for name, price in prices.items():
        price.value, price.seen = numbers[f"{name}.value"], numbers[f"{name}.seen"]
