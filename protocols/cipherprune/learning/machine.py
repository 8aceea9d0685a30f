"""Number format of training on this machine."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Literal

import torch

from privml.errors import ParameterError

Precision = Literal["auto", "float32", "bfloat16"]
Fixed = Literal["float32", "bfloat16"]

_ROWS, _WIDTH, _OUT, _TRIES = 512, 384, 1536, 5
_GAIN = 1.3


def choose(precision: Precision) -> Fixed:
    """Return the format to train in; ``auto`` takes bfloat16 products if they are much faster.

    Weights, optimiser state, masks and sums stay float32 in both. Cost: up to 0.1 s.

    Raises
    ------
    ParameterError
        The name is unknown.
    """
    if precision in ("float32", "bfloat16"):
        return precision
    if precision != "auto":
        raise ParameterError(f"precision {precision!r}: choose auto, float32 or bfloat16")
    plain, half = (_seconds(dtype) for dtype in (torch.float32, torch.bfloat16))
    return "bfloat16" if plain > _GAIN * half else "float32"


def products(precision: Fixed) -> AbstractContextManager[object]:
    """Return a context in which matrix products run in this format."""
    return torch.autocast("cpu", dtype=torch.bfloat16, enabled=precision == "bfloat16")


def _seconds(dtype: torch.dtype) -> float:
    """Return the best of a few timings of a product as in a feed-forward part."""
    a, b = torch.ones(_ROWS, _WIDTH, dtype=dtype), torch.ones(_WIDTH, _OUT, dtype=dtype)
    return min(_timed(lambda: a @ b) for _ in range(_TRIES))


def _timed(work: Callable[[], object]) -> float:
    began = time.perf_counter()
    work()
    return time.perf_counter() - began
