"""Attention over pruned rows: one head-batched softmax with an exact and a reduced class.

Everything is called on flat shapes, so that correlations dealt for the largest token count serve
any smaller one by their prefixes. Masked rows (padding, fillers of a bucket) influence nothing:
their keys are pushed below the clip of exp, and so are all keys of their own rows.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

import numpy as np
from numpy.typing import NDArray

from privml.protocols.cipherprune.blocks import BlockMatMul
from privml.protocols.cipherprune.exp_low import OUT_SCALE as LOW_SCALE
from privml.protocols.cipherprune.exp_low import RANGE as LOW_RANGE
from privml.protocols.cipherprune.exp_low import ExpLow
from privml.protocols.mpc import functions as fn
from privml.protocols.mpc.boolean.compare import Compare, packed
from privml.protocols.mpc.boolean.logic import BitToRing
from privml.protocols.mpc.engine import Engine, Part, Val
from privml.protocols.mpc.primitive import Words

#: Columns per block of the product with the values.
BLOCK = 8
_PAD_MARGIN = 16.5
_LOW_UNIT = 1 << (33 - 9)


Classes = tuple[tuple[str, int, int], ...]
"""Name, first row and end of each class of rows that is not empty."""


def classes(n: int, high: int, *, widest: bool = False) -> Classes:
    """Cut ``n`` rows into exact and reduced ones; ``widest`` plans both for all rows."""
    if widest:
        return ("", 0, n), ("reduced", 0, n)
    return tuple(c for c in (("", 0, high), ("reduced", high, n)) if c[1] < c[2])


def together(parts: list[Val], n: int, *, axis: int = 0) -> Val:
    """Join the classes' values; of a widest plan, whose parts have all rows, take one."""
    whole = parts[:1] if parts[0].shape[axis] == n else parts
    return stacked(whole, axis=axis)


@dataclass(frozen=True)
class Shape:
    """Public sizes of one attention: heads, width, queries, keys, largest keys, query classes.

    ``causal`` says that rows stand in the order of the text behind row 0, the last token.
    """

    heads: int
    width: int
    queries: int
    keys: int
    capacity: int
    classes: Classes
    causal: bool


def probabilities(
    e: Engine, qkv: Val, mask: Val | None, order: Val | None, s: Shape, *, limit: float
) -> Val:
    """Return the attention probabilities ``(heads, queries, keys)`` at scale 16.

    Parameters
    ----------
    qkv
        Queries, keys and values side by side, ``(keys, 3 * heads * width)``; the query rows are
        the leading ones, those of high importance first.
    mask
        1 for real rows and 0 for masked ones, ``(keys,)`` at scale 0; ``None`` if all are real.
    order
        Secret positions ``(keys,)`` of the rows of a causal model that stand in another order than
        the text's; a row sees those that are not behind it. 3 flights.
    limit
        Calibrated bound of the attention scores.
    """
    h, w, n, k = s.heads, s.width, s.keys, s.queries
    q = _part(e, qkv, s, 0, k, (1, 0, 2), (h, k, w))
    keys = _part(e, qkv, s, 1, n, (1, 2, 0), (h, w, n))
    with e.scope("scores"):
        scores = _masked(e, fn.matmul(e, q, keys, bound=limit), mask, s, limit)
    if order is not None and k > 1:
        with e.scope("order"):
            scores = _ordered(e, scores, order, limit)
    return _softmax(e, scores, mask, s)


def raw_scores(probs: Val, *, rows: int) -> Val:
    """Sum of each key's probabilities over heads and query rows, ``(keys,)`` at scale 16; local.

    The bound is that of ``rows`` query rows: the same whatever their number in this run.
    """
    h, _, n = probs.shape
    words = None if probs.words is None else probs.words.sum(axis=(0, 1))
    return Val((n,), fn.F, 1.1 * h * rows, words)


def score_bits(scores: Val) -> int:
    """Bits that hold differences of scores, none of which is negative or above the bound."""
    return fn.compared_bits(scores.bound * 2.0**scores.scale)


def context(e: Engine, probs: Val, qkv: Val, s: Shape, *, bound: float) -> Val:
    """Return the values weighted by their probabilities, ``(queries, heads * width)``; 2 flights.

    ``bound`` is the calibrated bound of the context.
    """
    h, w, n, k = s.heads, s.width, s.keys, s.queries
    wide = -(-n // BLOCK) * BLOCK
    values = _part(e, qkv, s, 2, n, (1, 0, 2), (h, n, w))
    ctx = _padded_product(e, probs, values, wide, bound)
    ctx = fn.truncate(e, e.reshape(ctx, h * k * w), ctx.scale - fn.F)
    return e.map(ctx, lambda x: x.reshape(h, k, w).transpose(1, 0, 2).reshape(k, -1), (k, h * w))


def only_value(e: Engine, qkv: Val, s: Shape, *, bound: float) -> Val:
    """Return the context where there is one key: its value, nothing is computed."""
    width = s.heads * s.width
    value = e.map(qkv, lambda x: x.reshape(1, 3, width)[:, 2], (1, width))
    return value.like_bound(bound)


def _part(
    e: Engine, qkv: Val, s: Shape, i: int, rows: int, order: tuple[int, ...],
    shape: tuple[int, ...],
) -> Val:  # fmt: skip
    """Return queries (0), keys (1) or values (2) by head."""
    sizes = (s.keys, 3, s.heads, s.width)
    return e.map(qkv, lambda x: x.reshape(sizes)[:rows, i].transpose(order), shape)


def _masked(e: Engine, scores: Val, mask: Val | None, s: Shape, limit: float) -> Val:
    """Push masked keys, and in a causal model later ones, below the clip of exp."""
    drop = 8 * limit + _PAD_MARGIN
    amount = np.uint64(int(drop * 2.0**scores.scale))
    bound, words = limit, scores.words
    if mask is not None:
        bound += drop
        if words is not None and mask.words is not None:
            missing = mask.words - np.uint64(1 if e.rank == 0 else 0)
            words = words + missing * amount
    if s.causal and s.queries > 1:  # row 0 alone sees all keys, whatever order they stand in
        bound += drop
        if words is not None and e.rank == 0:
            words = words - amount * _later(s.queries, s.keys)
    return scores.like(words, shape=scores.shape, bound=bound)


def _ordered(e: Engine, scores: Val, order: Val, limit: float) -> Val:
    """Push keys behind their query below the clip of exp, by comparing all pairs of positions."""
    n = order.shape[0]
    first, second = np.triu_indices(n, 1)
    ring = at_least_pairs(e, order, first, second, bits=32)
    drop = 8 * limit + _PAD_MARGIN
    words = scores.words
    if words is not None and ring is not None:
        hidden = np.zeros((n, n), np.uint64)
        hidden[second, first] = ring
        hidden[first, second] = np.uint64(1 if e.rank == 0 else 0) - ring
        words = words - np.uint64(int(drop * 2.0**scores.scale)) * hidden
    return scores.like(words, shape=scores.shape, bound=scores.bound + drop)


def at_least_pairs(
    e: Engine, x: Val, first: NDArray[np.intp], second: NDArray[np.intp], *, bits: int
) -> Words | None:
    """Shares of 1{x[first] >= x[second]} as 0/1 ring words for each pair; 3 flights.

    ``bits`` hold every difference; more than 32 cost a flight more.
    """
    words = None if x.words is None else x.words[first] - x.words[second]
    diff = x.like(words, shape=(len(first),), bound=2 * x.bound)
    e.need(diff, "comparison of rows")
    planes = e.apply(Compare(diff.shape, bits=bits), diff)
    plane = Val((packed(len(first)),), 0, 1.0, None if planes is None else planes[0])
    return e.apply(BitToRing(diff.shape), plane)


def _later(queries: int, keys: int) -> Words:
    """1 where a query must not see a key: row 0 is the last token, the others are in order."""
    hidden = np.arange(keys)[None, :] > np.arange(queries)[:, None]
    hidden[1:, 0] = True
    hidden[0, :] = False
    return hidden.astype(np.uint64)


def _softmax(e: Engine, scores: Val, mask: Val | None, s: Shape) -> Val:
    h, k, n = scores.shape
    with e.scope("max"):
        x = fn.below_max(e, e.reshape(scores, h * k, n), columns=s.capacity)
    x = _hidden_rows(e, e.reshape(x, h, k, n), mask)
    slack = fn.max_slack(scores, s.capacity)

    def part(name: str, start: int, stop: int) -> Part[Val]:
        job = partial(_class, x=x, slack=slack, rows=(start, stop), s=s, low=bool(name))
        return name or "exact", job

    return together(e.side_by_side([part(*c) for c in s.classes]), k, axis=1)


def _hidden_rows(e: Engine, x: Val, mask: Val | None) -> Val:
    """Push all keys of masked query rows below the clip of exp: their probabilities are 0."""
    if mask is None:
        return x
    words = x.words
    if words is not None and mask.words is not None:
        missing = mask.words[: x.shape[1]] - np.uint64(1 if e.rank == 0 else 0)
        words = words + (missing * np.uint64(int(_PAD_MARGIN * 2.0**x.scale)))[None, :, None]
    return x.like(words, shape=x.shape, bound=x.bound + _PAD_MARGIN)


def _class(
    e: Engine, x: Val, slack: float, rows: tuple[int, int], s: Shape, *, low: bool
) -> Val:  # fmt: skip
    """Probabilities of some query rows, ``(heads, rows, keys)`` at scale 16."""
    start, stop = rows
    h, n, k = s.heads, s.keys, stop - start
    flat = e.map(x, lambda w: w[:, start:stop].reshape(-1), (h * k * n,))
    with e.scope("exp"):
        y = _exp_low(e, flat) if low else fn.exp_nonpositive(e, flat)
    with e.scope("normalise"):
        z = fn.normalised(e, e.reshape(y, h * k, n), slack=slack, columns=s.capacity)
    return e.reshape(z, h, k, n)


def _exp_low(e: Engine, x: Val) -> Val:
    x = e.scaled(x, 2, more_scale=1)  # the digits of ExpLow begin on a chunk of 4 bits
    e.need(x, "exp")
    fn.within(x, LOW_RANGE, "exp")
    x = e.add_public(x, np.uint64((1 << 64) - _LOW_UNIT))
    words = e.apply(ExpLow(x.shape, x.scale - fn.F), x)
    y = e.result(words, x.shape, scale=LOW_SCALE, bound=1.01)
    return fn.truncate(e, y, LOW_SCALE - fn.F, proved=True)


def stacked(parts: list[Val], *, axis: int = 0) -> Val:
    """Concatenate values of one scale."""
    first = parts[0]
    shape = list(first.shape)
    shape[axis] = sum(p.shape[axis] for p in parts)
    known = [p.words for p in parts if p.words is not None]
    words = np.concatenate(known, axis=axis) if len(known) == len(parts) else None
    return first.like(words, shape=tuple(shape), bound=max(p.bound for p in parts))


def _padded_product(e: Engine, probs: Val, v: Val, wide: int, bound: float) -> Val:
    """``probs @ v`` with the contraction padded by zeros to whole blocks."""
    (h, k, n), w = probs.shape, v.shape[2]
    x = e.map(probs, lambda a: np.pad(a, ((0, 0), (0, 0), (0, wide - n))), (h, k, wide))
    y = e.map(v, lambda a: np.pad(a, ((0, 0), (0, wide - n), (0, 0))), (h, wide, w))
    words = e.apply(BlockMatMul(h, k, wide, w, BLOCK), x, y)
    return e.result(words, (h, k, w), scale=probs.scale + v.scale, bound=bound)
