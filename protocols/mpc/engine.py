"""One program, three interpreters: plan (shapes only), simulate (clear words), execute (shares).

A program is ordinary Python that calls an :class:`Engine`. Linear steps are the same numpy code for
shares and for clear ring words; only primitives differ. Because every interpreter sees the same
calls in the same order, the planner's demand list *is* the dealer's work list and the order in
which a party consumes its correlations.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from typing import Protocol, TypeVar

import numpy as np

from privml.errors import ParameterError, ProtocolError, internal
from privml.protocols.mpc.fields import LazyValues, Seeds, Shares
from privml.protocols.mpc.lanes import Lane, run_lanes
from privml.protocols.mpc.primitive import Context, Cost, Primitive, Words, peak

#: Values that are truncated or compared must stay this many bits below 2^62 in the plan.
HEADROOM_BITS = 2
RANGE_BITS = 62

Output = Words | tuple[Words, Words]
T = TypeVar("T")
Part = tuple[str, Callable[["Engine"], T]]
"""Name of a part of a program, and the part."""


@dataclass(frozen=True, repr=False)
class Val:
    """A ring array in a program: shape, fixed-point scale, public bound, and maybe words.

    Attributes
    ----------
    shape
        Shape of the array.
    scale
        Fractional bits.
    bound
        Public upper bound of the absolute real value, from calibration or arithmetic.
    words
        Share (execute), clear ring words (simulate) or ``None`` (plan).
    """

    shape: tuple[int, ...]
    scale: int
    bound: float
    words: Words | None = None

    def __post_init__(self) -> None:
        if not self.shape:
            raise ParameterError("a scalar has shape (1,) in a program, not ()")

    def __repr__(self) -> str:
        return f"Val(shape={self.shape}, scale={self.scale}, bound={self.bound:.4g})"

    def like(
        self, words: Words | None, *, shape: tuple[int, ...] | None = None,
        scale: int | None = None, bound: float | None = None,
    ) -> Val:  # fmt: skip
        """Return a copy with other words and the given fields changed."""
        if shape is None:
            shape = self.shape if words is None else words.shape
        return Val(
            shape,
            self.scale if scale is None else scale,
            self.bound if bound is None else bound,
            words,
        )

    def like_bound(self, bound: float) -> Val:
        """Return the same value under a tighter public bound that the caller can prove."""
        return replace(self, bound=bound)


@dataclass(frozen=True)
class Step:
    """One planned primitive: where it stands, its cost, and its group and lane if it has one."""

    scope: str
    primitive: Primitive
    cost: Cost
    lane: tuple[int, int] | None = None


Place = tuple[str, int]
"""Where a primitive stands in a program: scope path, and its number within that scope."""


class Places:
    """Counts primitives by scope while a program runs."""

    def __init__(self) -> None:
        self._path: list[str] = []
        self._counts: dict[str, int] = {}

    @property
    def scope(self) -> str:
        """Path of the open scopes."""
        return "/".join(self._path)

    def fork(self) -> Places:
        """Return a counter of its own for scopes below the present one."""
        other = Places()
        other._path = list(self._path)
        return other

    def next(self) -> Place:
        """Return the place of the next primitive."""
        scope = self.scope
        number = self._counts.get(scope, 0)
        self._counts[scope] = number + 1
        return scope, number

    @contextmanager
    def inside(self, name: str) -> Iterator[None]:
        """Open a scope."""
        self._path.append(name)
        try:
            yield
        finally:
            self._path.pop()


def places(steps: Sequence[Step]) -> dict[Place, int]:
    """Item number of each planned place."""
    counts: dict[str, int] = {}
    out: dict[Place, int] = {}
    for item, step in enumerate(steps):
        number = counts.get(step.scope, 0)
        counts[step.scope] = number + 1
        out[(step.scope, number)] = item
    return out


def total_cost(steps: Iterable[Step]) -> Cost:
    """Cost of a program: lanes of one group share their flights."""
    total, longest = Cost(), 0
    lanes: dict[tuple[int, int], int] = {}
    for step in steps:
        cost = step.cost
        if step.lane is not None:
            lanes[step.lane] = lanes.get(step.lane, 0) + cost.flights
            cost = replace(cost, flights=0)
        total = total.then(cost)
    for group in {group for group, _ in lanes}:
        longest += max(n for (g, _), n in lanes.items() if g == group)
    return replace(total, flights=total.flights + longest)


class Engine(ABC):
    """Interpreter of two-party programs; linear operations are shared by all."""

    #: Rank of this party, 0 for the simulator and the planner (they hold public constants).
    rank: int = 0
    #: Whether opened sizes are unknown, so that every part is planned at its largest.
    widest: bool = False
    #: Public sizes that the program found on its way, in order.
    found: list[tuple[int, ...]]

    @abstractmethod
    def call(self, prim: Primitive, inputs: tuple[Val, ...], known: Known | None) -> Output | None:
        """Run one primitive; returns its words, or ``None`` when planning."""

    def apply(self, prim: Primitive, *inputs: Val, known: Known | None = None) -> Words | None:
        """Run a primitive with one result."""
        out = self.call(prim, inputs, known)
        internal(not isinstance(out, tuple), f"{prim.name} has one result")
        return None if isinstance(out, tuple) else out

    def apply_pair(self, prim: Primitive, *inputs: Val) -> tuple[Words | None, Words | None]:
        """Run a primitive with two results."""
        out = self.call(prim, inputs, None)
        return out if isinstance(out, tuple) else (None, None)

    def scope(self, name: str) -> AbstractContextManager[object]:
        """Name a part of the program for meters and plans."""
        return nullcontext()

    def side_by_side(self, parts: Sequence[Part[T]]) -> list[T]:
        """Run independent parts, each in a scope of its own, sharing flights.

        A part may call primitives that only exchange. The flights of all are those of the longest.
        """
        out = []
        for name, body in parts:
            with self.scope(name):
                out.append(body(self))
        return out

    def checkpoint(self) -> None:
        """Compare what both parties saw so far; only a party has something to compare."""
        return

    def opened(self, words: Words | None, largest: Sequence[int]) -> tuple[int, ...]:
        """Return opened numbers that shape the rest of the program, never above ``largest``.

        Raises
        ------
        ProtocolError
            A number is out of range, which no honest run produces.
        """
        internal(words is not None, "only a planner has no words")
        values = tuple(int(w) for w in words) if words is not None else ()
        if len(values) != len(largest) or any(
            not 0 <= v <= top for v, top in zip(values, largest, strict=True)
        ):
            raise ProtocolError("the parties opened a count that is out of range; the run is void")
        return values

    def need(self, x: Val, what: str, *, proved: bool = False) -> None:
        """Refuse a value that may leave the range in which truncation and comparison are exact.

        A bound that comes from calibration must leave head-room; a ``proved`` one need not.
        """
        spare = 0 if proved else HEADROOM_BITS
        if not x.bound * 2.0**x.scale < 2.0 ** (RANGE_BITS - spare):
            raise ParameterError(
                f"{what}: values up to {x.bound:.4g} at {x.scale} fractional bits leave fewer than "
                f"{spare} bits of head-room in the 64-bit ring; "
                "lower weight_bits, or check the calibrated ranges of the model"
            )

    def add(self, a: Val, b: Val) -> Val:
        """Sum of two values of one scale (shapes may broadcast)."""
        if a.scale != b.scale:
            raise ParameterError(f"cannot add fixed-point scales {a.scale} and {b.scale}")
        shape = np.broadcast_shapes(a.shape, b.shape)
        words = a.words + b.words if a.words is not None and b.words is not None else None
        return a.like(words, shape=shape, bound=a.bound + b.bound)

    def sub(self, a: Val, b: Val) -> Val:
        """Difference of two values of one scale."""
        return self.add(a, self.scaled(b, -1))

    def scaled(self, a: Val, k: int, *, more_scale: int = 0) -> Val:
        """Product with a public integer ``k``, read as ``k / 2^more_scale``."""
        words = None if a.words is None else a.words * np.uint64(k % (1 << 64))
        bound = a.bound * abs(k) / 2.0**more_scale
        return a.like(words, shape=a.shape, scale=a.scale + more_scale, bound=bound)

    def add_public(self, a: Val, constant: np.uint64 | Words, *, bound: float = 0.0) -> Val:
        """Add public ring integers (only the holder of rank 0 does)."""
        words = a.words
        if words is not None and self.rank == 0:
            words = words + constant
        return a.like(words, shape=a.shape, bound=a.bound + bound)

    def map(self, a: Val, f: Callable[[Words], Words], shape: tuple[int, ...]) -> Val:
        """Apply a re-arrangement (reshape, transpose, slice) to the words."""
        words = None if a.words is None else np.ascontiguousarray(f(a.words))
        internal(words is None or words.shape == shape, f"map gave {shape}")
        return a.like(words, shape=shape)

    def reshape(self, a: Val, *shape: int) -> Val:
        """Change the shape."""
        return self.map(a, lambda w: w.reshape(shape), shape)

    def row_sum(self, a: Val, *, bound: float) -> Val:
        """Sum over the last axis."""
        words = None if a.words is None else a.words.sum(axis=-1)
        return a.like(words, shape=a.shape[:-1], bound=bound)

    def result(
        self, words: Words | None, shape: tuple[int, ...], *, scale: int, bound: float
    ) -> Val:
        """Wrap a primitive's output."""
        internal(words is None or words.shape == shape, f"a primitive must give shape {shape}")
        return Val(shape, scale, bound, words)


@dataclass
class Planner(Engine):
    """Walks a program with shapes only and collects steps.

    Attributes
    ----------
    script
        What each opening of shaping numbers gives, in order; the largest values if absent.
    """

    script: Sequence[Sequence[int]] = ()
    steps: list[Step] = field(default_factory=list)
    found: list[tuple[int, ...]] = field(default_factory=list)
    _places: Places = field(default_factory=Places)
    _told: int = 0
    _groups: int = 0
    _lane: tuple[int, int] | None = None

    def call(self, prim: Primitive, inputs: tuple[Val, ...], known: Known | None) -> Output | None:
        """Record the primitive."""
        self.steps.append(Step(self._places.scope, prim, prim.cost(), self._lane))
        return None

    def side_by_side(self, parts: Sequence[Part[T]]) -> list[T]:
        """Record the parts one after the other, as lanes of a group."""
        internal(self._lane is None, "lanes do not nest")
        self._groups += 1
        out = []
        for number, (name, body) in enumerate(parts):
            self._lane = (self._groups, number) if len(parts) > 1 else None
            with self.scope(name):
                out.append(body(self))
        self._lane = None
        return out

    def scope(self, name: str) -> AbstractContextManager[object]:
        """Name a part of the program."""
        return self._places.inside(name)

    @property
    def widest(self) -> bool:  # type: ignore[override]
        """Whether nothing is scripted."""
        return not self.script

    def opened(self, words: Words | None, largest: Sequence[int]) -> tuple[int, ...]:
        """Return the scripted numbers, or the largest ones where nothing is scripted."""
        at, self._told = self._told, self._told + 1
        scripted = self.script[at] if at < len(self.script) else largest
        return tuple(scripted[: len(largest)])

    def total(self) -> Cost:
        """Cost of the whole program."""
        return total_cost(self.steps)


@dataclass
class Simulator(Engine):
    """Runs the integer program on clear words with the masks that ``seeds`` give.

    Attributes
    ----------
    index
        Item number of each planned place, for programs whose sizes depend on opened numbers.
    head
        Largest share that was used of each range in which the program is right: of the ring's by
        what is truncated or compared, and of the shorter ranges of primitives by their name.
    """

    seeds: Seeds
    head: dict[str, float] = field(default_factory=dict)
    index: Mapping[Place, int] | None = None
    found: list[tuple[int, ...]] = field(default_factory=list)
    _item: int = 0
    _places: Places = field(default_factory=Places)

    def scope(self, name: str) -> AbstractContextManager[object]:
        """Name a part of the program."""
        return self._places.inside(name)

    def need(self, x: Val, what: str, *, proved: bool = False) -> None:
        """Record the largest share of the range that a value used."""
        super().need(x, what, proved=proved)
        if x.words is not None:
            self._used(what, peak(x.words) / 2.0**RANGE_BITS)

    def _used(self, what: str, share: float) -> None:
        self.head[what] = max(self.head.get(what, 0.0), share)

    def call(self, prim: Primitive, inputs: tuple[Val, ...], known: Known | None) -> Output | None:
        """Evaluate the primitive's integer oracle."""
        item = _number(self.index, self._places, self._item)
        masks = LazyValues(prim.fields(), prim.derive, item, self.seeds)
        self._item += 1
        extra = () if known is None else (known.weight, known.bias)
        words = [x.words for x in inputs]
        self._used(f"range of {prim.name}", prim.reach(*words))
        out: Output = prim.simulate(masks, *words, *extra)
        return out


class Supply(Protocol):
    """Where a party's correlations come from during one run."""

    def take(self, prim: Primitive, item: int) -> Shares:
        """Return this party's shares for the ``item``-th primitive, once."""

    def forget_passed(self) -> None:
        """Destroy what was passed over and will not be taken any more."""


class Meter(Protocol):
    """The part of a cost meter that the executor uses."""

    def scope(self, name: str) -> AbstractContextManager[object]:
        """Attribute what happens inside to ``name``."""


class Executor(Engine):
    """Runs the program on shares over a session."""

    def __init__(
        self, ctx: Context, supply: Supply, meter: Meter | None = None, *,
        index: Mapping[Place, int] | None = None,
    ) -> None:  # fmt: skip
        self.ctx, self.rank = ctx, ctx.rank
        self._supply, self._meter, self._index, self._item = supply, meter, index, 0
        self._places = Places()
        self.found = []

    def checkpoint(self) -> None:
        """Compare transcripts with the peer before anything is revealed."""
        self.ctx.wire.checkpoint()

    def call(self, prim: Primitive, inputs: tuple[Val, ...], known: Known | None) -> Output | None:
        """Run the primitive with the peer."""
        corr = self._supply.take(prim, _number(self._index, self._places, self._item))
        self._item += 1
        extra: tuple[Words | None, ...] = ()
        if known is not None:
            extra = (known.weight, known.bias) if self.rank == 0 else (corr["z1"], None)
        out: Output = prim.run(self.ctx, corr, *(x.words for x in inputs), *extra)
        return out

    def side_by_side(self, parts: Sequence[Part[T]]) -> list[T]:
        """Run the parts in threads of their own over merged exchanges."""
        if len(parts) == 1:
            return super().side_by_side(parts)

        def job(part: Part[T]) -> Callable[[Lane], T]:
            name, body = part
            at = self._places.fork()

            def go(lane: Lane) -> T:
                engine = Executor(Context(lane), self._supply, index=self._index)
                engine._places, engine._item = at, self._item
                with engine.scope(name):
                    return body(engine)

            return go

        internal(self._index is not None, "only programs with places run side by side")
        out = run_lanes([job(part) for part in parts], self.rank, self.ctx.swap)
        self._supply.forget_passed()
        return out

    def scope(self, name: str) -> AbstractContextManager[object]:
        """Attribute cost to ``name``."""
        return self._scope(name)

    @contextmanager
    def _scope(self, name: str) -> Iterator[None]:
        metered = self._meter.scope(name) if self._meter else nullcontext()
        with self._places.inside(name), metered:
            yield


def _number(index: Mapping[Place, int] | None, at: Places, count: int) -> int:
    """Item of the next primitive: its count, or where its place was planned."""
    if index is None:
        return count
    place = at.next()
    if place not in index:
        raise AssertionError(f"internal error in privml: {place} was not planned")
    return index[place]


@dataclass(frozen=True)
class Known:
    """The server's secret operands of a layer: ring words at rank 0 and in the simulator.

    The client has neither; its prepared product ``z1`` comes with its correlations.
    """

    weight: Words | None = None
    bias: Words | None = None
