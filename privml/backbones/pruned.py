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
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from privml.backbones.batch import Encoded
from privml.backbones.blocks import LayerBlock, Observer
from privml.backbones.config import EncoderConfig
from privml.backbones.encoder import Encoder
from privml.backbones.program import NORM_FLOOR
from privml.backbones.substitutes import blended_exp, blended_gelu
from privml.errors import ParameterError

FAINT: Final = 1e-4
"""Added to score * reference, whose mean over a text is 1, before the logarithm of soft masks."""

Thresholds = Tensor | Sequence[float]
Schedule = Sequence[tuple[int | Tensor, int | Tensor]]


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
    reduce: bool = True,
    hard: bool = True,
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
    reduce
        Whether rows of low importance get the cheap polynomials.
    hard
        Hard masks, or soft ones that gradients pass.
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
    rule = _Rule(encoder, batch, (theta, beta), reference, reduce, hard, widths, schedule)
    see = observe or _ignore
    x = encoder._embed(batch, see)  # (B, n, d)
    state = rule.start(x)
    states, scores = [state], []
    for index in range(encoder.config.layers):
        layer = encoder._layer(f"layer{index}")
        context, raw = _attend(layer, x, state, see)  # (B, n, d), (B, n)
        if index < encoder.config.layers - 1:
            state = rule.decide(state, raw, index)
            states.append(state)
            scores.append(raw)
        x = _finish(layer, x, context, state.high, see)  # (B, n, d)
    return PrunedOutput(
        _head(encoder, x, states, see),
        torch.stack([s.mask for s in states]),
        torch.stack([s.high for s in states]),
        torch.stack(scores) if scores else x.new_zeros((0, *state.mask.shape)),
    )


def protected_rows(config: EncoderConfig, batch: Encoded) -> Tensor:
    """Return which row of each text is never pruned, ``(B, n)``: row 0, or the last if causal."""
    rows = torch.zeros(batch.ids.shape, dtype=torch.bool)
    place = batch.last if config.causal else np.zeros(batch.batch_size, np.int64)
    return rows.scatter(1, torch.from_numpy(place)[:, None], True)


@dataclass(frozen=True, eq=False)
class _State:
    """Rows at the start of a layer, each ``(B, n)``: mask, its logarithm, weight of the class."""

    mask: Tensor
    log_mask: Tensor
    high: Tensor
    causal: bool


@dataclass(frozen=True, eq=False)
class _Rule:
    """How masks follow from scores."""

    encoder: Encoder
    batch: Encoded
    limits: tuple[Thresholds, Thresholds]
    reference: int
    reduce: bool
    hard: bool
    widths: Sequence[float]
    schedule: Schedule | None

    def __post_init__(self) -> None:
        expected = self.encoder.config.layers - 1
        given = [self.schedule] if self.schedule is not None else [*self.limits, self.widths]
        if any(len(values) != expected for values in given):
            raise ParameterError(
                f"pruning needs {expected} thresholds or pairs, one for each layer but the last; "
                f"got {[len(values) for values in given]}"
            )
        if self.schedule is not None and not self.hard:
            raise ParameterError("a schedule has hard masks; pass hard=True")
        if not all(width > 0 for width in self.widths) or self.reference < 1:
            raise ParameterError("temperature and reference must be positive")

    def start(self, x: Tensor) -> _State:
        """Return the state before the first layer."""
        mask = torch.from_numpy(self.batch.mask).to(x.device)
        if not bool((mask | ~protected_rows(self.encoder.config, self.batch)).all()):
            raise ParameterError("pruning protects row 0 of each text; pad on the right only")
        whole = mask if self.hard else mask.to(torch.float32)
        causal = self.encoder.config.causal
        return _State(whole, torch.log(mask.to(torch.float32)), whole, causal)

    def decide(self, state: _State, raw: Tensor, layer: int) -> _State:
        """Return the rows that go on and their classes."""
        protected = protected_rows(self.encoder.config, self.batch)
        reduce = self.reduce
        if not self.hard:
            return self._soft(state, raw, protected, layer, reduce=reduce)
        if self.schedule is not None:
            pair = self.schedule[layer]
            ranked = raw.masked_fill(~state.mask, -1.0).masked_fill(protected, math.inf)
            order = ranked.sort(dim=1, descending=True, stable=True).indices
            ranks = order.argsort(dim=1)
            keep, high = (ranks < count for count in pair)
        else:
            unit = self.encoder.config.heads * self.reference
            exact = raw.double()
            keep, high = ((exact >= float(t[layer]) * unit) | protected for t in self.limits)
        mask = state.mask & keep
        classes = mask & high if reduce else mask
        return _State(mask, torch.log(mask.to(torch.float32)), classes, state.causal)

    def _soft(
        self, state: _State, raw: Tensor, protected: Tensor, layer: int, *, reduce: bool
    ) -> _State:
        score = (raw / self.encoder.config.heads + FAINT).log()  # (B, n)
        limits = (torch.as_tensor(t[layer]) * self.reference + FAINT for t in self.limits)
        keep, high = (((score - t.log()) / self.widths[layer]).float() for t in limits)
        log_mask = state.log_mask + F.logsigmoid(keep).masked_fill(protected, 0.0)
        classes = high.sigmoid().masked_fill(protected, 1.0) if reduce else torch.ones_like(high)
        return _State(log_mask.exp(), log_mask, classes, state.causal)


def _attend(layer: LayerBlock, x: Tensor, state: _State, see: Observer) -> tuple[Tensor, Tensor]:
    """Return contexts ``(B, n, d)`` and raw scores ``(B, n)``; at least float32 throughout."""
    rows, n, _ = x.shape
    qkv = layer.qkv.run(layer.attn_norm.run(x, see) if layer.pre_norm else x, see)
    with torch.autocast(qkv.device.type, enabled=False):
        qkv = qkv.to(torch.promote_types(qkv.dtype, torch.float32))
        q, k, v = qkv.view(rows, n, 3, layer.heads, layer.head_dim).permute(2, 0, 3, 1, 4)
        scores = q @ k.transpose(-1, -2) / math.sqrt(layer.head_dim)  # (B, H, n, n)
        see(f"{layer.name}.scores", scores)
        scores = scores + _key_weights(state)
        shifted = scores - scores.detach().amax(dim=-1, keepdim=True)
        weights = blended_exp(shifted, state.high)
        weights = weights / weights.sum(dim=-1, keepdim=True)  # (B, H, n, n)
        raw = torch.einsum("bhji,bj->bi", weights, state.mask.to(weights.dtype))
        context = (weights @ v).transpose(1, 2).reshape(rows, n, -1)
    see(f"{layer.name}.context", context)
    return context, raw


def _key_weights(state: _State) -> Tensor:
    """Return what is added to the scores, ``(B, 1, 1 or n, n)``: log of each key's mask."""
    keys = state.log_mask[:, None, None, :]
    if not state.causal:
        return keys
    n = keys.shape[-1]
    eye = torch.eye(n, dtype=torch.bool, device=keys.device)
    later = torch.ones_like(eye).triu(1)
    return keys.masked_fill(later, -math.inf).masked_fill(eye, 0.0)  # no row is empty


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


def _head(encoder: Encoder, x: Tensor, states: list[_State], see: Observer) -> Tensor:
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
