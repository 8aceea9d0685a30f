"""Calibrated ranges: how large each value gets on real text, with a margin.

For every value of the program, for ``layer{i}.scores`` (after division by ``sqrt(head_dim)``,
before the mask) and, at the input ``v`` of every LayerNorm, for ``v.var`` (the variance over the
width) and ``v.centred`` (the value minus its mean). Padded rows count like others, because an
encrypted run computes them too.

Margin: each end is moved away from zero by the factor :data:`SAFETY` (variances by its square, and
downwards at their lower end), then rounded outwards to eighths of an octave, so that last-bit
differences between machines do not show. A calibrated range is no proof: a text outside it makes an
encrypted run wrong, which is why plans keep further head-room on top.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Protocol

import torch
from torch import Tensor

from privml.backbones.base import Interval, Op
from privml.backbones.batch import Encoded
from privml.backbones.blocks import Observer
from privml.backbones.calibration_text import SENTENCES
from privml.backbones.config import EncoderConfig
from privml.backbones.program import encoder_ops
from privml.backbones.synthetic import random_batch
from privml.backbones.tokenizer import Tokenizer
from privml.errors import ParameterError

SAFETY = 2.0
"""Factor between the largest magnitude seen and the end of the range."""

_STEPS = 8  # of the outward rounding, per octave
_BATCH = 8


class Observable(Protocol):
    """What calibration asks of an encoder."""

    config: EncoderConfig
    tokenizer: Tokenizer | None

    def forward(self, batch: Encoded, observe: Observer | None = None) -> Tensor:
        """Run the model and report each intermediate value."""
        ...


def measure(encoder: Observable, batches: Iterable[Encoded]) -> dict[str, Interval]:
    """Return the smallest and largest element of each value over some batches, without margin.

    Cost: one clear forward pass over the batches; memory of one pass.

    Raises
    ------
    ParameterError
        If there is no batch, or a batch does not fit the model.
    """
    normed = {
        node.inputs[0].name for node in encoder_ops(encoder.config) if node.kind is Op.LAYERNORM
    }
    seen: dict[str, tuple[float, float]] = {}
    samples = 0

    def note(name: str, value: Tensor) -> None:
        low, high = (float(end) for end in torch.aminmax(value))
        old = seen.get(name, (low, high))
        seen[name] = (min(low, old[0]), max(high, old[1]))

    def observe(name: str, value: Tensor) -> None:
        note(name, value)
        if name in normed:
            centred = value - value.mean(dim=-1, keepdim=True)
            note(f"{name}.centred", centred)
            note(f"{name}.var", centred.square().mean(dim=-1))

    with torch.no_grad():
        for batch in batches:
            encoder.forward(batch, observe)
            samples += batch.batch_size
    if not samples:
        raise ParameterError("calibration needs at least one batch")
    return {
        name: Interval(low=low, high=high, origin="calibrated", samples=samples)
        for name, (low, high) in seen.items()
    }


def widen(ranges: Mapping[str, Interval], *, factor: float = SAFETY) -> dict[str, Interval]:
    """Return the ranges with a margin, see the head of this module.

    Raises
    ------
    ParameterError
        If ``factor`` is below 1.
    """
    if not factor >= 1:
        raise ParameterError(f"the safety factor {factor} must be at least 1")
    return {name: _widened(name, interval, factor) for name, interval in ranges.items()}


def calibrate(
    encoder: Observable, batches: Iterable[Encoded], *, factor: float = SAFETY
) -> dict[str, Interval]:
    """Return the ranges seen on some batches, with a margin: ``widen(measure(...))``.

    Use texts like those the model will meet; ``Interval.bound`` is the largest magnitude.

    Raises
    ------
    ParameterError
        If there is no batch, a batch does not fit the model, or ``factor`` is below 1.
    """
    return widen(measure(encoder, batches), factor=factor)


def default_ranges(encoder: Observable) -> dict[str, Interval]:
    """Calibrate on the bundled sentences, or on random tokens if there is no tokenizer.

    The sentences (general English, 2 to about 100 tokens) go through in batches padded to their
    longest row; the shortest once more, padded to the model's full length.
    """
    return calibrate(encoder, default_batches(encoder))


def default_batches(encoder: Observable) -> list[Encoded]:
    """Return the batches that :func:`default_ranges` calibrates on."""
    config, tokenizer = encoder.config, encoder.tokenizer
    if tokenizer is None:
        length = min(config.max_length, 64)
        return [random_batch(config, rows=8, length=length, seed=0)]
    texts = sorted(SENTENCES, key=lambda text: len(text.encode()))
    batches = [
        tokenizer.encode(texts[at : at + _BATCH], truncate=True)
        for at in range(0, len(texts), _BATCH)
    ]
    full = tokenizer.encode(texts[:1], truncate=True, pad_to=config.max_length)
    return [*batches, full]


def _widened(name: str, interval: Interval, factor: float) -> Interval:
    if name.endswith(".var"):
        squared = factor * factor
        low = _round(interval.low / squared, up=False)
        high = _round(interval.high * squared, up=True)
    else:
        low = -_round(-interval.low * factor, up=True) if interval.low < 0 else 0.0
        high = _round(interval.high * factor, up=True) if interval.high > 0 else 0.0
    return Interval(
        low=low,
        high=high,
        origin="calibrated",
        samples=interval.samples,
        factor=interval.factor * factor,
    )


def _round(value: float, *, up: bool) -> float:
    """Round a non-negative value to a multiple of an eighth of its leading power of two."""
    if value == 0.0:
        return 0.0
    step = 2.0 ** (math.frexp(value)[1] - 1) / _STEPS
    return (math.ceil if up else math.floor)(value / step) * step
