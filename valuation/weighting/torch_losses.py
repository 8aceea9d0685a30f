"""Weighted losses for torch: IMP and quality weights are fixed, DIMP weights follow the model."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from privml.valuation.errors import ProblemError, SettingError
from privml.valuation.weighting.ratios import LARGEST_LOG, checked_settings

_MATRIX = 2


class ImportanceLoss(nn.Module):
    """``-(1/b) sum_i w_i alpha_{y_i} ln p(y_i|x_i)`` with fixed weights: IMP, or quality alone.

    Parameters
    ----------
    alpha
        (c,) weight of each class; None for 1.
    normalise
        ``"batch"`` divides the weights of a batch by their mean: the step size then does not
        depend on them. None keeps them.

    Raises
    ------
    SettingError
        A setting is out of range.
    """

    alpha: Tensor | None

    def __init__(
        self, *, alpha: Sequence[float] | None = None, normalise: str | None = None
    ) -> None:
        super().__init__()
        checked_settings(None, normalise, 1.0)
        self.normalise = normalise
        self.register_buffer("alpha", _alpha(alpha))

    def forward(self, logits: Tensor, target: Tensor, weight: Tensor) -> Tensor:
        """Return the loss of a batch, a float32 scalar (float64 for float64 logits).

        Parameters
        ----------
        logits
            (b, c) floating point.
        target
            (b,) int64 class codes.
        weight
            (b,) weights of at least 0; no gradient flows through them.
        """
        log_p = _own_log_p(logits, target, weight)
        return self._mean(weight.detach().to(log_p.dtype), log_p, target)

    def _mean(self, weight: Tensor, log_p: Tensor, target: Tensor) -> Tensor:
        if self.normalise == "batch":
            mean = weight.mean()
            weight = weight / torch.where(mean > 0, mean, torch.ones_like(mean))
        if self.alpha is not None:
            weight = weight * self.alpha.to(weight)[target]
        return -(weight * log_p).mean()


class DIMPLoss(ImportanceLoss):
    """``-(1/b) sum_i w_i alpha_{y_i} ln p(y_i|x_i)``, ``w_i = quality_i / p(y_i|x_i)``.

    The weight is a constant for the gradient. It is large where the model does not yet believe a
    label that is likely right, so clip it: the loss is otherwise led by rows with p near 0.

    Parameters
    ----------
    clip
        Largest weight; None for none but 1e30.
    normalise, alpha
        As for :class:`ImportanceLoss`.
    temperature
        Exponent 1/temperature of the weight.

    Raises
    ------
    SettingError
        A setting is out of range.
    """

    def __init__(
        self,
        *,
        clip: float | None = None,
        normalise: str | None = None,
        temperature: float = 1.0,
        alpha: Sequence[float] | None = None,
    ) -> None:
        super().__init__(alpha=alpha, normalise=normalise)
        checked_settings(clip, normalise, temperature)
        self.clip = clip
        self.temperature = temperature

    def forward(
        self,
        logits: Tensor,
        target: Tensor,
        weight: Tensor,
        denominator: Tensor | None = None,
    ) -> Tensor:
        """Return the loss of a batch, a float32 scalar (float64 for float64 logits).

        Parameters
        ----------
        logits
            (b, c) floating point.
        target
            (b,) int64 class codes.
        weight
            (b,) quality: probability of each label under the model of the real rows.
        denominator
            (b, c) logits for the weights, for example of a forward pass in evaluation mode; None
            takes ``logits``, as the authors' code does.
        """
        log_p = _own_log_p(logits, target, weight)
        seen = log_p if denominator is None else _own_log_p(denominator, target, weight)
        return self._mean(self.weights(seen, weight), log_p, target)

    def weights(self, log_p: Tensor, quality: Tensor) -> Tensor:
        """Return the (b,) weights without gradient, before normalisation; all finite."""
        quality, log_p = quality.detach().to(log_p.dtype), log_p.detach()
        most = LARGEST_LOG if self.clip is None else math.log(self.clip)
        ratio = torch.log(quality) - log_p.clamp(min=-torch.finfo(log_p.dtype).max)
        weight = torch.exp((ratio / self.temperature).clamp(max=most))
        return torch.where(quality > 0, weight, torch.zeros_like(weight))


def _own_log_p(logits: Tensor, target: Tensor, weight: Tensor) -> Tensor:
    rows = logits.shape[:1]
    if logits.ndim != _MATRIX or target.shape != rows or weight.shape != rows:
        raise ProblemError(
            f"logits {tuple(logits.shape)}, target {tuple(target.shape)} and weight "
            f"{tuple(weight.shape)} do not fit; give (b, c), (b,) and (b,)"
        )
    kind = torch.promote_types(logits.dtype, torch.float32)
    log_p = torch.log_softmax(logits.to(kind), dim=1)
    return log_p.gather(1, target[:, None])[:, 0]


def _alpha(given: Sequence[float] | None) -> Tensor | None:
    if given is None:
        return None
    alpha = torch.tensor(list(given), dtype=torch.float32)
    if not (torch.isfinite(alpha).all() and (alpha >= 0).all()):
        raise SettingError("alpha must hold a finite number of at least 0 for each class")
    return alpha
