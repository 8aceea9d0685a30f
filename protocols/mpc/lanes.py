"""Independent parts of a program side by side: their messages of one step travel as one flight.

Each part runs in a thread of its own on a :class:`Lane`, which looks like a link. A lane that has
something to exchange waits until every lane that still runs has, too; then one real exchange moves
all of it. Both parties merge alike, because the number of exchanges of a lane is fixed by the plan
and by opened numbers. Parts may only exchange: one-way messages do not merge.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import TypeVar

import numpy as np

from privml._typing import Buffer
from privml.errors import internal
from privml.storage.fs import byte_view

Swap = Callable[[Buffer, int], "memoryview | bytes"]
T = TypeVar("T")
#: Seconds that an interrupted run waits for its lanes to notice.
_PATIENCE_S = 1.0
#: Seconds after which a waiting caller looks for signals: one that arrives just before the wait
#: begins does not end it.
_WAKE_S = 0.05


class Junction:
    """Where the lanes of one party meet.

    Parameters
    ----------
    lanes
        Number of lanes.
    swap
        Sends a buffer and returns as many bytes as the second argument says from the peer.
    """

    def __init__(self, lanes: int, swap: Swap) -> None:
        self._swap = swap
        self._alive = set(range(lanes))
        self._waiting: dict[int, tuple[memoryview, int]] = {}
        self._answers: dict[int, memoryview] = {}
        self._failure: BaseException | None = None
        self._changed = threading.Condition()

    def exchange(self, lane: int, mine: Buffer, expect: int) -> memoryview:
        """Swap one lane's buffer together with the others' of this step."""
        with self._changed:
            self._waiting[lane] = (byte_view(mine), expect)
            self._depart()
            while lane not in self._answers and self._failure is None:
                self._changed.wait()
            if lane not in self._answers:
                raise LaneStopped from self._failure
            return self._answers.pop(lane)

    def leave(self, lane: int, failure: BaseException | None = None) -> None:
        """End a lane; with a failure all lanes end."""
        with self._changed:
            self._alive.discard(lane)
            if failure is not None and self._failure is None:
                self._failure = failure
                self._changed.notify_all()
            elif self._failure is None:
                self._depart()

    def _depart(self) -> None:
        """Exchange if every running lane waits."""
        if not self._waiting or set(self._waiting) != self._alive or self._failure is not None:
            return
        order = sorted(self._waiting)
        parts = [self._waiting[lane] for lane in order]
        self._waiting = {}
        try:
            whole = parts[0][0] if len(parts) == 1 else _joined([p[0] for p in parts])
            raw = memoryview(self._swap(whole, sum(p[1] for p in parts)))
        except BaseException as error:  # noqa: BLE001 - raised by run_lanes
            self._failure = error
            self._changed.notify_all()
            return
        at = 0
        for lane, (_, expect) in zip(order, parts, strict=True):
            self._answers[lane] = raw[at : at + expect]
            at += expect
        self._changed.notify_all()

    @property
    def failure(self) -> BaseException | None:
        """What ended a lane early, if anything did."""
        return self._failure


class LaneStopped(Exception):
    """Another lane failed; never leaves :func:`run_lanes`."""


def _joined(parts: Sequence[memoryview]) -> memoryview:
    return np.concatenate([np.frombuffer(p, np.uint8) for p in parts]).data


class Lane:
    """One lane as a link; see ``primitive.Wire``."""

    def __init__(self, junction: Junction, number: int, rank: int) -> None:
        self._junction, self._number, self.rank = junction, number, rank

    def exchange(self, tag: int, mine: Buffer, *, expect: int) -> memoryview:
        """Swap buffers with the peer, together with the other lanes."""
        return self._junction.exchange(self._number, mine, expect)

    def send(self, tag: int, payload: Buffer) -> None:
        """Refuse: one-way messages do not merge."""
        internal(False, "a lane only exchanges")

    def recv(self, tag: int, *, expect: int) -> memoryview:
        """Refuse: one-way messages do not merge."""
        internal(False, "a lane only exchanges")
        return memoryview(b"")

    def checkpoint(self) -> None:
        """Refuse: transcripts are compared outside of lanes."""
        internal(False, "a lane only exchanges")


def run_lanes(jobs: Sequence[Callable[[Lane], T]], rank: int, swap: Swap) -> list[T]:
    """Run jobs side by side and return their results in order.

    Raises
    ------
    BaseException
        What the first failing job raised; the others are stopped.
    """
    junction = Junction(len(jobs), swap)
    results: dict[int, T] = {}

    def go(number: int) -> None:
        failure: BaseException | None = None
        try:
            results[number] = jobs[number](Lane(junction, number, rank))
        except BaseException as error:  # noqa: BLE001 - raised again by the caller
            failure = error
        junction.leave(number, failure)

    threads = [threading.Thread(target=go, args=(n,), daemon=True) for n in range(1, len(jobs))]
    try:
        for thread in threads:
            thread.start()
        go(0)
        for thread in threads:
            while thread.is_alive():
                thread.join(_WAKE_S)
    except BaseException as error:  # an interrupt outside of a job, or no more threads
        junction.leave(0, error)
        for thread in threads:
            if thread.ident is not None:
                thread.join(_PATIENCE_S)
        raise
    if junction.failure is not None:
        raise junction.failure
    return [results[n] for n in range(len(jobs))]
