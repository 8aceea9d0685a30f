"""Cost meter: flights, bytes and waiting time of one party in one session.

A flight is one use of the link that the next step has to wait for: an exchange both ways at
once, a send, a receive or a transcript comparison counts one. Set-up blobs and the handshake are
kept apart from the on-line figures.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from operator import add
from types import MappingProxyType

import msgspec
from msgspec.structs import asdict, astuple

from privml.errors import ParameterError


class Tally(msgspec.Struct, frozen=True, gc=False):
    """Figures of one party; all sums.

    Attributes
    ----------
    flights
        On-line flights, transcript comparisons included.
    checkpoints
        Those of the flights that compared transcripts.
    payload_sent, payload_received
        On-line payload in bytes, without headers and transcript comparisons.
    wire_sent, wire_received
        On-line payload plus frame headers and transcript comparisons, in bytes; without the
        record overhead of TLS, which the channel's counters show.
    wait_s
        Seconds spent idle, waiting for the link or the peer.
    setup_flights, setup_sent, setup_received
        Blobs and the handshake: flights and bytes with frame headers.
    seconds
        Wall time, for a scope without the scopes inside it.
    calls
        How often the scope was entered.
    """

    flights: int = 0
    checkpoints: int = 0
    payload_sent: int = 0
    payload_received: int = 0
    wire_sent: int = 0
    wire_received: int = 0
    wait_s: float = 0.0
    setup_flights: int = 0
    setup_sent: int = 0
    setup_received: int = 0
    seconds: float = 0.0
    calls: int = 0

    def __add__(self, other: Tally) -> Tally:
        """Return the field-wise sum."""
        return Tally(*map(add, astuple(self), astuple(other)))


@dataclass(frozen=True, slots=True)
class Measured:
    """Frozen reading of a :class:`CostMeter`.

    Attributes
    ----------
    total
        Sum over everything; `seconds` is the wall time since the meter was made.
    scopes
        Path of each scope (``"layer0/gelu"``; ``""`` for work outside any scope) to its own
        figures, without the scopes inside it. They add up to `total`.
    """

    total: Tally
    scopes: Mapping[str, Tally] = field(default_factory=dict)

    def inclusive(self, path: str) -> Tally:
        """Return the figures of scope `path` and of all scopes inside it."""
        inside = path + "/"
        parts = [t for p, t in self.scopes.items() if p == path or p.startswith(inside)]
        return sum(parts, Tally())

    def by_name(self) -> dict[str, Tally]:
        """Return own figures summed over scopes with the same last name, e.g. per operation."""
        result: dict[str, Tally] = {}
        for path, tally in self.scopes.items():
            name = path.rpartition("/")[2]
            result[name] = result.get(name, Tally()) + tally
        return result

    def as_dict(self) -> dict[str, object]:
        """Return plain numbers for JSON: ``{"total": {...}, "by_name": {...}, "scopes": ...}``."""
        return {
            "total": asdict(self.total),
            "by_name": {name: asdict(t) for name, t in self.by_name().items()},
            "scopes": {path: asdict(t) for path, t in self.scopes.items()},
        }


class CostMeter:
    """Running figures of one session; owned by one thread."""

    def __init__(self) -> None:
        self._path = ""
        self._scopes: dict[str, Tally] = {"": Tally()}
        self._resumed_s = time.perf_counter()

    def record(self, cost: Tally) -> None:
        """Add `cost` to the innermost scope that is open."""
        self._scopes[self._path] = self._scopes[self._path] + cost

    @contextmanager
    def scope(self, name: str) -> Iterator[None]:
        """Attribute all figures inside the ``with`` block to `name`, nested in open scopes.

        Parameters
        ----------
        name
            Non-empty, without a slash; operations use their own name so that
            :meth:`Measured.by_name` sums them over layers.

        Raises
        ------
        ParameterError
            `name` is empty or holds a slash.
        """
        if not name or "/" in name:
            raise ParameterError(f"a scope name must be non-empty and without '/', got {name!r}")
        outer = self._path
        self._switch(f"{outer}/{name}" if outer else name)
        self.record(Tally(calls=1))
        try:
            yield
        finally:
            self._switch(outer)

    def _switch(self, path: str) -> None:
        now = time.perf_counter()
        self.record(Tally(seconds=now - self._resumed_s))
        self._path, self._resumed_s = path, now
        self._scopes.setdefault(path, Tally())

    def by_op(self) -> dict[str, Tally]:
        """Return own figures by operation, see :meth:`Measured.by_name`."""
        return self.measured().by_name()

    def measured(self) -> Measured:
        """Return a frozen reading; the meter goes on."""
        self._switch(self._path)
        total = sum(self._scopes.values(), Tally())
        return Measured(total, MappingProxyType(dict(self._scopes)))

    @property
    def flights(self) -> int:
        """On-line flights so far, transcript comparisons included."""
        return sum(t.flights for t in self._scopes.values())

    @property
    def payload_sent(self) -> int:
        """On-line payload sent so far in bytes."""
        return sum(t.payload_sent for t in self._scopes.values())

    @property
    def payload_received(self) -> int:
        """On-line payload received so far in bytes."""
        return sum(t.payload_received for t in self._scopes.values())

    def as_dict(self) -> dict[str, object]:
        """Return :meth:`Measured.as_dict` of the present reading."""
        return self.measured().as_dict()
