"""The client's side of a program: token batch to ring words, opened words to outputs."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from privml.backbones.base import Op
from privml.backbones.batch import Encoded
from privml.backbones.program import finish_output
from privml.backbones.public import PublicPart
from privml.errors import ParameterError, UnsupportedError
from privml.protocols.mpc import functions as fn
from privml.protocols.mpc.plan import Plan
from privml.protocols.mpc.primitive import Words
from privml.protocols.mpc.program import Inputs
from privml.protocols.mpc.quantise import decode, encode


def fit(plan: Plan, batch: Encoded) -> Encoded:
    """Pad a batch to the plan's sizes; empty rows repeat the first one.

    A pruned plan takes fewer positions: the number that :func:`revealed_length` gives. Row 0 of a
    sentence must survive pruning, so a causal model's last token is moved there.

    Raises
    ------
    ParameterError
        If the batch is larger than the plan.
    """
    if batch.batch_size > plan.rows or batch.length > plan.length:
        raise ParameterError(
            f"the batch has {batch.batch_size} rows of {batch.length} tokens, the plan takes "
            f"{plan.rows} of {plan.length}; make a larger plan, or truncate the text explicitly"
        )
    batch = batch.padded(plan.length, pad_id=plan.config.pad_id)
    rows = np.arange(plan.rows)
    rows[batch.batch_size :] = 0
    return Encoded(batch.ids[rows], batch.mask[rows], batch.type_ids[rows])


def revealed_length(plan: Plan, batch: Encoded) -> int:
    """Positions that a pruned run starts with, which the server learns; all of them without it."""
    prune = plan.spec.prune
    if prune is None or prune.reveal == "schedule":
        return plan.length
    length = int(batch.mask.sum())
    if length == 0:
        raise ParameterError("the sentence has no token; pass at least one")
    return length if prune.reveal == "count" else prune.bucket(length, limit=plan.length)


def allowed_length(plan: Plan, length: int) -> bool:
    """Return whether an honest client may ask for a run of so many positions."""
    prune = plan.spec.prune
    if prune is None or prune.reveal == "schedule":
        return length == plan.length
    if prune.reveal == "count":
        return 1 <= length <= plan.length
    return length == plan.length or (length in prune.grid and length < plan.length)


def client_inputs(plan: Plan, batch: Encoded, public: PublicPart) -> Inputs:
    """Ring words of a batch that fits the plan; they stay at the client."""
    length = revealed_length(plan, batch)
    if plan.spec.prune is not None and not plan.config.causal and _holes(batch.mask):
        raise ParameterError(
            "a pruned run takes padding behind the tokens only; move the tokens to the front"
        )
    order = _order(plan, batch)[:, :length]
    keep = np.take_along_axis(batch.mask, order, axis=1)
    if plan.spec.prune is None and plan.config.pooling == "last":
        keep = _last(keep)
    padding = ~np.take_along_axis(batch.mask, order, axis=1)
    marks = (padding.astype(np.uint64), keep.astype(np.uint64))
    if plan.spec.embedding == "released":
        embedded = np.take_along_axis(public.embed(batch), order[:, :, None], axis=1)
        flat = embedded.reshape(plan.rows * length, -1)
        return Inputs(encode(flat, fn.F), *marks, length)
    vocab, types = plan.config.vocab, plan.config.type_vocab
    if int(batch.ids.max()) >= vocab or int(batch.type_ids.max()) >= types:
        raise ParameterError(f"token ids must be below {vocab}, segment ids below {types}")
    if plan.config.causal and plan.spec.prune is not None:
        raise UnsupportedError(
            "a pruned causal model takes embedding='released': its last token moves to the front, "
            "and the server would add the position of the wrong one"
        )
    hot = np.zeros((plan.rows * length, vocab + types), np.uint64)
    at = np.arange(len(hot))
    hot[at, batch.ids[:, :length].reshape(-1)] = 1
    hot[at, vocab + batch.type_ids[:, :length].reshape(-1)] = 1
    return Inputs(hot, *marks, length)


def _order(plan: Plan, batch: Encoded) -> NDArray[np.intp]:
    """Positions of each sentence in the order in which the program takes them."""
    order = np.tile(np.arange(batch.length), (batch.batch_size, 1))
    if plan.spec.prune is not None and plan.config.causal:
        real = np.flatnonzero(batch.mask[0])
        rest = np.flatnonzero(~batch.mask[0])
        order[0] = np.concatenate([real[-1:], real[:-1], rest])
    return order


def _holes(mask: NDArray[np.bool_]) -> bool:
    """Whether padding stands before a token."""
    return bool((mask[:, 1:] & ~mask[:, :-1]).any())


def _last(mask: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """Mark the last token of each sentence only."""
    out = np.zeros_like(mask)
    out[np.arange(len(mask)), mask.shape[1] - 1 - np.argmax(mask[:, ::-1], axis=1)] = True
    return out


def server_inputs(plan: Plan, length: int | None = None) -> Inputs:
    """Return the server's shares of the client's inputs: zeros."""
    length = plan.length if length is None else length
    width = plan.config.hidden
    if plan.spec.embedding == "private":
        width = plan.config.vocab + plan.config.type_vocab
    blank = np.zeros((plan.rows, length), np.uint64)
    return Inputs(np.zeros((plan.rows * length, width), np.uint64), blank, blank, length)


def outputs(plan: Plan, opened: Words, batch: Encoded, *, rows: int) -> NDArray[np.float64]:
    """Turn opened words into embeddings or logits ``(rows, output_dim)``."""
    raw = decode(opened, fn.F)
    if plan.program.ops[-1].kind == Op.POOL_MEAN:
        if plan.spec.prune is None:
            raw = raw / batch.mask.sum(axis=1, keepdims=True)
        else:
            raw = raw[:, :-1] / np.maximum(raw[:, -1:], 1.0)
    return finish_output(plan.config, raw)[:rows].astype(np.float64)
