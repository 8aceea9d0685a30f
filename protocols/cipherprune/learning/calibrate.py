"""Thresholds without training: quantiles of the scores on some texts."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from privml.backbones.batch import Encoded
from privml.backbones.calibration_text import SENTENCES
from privml.backbones.encoder import Encoder
from privml.backbones.pruned import pruned_forward
from privml.backbones.pruned_masks import protected_rows
from privml.errors import UnsupportedError
from privml.params import check, outside
from privml.protocols.cipherprune.thresholds import SCORE_BITS, Thresholds

_BATCH = 16


def calibrate_thresholds(
    encoder: Encoder,
    texts: Sequence[str] = SENTENCES,
    *,
    keep: float = 0.75,
    high: float = 0.5,
    reference: int = 128,
    shortest: int = 16,
) -> Thresholds:
    """Return thresholds that keep about a given share of the tokens in each layer.

    Layer by layer, with the layers before already pruned, a threshold is a quantile of the scores
    of the tokens that are left. The weights stay as they are, so accuracy falls sooner than with
    :func:`privml.protocols.cipherprune.learning.learn_thresholds`: measure it on your own texts.

    Parameters
    ----------
    encoder
        A model with a tokenizer; it is not changed.
    texts
        Texts like those the model will meet; cut at the model's limit.
    keep
        Share of the tokens of a layer that go on to the next one, on the mean over the texts.
        With 0.75 and 6 layers, 24 % of the tokens reach the last one.
    high
        Share of the tokens kept that are of high importance.
    reference
        Length that scores are normalised by.
    shortest
        Texts of at most so many tokens are not pruned: without learning, what is left of a short
        text decides too little. Public.

    Returns
    -------
    Thresholds
        With the digest of the model.

    Raises
    ------
    ParameterError
        A share or ``reference`` is out of range, or a text is empty.
    UnsupportedError
        The model has no tokenizer, or one layer only.

    Notes
    -----
    Cost: as many passes over the texts as the model has layers; with the texts that come with the
    package a few seconds for a 6-layer model of width 384.
    """
    problems = outside("keep", keep, 0.0, 1.0) + outside("high", high, 0.0, 1.0)
    problems += outside("reference", reference, 1, 1 << 16)
    problems += outside("shortest", shortest, 0, 1 << 16)
    problems += [] if texts else ["no texts were given; pass at least one"]
    check("calibration", problems)
    config = encoder.config
    if encoder.tokenizer is None or config.layers < 2:
        raise UnsupportedError("pruning needs a model with a tokenizer and two layers or more")
    batches = tuple(_batches(encoder, texts))
    unit = config.heads * reference
    theta = [0.0] * (config.layers - 1)
    beta = list(theta)
    for layer in range(config.layers - 1):
        scores = _scores(encoder, batches, theta, beta, layer, reference)
        kept = _ends(scores, 1 - keep)
        theta[layer] = kept / unit
        beta[layer] = max(kept, _ends(scores[scores >= kept], 1 - high)) / unit
    found = Thresholds(
        tuple(theta), tuple(beta), heads=config.heads, reference=reference, shortest=shortest
    )
    return found.bound_to(encoder)


def kept_tokens(
    encoder: Encoder, thresholds: Thresholds, texts: Sequence[str]
) -> tuple[tuple[float, float], ...]:
    """Return the mean number of tokens each layer starts with, and of high importance among them.

    Computed in the clear with hard masks; the first pair is the length of the texts. Cost: one
    pass over the texts.

    Raises
    ------
    UnsupportedError
        The model has no tokenizer.
    """
    if encoder.tokenizer is None:
        raise UnsupportedError("counting tokens needs a model with a tokenizer")
    total = torch.zeros(encoder.config.layers, 2, dtype=torch.float64)
    with torch.no_grad():
        for batch in _batches(encoder, texts):
            out = pruned_forward(
                encoder, batch, thresholds.theta, thresholds.beta,
                reference=thresholds.reference, shortest=thresholds.shortest,
            )  # fmt: skip
            total[:, 0] += out.kept.sum(dim=(1, 2))
            total[:, 1] += (out.kept & out.high).sum(dim=(1, 2))
    return tuple((float(kept), float(high)) for kept, high in total / len(texts))


def _batches(encoder: Encoder, texts: Sequence[str]) -> Iterator[Encoded]:
    """Tokenise, texts of like length together."""
    tokenizer = encoder.tokenizer
    if tokenizer is None:
        return
    ordered = sorted(texts, key=lambda text: len(text.encode()))
    for at in range(0, len(ordered), _BATCH):
        yield tokenizer.encode(ordered[at : at + _BATCH], truncate=True)


def _scores(
    encoder: Encoder, batches: Sequence[Encoded], theta: Sequence[float], beta: Sequence[float],
    layer: int, reference: int,
) -> Tensor:  # fmt: skip
    """Raw scores of the tokens that one layer may drop, over all texts."""
    found = []
    with torch.no_grad():
        for batch in batches:
            out = pruned_forward(encoder, batch, theta, beta, reference=reference)
            free = out.kept[layer] & ~protected_rows(encoder.config, batch)
            found.append(out.scores[layer][free])
    return torch.cat(found)


def _ends(scores: Tensor, share: float) -> float:
    """Return a score below which a share of the tokens lies, one step of the ring's grid lower."""
    found = float(scores.double().quantile(share)) if len(scores) else 0.0
    return max(0.0, (math.floor(found * 2**SCORE_BITS) - 1) / 2**SCORE_BITS)
