"""What a two-party primitive is: fields, cost, the party's steps, and the integer oracle.

Every primitive of the engine is one frozen dataclass that holds public shapes and constants only.
Its four views must agree, and the test suite holds them against each other:

* :meth:`Primitive.fields` and :meth:`Primitive.derive` say what the dealer prepares,
* :meth:`Primitive.cost` declares flights and payload bytes, exactly,
* :meth:`Primitive.run` is what a party does with its shares,
* :meth:`Primitive.simulate` is the same function on clear ring words, given the clear masks,
  and equals the sum of the two parties' outputs bit for bit.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Protocol

import numpy as np
from numpy.typing import NDArray

from privml._typing import Buffer
from privml.protocols.mpc.fields import Array, Field, Shares, correction_bytes

Words = NDArray[np.uint64]

#: Offset that makes a signed value of the range rule non-negative: 2^62.
HALF = np.uint64(1 << 62)
ONE = np.uint64(1)
TOP = np.uint64(63)


@dataclass(frozen=True)
class Cost:
    """Exact price of one primitive or program.

    Attributes
    ----------
    flights
        Length of the dependency chain; a simultaneous exchange counts one.
    sent
        Payload bytes sent by rank 0 and rank 1.
    corrections
        Off-line bytes that party 1 receives from the dealer.
    """

    flights: int = 0
    sent: tuple[int, int] = (0, 0)
    corrections: int = 0

    def then(self, other: Cost) -> Cost:
        """Cost of this step followed by ``other``."""
        return Cost(
            self.flights + other.flights,
            (self.sent[0] + other.sent[0], self.sent[1] + other.sent[1]),
            self.corrections + other.corrections,
        )


class Wire(Protocol):
    """The part of a session that primitives use."""

    rank: int

    def exchange(self, tag: int, mine: Buffer, *, expect: int) -> memoryview | bytes:
        """Swap buffers with the peer: one flight."""

    def send(self, tag: int, payload: Buffer) -> None:
        """Send one buffer: one flight."""

    def recv(self, tag: int, *, expect: int) -> memoryview | bytes:
        """Receive one buffer: one flight."""

    def checkpoint(self) -> None:
        """Compare transcripts with the peer."""


class Context:
    """A party's hands: opening masked values and moving buffers over one session."""

    def __init__(self, wire: Wire) -> None:
        self.wire = wire
        self.rank = wire.rank
        self._tag = 0

    def _next(self) -> int:
        self._tag += 1
        return self._tag & 0xFFFFFFFF

    def _swap(self, parts: Sequence[Array]) -> list[Array]:
        flat = [np.ascontiguousarray(p) for p in parts]
        mine = _joined(flat)
        raw = self.wire.exchange(self._next(), mine, expect=mine.nbytes)
        theirs, at = [], 0
        for p in flat:
            theirs.append(np.frombuffer(raw, p.dtype, p.size, at).reshape(p.shape))
            at += p.nbytes
        return theirs

    def swap(self, mine: Buffer, expect: int) -> memoryview | bytes:
        """Swap raw bytes with the peer in one flight."""
        return self.wire.exchange(self._next(), mine, expect=expect)

    def open(self, *shares: Array) -> list[Array]:
        """Open additively shared, masked arrays in one flight."""
        return [a + b for a, b in zip(shares, self._swap(shares), strict=True)]

    def open_bits(self, *shares: Array) -> list[Array]:
        """Open XOR-shared, masked bit planes in one flight."""
        return [a ^ b for a, b in zip(shares, self._swap(shares), strict=True)]

    def open_mixed(
        self, words: Sequence[Array], planes: Sequence[Array]
    ) -> tuple[list[Array], list[Array]]:
        """Open additive arrays and XOR planes together in one flight."""
        theirs = self._swap([*words, *planes])
        k = len(words)
        added = [a + b for a, b in zip(words, theirs[:k], strict=True)]
        return added, [a ^ b for a, b in zip(planes, theirs[k:], strict=True)]

    def send(self, *parts: Array) -> None:
        """Send arrays to the peer in one flight."""
        self.wire.send(self._next(), _joined([np.ascontiguousarray(p) for p in parts]))

    def recv(self, *like: tuple[tuple[int, ...], str]) -> list[Array]:
        """Receive arrays of the given shapes and dtypes in one flight."""
        sizes = [int(np.prod(s, dtype=np.int64)) * np.dtype(d).itemsize for s, d in like]
        raw = self.wire.recv(self._next(), expect=sum(sizes))
        out, at = [], 0
        for (shape, dtype), size in zip(like, sizes, strict=True):
            out.append(
                np.frombuffer(raw, np.dtype(dtype), size // np.dtype(dtype).itemsize, at).reshape(
                    shape
                )
            )
            at += size
        return out


def _joined(parts: Sequence[Array]) -> memoryview:
    """Bytes of contiguous arrays, one after the other; no copy for a single one."""
    raw = [p.reshape(-1).view(np.uint8) for p in parts]
    return (raw[0] if len(raw) == 1 else np.concatenate(raw)).data


class Primitive(ABC):
    """One step of a two-party program; see the module docstring.

    Attributes
    ----------
    SIZES
        Names of the attributes that a run may use at smaller values than were planned.
    SPENT
        Names of fields that only serve what is computed ahead of a run.
    """

    name: ClassVar[str]
    SIZES: ClassVar[frozenset[str]] = frozenset({"shape", "n", "rows"})
    SPENT: ClassVar[frozenset[str]] = frozenset()

    @abstractmethod
    def fields(self) -> tuple[Field, ...]:
        """Name the correlated randomness of one call."""

    @abstractmethod
    def derive(self, free: Shares) -> Mapping[str, Array]:
        """Compute the clear derived fields from the free ones."""

    @abstractmethod
    def online(self) -> Cost:
        """Return the flights and payload of one call, without the off-line part."""

    @abstractmethod
    def run(self, ctx: Context, corr: Shares, *inputs: Any) -> Any:
        """Execute one party's side on its shares."""

    @abstractmethod
    def simulate(self, masks: Shares, *inputs: Any) -> Any:
        """Compute the same function on clear ring words."""

    @property
    def prepared(self) -> tuple[int, ...]:
        """Shape of what is computed ahead from shares and W - B, where there is such a thing."""
        return ()

    def constants(self) -> bytes:
        """Return public numbers that the repr only names; the plan's digest covers both."""
        return b""

    def reach(self, *inputs: Any) -> float:
        """Return the share of the range in which one call is right that clear inputs use.

        From 1 on the result may be wrong: what was calibrated does not hold for this input. 0 for a
        primitive that is right for all words, or whose caller keeps an eye on its range.
        """
        return 0.0

    def failure(self) -> float:
        """Return the failure probability of one call under the range rule; exact by default."""
        return 0.0

    def covers(self, small: Primitive) -> bool:
        """Return whether correlations of this primitive, cut to prefixes, serve ``small``.

        Sizes may shrink; of a shape only the first number, so that elements stay a flat prefix.
        """
        mine, theirs = vars(self), vars(small)
        return type(self) is type(small) and all(
            _at_most(theirs[name], size) if name in self.SIZES else theirs[name] == size
            for name, size in mine.items()
        )

    def cut(self, small: Primitive, shares: Shares) -> Shares:
        """Return the prefixes of a party's shares that serve ``small``, see :meth:`covers`."""
        if small == self:
            return shares
        shapes = {f.name: f.shape for f in small.fields()}
        shapes["z1"] = small.prepared
        return {
            name: np.ascontiguousarray(a[tuple(slice(0, s) for s in shapes[name])])
            for name, a in shares.items()
        }

    def cost(self) -> Cost:
        """Return the declared cost including the off-line bytes."""
        on = self.online()
        return Cost(on.flights, on.sent, correction_bytes(self.fields()))


def _at_most(small: Any, large: Any) -> bool:
    if isinstance(large, tuple):
        return len(small) == len(large) and small[:1] <= large[:1] and small[1:] == large[1:]
    return bool(small <= large)


def peak(x: Array) -> float:
    """Largest magnitude of ring words, read as signed numbers."""
    signed = x.view(f"i{x.itemsize}")
    return float(max(abs(int(signed.min())), abs(int(signed.max())))) if x.size else 0.0


def both(nbytes: int, flights: int = 1) -> Cost:
    """Cost of exchanges in which each side sends ``nbytes`` in all."""
    return Cost(flights, (nbytes, nbytes))
