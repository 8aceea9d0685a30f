"""Accuracy and kept tokens of a pruned model in the clear, with hard masks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from privml.backbones.encoder import Encoder
from privml.backbones.pruned import PrunedOutput, pruned_forward
from privml.protocols.cipherprune.learning.data import Rows
from privml.protocols.cipherprune.thresholds import Thresholds

_BATCH = 64
_QUANTILES = (0, 10, 50, 90, 100)


@dataclass(frozen=True, eq=False, repr=False)
class Evaluation:
    """What a pruned model does on some rows.

    Attributes
    ----------
    predictions
        Class of each row, ``(N,)``.
    accuracy
        Share of rows whose class is the label.
    kept, high
        Tokens that each layer starts with, and those of high importance among them, ``(L, N)``.
        The first row of both is the length of the text.
    """

    predictions: NDArray[np.int64]
    accuracy: float
    kept: NDArray[np.int64]
    high: NDArray[np.int64]

    @property
    def share(self) -> float:
        """Mean share of all tokens that are kept, over the layers but the first."""
        return _share(self.kept, self.kept)

    @property
    def high_share(self) -> float:
        """Like :attr:`share`, of tokens of high importance."""
        return _share(self.high, self.kept)

    def share_above(self, shortest: int) -> float:
        """Return :attr:`share` of the texts with more than so many tokens; 1 if there are none."""
        kept = self.kept[:, self.kept[0] > shortest]
        return _share(kept, kept) if kept.size else 1.0

    def as_dict(self) -> dict[str, Any]:
        """Return accuracy and, for each layer, the distribution of its tokens."""
        return {
            "rows": len(self.predictions), "accuracy": self.accuracy, "share": self.share,
            "high_share": self.high_share,
            "layers": [
                {"tokens": _spread(kept), "high": _spread(high)}
                for kept, high in zip(self.kept, self.high, strict=True)
            ],
        }  # fmt: skip


def evaluate(
    model: Encoder,
    rows: Rows,
    thresholds: Thresholds | None = None,
    *,
    reduce: bool = True,
) -> Evaluation:
    """Run a model over all rows in float32 and count.

    Parameters
    ----------
    thresholds
        Prune and reduce; without them the model runs exactly and keeps all tokens.

    Notes
    -----
    Cost: one forward pass over the rows, in batches of 64 rows of like length.
    """
    layers = model.config.layers
    predictions = np.zeros(len(rows), np.int64)
    kept, high = (np.zeros((layers, len(rows)), np.int64) for _ in range(2))
    with torch.no_grad():
        for which in rows.in_order(_BATCH):
            batch = rows.batch(which)
            if thresholds is None:
                predictions[which] = model(batch).argmax(dim=1).numpy()
                kept[:, which] = high[:, which] = batch.lengths
                continue
            out = pruned_forward(
                model, batch, thresholds.theta, thresholds.beta,
                reference=thresholds.reference, shortest=thresholds.shortest, reduce=reduce,
            )  # fmt: skip
            predictions[which] = out.output.argmax(dim=1).numpy()
            kept[:, which], high[:, which] = _counts(out)
    accuracy = float((predictions == rows.labels).mean())
    return Evaluation(predictions, accuracy, kept, high)


def _counts(out: PrunedOutput) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    kept, high = out.kept.sum(dim=2), (out.kept & out.high).sum(dim=2)
    return kept.numpy(), high.numpy()


def _share(tokens: NDArray[np.int64], kept: NDArray[np.int64]) -> float:
    layers = len(kept) - 1
    return float(tokens[1:].sum() / (layers * kept[0].sum())) if layers else 1.0


def _spread(tokens: NDArray[np.int64]) -> dict[str, float | Sequence[int]]:
    ends: list[int] = [int(q) for q in np.percentile(tokens, _QUANTILES)]
    return {"mean": float(tokens.mean()), "quantiles_0_10_50_90_100": ends}
