"""Which rows of a pruned model go on, and in which class: hard, soft and straight-through masks."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final, Literal, TypeAlias

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from privml.backbones.batch import Encoded
from privml.backbones.config import EncoderConfig
from privml.errors import ParameterError

FAINT: Final = 1e-4
"""Added to score * reference, whose mean over a text is 1, before the logarithm of soft masks."""

Masks: TypeAlias = Literal["hard", "soft", "straight"]
Thresholds: TypeAlias = Tensor | Sequence[float]
Schedule: TypeAlias = Sequence[tuple[int | Tensor, int | Tensor]]


def protected_rows(config: EncoderConfig, batch: Encoded) -> Tensor:
    """Return which row of each text is never pruned, ``(B, n)``: row 0, or the last if causal."""
    rows = torch.zeros(batch.ids.shape, dtype=torch.bool)
    place = batch.last if config.causal else np.zeros(batch.batch_size, np.int64)
    return rows.scatter(1, torch.from_numpy(place)[:, None], True)


@dataclass(frozen=True, eq=False)
class State:
    """Rows at the start of a layer.

    Attributes
    ----------
    mask
        ``(B, n)``: which rows are there; bool if hard, else float.
    log_mask
        Logarithm of the mask, minus infinity for rows that are not there.
    high
        Weight of the exact class of each row, ``(B, n)``.
    causal
        Whether a row sees only rows before it.
    straight
        Whether gradients go through the mask, whose values are 0 and 1, and not its logarithm.
    """

    mask: Tensor
    log_mask: Tensor
    high: Tensor
    causal: bool
    straight: bool

    def weights(self, scores: Tensor) -> tuple[Tensor, Tensor]:
        """Return the arguments of exp and the factors of its values, for scores ``(B, H, n, n)``.

        A causal row sees itself even if it is not there, so that no row of weights is zero.
        """
        mask, logs = self.mask[:, None, None, :], self.log_mask[:, None, None, :]
        if self.causal:
            eye = torch.eye(scores.shape[-1], dtype=torch.bool, device=scores.device)
            later = torch.ones_like(eye).triu(1)
            mask = mask.masked_fill(later, 0).masked_fill(eye, 1)
            logs = logs.masked_fill(later, -math.inf).masked_fill(eye, 0.0)
        shifted = scores + logs
        top = shifted.detach().amax(dim=-1, keepdim=True)
        if self.straight:
            return (scores - top).clamp(max=0.0), mask
        return shifted - top, torch.ones_like(mask, dtype=scores.dtype)


@dataclass(frozen=True, eq=False)
class Rule:
    """How masks follow from scores; see :func:`privml.backbones.pruned.pruned_forward`."""

    config: EncoderConfig
    batch: Encoded
    limits: tuple[Thresholds, Thresholds]
    reference: int
    shortest: int
    reduce: bool
    masks: Masks
    widths: Sequence[float]
    schedule: Schedule | None = None

    def __post_init__(self) -> None:
        expected = self.config.layers - 1
        given = [self.schedule] if self.schedule is not None else [*self.limits, self.widths]
        if any(len(values) != expected for values in given):
            raise ParameterError(
                f"pruning needs {expected} thresholds or pairs, one for each layer but the last; "
                f"got {[len(values) for values in given]}"
            )
        if self.masks not in ("hard", "soft", "straight"):
            raise ParameterError(f"masks = {self.masks!r}: choose hard, soft or straight")
        if self.schedule is not None and self.masks != "hard":
            raise ParameterError("a schedule has hard masks")
        if not all(width > 0 for width in self.widths) or self.reference < 1:
            raise ParameterError("temperature and reference must be positive")

    def start(self, device: torch.device) -> State:
        """Return the state before the first layer."""
        mask = torch.from_numpy(self.batch.mask).to(device)
        if not bool((mask | ~protected_rows(self.config, self.batch)).all()):
            raise ParameterError("pruning protects row 0 of each text; pad on the right only")
        whole = mask if self.masks == "hard" else mask.float()
        straight = self.masks == "straight"
        return State(whole, mask.float().log(), whole, self.config.causal, straight)

    def decide(self, state: State, raw: Tensor, layer: int) -> State:
        """Return the rows that go on and their classes."""
        protected = protected_rows(self.config, self.batch)
        if self.schedule is None:
            short = torch.from_numpy(self.batch.lengths <= self.shortest)[:, None]
            protected = protected | (short & torch.from_numpy(self.batch.mask))
        if self.schedule is not None:
            keep, high = _ranked(self.schedule[layer], state.mask, raw, protected)
        else:
            unit, exact = self.config.heads * self.reference, raw.detach().double()
            limits = [_number(t[layer]) * unit for t in self.limits]
            keep, high = ((exact >= limit) | protected for limit in limits)
        if self.masks == "hard":
            mask = state.mask & keep
            return replace(
                state, mask=mask, log_mask=mask.float().log(),
                high=mask & high if self.reduce else mask,
            )  # fmt: skip
        keep_log, high_log = (self._logistic(raw, t[layer], layer, protected) for t in self.limits)
        classes = high_log.exp() if self.reduce else torch.ones_like(high_log)
        if self.masks == "soft":
            log_mask = state.log_mask + keep_log
            return replace(state, mask=log_mask.exp(), log_mask=log_mask, high=classes)
        mask = state.mask * _through(keep, keep_log.exp())
        log_mask = mask.detach().log()
        classes = _through(high, classes) if self.reduce else classes
        return replace(state, mask=mask, log_mask=log_mask, high=classes)

    def _logistic(
        self, raw: Tensor, limit: Tensor | float, layer: int, protected: Tensor
    ) -> Tensor:
        """Return the logarithm of a soft comparison; 0 for protected rows."""
        score = (raw / self.config.heads + FAINT).log()  # (B, n)
        level = (torch.as_tensor(limit) * self.reference + FAINT).log()
        soft = F.logsigmoid(((score - level) / self.widths[layer]).float())
        return soft.masked_fill(protected, 0.0)


def _ranked(
    pair: tuple[int | Tensor, int | Tensor], mask: Tensor, raw: Tensor, protected: Tensor
) -> tuple[Tensor, Tensor]:
    """Return the rows of highest score among those that are there; the protected row is first."""
    ranked = raw.masked_fill(~mask, -1.0).masked_fill(protected, math.inf)
    ranks = ranked.sort(dim=1, descending=True, stable=True).indices.argsort(dim=1)
    return ranks < pair[0], ranks < pair[1]


def _number(value: Tensor | float) -> float:
    return float(value.detach()) if isinstance(value, Tensor) else value


def _through(hard: Tensor, soft: Tensor) -> Tensor:
    """Return the values of one tensor with the gradient of another."""
    return hard.to(soft.dtype) + soft - soft.detach()
