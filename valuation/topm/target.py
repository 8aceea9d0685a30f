"""The quantity to be ranked, and units of work that observe it without bias.

The target is a semivalue, given by its size law p. A unit of work has an index and draws all its
randomness from the seed's child of that index, so it can be regenerated from (seed, index, kind,
arms) and is never stored. Four kinds:

* *walk*: a random order of all players; the marginal after k predecessors, times n p_k, is unbiased
  for f; one evaluation per marginal (the factor is 1 for Shapley);
* *blocks* (law uniform on sizes below s): a random order cut into blocks of s, each walked from the
  empty set; the last block is padded with random players of the others and shuffled. A player's
  position is uniform on 0..s-1 and its predecessors a uniform subset, so marginals are unbiased;
* *single*: S drawn by the law from the others; two evaluations;
* *pair*: U(S+b) - U(S+c) with S from the law of pairs; two evaluations, unbiased for f(b) - f(c).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from functools import cached_property

import numpy as np

from privml.backbones.digests import Json
from privml.rng import Generator, ScienceSeed
from privml.valuation.errors import SettingError
from privml.valuation.laws import SizeLaw
from privml.valuation.topm.sums import Floats, Ints
from privml.valuation.utilities.base import Game


class Kind(IntEnum):
    """Kinds of units; the numbers are stored in journals."""

    WALK = 0
    BLOCKS = 1
    SINGLE = 2
    PAIR = 3


@dataclass(frozen=True, eq=False)
class Request:
    """One unit of work to be scored.

    Attributes
    ----------
    unit
        Index of the unit; tells are applied in this order.
    kind
        What it is.
    arms
        Arms that are pulled: none for walks and blocks, (i,) or (b, c) otherwise.
    orders
        (w, L) int64: orders whose prefixes are scored; (0, 0) for singles and pairs.
    coalitions
        Coalitions to score for singles (S, S+i) and pairs (S+b, S+c).
    """

    unit: int
    kind: Kind
    arms: tuple[int, ...] = ()
    orders: Ints = field(default_factory=lambda: np.zeros((0, 0), dtype=np.int64))
    coalitions: tuple[Ints, ...] = ()

    def same_work(self, other: Request) -> bool:
        """Return whether both ask for the scores of the same coalitions."""
        mine, its = self.coalitions, other.coalitions
        alike = (self.unit, self.kind, self.arms, len(mine)) == (
            other.unit, other.kind, other.arms, len(its),
        )  # fmt: skip
        return (
            alike
            and np.array_equal(self.orders, other.orders)
            and all(np.array_equal(a, b) for a, b in zip(mine, its, strict=True))
        )

    @property
    def evaluations(self) -> int:
        """Utility evaluations that scoring costs; the empty coalition is free."""
        return self.orders.size + sum(1 for members in self.coalitions if len(members))

    @property
    def scores(self) -> int:
        """Numbers that an answer holds: the prefixes of each order (with the empty one), or U."""
        rows, length = self.orders.shape
        return rows * (length + 1) if rows else len(self.coalitions)


@dataclass(frozen=True, eq=False)
class Target:
    """A semivalue and the units that estimate it.

    Attributes
    ----------
    law
        Size law of the target.
    warm
        Kind of the units before the switch: ``"walks"``, ``"blocks"`` or ``"singles"``.
    """

    law: SizeLaw
    warm: str

    @classmethod
    def of(cls, law: SizeLaw, *, warm: str = "auto") -> Target:
        """Return the target; ``warm="auto"`` is walks for Shapley, blocks if capped, else singles.

        Raises
        ------
        SettingError
            ``warm`` is unknown, or blocks were asked for a law that is not uniform on sizes below
            a cap.
        """
        capped = _is_capped(law)
        if warm == "auto":
            warm = "walks" if law.efficient else "blocks" if capped else "singles"
        if warm not in {"walks", "blocks", "singles"}:
            raise SettingError(f"warm={warm!r}: choose auto, walks, blocks or singles")
        if warm == "blocks" and not capped:
            raise SettingError(f"block walks need a capped Shapley target, not {law.name}")
        return cls(law, warm)

    @property
    def arms(self) -> int:
        """Number of players n."""
        return self.law.n

    @property
    def cap(self) -> int:
        """Smallest size that is never drawn: coalitions S have fewer than ``cap`` players."""
        return self.law.largest + 1

    @cached_property
    def _pair_law(self) -> SizeLaw:
        return self.law.pair_law()

    def described(self) -> Json:
        """Return what a digest needs."""
        return [self.law.name, self.warm, self.arms]

    def warm_units(self) -> list[tuple[Kind, tuple[int, ...]]]:
        """Return the units of one sweep, which observes every arm at least once."""
        if self.warm == "walks":
            return [(Kind.WALK, ())]
        if self.warm == "blocks":
            return [(Kind.BLOCKS, ())]
        return [(Kind.SINGLE, (arm,)) for arm in range(self.arms)]

    def cost(self, kind: Kind) -> int:
        """Return the most evaluations that a unit of ``kind`` needs."""
        if kind is Kind.WALK:
            return self.arms
        return -(-self.arms // self.cap) * self.cap if kind is Kind.BLOCKS else 2

    def fits(self, kind: Kind, arms: tuple[int, ...]) -> bool:
        """Return whether a unit of ``kind`` can have these arms."""
        number = {Kind.SINGLE: 1, Kind.PAIR: 2}.get(kind, 0)
        inside = all(0 <= arm < self.arms for arm in arms)
        return inside and len(arms) == len(set(arms)) == number

    def request(
        self, seed: ScienceSeed, unit: int, kind: Kind, arms: tuple[int, ...] = ()
    ) -> Request:
        """Return unit ``unit``: a pure function of its arguments."""
        generator = seed.child("unit", unit).generator()
        if kind is Kind.WALK:
            order = generator.permutation(self.arms).astype(np.int64)
            return Request(unit, kind, orders=order[None, :])
        if kind is Kind.BLOCKS:
            return Request(unit, kind, orders=_blocks(generator, self.arms, self.cap))
        if kind is Kind.SINGLE:
            size = int(self.law.draw(generator, 1)[0])
            rest = _subset(generator, self.arms, size, arms)
            return Request(unit, kind, arms, coalitions=(rest, np.append(rest, arms[0])))
        size = int(self._pair_law.draw(generator, 1)[0])
        rest = _subset(generator, self.arms, size, arms)
        both = (np.append(rest, arms[0]), np.append(rest, arms[1]))
        return Request(unit, kind, arms, coalitions=both)

    def marginals(self, request: Request, scores: Floats) -> list[tuple[Ints, Floats]]:
        """Return observations of walks and blocks: distinct arms with one value each, per order."""
        rows, length = request.orders.shape
        steps = np.diff(scores.reshape(rows, length + 1), axis=1)
        if request.kind is Kind.WALK:
            steps = steps * self.law.walk_weights()
        return [(request.orders[row], steps[row]) for row in range(rows)]


def evaluate(game: Game, requests: Sequence[Request]) -> list[Floats]:
    """Score requests together: one call for orders of each length, one for all coalitions.

    Returns
    -------
    list of ndarray
        For each request (w * (L + 1),) prefix scores, or (2,) scores of its coalitions.
    """
    answers: list[Floats] = [np.empty(0)] * len(requests)
    lengths = sorted({r.orders.shape[1] for r in requests if r.orders.size})
    for length in lengths:
        chosen = [at for at, r in enumerate(requests) if r.orders.shape[1] == length]
        scores = game.walks(np.concatenate([requests[at].orders for at in chosen]))
        row = 0
        for at in chosen:
            rows = len(requests[at].orders)
            answers[at] = scores[row : row + rows].ravel()
            row += rows
    chosen = [at for at, r in enumerate(requests) if r.coalitions]
    if chosen:
        sizes = [len(requests[at].coalitions) for at in chosen]
        scores = game.score([s for at in chosen for s in requests[at].coalitions])
        for at, part in zip(chosen, np.split(scores, np.cumsum(sizes)[:-1]), strict=True):
            answers[at] = part
    return answers


def _is_capped(law: SizeLaw) -> bool:
    """Return whether the law is uniform on the sizes below its largest one."""
    p = law.p[: law.largest + 1]
    return bool(np.allclose(p, 1.0 / len(p), rtol=1e-12, atol=0.0))


def _blocks(generator: Generator, arms: int, cap: int) -> Ints:
    """Return (ceil(n / cap), cap) int64: disjoint blocks, the last one padded and shuffled."""
    order = generator.permutation(arms).astype(np.int64)
    missing = -arms % cap
    if not missing:
        return order.reshape(-1, cap)
    used = order[: arms - arms % cap]
    last = np.concatenate([order[len(used) :], generator.permutation(used)[:missing]])
    return np.concatenate([used, generator.permutation(last)]).reshape(-1, cap)


def _subset(generator: Generator, arms: int, size: int, without: tuple[int, ...]) -> Ints:
    """Return a uniform subset of ``size`` players that avoids ``without``."""
    chosen = generator.choice(arms - len(without), size, replace=False).astype(np.int64)
    for arm in sorted(without):
        chosen[chosen >= arm] += 1
    return chosen
