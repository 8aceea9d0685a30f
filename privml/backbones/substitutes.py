"""Float twins of the approximations that encrypted runs put in place of GELU and exp.

Their forward values differ from the ring's by rounding only, so a model that is trained with them
meets at inference what it was trained for. Gradients pass straight through roundings.

Both forms of GELU are ``x/2 + q(|x|)`` with an even part ``q``; ``ring4`` (exact class) and
``low2`` (class of low importance) differ in ``q``. ``exp`` of the exact class is exact and 0 below
-15.5; that of the low class rounds its argument to 9 fractional bits and is 0 below -8.
"""

from __future__ import annotations

from typing import Any, Final

import torch
from torch import Tensor

#: Cut T and coefficients c4, c3, c2, c1, c0 of ``ring4``.
RING4: Final = (3.2, 87 / 4096, -0.18515186, 0.54303227, -0.0386564, 0.00163329)
#: Cut T and coefficient of x^2 of ``low2``.
LOW2: Final = (7182 / 4096, 73 / 256)
HIGH_CLIP: Final = -15.5
LOW_CLIP: Final = -8.0
_LOW_STEPS: Final = 512.0


def gelu_exact_class(x: Tensor) -> Tensor:
    """Return ``ring4``: a quartic in |x| below the cut, x or 0 beyond; maximum error 0.0022."""
    return x / 2 + _even_high(x.abs())


def gelu_low_class(x: Tensor) -> Tensor:
    """Return ``low2``: a parabola below the cut, x or 0 beyond; maximum error 0.07."""
    return x / 2 + _even_low(x.abs())


def blended_gelu(x: Tensor, high: Tensor) -> Tensor:
    """Return ``high * gelu_exact_class(x) + (1 - high) * gelu_low_class(x)``, differentiable.

    Parameters
    ----------
    x
        Shape ``(B, n, f)``.
    high
        Weight of the exact class of each row, shape ``(B, n)``, in [0, 1].
    """
    result: Tensor = _BlendedGelu.apply(x, high.to(x.dtype))  # type: ignore[no-untyped-call]
    return result


def blended_exp(x: Tensor, high: Tensor) -> Tensor:
    """Return the exponential of x <= 0 as rows of both classes compute it, blended by ``high``.

    Parameters
    ----------
    x
        Scores minus their row maximum, shape ``(B, H, n, n)``; masked keys are minus infinity.
    high
        Weight of the exact class of each query row, shape ``(B, n)``, in [0, 1].
    """
    weight = high[:, None, :, None].to(x.dtype)  # (B, 1, n, 1)
    fine = _clipped(x, x, HIGH_CLIP)
    rounded = x + ((x.detach() * _LOW_STEPS).round() / _LOW_STEPS - x.detach()).nan_to_num()
    return weight * fine + (1 - weight) * _clipped(rounded, x, LOW_CLIP)


def _clipped(x: Tensor, original: Tensor, clip: float) -> Tensor:
    """exp(x) where the original is at least ``clip``, else exactly 0."""
    gone = original < clip
    return x.masked_fill(gone, clip).exp().masked_fill(gone, 0.0)


def _even_high(a: Tensor) -> Tensor:
    cut, c4, c3, c2, c1, c0 = RING4
    inner = (((a * c4 + c3) * a + c2) * a + c1) * a + c0
    return torch.where(a < cut, inner, a / 2)


def _even_low(a: Tensor) -> Tensor:
    cut, c2 = LOW2
    return torch.where(a < cut, a.square() * c2, a / 2)


class _BlendedGelu(torch.autograd.Function):
    """The blend with its derivative written out: a fifth of the memory traffic of autograd."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, high: Tensor) -> Tensor:  # noqa: ANN401
        ctx.save_for_backward(x, high)
        a = x.abs()
        weight = high[..., None]
        return _even_low(a).lerp_(_even_high(a), weight.expand_as(a)).add_(x, alpha=0.5)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, Tensor | None]:  # noqa: ANN401
        (grad,) = grads
        x, high = ctx.saved_tensors
        a, sign = x.abs(), x.sign()
        weight = high[..., None]
        cut, c4, c3, c2, c1, _ = RING4
        slope = ((a * (4 * c4)).add_(3 * c3).mul_(a).add_(2 * c2).mul_(a)).add_(c1)
        slope.masked_fill_(a >= cut, 0.5)
        low_cut, low = LOW2
        flat = (a * (2 * low)).masked_fill_(a >= low_cut, 0.5)
        to_x = flat.lerp_(slope, weight.expand_as(a)).mul_(sign).add_(0.5).mul_(grad)
        to_high = None
        if ctx.needs_input_grad[1]:
            to_high = (grad * (_even_high(a) - _even_low(a))).sum(dim=-1)
        return to_x, to_high
