"""The client's side of a program: token batch to ring words, opened words to outputs."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from privml.backbones.base import Op
from privml.backbones.batch import Encoded
from privml.backbones.program import finish_output
from privml.backbones.public import PublicPart
from privml.errors import ParameterError
from privml.protocols.mpc import functions as fn
from privml.protocols.mpc.plan import Plan
from privml.protocols.mpc.primitive import Words
from privml.protocols.mpc.program import Inputs
from privml.protocols.mpc.quantise import decode, encode


def fit(plan: Plan, batch: Encoded) -> Encoded:
    """Pad a batch to the plan's sizes; empty rows repeat the first one.

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


def client_inputs(plan: Plan, batch: Encoded, public: PublicPart) -> Inputs:
    """Ring words of a batch that fits the plan; they stay at the client."""
    padding = (~batch.mask).astype(np.uint64)
    keep = batch.mask.astype(np.uint64)
    if plan.spec.embedding == "released":
        embedded = public.embed(batch).reshape(plan.rows * plan.length, -1)
        return Inputs(encode(embedded, fn.F), padding, keep)
    vocab, types = plan.config.vocab, plan.config.type_vocab
    if int(batch.ids.max()) >= vocab or int(batch.type_ids.max()) >= types:
        raise ParameterError(f"token ids must be below {vocab}, segment ids below {types}")
    hot = np.zeros((plan.rows * plan.length, vocab + types), np.uint64)
    at = np.arange(len(hot))
    hot[at, batch.ids.reshape(-1)] = 1
    hot[at, vocab + batch.type_ids.reshape(-1)] = 1
    return Inputs(hot, padding, keep)


def server_inputs(plan: Plan) -> Inputs:
    """Return the server's shares of the client's inputs: zeros."""
    width = plan.config.hidden
    if plan.spec.embedding == "private":
        width = plan.config.vocab + plan.config.type_vocab
    blank = np.zeros((plan.rows, plan.length), np.uint64)
    return Inputs(np.zeros((plan.rows * plan.length, width), np.uint64), blank, blank)


def outputs(plan: Plan, opened: Words, batch: Encoded, *, rows: int) -> NDArray[np.float64]:
    """Turn opened words into embeddings or logits ``(rows, output_dim)``."""
    raw = decode(opened, fn.F)
    if plan.program.ops[-1].kind == Op.POOL_MEAN:
        raw = raw / batch.mask.sum(axis=1, keepdims=True)
    return finish_output(plan.config, raw)[:rows].astype(np.float64)
