"""Learnable thresholds, and thresholds that meet a budget exactly."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from privml.backbones.encoder import Encoder
from privml.backbones.pruned import PrunedOutput, protected_rows, pruned_forward
from privml.protocols.cipherprune.learning.data import Rows
from privml.protocols.cipherprune.thresholds import Thresholds

_STRIDE, _WIDEST, _FINE = 1.5, 64.0, 1.01
_BATCH = 64


class SoftThresholds:
    """Thresholds as parameters, in units of the score times ``reference``.

    In these units the mean over the rows of a text is 1, whatever its length. ``beta`` is
    ``theta + softplus(gap)``, so it never falls below ``theta``.
    """

    def __init__(self, layers: int, *, reference: int, reduce: bool) -> None:
        self.reference, self.reduce = reference, reduce
        self.theta = nn.Parameter(torch.zeros(layers - 1))
        self.gap = nn.Parameter(torch.full((layers - 1,), -1.0))

    def named(self) -> Mapping[str, nn.Parameter]:
        """Return the parameters by name."""
        return {"prune.theta": self.theta, "prune.gap": self.gap}

    def beta(self) -> Tensor:
        """Return the reduction thresholds."""
        return self.theta + F.softplus(self.gap) if self.reduce else self.theta

    def clamp(self) -> None:
        """Keep the thresholds within what a score can be."""
        with torch.no_grad():
            self.theta.clamp_(0.0, self.reference / 2)
            self.gap.clamp_(-10.0, 20.0)

    def frozen(self, heads: int) -> Thresholds:
        """Return the thresholds on the ring's grid."""
        theta = (self.theta.detach().double() / self.reference).tolist()
        beta = (self.beta().detach().double() / self.reference).tolist()
        return thresholds_of(theta, beta, heads=heads, reference=self.reference)


def thresholds_of(
    theta: list[float], beta: list[float], *, heads: int, reference: int
) -> Thresholds:
    """Return thresholds, cut off at the largest possible values."""
    low = tuple(min(max(t, 0.0), 1.0) for t in theta)
    high = tuple(min(max(b, t), 1.0) for b, t in zip(beta, low, strict=True))
    return Thresholds(low, high, heads=heads, reference=reference)


def quantile_start(model: Encoder, rows: Rows, share: float, *, reference: int) -> list[float]:
    """Return thresholds, in units of the score times ``reference``, each of which drops ``share``.

    They are quantiles of the scores of the unpruned model, protected rows left out.
    """
    seen: list[list[Tensor]] = [[] for _ in range(model.config.layers - 1)]
    zeros = [0.0] * len(seen)
    with torch.no_grad():
        for which in rows.in_order(_BATCH):
            batch = rows.batch(which)
            out = pruned_forward(model, batch, zeros, zeros, reference=reference)
            real = out.kept[0] & ~protected_rows(model.config, batch)
            for found, scores in zip(seen, out.scores, strict=True):
                found.append(scores[real] / model.config.heads)
    return [float(torch.cat(found).quantile(share)) if found else 0.0 for found in seen]


def meet(
    model: Encoder, rows: Rows, found: Thresholds, *, budget: float, high: float | None
) -> Thresholds:
    """Scale thresholds by one factor so that the mean kept share on some rows is the budget.

    Parameters
    ----------
    found
        Learned thresholds, whose proportions stay.
    budget
        Mean share of tokens kept over the layers but the first.
    high
        Share of the kept tokens that is to be of high importance; ``None`` means all of them.

    Notes
    -----
    Cost: about 20 forward passes over the rows.
    """

    def scaled(theta: float, gap: float) -> Thresholds:
        low = [theta * t for t in found.theta]
        gaps = [gap * (b - t) for b, t in zip(found.beta, found.theta, strict=True)]
        return thresholds_of(
            low, [t + g for t, g in zip(low, gaps, strict=True)],
            heads=found.heads, reference=found.reference,
        )  # fmt: skip

    by = _bisect(lambda f: shares(model, rows, scaled(f, 0.0))[0], budget)
    if high is None:
        return scaled(by, 0.0)
    kept = shares(model, rows, scaled(by, 0.0))[0]
    gap = _bisect(lambda f: shares(model, rows, scaled(by, f))[1], high * kept)
    return scaled(by, gap)


def shares(model: Encoder, rows: Rows, thresholds: Thresholds) -> tuple[float, float]:
    """Return the mean share of tokens kept, and that of tokens of high importance."""
    kept = high = total = 0
    with torch.no_grad():
        for which in rows.in_order(_BATCH):
            out = pruned_forward(
                model, rows.batch(which), thresholds.theta, thresholds.beta,
                reference=thresholds.reference,
            )  # fmt: skip
            kept += int(out.kept[1:].sum())
            high += int((out.kept[1:] & out.high[1:]).sum())
            total += int(out.kept[0].sum()) * (model.config.layers - 1)
    return (kept / total, high / total) if total else (1.0, 1.0)


def soft_shares(out: PrunedOutput) -> tuple[Tensor, Tensor]:
    """Return the differentiable shares of tokens kept and of high importance, of soft masks."""
    total = out.kept[0].sum() * max(len(out.kept) - 1, 1)
    return out.kept[1:].sum() / total, (out.kept[1:] * out.high[1:]).sum() / total


def _bisect(share: Callable[[float], float], target: float) -> float:
    """Return the factor, within a per cent, at which a falling share comes down to the target.

    Factors lie in [1/64, 64]; an end of that interval is returned if the target lies beyond.
    """
    above = share(1.0) > target
    stride = _STRIDE if above else 1 / _STRIDE
    at = 1.0
    while (share(at * stride) > target) == above:
        at *= stride
        if not 1 / _WIDEST < at < _WIDEST:
            return at
    low, high = sorted((at, at * stride))
    while high > _FINE * low:
        middle = math.sqrt(low * high)
        if share(middle) > target:
            low = middle
        else:
            high = middle
    return high
