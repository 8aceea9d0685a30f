"""One program, three interpreters: plan (shapes only), simulate (clear words), execute (shares).

A program is ordinary Python that calls an :class:`Engine`. Linear steps are the same numpy code for
shares and for clear ring words; only primitives differ. Because every interpreter sees the same
calls in the same order, the planner's demand list *is* the dealer's work list and the order in
which a party consumes its correlations.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, replace
from typing import Protocol

import numpy as np

from privml.errors import ParameterError, internal
from privml.protocols.mpc.fields import LazyValues, Seeds, Shares
from privml.protocols.mpc.primitive import Context, Cost, Primitive, Words

#: Values that are truncated or compared must stay this many bits below 2^62 in the plan.
HEADROOM_BITS = 2
RANGE_BITS = 62

Output = Words | tuple[Words, Words]


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
    """One planned primitive: where it stands, its cost, and its range demand."""

    scope: str
    primitive: Primitive
    cost: Cost


class Engine(ABC):
    """Interpreter of two-party programs; linear operations are shared by all."""

    #: Rank of this party, 0 for the simulator and the planner (they hold public constants).
    rank: int = 0

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

    def checkpoint(self) -> None:
        """Compare what both parties saw so far; only a party has something to compare."""
        return

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

    def add_public(self, a: Val, constant: np.uint64, *, bound: float = 0.0) -> Val:
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
    """Walks a program with shapes only and collects steps."""

    steps: list[Step] = field(default_factory=list)
    _scopes: list[str] = field(default_factory=list)

    def call(self, prim: Primitive, inputs: tuple[Val, ...], known: Known | None) -> Output | None:
        """Record the primitive."""
        self.steps.append(Step("/".join(self._scopes), prim, prim.cost()))
        return None

    def scope(self, name: str) -> AbstractContextManager[object]:
        """Name a part of the program."""
        return _Pushed(self._scopes, name)

    def total(self) -> Cost:
        """Cost of the whole program."""
        total = Cost()
        for step in self.steps:
            total = total.then(step.cost)
        return total


class _Pushed(AbstractContextManager[None]):
    def __init__(self, stack: list[str], name: str) -> None:
        self._stack, self._name = stack, name

    def __enter__(self) -> None:
        self._stack.append(self._name)

    def __exit__(self, *exc: object) -> None:
        self._stack.pop()


@dataclass
class Simulator(Engine):
    """Runs the integer program on clear words with the masks that ``seeds`` give."""

    seeds: Seeds
    head: dict[str, float] = field(default_factory=dict)
    _item: int = 0

    def need(self, x: Val, what: str, *, proved: bool = False) -> None:
        """Record the largest share of the range that a value used."""
        super().need(x, what, proved=proved)
        if x.words is not None and x.words.size:
            signed = x.words.view(np.int64)
            peak = float(max(abs(int(signed.min())), abs(int(signed.max()))))
            self.head[what] = max(self.head.get(what, 0.0), peak / 2.0**RANGE_BITS)

    def call(self, prim: Primitive, inputs: tuple[Val, ...], known: Known | None) -> Output | None:
        """Evaluate the primitive's integer oracle."""
        masks = LazyValues(prim.fields(), prim.derive, self._item, self.seeds)
        self._item += 1
        extra = () if known is None else (known.weight, known.bias)
        out: Output = prim.simulate(masks, *(x.words for x in inputs), *extra)
        return out


class Supply(Protocol):
    """Where a party's correlations come from during one run."""

    def take(self, prim: Primitive, item: int) -> Shares:
        """Return this party's shares for the ``item``-th primitive, once."""


class Meter(Protocol):
    """The part of a cost meter that the executor uses."""

    def scope(self, name: str) -> AbstractContextManager[object]:
        """Attribute what happens inside to ``name``."""


class Executor(Engine):
    """Runs the program on shares over a session."""

    def __init__(self, ctx: Context, supply: Supply, meter: Meter | None = None) -> None:
        self.ctx, self.rank = ctx, ctx.rank
        self._supply, self._meter, self._item = supply, meter, 0

    def checkpoint(self) -> None:
        """Compare transcripts with the peer before anything is revealed."""
        self.ctx.wire.checkpoint()

    def call(self, prim: Primitive, inputs: tuple[Val, ...], known: Known | None) -> Output | None:
        """Run the primitive with the peer."""
        corr = self._supply.take(prim, self._item)
        self._item += 1
        extra: tuple[Words | None, ...] = ()
        if known is not None:
            extra = (known.weight, known.bias) if self.rank == 0 else (corr["z1"], None)
        out: Output = prim.run(self.ctx, corr, *(x.words for x in inputs), *extra)
        return out

    def scope(self, name: str) -> AbstractContextManager[object]:
        """Attribute cost to ``name``."""
        return self._meter.scope(name) if self._meter else nullcontext()


@dataclass(frozen=True)
class Known:
    """The server's secret operands of a layer: ring words at rank 0 and in the simulator.

    The client has neither; its prepared product ``z1`` comes with its correlations.
    """

    weight: Words | None = None
    bias: Words | None = None
