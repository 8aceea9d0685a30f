"""The pruning step of a layer: compare scores with secret thresholds, keep rows, group by class.

Flights: comparison 2, sorting keys 1, compaction 2; ``bucket`` mode 3 more (the shared counts are
compared with the grid and only those bits are opened); ``schedule`` mode compares all pairs of
scores instead of thresholds (2 + 1 flights) and opens nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np

from privml.protocols.cipherprune.attention import (
    Classes,
    at_least_pairs,
    classes,
    score_bits,
    stacked,
)
from privml.protocols.cipherprune.compact import Compact
from privml.protocols.cipherprune.keys import StableKeys
from privml.protocols.cipherprune.spec import PruneSpec
from privml.protocols.mpc import functions as fn
from privml.protocols.mpc.boolean.compare import Compare, packed
from privml.protocols.mpc.engine import Engine, Val
from privml.protocols.mpc.fields import Field, Shares
from privml.protocols.mpc.primitive import Context, Cost, Primitive, Words, both

#: Bits of comparisons of row numbers and counts, of which a plan has at most 2,048.
_COUNT_BITS = 16


@dataclass(frozen=True)
class Rows:
    """Token rows of a layer; row 0 is protected, rows of high importance come first.

    Attributes
    ----------
    x
        Hidden states ``(n, d)``.
    high
        Leading rows that get the exact polynomials.
    mask
        1 for real rows, 0 for padding and fillers, ``(n,)`` at scale 0; ``None`` if all are real.
    order
        Secret positions in the text ``(n,)`` at scale 0 where a causal model needs them and the
        rows stand in another order; row 0 has the highest.
    widest
        Whether a plan does not know ``high`` and takes every row for both classes.
    """

    x: Val
    high: int
    mask: Val | None
    order: Val | None = None
    widest: bool = False

    @property
    def n(self) -> int:
        """Number of rows, fillers included."""
        return self.x.shape[0]

    @property
    def classes(self) -> Classes:
        """The classes of rows that are not empty."""
        return classes(self.n, self.high, widest=self.widest)


@dataclass(frozen=True)
class OpenBits(Primitive):
    """Open ``count`` planes of XOR-shared bits to both parties; used for bucket bits only."""

    count: int
    words: int
    name: ClassVar[str] = "open_bits"

    def fields(self) -> tuple[Field, ...]:
        """Need nothing."""
        return ()

    def derive(self, free: Shares) -> Mapping[str, Words]:
        """Derive nothing."""
        return {}

    def online(self) -> Cost:
        """Return the declared cost."""
        return both(8 * self.count * self.words)

    def run(self, ctx: Context, corr: Shares, planes: Words) -> Words:
        """Return the clear bits."""
        (out,) = ctx.open_bits(planes)
        return out

    def simulate(self, masks: Shares, planes: Words) -> Words:
        """Return the bits."""
        return planes


@dataclass(frozen=True)
class Decision:
    """Which rows go on, before they are moved.

    Attributes
    ----------
    rows
        The rows, with what must move along.
    keys
        Secret places of rows 1.. in the new order; ``None`` if no row moves or leaves.
    real
        Marks of rows 1.. that are no fillers; move with them.
    counts
        Secret counts to open with the move; ``None`` if ``kept`` and ``high`` are known.
    kept, high
        Rows that go on and those of high importance, row 0 included.
    widest
        See :class:`Rows`.
    """

    rows: Rows
    keys: Val | None
    real: Val | None = None
    counts: Val | None = None
    kept: int = 0
    high: int = 0
    widest: bool = False


def decide(
    e: Engine, spec: PruneSpec, rows: Rows, scores: Val, secret: Words | None, *,
    layer: int, capacity: int, causal: bool,
) -> Decision:  # fmt: skip
    """Compare scores; uses exchanges only, so it can run beside the product with the values.

    Parameters
    ----------
    scores
        Raw scores ``(n,)`` at scale 16 of at least two rows; neither they nor the thresholds
        exceed their bound.
    secret
        The server's two thresholds of this layer, raw at scale 16; ``None`` at the client.
    capacity
        Largest possible number of rows.
    """
    others = e.map(scores, lambda s: s[1:], (rows.n - 1,))
    if causal and spec.reduce and rows.order is None:
        rows = replace(rows, order=_positions(e, rows.x, capacity))
    if spec.reveal == "schedule":
        return _by_schedule(e, spec, rows, others, layer, causal=causal)
    bits = 2 if spec.reduce else 1
    planes = _above(e, others, secret, bits)
    keys, marks = _sort(e, planes, rows.n - 1, bits)
    widest = e.widest and bits == 2
    counts = e.map(marks, lambda b: b.reshape(bits, -1).sum(axis=1), (bits,))
    if spec.reveal == "count":
        return Decision(rows, keys, counts=counts, widest=widest)
    real = e.map(marks, lambda b: b[: rows.n - 1], (rows.n - 1,))
    kept, high = _bucket(e, spec, counts, rows.n)
    if bits == 1 and kept == rows.n and not e.widest:  # none to leave out, no class to group
        marked = e.reshape(_column(e, real), rows.n)
        return Decision(replace(rows, mask=marked), None, kept=kept, high=kept)
    return Decision(rows, keys, real, None, kept, high if bits == 2 else kept, widest)


def _above(e: Engine, scores: Val, secret: Words | None, bits: int) -> Val:
    """Packed bits 1{score >= threshold}, class-major; the thresholds are the server's."""
    m = scores.shape[0]
    words = None
    if scores.words is not None:
        words = np.tile(scores.words, (bits, 1))
        if secret is not None:
            words = words - secret[:bits, None]
        words = words.reshape(-1)
    diff = scores.like(words, shape=(bits * m,), bound=2 * scores.bound)
    e.need(diff, "pruning score")
    prim = Compare((bits * m,), bits=score_bits(scores))
    return _plane(e.apply(prim, diff), bits * m)


def _plane(words: Words | None, n: int) -> Val:
    """Wrap the one plane of a comparison of ``n`` values."""
    return Val((packed(n),), 0, 1.0, None if words is None else words[0])


def _sort(e: Engine, planes: Val, n: int, bits: int) -> tuple[Val, Val]:
    keys, marks = e.apply_pair(StableKeys(n, bits), planes)
    return (
        e.result(keys, (n,), scale=0, bound=float(n)),
        e.result(marks, (bits * n,), scale=0, bound=1.0),
    )


def _bucket(e: Engine, spec: PruneSpec, counts: Val, n: int) -> tuple[int, int]:
    """Open where the shared counts (without row 0) stand in the grid; 3 flights."""
    with e.scope("bucket"):
        grid = tuple(min(size, 1 << (_COUNT_BITS - 2)) for size in spec.grid)
        prim = Compare(counts.shape, grid, _COUNT_BITS)
        bits = Val((len(spec.grid), 1), 0, 1.0, e.apply(prim, counts))
        words = e.apply(OpenBits(*bits.shape), bits)
    told = None
    if words is not None:
        level = [int(((words[:, 0] >> np.uint64(i)) & np.uint64(1)).sum()) for i in range(2)]
        sizes = [spec.grid[k] if k < len(spec.grid) else n for k in level]
        told = np.array([min(size, n) for size in sizes], np.uint64)
    kept, high = e.opened(told, (n, n))
    return kept, min(high, kept)


def move(e: Engine, d: Decision, ctx: Val, capacity: int) -> tuple[Rows, Val]:
    """Move rows and their contexts ``(n, d)`` as decided; 2 flights.

    Row 0 stays in front and out of the shuffle.
    """
    rows, real, counts, kept, high = d.rows, d.real, d.counts, d.kept, d.high
    n = rows.n
    if d.keys is None:
        return replace(rows, high=high), ctx
    if counts is None and kept == 1:
        first = _rows(e, rows.x, 0, 1), _rows(e, ctx, 0, 1)
        return Rows(first[0], 1, None), first[1]
    parts = [ctx, rows.x]
    if real is not None:
        parts.append(_column(e, real))
    if rows.order is not None:
        parts.append(e.reshape(rows.order, n, 1))
    width = sum(p.shape[1] for p in parts)
    joined = None
    if all(p.words is not None for p in parts):
        joined = np.concatenate([p.words for p in parts if p.words is not None], axis=1)
    told_size = 0 if counts is None else counts.shape[0]
    prim = Compact(n - 1, capacity - 1, width, max(kept - 1, 0), told_size)
    moving = Val((n - 1, width), fn.F, 1.0, None if joined is None else joined[1:])
    inputs = (moving, d.keys) if counts is None else (moving, d.keys, counts)
    with e.scope("compact"):
        moved, told = e.apply_pair(prim, *inputs)
    if counts is not None:
        plus = None if told is None else told + np.uint64(1)
        numbers = e.opened(plus, (n,) * told_size)
        kept, high = numbers[0], min(numbers[0], numbers[-1])
    tail = _split(e, moved, parts, kept - 1)
    whole = [stacked([_rows(e, p, 0, 1), t]) for p, t in zip(parts, tail, strict=True)]
    mask = None if real is None else e.reshape(whole[2], kept)
    order = None if rows.order is None else e.reshape(whole[-1], kept)
    return Rows(whole[1], high, mask, order, d.widest), whole[0]


def _positions(e: Engine, x: Val, capacity: int) -> Val:
    """Share public positions: rows in the order of the text behind row 0, the last token."""
    at = np.arange(x.shape[0], dtype=np.uint64)
    at[0] = capacity
    blank = e.map(x, lambda w: np.zeros(len(w), np.uint64), (x.shape[0],))
    return e.add_public(replace(blank, scale=0, bound=0.0), at, bound=float(capacity))


def _column(e: Engine, real: Val) -> Val:
    """Return the marks of all rows as a column; row 0 is real."""
    n = real.shape[0] + 1
    words = None
    if real.words is not None:
        words = np.zeros((n, 1), np.uint64)
        words[1:, 0] = real.words
        words[0, 0] = 1 if e.rank == 0 else 0
    return Val((n, 1), 0, 1.0, words)


def _rows(e: Engine, x: Val, start: int, stop: int) -> Val:
    return e.map(x, lambda w: w[start:stop], (stop - start, *x.shape[1:]))


def _split(e: Engine, moved: Words | None, parts: list[Val], rows: int) -> list[Val]:
    out, at = [], 0
    for p in parts:
        width = p.shape[1]
        words = None if moved is None else np.ascontiguousarray(moved[:, at : at + width])
        out.append(p.like(words, shape=(rows, width)))
        at += width
    return out


def _by_schedule(
    e: Engine, spec: PruneSpec, rows: Rows, scores: Val, layer: int, *, causal: bool
) -> Decision:
    """Keep the k rows of highest score; nothing is opened but a random permutation."""
    n = rows.n
    kept, high = (min(k, n) for k in spec.schedule[layer])
    high = high if spec.reduce else kept
    if kept == n and not spec.reduce:
        return Decision(rows, None, kept=kept, high=kept)
    if kept == 1:
        return Decision(rows, scores, kept=1, high=1)
    keys = _ranks(e, scores)
    if causal and not spec.reduce:  # back to the order of the text
        prim = Compare(keys.shape, (kept - 1,), _COUNT_BITS)
        bits = _plane(e.apply(prim, keys), n - 1)
        flip = ~np.uint64(0) if e.rank == 0 else np.uint64(0)
        below = bits.like(None if bits.words is None else bits.words ^ flip, shape=bits.shape)
        keys, _ = _sort(e, below, n - 1, 1)
    mask = rows.mask
    real = None if mask is None else e.map(mask, lambda m: m[1:], (n - 1,))
    return Decision(rows, keys, real, None, kept, high)


def _ranks(e: Engine, scores: Val) -> Val:
    """Rank of each score, 0 for the highest; ties go to the earlier row. 3 flights."""
    m = scores.shape[0]
    if m == 1:
        return Val((1,), 0, 1.0, None if scores.words is None else scores.words * np.uint64(0))
    first, second = np.triu_indices(m, 1)
    ring = at_least_pairs(e, scores, first, second, bits=score_bits(scores))
    if ring is None:
        return Val((m,), 0, float(m))
    beats = np.zeros((m, m), np.uint64)
    beats[first, second] = ring
    loses = beats.sum(axis=1)
    ranks: Words = beats.sum(axis=0) - loses
    if e.rank == 0:
        ranks += np.arange(m - 1, -1, -1, dtype=np.uint64)
    return Val((m,), 0, float(m), ranks)
