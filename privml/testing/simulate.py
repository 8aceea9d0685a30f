"""Two parties in one process: run a primitive or a program on shares and hold it to its oracle.

Shipped so that users can test their own protocols. Keys here may be fixed by the test; such runs
never leave the process.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from privml._typing import Buffer
from privml.protocols.mpc.fields import Array, Seeds, Shares, corrections, expand
from privml.protocols.mpc.primitive import Context, Primitive
from privml.rng import Csprng
from privml.storage.fs import byte_view


@dataclass
class LocalWire:
    """One end of an in-process link that records what it receives and what it costs."""

    rank: int
    out: queue.SimpleQueue[bytes]
    into: queue.SimpleQueue[bytes]
    flights: int = 0
    sent: int = 0
    view: list[bytes] = field(default_factory=list)

    def _put(self, payload: Buffer) -> None:
        data = byte_view(payload).tobytes()
        self.sent += len(data)
        self.out.put(data)

    def _get(self, expect: int) -> bytes:
        data = self.into.get(timeout=60)
        if len(data) != expect:
            raise AssertionError(f"expected {expect} bytes, got {len(data)}")
        self.view.append(data)
        return data

    def exchange(self, tag: int, mine: Buffer, *, expect: int) -> bytes:
        """Swap buffers."""
        self.flights += 1
        self._put(mine)
        return self._get(expect)

    def send(self, tag: int, payload: Buffer) -> None:
        """Send a buffer."""
        self.flights += 1
        self._put(payload)

    def recv(self, tag: int, *, expect: int) -> bytes:
        """Receive a buffer."""
        self.flights += 1
        return self._get(expect)

    def checkpoint(self) -> None:
        """Nothing to compare: the link is in this process."""


def wires() -> tuple[LocalWire, LocalWire]:
    """Return both ends of a fresh link."""
    a: queue.SimpleQueue[bytes] = queue.SimpleQueue()
    b: queue.SimpleQueue[bytes] = queue.SimpleQueue()
    return LocalWire(0, a, b), LocalWire(1, b, a)


def fixed_seeds(seed: int) -> Seeds:
    """Keys that a test fixes; never for real data."""
    root = Csprng(seed.to_bytes(32, "little"))
    return Seeds((root.child("run", 0), root.child("run", 1)), root.child("setup"))


class LocalSupply:
    """Correlations of one party made in memory by an in-process dealer."""

    def __init__(self, rank: int, seeds: Seeds) -> None:
        self._rank, self._seeds = rank, seeds

    def take(self, prim: Primitive, item: int) -> Shares:
        """Deal and expand one item."""
        own = self._seeds.runs[self._rank]
        mine = Seeds((own, None) if self._rank == 0 else (None, own), None)
        fields = prim.fields()
        if self._rank == 0:
            return expand(fields, item, 0, mine, None)
        parts = corrections(fields, prim.derive, item, self._seeds)

        def read(nbytes: int) -> memoryview:
            return np.ascontiguousarray(next(parts)).reshape(-1).view(np.uint8).data

        return expand(fields, item, 1, mine, read)

    def forget_passed(self) -> None:
        """Forget nothing: every item is dealt when asked for."""


def in_two_threads(job: Callable[[int], Any]) -> tuple[Any, Any]:
    """Run ``job(rank)`` for both ranks at once; re-raise the first error."""
    out: list[Any] = [None, None]
    errors: list[BaseException] = []

    def work(rank: int) -> None:
        try:
            out[rank] = job(rank)
        except BaseException as error:  # noqa: BLE001 - re-raised in the caller's thread
            errors.append(error)

    threads = [threading.Thread(target=work, args=(r,), daemon=True) for r in (0, 1)]
    for t in threads:
        t.start()
    for _ in range(2400):
        if errors or not any(t.is_alive() for t in threads):
            break  # after an error the other party may wait for a message that never comes
        threads[0].join(timeout=0.05 if threads[0].is_alive() else 0)
        threads[1].join(timeout=0.05 if threads[1].is_alive() else 0)
    if errors:
        raise errors[0]
    return out[0], out[1]


def split(value: Array, rng: Csprng, *, xor: bool = False) -> tuple[Array, Array]:
    """Cut a clear array into two uniform shares."""
    one: Array = rng.words(value.shape, 1, dtype=value.dtype)
    return (value ^ one if xor else value - one), one


@contextmanager
def fresh_wires() -> Iterator[tuple[LocalWire, LocalWire]]:
    """Yield both ends of a link."""
    yield wires()


def run_primitive(
    prim: Primitive, shares: tuple[tuple[Any, ...], tuple[Any, ...]], seeds: Seeds
) -> tuple[tuple[Any, Any], tuple[LocalWire, LocalWire]]:
    """Run both parties of one primitive as item 0; return outputs and the links' records."""
    ends = wires()

    def job(rank: int) -> object:
        corr = LocalSupply(rank, seeds).take(prim, 0)
        return prim.run(Context(ends[rank]), corr, *shares[rank])

    return in_two_threads(job), ends
