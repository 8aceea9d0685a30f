"""Calibrated ranges of a model whose tokens are pruned, without looking at its thresholds.

Pruning changes hidden states: attention sums over fewer keys, and cheap polynomials err. The ranges
of the plain model need not hold then. A plan is public and thresholds are secret, so what a plan is
made of must not depend on them. Therefore the model is run under fixed schedules that keep the
rows of highest score: half of the rows of each layer, half of them from the first layer on, and
row 0 alone. Any thresholds keep such rows, only in other numbers; the usual margin covers what is
between.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from privml.backbones.base import Interval
from privml.backbones.batch import Encoded
from privml.backbones.blocks import Observer
from privml.backbones.config import EncoderConfig
from privml.backbones.encoder import Encoder
from privml.backbones.pruned import pruned_forward
from privml.backbones.ranges import default_batches, measure, widen
from privml.backbones.tokenizer import Tokenizer

Keep = Callable[[int, Tensor], Tensor]
"""Rows kept after a layer: (layer, rows of each text) to rows of each text."""

_RULES: tuple[Keep, ...] = (
    lambda layer, rows: rows >> layer + 1,
    lambda layer, rows: rows >> 1,
    lambda layer, rows: torch.ones_like(rows),
)


def pruned_ranges(encoder: Encoder) -> dict[str, Interval]:
    """Return ranges that hold with and without pruning, by the names of ``encoder.ranges()``.

    Each rule sees every third batch of texts; the batch that is padded to the full length is left
    to ``encoder.ranges()``, because masked rows influence nothing.

    Cost: about one pass over the calibration texts beside ``encoder.ranges()``.
    """
    found = dict(encoder.ranges())
    batches = default_batches(encoder)
    texts = batches[:-1] or batches
    for turn, keep in enumerate(_RULES):
        view = _Scheduled(encoder, encoder.config, encoder.tokenizer, keep)
        some = texts[turn :: len(_RULES)] or texts
        for name, interval in widen(measure(view, some)).items():
            found[name] = _hull(found[name], interval)
    return found


@dataclass(eq=False)
class _Scheduled:
    """A model that keeps a fixed number of rows; half of them are of high importance."""

    encoder: Encoder
    config: EncoderConfig
    tokenizer: Tokenizer | None
    keep: Keep

    def forward(self, batch: Encoded, observe: Observer | None = None) -> Tensor:
        """Run the model under the schedule of each text's length."""
        rows = torch.from_numpy(batch.lengths)[:, None]  # (B, 1)
        kept = [self.keep(layer, rows).clamp(min=1) for layer in range(self.config.layers - 1)]
        schedule = [(count, (count + 1) // 2) for count in kept]
        return pruned_forward(self.encoder, batch, schedule=schedule, observe=observe).output


def _hull(a: Interval, b: Interval) -> Interval:
    low, high = min(a.low, b.low), max(a.high, b.high)
    return replace(a, low=low, high=high, samples=a.samples + b.samples)
