"""Nodes of :class:`privml.testing.forest_walk.WalkForest` and the statistics they keep."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from privml.unlearning.forest.reference import Floats

Total = list[float]
"""Rows per class, or one sum of targets; integers unless a fault makes floats of them."""


@dataclass
class Cut:
    """One candidate: how many rows go left, and their total."""

    attribute: int
    j: int
    w: np.float32
    n: int = 0
    total: Total = field(default_factory=list)
    best: float = -1.0

    def same(self, other: Cut) -> bool:
        """Return whether both send every row the same way for the same reason."""
        mine, its = (self.attribute, self.j, self.w), (other.attribute, other.j, other.w)
        return mine == its

    def remember(self, value: float) -> float:
        """Return the best score this candidate ever had; only a fault asks for it."""
        self.best = max(self.best, value)
        return self.best


@dataclass
class Slot:
    """One attribute of a node: range, multiplicities of its ends, missing values, candidates."""

    attribute: int
    low: np.float32
    high: np.float32
    n_low: int
    n_high: int
    n_missing: int
    cuts: list[Cut] = field(default_factory=list)

    @classmethod
    def over(cls, attribute: int, x: Floats) -> Slot:
        """Return the slot of one attribute over some values, without candidates."""
        present = x[~np.isnan(x)]
        if not len(present):
            return cls(attribute, np.float32(0), np.float32(0), 0, 0, len(x))
        low, high = present.min(), present.max()
        ends = int((present == low).sum()), int((present == high).sum())
        return cls(attribute, low, high, *ends, len(x) - len(present))

    def moves_range(self, value: np.float32, sign: int, *, keep_max: bool) -> bool:
        """Count a value in or out of the range; return whether the range has to be found anew."""
        if np.isnan(value):
            self.n_missing += sign
            return self.n_missing == 0 and bool(self.low == self.high)
        if sign > 0 and (value < self.low or value > self.high):
            return True
        if value == self.low:
            self.n_low += sign
        if value == self.high and not (keep_max and sign < 0):
            self.n_high += sign
        return self.n_low == 0 or self.n_high == 0


@dataclass
class Node:
    """A node: leaf, tagged (``fresh`` or ``split``, both own their rows) or inner."""

    kappa: int
    depth: int
    n: int = 0
    total: Total = field(default_factory=list)
    state: str = "leaf"
    rows: set[int] = field(default_factory=set)
    slots: list[Slot] | None = None
    choice: Cut | None = None
    left: Node | None = None
    right: Node | None = None
    slack: int = 0
    dirty: bool = False

    def become(self, state: str, rows: set[int]) -> None:
        """Drop the subtree and all statistics; own ``rows``."""
        self.state, self.rows = state, rows
        self.slots, self.choice, self.left, self.right = None, None, None, None
        self.slack, self.dirty = 0, False

    def members(self) -> set[int]:
        """Return the rows of the subtree."""
        if self.left is None or self.right is None:
            return set(self.rows)
        return self.left.members() | self.right.members()
