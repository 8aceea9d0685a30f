"""Statistics and decisions of one node of a forest that learns and forgets step by step."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from math import floor

import numpy as np

from privml.testing.forest_faults import Fault, Store
from privml.testing.forest_node import Cut, Node, Slot, Total
from privml.unlearning.forest import reference, siphash
from privml.unlearning.forest.params import REGRESSION, ForestParams


class NodeStatistics:
    """What a forest counts at its nodes, and the decisions that follow from it.

    Parameters
    ----------
    params
        As for the twin.
    fault
        The mistake to make.
    block_rows
        Nodes of at most this size keep no statistics.
    defer
        Put recounts off until a query needs them.
    """

    def __init__(self, params: ForestParams, *, fault: Fault, block_rows: int, defer: bool) -> None:
        self.params, self.fault = params, fault
        self.block_rows, self.defer = block_rows, defer
        self.store = Store()
        self._draws = 0
        self._flagged: set[int] = set()

    def _update(self, node: Node, place: int, sign: int, rows: set[int]) -> bool:
        """Bring the statistics up to date with one row; return whether the split stands."""
        if node.dirty:
            return True
        rescan = self._adjust(node, place, sign)
        if self.defer and rescan and sign < 0 and node.state == "inner":
            node.dirty = True
            return True
        if node.slots is None or self._woken(node, place, sign, rows):
            self._refill(node, rows)
        elif rescan:
            self._rescan(node, rows, rescan)
        if node.slack > 0:
            node.slack -= 1
            return True
        old = node.choice
        self._choose(node)
        return old is not None and node.choice is not None and old.same(node.choice)

    def _adjust(self, node: Node, place: int, sign: int) -> set[int]:
        """Count one row in or out; return the attributes that need a recount."""
        rescan, x = set(), self.store.X[place]
        for slot in node.slots or ():
            value = x[slot.attribute]
            keep = self.fault is Fault.MAX_MULTIPLICITY
            if self._categorical(slot) or slot.moves_range(value, sign, keep_max=keep):
                rescan.add(slot.attribute)
            for cut in slot.cuts:
                if self._counts_left(node, cut, value):
                    cut.n += sign
                    cut.total = self._plus(cut.total, place, sign)
        return rescan

    def _woken(self, node: Node, place: int, sign: int, rows: set[int]) -> bool:
        """Return whether a new row differs from the others on a so far constant attribute."""
        others = rows - {place}
        if sign < 0 or self.fault is Fault.CONSTANTS_SLEEP or not others:
            return False
        mine, its = self.store.X[place], self.store.X[min(others)]
        held = [slot.attribute for slot in node.slots or ()]
        full = len(held) == self.params.max_features
        for a in reference.permutation(node.kappa, self.params.n_features):
            if full and a == held[-1]:
                return False
            equal = mine[a] == its[a] or (np.isnan(mine[a]) and np.isnan(its[a]))
            if a not in held and not equal:
                return True
        return False

    def _refill(self, node: Node, rows: set[int]) -> None:
        """Count all slots anew: the first usable attributes of the node's permutation."""
        slots: list[Slot] = []
        failures = 0
        for a in reference.permutation(node.kappa, self.params.n_features):
            slot = self._scan(node, a, rows)
            if slot is None:
                failures += 1
            else:
                slots.append(slot)
            gave_up = self.fault is Fault.GIVES_UP and failures >= self.params.max_features
            if gave_up or len(slots) == self.params.max_features:
                break
        node.slots, node.slack = slots, 0

    def _rescan(self, node: Node, rows: set[int], attributes: set[int]) -> None:
        slots: list[Slot] = []
        for slot in node.slots or ():
            a, found = slot.attribute, slot
            if a in attributes:
                if self.fault is Fault.OTHER_ATTRIBUTE:
                    a = self._another(node)
                again = self._scan(node, a, rows)
                if again is None:
                    self._refill(node, rows)
                    return
                found = again
            slots.append(found)
        node.slots = slots
        if self.fault is not Fault.SLACK_KEPT:
            node.slack = 0

    def _another(self, node: Node) -> int:
        held = [slot.attribute for slot in node.slots or ()]
        rest = [a for a in range(self.params.n_features) if a not in held] or held[:1]
        self._draws += 1
        return rest[siphash.bounded(siphash.node_draw(node.kappa, 9, 0, self._draws), len(rest))]

    def _scan(self, node: Node, a: int, rows: set[int]) -> Slot | None:
        """Return the slot of one attribute over some rows, or None if it is not usable."""
        places = sorted(rows)
        x = np.array([self.store.X[i][a] for i in places], dtype=np.float32)
        slot = Slot.over(a, x)
        if self._categorical(slot):
            if len(set(reference.codes(x))) < 2:
                return None
            found = reference.categorical_candidates(self.params, node.kappa, a, x)
            slot.cuts = [Cut(a, c.j, c.threshold) for c in found]
        elif not reference.numeric_usable(x):
            return None
        else:
            slot.cuts = list(self._cuts(node, slot))
        for cut in slot.cuts:
            cut.total = self._zero()
            for place, value in zip(places, x, strict=True):
                if self._counts_left(node, cut, value):
                    cut.n += 1
                    cut.total = self._plus(cut.total, place, +1)
        return slot

    def _cuts(self, node: Node, slot: Slot) -> Iterator[Cut]:
        """Yield all candidates of a numeric attribute, also those that leave a side empty."""
        a = slot.attribute
        if a in self._flagged:
            yield Cut(a, 0, np.float32(0.5))
            return
        for j in range(self.params.n_thresholds):
            w = reference.threshold(node.kappa, a, j, slot.low, slot.high)
            if self.fault is Fault.NO_CLAMP:
                u = (siphash.node_draw(node.kappa, siphash.THRESHOLD, a, j) >> 11) * 2.0**-53
                w = np.float32(float(slot.low) + u * (float(slot.high) - float(slot.low)))
            yield Cut(a, j, w)
        yield Cut(a, self.params.n_thresholds, np.float32(np.inf))

    def _categorical(self, slot: Slot | Cut) -> bool:
        return self.params.categorical[slot.attribute]

    def _counts_left(self, node: Node, cut: Cut, value: np.float32) -> bool:
        if self.fault is Fault.EQUAL_RIGHT and not self._categorical(cut) and value == cut.w:
            return False
        return self._goes_left(node, cut, value)

    def _goes_left(self, node: Node, cut: Cut, value: np.float32) -> bool:
        a = cut.attribute
        if self._categorical(cut):
            code = reference.codes(np.array([value]))[0]
            return reference.category_side(node.kappa, a, cut.j, code) == 0
        if np.isnan(value):
            last = cut.j == self.params.n_thresholds
            return not last and reference.missing_side(node.kappa, a, cut.j) == 0
        return bool(value <= cut.w)

    def _choose(self, node: Node) -> None:
        """Set the best candidate and, for classes, how many changes it stands for sure."""
        best: Cut | None = None
        best_score, second = 0.0, self._unsplit(node)
        for slot in node.slots or ():
            for cut in slot.cuts:
                if not 0 < cut.n < node.n:
                    continue
                value = self._score(node, cut)
                if self.fault is Fault.STALE_BEST:
                    value = cut.remember(value)
                tie = self.fault is Fault.LAST_TIE and value == best_score
                if best is None or value > best_score or tie:
                    second = max(second, best_score)
                    best, best_score = cut, value
                else:
                    second = max(second, value)
        node.choice = None if best is None else replace(best)
        node.slack = 0
        if best is not None and self.params.task != REGRESSION and not any(self.params.categorical):
            lead = (best_score - second) / 2 - 1e-9 * node.n
            node.slack = max(0, floor(lead)) + (self.fault is Fault.SLACK_PLUS_ONE)

    def _unsplit(self, node: Node) -> float:
        if self.params.task == REGRESSION or not node.n:
            return 0.0
        return sum(c * c for c in node.total) / node.n

    def _score(self, node: Node, cut: Cut) -> float:
        left, right = float(cut.n), float(node.n - cut.n)
        if self.params.task == REGRESSION:
            d = float(node.n * cut.total[0] - cut.n * node.total[0])
            value = (d * d) / (left * right)
        else:
            q_left = sum(c * c for c in cut.total)
            q_right = sum((c - b) ** 2 for c, b in zip(node.total, cut.total, strict=True))
            value = float(q_left) / left + float(q_right) / right
        return float(np.float32(value)) if self.fault is Fault.FLOAT32_SCORES else value

    def _leaf_rule(self, node: Node, rows: set[int]) -> bool:
        if node.depth >= self.params.max_depth or node.n < self.params.min_samples_split:
            return True
        if self.fault is Fault.SMALL_LEAF and node.n <= self.block_rows:
            return True
        return len({self.store.y[i] for i in rows}) <= 1

    def _zero(self) -> Total:
        return [0] if self.params.task == REGRESSION else [0] * self.params.n_classes

    def _plus(self, total: Total, place: int, sign: int) -> Total:
        y = self.store.y[place]
        if self.params.task == REGRESSION:
            if self.fault is Fault.FLOAT_SUMS:
                return [float(np.float32(total[0]) + np.float32(sign * y))]
            return [total[0] + sign * y]
        return [count + sign * (c == y) for c, count in enumerate(total)]
