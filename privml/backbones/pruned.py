r"""Clear twin of token pruning and polynomial reduction (CipherPrune), hard and soft.

Row 0 (of a causal model the last token) is protected. In layer ``l`` the raw score of row i is

.. math:: S_i = \sum_h \sum_j m^l_j P_h[j, i]

over heads and rows that are still there; the score is ``S_i / (heads * reference)`` whatever the
length of the text. Hard: ``m^{l+1}_i = m^l_i [S_i >= theta_l]``, and a kept row is of high
importance if ``S_i >= beta_l``. Soft: both indicators become logistic functions of log S (scores
of one text span orders of magnitude) of width ``temperature``, m weighs keys (log m is added to the
scores) and rows, the two classes are blended; as the temperature goes to 0 this tends to the hard
model.
High rows of layer l get the exact GELU in layer l and the exact exp in layer l + 1, low rows the
cheap ones. The last layer prunes nothing and keeps the classes it has.

A row that was pruned is still carried along here, and influences nothing.
"""

from __future__ import annotations

import math
from collections.abc import Generator, Iterator, Sequence
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from privml.backbones.batch import Encoded
from privml.backbones.blocks import LayerBlock, Observer
from privml.backbones.encoder import Encoder
from privml.backbones.program import NORM_FLOOR
from privml.backbones.pruned_masks import Masks, Rule, Schedule, State, Thresholds
from privml.backbones.substitutes import blended_exp, blended_gelu


class PrunedOutput(NamedTuple):
    """What a pruned forward pass gives for ``L`` layers; masks are bool if hard, else float.

    Attributes
    ----------
    output
        ``(B, output_dim)``, logits or embeddings.
    kept
        ``(L, B, n)``: rows that layer l starts with; the first is the token mask.
    high
        ``(L, B, n)``: rows of high importance when layer l starts; all rows at the first.
    scores
        ``(L - 1, B, n)``: raw scores of layer l; 0 for rows that were gone before.
    """

    output: Tensor
    kept: Tensor
    high: Tensor
    scores: Tensor


def pruned_forward(
    encoder: Encoder,
    batch: Encoded,
    theta: Thresholds = (),
    beta: Thresholds = (),
    *,
    reference: int = 128,
    shortest: int = 0,
    reduce: bool = True,
    masks: Masks = "hard",
    temperature: float | Sequence[float] = 0.1,
    schedule: Schedule | None = None,
    observe: Observer | None = None,
) -> PrunedOutput:
    """Run an encoder with token pruning.

    Parameters
    ----------
    batch
        Token batch ``(B, n)``; the protected row of each text is a token.
    theta, beta
        ``L - 1`` thresholds each, in units of the score; not used with a ``schedule``.
    reference
        Length that scores are normalised by.
    shortest
        Texts of at most so many tokens keep all rows, all of high importance.
    reduce
        Whether rows of low importance get the cheap polynomials.
    masks
        ``"hard"``; ``"soft"``; or ``"straight"``: hard ones with the gradient of soft ones.
    temperature
        Width of the soft masks, in units of the logarithm of the score; one, or one for each layer
        but the last.
    schedule
        Pairs (rows kept, rows of high importance) of each layer but the last: those of highest
        score, ties go to the earlier row. Replaces the thresholds and needs hard masks. A number
        may be a tensor ``(B, 1)``, one for each text.
    observe
        As in :meth:`privml.backbones.encoder.Encoder.forward`; sees pruned rows too.

    Raises
    ------
    ParameterError
        The batch does not fit the model, a text has no token in row 0, or there is not one
        threshold or pair for each layer but the last.

    Notes
    -----
    Cost: a clear forward pass; nothing is saved by pruning here.
    """
    count = encoder.config.layers - 1
    widths = [temperature] * count if isinstance(temperature, float) else list(temperature)
    rule = Rule(
        encoder.config, batch, (theta, beta), reference, shortest, reduce, masks, widths, schedule
    )
    see = observe or _ignore
    states, scores = [], []
    layers = _layers(encoder, batch, rule, see)
    while True:
        try:
            state, raw = next(layers)
        except StopIteration as end:
            state, x = end.value
            break
        states.append(state)
        scores.append(raw)
    states.append(state)
    return PrunedOutput(
        _head(encoder, x, states, see),
        torch.stack([s.mask for s in states]),
        torch.stack([s.high for s in states]),
        torch.stack(scores) if scores else x.new_zeros((0, *state.mask.shape)),
    )


def layer_scores(
    encoder: Encoder, batch: Encoded, theta: Sequence[float], beta: Sequence[float], *,
    reference: int = 128, shortest: int = 0,
) -> Iterator[tuple[Tensor, Tensor]]:  # fmt: skip
    """Yield what each layer but the last starts with and its scores, with hard masks.

    Thresholds of a layer are read when the next layer's scores are asked for, so they may be
    chosen in between, from the scores of many batches.

    Yields
    ------
    tuple
        Rows that are there, ``(B, n)`` bool, and raw scores, ``(B, n)``.
    """
    widths = [1.0] * (encoder.config.layers - 1)
    rule = Rule(encoder.config, batch, (theta, beta), reference, shortest, True, "hard", widths)
    for state, raw in _layers(encoder, batch, rule, _ignore):
        yield state.mask, raw


def _layers(
    encoder: Encoder, batch: Encoded, rule: Rule, see: Observer
) -> Generator[tuple[State, Tensor], None, tuple[State, Tensor]]:
    """Yield state and raw scores of each layer but the last; return the last state and output."""
    x = encoder._embed(batch, see)  # (B, n, d)
    state = rule.start(x.device)
    for index in range(encoder.config.layers):
        layer = encoder._layer(f"layer{index}")
        context, raw = _attend(layer, x, state, see)  # (B, n, d), (B, n)
        if index < encoder.config.layers - 1:
            yield state, raw
            state = rule.decide(state, raw, index)
        x = _finish(layer, x, context, state.high, see)  # (B, n, d)
    return state, x


def _attend(layer: LayerBlock, x: Tensor, state: State, see: Observer) -> tuple[Tensor, Tensor]:
    """Return contexts ``(B, n, d)`` and raw scores ``(B, n)``; at least float32 throughout."""
    rows, n, _ = x.shape
    qkv = layer.qkv.run(layer.attn_norm.run(x, see) if layer.pre_norm else x, see)
    with torch.autocast(qkv.device.type, enabled=False):
        qkv = qkv.to(torch.promote_types(qkv.dtype, torch.float32))
        q, k, v = qkv.view(rows, n, 3, layer.heads, layer.head_dim).permute(2, 0, 3, 1, 4)
        scores = q @ k.transpose(-1, -2) / math.sqrt(layer.head_dim)  # (B, H, n, n)
        see(f"{layer.name}.scores", scores)
        argument, factor = state.weights(scores)
        weights = blended_exp(argument, state.high) * factor
        weights = weights / weights.sum(dim=-1, keepdim=True)  # (B, H, n, n)
        raw = torch.einsum("bhji,bj->bi", weights, state.mask.to(weights.dtype))
        context = (weights @ v).transpose(1, 2).reshape(rows, n, -1)
    see(f"{layer.name}.context", context)
    return context, raw


def _finish(layer: LayerBlock, x: Tensor, context: Tensor, high: Tensor, see: Observer) -> Tensor:
    """Return the layer's output from its contexts, ``(B, n, d)``."""
    x = layer.attn_out.run(context, see) + x
    see(f"{layer.name}.attn_sum", x)
    x = x if layer.pre_norm else layer.attn_norm.run(x, see)
    inner = layer.ffn_in.run(layer.ffn_norm.run(x, see) if layer.pre_norm else x, see)
    hidden = blended_gelu(inner, high)  # (B, n, ffn)
    see(f"{layer.name}.ffn_act", hidden)
    x = layer.ffn_out.run(hidden, see) + x
    see(f"{layer.name}.ffn_sum", x)
    return x if layer.pre_norm else layer.ffn_norm.run(x, see)


def _head(encoder: Encoder, x: Tensor, states: list[State], see: Observer) -> Tensor:
    """Return the output; a mean is that of the rows kept."""
    kept = states[-1].mask
    if encoder.config.pooling == "mean" and kept.dtype != torch.bool:
        norm = encoder.final_norm
        x = x if norm is None else norm.run(x, see)
        weights = kept.to(x.dtype)
        x = torch.einsum("bnd,bn->bd", x, weights) / weights.sum(dim=1, keepdim=True)
        see("pool", x)
        return F.normalize(x, dim=-1, eps=NORM_FLOOR) if encoder.config.normalize else x
    whole = encoder.config.pooling != "mean"
    return encoder._head(x, states[0].mask.bool() if whole else kept, see)


def _ignore(_: str, __: Tensor) -> None:
    """Observe nothing."""
