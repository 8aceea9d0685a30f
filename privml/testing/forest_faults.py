"""Mistakes that an incremental forest can make, and the rows it holds."""

from __future__ import annotations

import enum
from dataclasses import dataclass, field

import numpy as np

from privml.unlearning.forest.reference import Floats

Record = tuple[int, int, int]


class Fault(enum.StrEnum):
    """One mistake."""

    NONE = "none"
    STALE_BEST = "the score of a candidate can only improve"
    OTHER_ATTRIBUTE = "another attribute is drawn when the range of one changes"
    MAX_MULTIPLICITY = "the multiplicity of the largest value is not kept"
    TAG_STATISTICS = "statistics of a tagged node are not updated"
    BATCH_COUNTS = "a large batch skips the counts"
    TAG_STAYS = "the tag stays after it was resolved"
    CONSTANTS_SLEEP = "a constant attribute is never woken"
    TWO_VALUED = "two-valued is a flag of the column, set at fit"
    EQUAL_RIGHT = "a value equal to the threshold is counted right"
    EMPTY_LEAF = "an empty leaf is kept"
    GIVES_UP = "the attribute draw gives up after as many failures as slots"
    NO_CLAMP = "the threshold is not kept below the largest value"
    LAST_TIE = "of equal scores the last one wins"
    ROW_SLOT = "draws are keyed by where a row lies, not by its id"
    SEQUENTIAL = "draws come from a sequential generator"
    SLACK_PLUS_ONE = "the slack is one too large"
    SLACK_KEPT = "the slack is kept after a recount"
    FLOAT32_SCORES = "scores are float32"
    FLOAT_SUMS = "sums of targets are floats"
    FIRST_SEEN_CODES = "category codes are numbered as they appear"
    SMALL_LEAF = "a node without statistics becomes a leaf"
    UNSWEPT = "freed rows are not overwritten"
    TOMBSTONE = "a freed place keeps its id"
    DIRTY_ANSWER = "a query does not wait for a deferred recount"


@dataclass
class Store:
    """Rows by place; a freed place is overwritten and used again."""

    ids: list[Record] = field(default_factory=list)
    X: list[Floats] = field(default_factory=list)
    y: list[int] = field(default_factory=list)
    where: dict[Record, int] = field(default_factory=dict)
    free: list[int] = field(default_factory=list)

    def add(self, record: Record, x: Floats, y: int) -> int:
        """Put a row into a free place, or a new one, and return the place."""
        if self.free:
            place = self.free.pop()
            self.ids[place], self.X[place], self.y[place] = record, x, y
        else:
            place = len(self.ids)
            self.ids.append(record)
            self.X.append(x)
            self.y.append(y)
        self.where[record] = place
        return place

    def drop(self, place: int, fault: Fault) -> None:
        """Free a place and overwrite it."""
        del self.where[self.ids[place]]
        self.free.append(place)
        if fault is not Fault.TOMBSTONE:
            self.ids[place] = (0, 0, 0)
        if fault is not Fault.UNSWEPT:
            self.X[place] = np.zeros_like(self.X[place])
            self.y[place] = 0

    def memory(self) -> bytes:
        """Return all bytes held, free places included."""
        ids = np.array(self.ids, dtype=np.uint64).tobytes()
        return ids + b"".join(x.tobytes() for x in self.X) + np.array(self.y, np.int64).tobytes()
