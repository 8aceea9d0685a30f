"""Run two parties in one process, one thread each, and look at how both ended.

Errors are returned, not raised, because most tests are about what happens to both sides.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Generic, TypeVar

from privml.errors import internal
from privml.session import Session
from privml.transport import memory
from privml.transport.channel import Channel

T = TypeVar("T")
_PATIENCE_S = 120.0


@dataclass(frozen=True, slots=True)
class Outcome(Generic[T]):
    """How one party ended.

    Attributes
    ----------
    value
        What it returned, or None.
    error
        What it raised, or None.
    seconds
        Wall time.
    """

    value: T | None
    error: BaseException | None
    seconds: float

    def unwrap(self) -> T:
        """Return the value, or raise the error."""
        if self.error is not None:
            raise self.error
        internal(self.value is not None, "a party without an error returned a value")
        return self.value  # type: ignore[return-value]


def run_parties(server: Callable[[], T], client: Callable[[], T]) -> tuple[Outcome[T], Outcome[T]]:
    """Call both functions at the same time, each in a thread; return how they ended.

    Raises
    ------
    AssertionError
        A party still runs after two minutes.
    """
    outcomes: list[Outcome[T] | None] = [None, None]

    def go(rank: int, party: Callable[[], T]) -> None:
        start = time.perf_counter()
        value, caught = None, None
        try:
            value = party()
        except BaseException as error:  # noqa: BLE001  (returned to the test)
            caught = error
        outcomes[rank] = Outcome(value, caught, time.perf_counter() - start)

    threads = [
        threading.Thread(target=go, args=(rank, party), daemon=True)
        for rank, party in enumerate((server, client))
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(_PATIENCE_S)
    first, second = outcomes
    if first is None or second is None:
        raise AssertionError("a party did not end")
    return first, second


def run_sessions(
    program: Callable[[Session], T],
    *,
    channels: tuple[Channel, Channel] | None = None,
    binding: Mapping[str, str] | None = None,
    deadline_s: float = 20.0,
    insecure: bool = False,
) -> tuple[Outcome[T], Outcome[T]]:
    """Run `program` as server and client over one session; return how both ended.

    Parameters
    ----------
    program
        Called at both parties with the open session; it looks at ``session.rank``.
    channels
        Links of rank 0 and rank 1; an in-process pair if absent.
    binding
        Fields for the handshake, equal on both sides.
    deadline_s
        Seconds that one call may take.
    insecure
        Fixed test seeds are in use.
    """
    links = memory.pair() if channels is None else channels

    def party(rank: int) -> T:
        with Session.open(
            links[rank],
            rank=rank,
            binding=binding or {},
            offer={},
            deadline_s=deadline_s,
            insecure=insecure,
        ) as session:
            return program(session)

    return run_parties(lambda: party(0), lambda: party(1))
