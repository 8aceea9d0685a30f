"""Everything that the parties of a run open, message by message, and what it may be.

A run under :func:`watched` leaves one :class:`Opening` for each array that a party learned from a
message: which primitive opened it, where in the program, and the opened words. The list of
permitted openings is closed: whatever is neither on :data:`LISTED` nor opened by a primitive of
:data:`MASKED` is a finding of :func:`unlisted`, masks are then checked by their statistics.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field

import numpy as np

from privml.protocols.mpc.arithmetic.matmul import Linear
from privml.protocols.mpc.engine import Executor, Known, Output, Val
from privml.protocols.mpc.fields import Array
from privml.protocols.mpc.primitive import Context, Primitive

#: Primitives whose openings are all masked, with the statistics that show it.
MASKED = frozenset({
    "affine", "and", "bit_to_ring", "block_matmul", "compare", "exp", "exp_low", "gelu",
    "gelu_low", "linear", "matmul", "maximum", "moments", "mul", "row_power", "scale_rows",
    "select", "square", "stable_keys", "truncate",
})  # fmt: skip
#: What is opened on purpose: end of the scope, primitive, number of its message, number of the
#: array in it.
LISTED: Mapping[tuple[str, str, int, int], str] = {
    (".prune/compact", "compact", 0, 0): "masked",
    (".prune/compact", "compact", 0, 1): "masked",
    (".prune/compact", "compact", 1, 0): "shuffled",
    (".prune/compact", "compact", 1, 1): "count",
    ("/bucket", "open_bits", 0, 0): "bucket",
    ("reveal", "reveal", 0, 0): "output",
}
#: Purposes that a reveal mode permits beside ``masked`` and ``output``.
PERMITTED: Mapping[str, frozenset[str]] = {
    "count": frozenset({"shuffled", "count"}),
    "bucket": frozenset({"shuffled", "bucket"}),
    "schedule": frozenset({"shuffled"}),
}


@dataclass(frozen=True)
class Opening:
    """One array that a party learned from a message.

    Attributes
    ----------
    rank
        Who learned it.
    place
        Scope, number of the primitive in its scope, and its name; empty outside of primitives.
    message, part
        Number of the message within the primitive, and of the array within the message.
    words
        The opened array, for a one-way message what was received.
    bits
        If it is packed bits with padding behind them: their number, else 0.
    """

    rank: int
    place: tuple[str, int, str]
    message: int
    part: int
    words: Array
    bits: int = 0

    @property
    def key(self) -> tuple[str, int, str, int, int]:
        """Where in the program it was opened; the same in every run of one shape."""
        return (*self.place, self.message, self.part)

    @property
    def purpose(self) -> str:
        """``masked``, one of the values of :data:`LISTED`, or ``""`` if it is not permitted."""
        scope, _, name = self.place
        if name in MASKED:
            return "masked"
        here = (name, self.message, self.part)
        for (end, *at), purpose in LISTED.items():
            if tuple(at) == here and scope.endswith(end):
                return purpose
        return ""


@dataclass
class Watch:
    """What was opened while it was installed."""

    openings: list[Opening] = field(default_factory=list)
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _local: threading.local = field(default_factory=threading.local)
    _counts: dict[tuple[int, str], int] = field(default_factory=dict)

    def enter(self, rank: int, scope: str, prim: Primitive) -> None:
        """Say which primitive this thread runs now."""
        with self._lock:
            number = self._counts.get((rank, scope), 0)
            self._counts[(rank, scope)] = number + 1
        self._local.place, self._local.message = (scope, number, prim.name), 0
        self._local.bits = 0
        if rank == 1 and isinstance(prim, Linear):  # the client receives top bits
            self._local.bits = prim.n * prim.m

    def leave(self) -> None:
        """Say that the primitive of this thread is over."""
        self._local.place, self._local.message, self._local.bits = ("", 0, ""), 0, 0

    def keep(self, rank: int, arrays: Sequence[Array]) -> None:
        """Record the arrays of one message."""
        place = getattr(self._local, "place", ("", 0, ""))
        message = getattr(self._local, "message", 0)
        bits = getattr(self._local, "bits", 0)
        self._local.message = message + 1
        found = [
            Opening(rank, place, message, part, np.array(array), bits)
            for part, array in enumerate(arrays)
            if array.size
        ]
        with self._lock:
            self.openings += found

    def of(self, rank: int) -> dict[tuple[str, int, str, int, int], Opening]:
        """Return what one party learned, by place; the order does not depend on threads."""
        mine = [o for o in self.openings if o.rank == rank]
        return {o.key: o for o in sorted(mine, key=lambda o: o.key)}


@contextmanager
def patched(owner: object, name: str, value: object) -> Iterator[None]:
    """Replace an attribute while the block runs; for tests in one process only."""
    before = getattr(owner, name)
    setattr(owner, name, value)
    try:
        yield
    finally:
        setattr(owner, name, before)


@contextmanager
def watched() -> Iterator[Watch]:
    """Record everything that both parties open in this process while the block runs."""
    watch = Watch()
    run, recv = Executor.call, Context.recv
    opens, opens_bits, opens_mixed = Context.open, Context.open_bits, Context.open_mixed

    def call(
        self: Executor, prim: Primitive, inputs: tuple[Val, ...], known: Known | None
    ) -> Output | None:
        watch.enter(self.rank, self._places.scope, prim)
        try:
            return run(self, prim, inputs, known)
        finally:
            watch.leave()

    def opened(self: Context, *shares: Array) -> list[Array]:
        out = opens(self, *shares)
        watch.keep(self.rank, out)
        return out

    def opened_bits(self: Context, *shares: Array) -> list[Array]:
        out = opens_bits(self, *shares)
        watch.keep(self.rank, out)
        return out

    def opened_mixed(
        self: Context, words: Sequence[Array], planes: Sequence[Array]
    ) -> tuple[list[Array], list[Array]]:
        out = opens_mixed(self, words, planes)
        watch.keep(self.rank, out[0] + out[1])
        return out

    def received(self: Context, *like: tuple[tuple[int, ...], str]) -> list[Array]:
        out = recv(self, *like)
        watch.keep(self.rank, out)
        return out

    changes = {"recv": received, "open": opened, "open_bits": opened_bits,
               "open_mixed": opened_mixed}  # fmt: skip
    with ExitStack() as stack:
        stack.enter_context(patched(Executor, "call", call))
        for name, change in changes.items():
            stack.enter_context(patched(Context, name, change))
        yield watch


def unlisted(watch: Watch, reveal: str) -> list[str]:
    """Return the openings that the reveal mode does not permit, one line for each place."""
    allowed = PERMITTED[reveal] | {"masked", "output"}
    found: dict[str, None] = {}
    for o in watch.openings:
        scope, _, name = o.place
        if o.purpose not in allowed:
            what = o.purpose or "an array that is not on the list"
            found[f"{name or 'no primitive'} in {scope or 'no scope'} opens {what}"] = None
        elif o.purpose == "output" and o.rank == 0:
            found["the server receives the output"] = None
    return list(found)
