"""Learnable thresholds, and thresholds that meet a budget exactly."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from privml.backbones.encoder import Encoder
from privml.backbones.pruned import PrunedOutput, pruned_forward
from privml.protocols.cipherprune.learning.data import Rows
from privml.protocols.cipherprune.thresholds import Thresholds

_STRIDE, _WIDEST, _FINE, _NEAR, _EDGE = 1.5, 64.0, 1.01, 0.02, 0.15
_BATCH = 64
_LEAST = 1e-3


@dataclass(frozen=True)
class Levels:
    """theta and beta of each layer but the last, in units of the score times ``reference``.

    In these units the mean over the rows of a text is 1, whatever its length.
    """

    theta: Sequence[float]
    beta: Sequence[float]

    def logs(self, largest: float) -> tuple[Tensor, Tensor]:
        """Return log theta and log beta."""
        theta, beta = (
            torch.tensor(t).clamp(_LEAST, largest).log() for t in (self.theta, self.beta)
        )
        return theta, torch.maximum(beta, theta + _LEAST)


class SoftThresholds:
    """Thresholds as parameters, on a way from first levels to those that fit the budget.

    The parameters are what is learned on top, in logarithms: of theta, and of the ratio of beta to
    theta, which is ``exp(softplus(gap))``, so that beta never falls below theta.

    Attributes
    ----------
    spread
        Standard deviation of the logarithm of the scores of each layer: the unit of what is learned
        and of the width of the masks, because layers differ by an order of magnitude.
    way
        How far the thresholds have gone, 0 to 1.
    """

    def __init__(
        self,
        first: Levels,
        last: Levels,
        *,
        spread: Sequence[float],
        reference: int,
        reduce: bool,
    ) -> None:
        self.reference, self.reduce, self.way = reference, reduce, 0.0
        self.spread = torch.tensor(spread)
        (low, high), (low_end, high_end) = (x.logs(reference / 2) for x in (first, last))
        self._level, self._gap = (low, low_end), (_gap(high - low), _gap(high_end - low_end))
        self.level = nn.Parameter(torch.zeros_like(low))
        self.gap = nn.Parameter(torch.zeros_like(low))

    def named(self) -> Mapping[str, nn.Parameter]:
        """Return the parameters by name."""
        return {"prune.level": self.level, "prune.gap": self.gap}

    def pair(self) -> tuple[Tensor, Tensor]:
        """Return theta and beta in units of the score, differentiable."""
        level, gap = (torch.lerp(*ends, self.way) for ends in (self._level, self._gap))
        level = (level + self.spread * self.level).clamp(
            math.log(_LEAST), math.log(self.reference / 2)
        )
        theta = level.exp() / self.reference
        return theta, theta * F.softplus(
            gap + self.spread * self.gap
        ).exp() if self.reduce else theta


def _gap(ratio: Tensor) -> Tensor:
    """Invert softplus."""
    return ratio.expm1().clamp(min=_LEAST).log()


def thresholds_of(
    theta: list[float], beta: list[float], *, heads: int, reference: int
) -> Thresholds:
    """Return thresholds, cut off at the largest possible values."""
    low = tuple(min(max(t, 0.0), 1.0) for t in theta)
    high = tuple(min(max(b, t), 1.0) for b, t in zip(beta, low, strict=True))
    return Thresholds(low, high, heads=heads, reference=reference)


def meet(
    model: Encoder, rows: Rows, found: Thresholds, *, budget: float, high: float | None
) -> Thresholds:
    """Scale thresholds by one factor so that the mean kept share on some rows is the budget.

    The ratios of beta to theta are raised to one power for the share of high importance.

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
    Cost: one forward pass over the rows for each share that is met, about six for the others.
    """
    ratio = [b / t if t else 1.0 for t, b in zip(found.theta, found.beta, strict=True)]

    def scaled(theta: float, spread: float) -> Thresholds:
        low = [theta * t for t in found.theta]
        high = [t * r**spread for t, r in zip(low, ratio, strict=True)]
        fresh = thresholds_of(low, high, heads=found.heads, reference=found.reference)
        return replace(found, theta=fresh.theta, beta=fresh.beta)

    spread = 0.0 if high is None else 1.0
    by = _bisect(lambda f: shares(model, rows, scaled(f, spread))[0], budget)
    if high is None:
        return scaled(by, spread)
    kept = shares(model, rows, scaled(by, spread))[0]
    return scaled(by, _bisect(lambda f: shares(model, rows, scaled(by, f))[1], high * kept))


def shares(model: Encoder, rows: Rows, thresholds: Thresholds) -> tuple[float, float]:
    """Return the mean share of tokens kept, and that of tokens of high importance."""
    kept = high = total = 0
    with torch.no_grad():
        for which in rows.in_order(_BATCH):
            out = pruned_forward(
                model, rows.batch(which), thresholds.theta, thresholds.beta,
                reference=thresholds.reference, shortest=thresholds.shortest,
            )  # fmt: skip
            kept += int(out.kept[1:].sum())
            high += int((out.kept[1:] & out.high[1:]).sum())
            total += int(out.kept[0].sum()) * (model.config.layers - 1)
    return (kept / total, high / total) if total else (1.0, 1.0)


def soft_profile(
    model: Encoder, rows: Rows, masks: SoftThresholds, *, width: float
) -> tuple[list[float], list[float]]:
    """Return what soft masks keep of some rows after each layer but the last.

    Parameters
    ----------
    rows
        Texts that are pruned.
    width
        Width of the masks, in units of each layer's spread.

    Returns
    -------
    tuple
        Shares of all tokens that are kept, and shares of those that are of high importance.
    """
    count, total = model.config.layers - 1, float(rows.lengths.sum())
    kept, high = torch.zeros(count), torch.zeros(count)
    with torch.no_grad():
        for which in rows.in_order(_BATCH):
            out = pruned_forward(
                model, rows.batch(which), *masks.pair(), reference=masks.reference,
                reduce=masks.reduce, masks="soft", temperature=(masks.spread * width).tolist(),
            )  # fmt: skip
            kept += out.kept[1:].sum(dim=(1, 2))
            high += (out.kept[1:] * out.high[1:]).sum(dim=(1, 2))
    return (kept / total).tolist(), (high / kept.clamp(min=_LEAST)).tolist()


def soft_shares(out: PrunedOutput, texts: Tensor) -> tuple[Tensor, Tensor]:
    """Return the differentiable shares of tokens kept and of high importance, of some texts.

    Parameters
    ----------
    texts
        Which texts count, ``(B,)`` bool; at least one.
    """
    kept, high = out.kept[:, texts], out.high[:, texts]
    total = kept[0].sum() * max(len(kept) - 1, 1)
    return kept[1:].sum() / total, (kept[1:] * high[1:]).sum() / total


def _bisect(share: Callable[[float], float], target: float) -> float:
    """Return the factor at which a falling share comes down to the target.

    The share is then the target at most, and less than it by a per cent at most if shares fall
    smoothly; the factor is 1 if the share is within two per cent of the target as it is. Factors
    lie in [1/64, 64]; an end of that interval is returned if the target lies beyond.
    """
    now = share(1.0)
    if abs(now - target) <= _NEAR * target:
        return 1.0
    stride = _STRIDE if now > target else 1 / _STRIDE
    at, found = 1.0, now
    while (now > target) == (found > target):
        last, now = at, found
        at *= stride
        if not 1 / _WIDEST <= at <= _WIDEST:
            return last
        found = share(at)
    (low, more), (high, less) = sorted([(last, now), (at, found)])
    while high > _FINE * low and less < target * (2 - _FINE):
        part = min(max((more - target) / (more - less), _EDGE), 1 - _EDGE)
        middle = low * (high / low) ** part
        if (found := share(middle)) > target:
            low, more = middle, found
        else:
            high, less = middle, found
    return high
