"""One case of every primitive, with two adversarial inputs each, and a way to play them.

A case holds a primitive and clear inputs; :func:`play` cuts them into shares, runs both parties
over an in-process link and returns outputs, cost and both views. Inputs are constant over
``samples`` elements, so one call gives that many independent samples of a party's view.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from privml.errors import internal
from privml.protocols.cipherprune.blocks import BlockMatMul
from privml.protocols.cipherprune.compact import Compact
from privml.protocols.cipherprune.exp_low import ExpLow
from privml.protocols.cipherprune.gelu_low import GeluLow
from privml.protocols.mpc.arithmetic.affine import Affine
from privml.protocols.mpc.arithmetic.matmul import Linear, MatMul
from privml.protocols.mpc.arithmetic.moments import Moments
from privml.protocols.mpc.arithmetic.mul import Mul, ScaleRows, Square
from privml.protocols.mpc.arithmetic.truncate import Truncate
from privml.protocols.mpc.boolean.compare import Compare, packed
from privml.protocols.mpc.boolean.logic import And, BitToRing, Select
from privml.protocols.mpc.engine import Known, Supply
from privml.protocols.mpc.fields import Array, LazyValues, Seeds, Shares, setup_mask
from privml.protocols.mpc.nonlinear.exp import Exp
from privml.protocols.mpc.nonlinear.gelu import Gelu
from privml.protocols.mpc.nonlinear.maximum import Maximum
from privml.protocols.mpc.nonlinear.rows import RowPower
from privml.protocols.mpc.primitive import HALF, Primitive, Wire, Words
from privml.protocols.mpc.program import Reveal
from privml.rng import Csprng
from privml.testing.simulate import LocalSupply, LocalWire, in_two_threads, split, wires
from privml.testing.views import Column, Tap, View

EDGE = (1 << 62) - 1
"""Largest magnitude that may be truncated."""

SupplyMaker = Callable[[int, Seeds], Supply]


@dataclass(frozen=True)
class Case:
    """A primitive with clear inputs.

    Attributes
    ----------
    prim
        The primitive.
    inputs
        Clear ring arrays, or packed bits where ``xor`` names the position.
    xor
        Positions of the inputs that are XOR-shared.
    known
        The server's operand of a weight-owner product.
    samples
        Number of elements (rows, matrices) with equal inputs.
    """

    prim: Primitive
    inputs: tuple[Array, ...]
    xor: frozenset[int] = frozenset()
    known: Known | None = None
    samples: int = 1


@dataclass(frozen=True)
class Played:
    """What came of one run: outputs, link records and views by rank."""

    outputs: tuple[Any, Any]
    wires: tuple[LocalWire, LocalWire]
    views: tuple[View, View]


def fresh_seeds() -> Seeds:
    """Return keys of a new run and pool from the operating system's entropy."""
    root = Csprng.fresh()
    return Seeds((root.child("run", 0), root.child("run", 1)), root.child("setup"))


def play(case: Case, seeds: Seeds, *, item: int = 0, supply: SupplyMaker = LocalSupply) -> Played:
    """Run both parties of a case as item ``item`` and record what each of them sees."""
    cut = [
        split(x, Csprng.fresh(), xor=i in case.xor) for i, x in enumerate(case.inputs)
    ]  # fmt: skip
    ends = wires()

    def job(rank: int) -> tuple[Any, View]:
        shares = tuple(c[rank] for c in cut)
        corr = supply(rank, seeds).take(case.prim, item)
        return one_party(case, ends[rank], corr, shares, seeds)

    first, second = in_two_threads(job)
    return Played((first[0], second[0]), ends, (first[1], second[1]))


def one_party(
    case: Case, wire: Wire, corr: Shares, shares: tuple[Array, ...], seeds: Seeds
) -> tuple[Any, View]:
    """Run one party of a case over a link; return its output and its view."""
    prim: Any = case.prim
    tap = Tap(wire, planes_received=isinstance(prim, Linear))
    extra: tuple[Any, ...] = ()
    if case.known is not None:
        extra = _owner_operands(case, corr, tap.rank, seeds)
    ahead = {"z1": _ahead(case, corr, seeds)} if isinstance(prim, Affine) else {}
    out = prim.run(tap, {**corr, **ahead}, *shares, *extra)
    view = dict(tap.seen)
    if isinstance(prim, Linear):
        view |= _owner_learned(case, corr, tap.rank, shares[0], view)
    view |= {f"own.{k}": c for k, c in _own(prim, corr, shares, case.xor).items()}
    return out, view


def _owner_operands(case: Case, corr: Shares, rank: int, seeds: Seeds) -> tuple[Any, ...]:
    prim: Any = case.prim
    known = case.known
    if known is None or known.weight is None or seeds.setup is None:
        raise AssertionError("internal error in privml: a weight-owner case needs weight and key")
    if rank == 0:
        return known.weight, known.bias
    return None if isinstance(prim, Affine) else _ahead(case, corr, seeds), None


def _ahead(case: Case, corr: Shares, seeds: Seeds) -> Words:
    """Return what a party computes ahead from its shares and W - B."""
    prim: Any = case.prim
    known = case.known
    if known is None or known.weight is None or seeds.setup is None:
        raise AssertionError("internal error in privml: a weight-owner case needs weight and key")
    opened = known.weight - setup_mask(seeds.setup, prim.weight, known.weight.shape)
    ahead: Words = prim.prepare(corr, opened)
    return ahead


def _owner_learned(case: Case, corr: Shares, rank: int, x: Words, view: View) -> View:
    """Compute what a party learns of a weight-owner product from what it received."""
    known = case.known
    if known is None or known.weight is None:
        return {}
    if rank == 1:
        return {"own.reply": Column(corr["r"] + HALF)} if "r" in corr else {}
    received = [c.array for c in view.values()]
    moved = x + received[0]
    if len(received) < 2:
        return {"opened.input": Column(moved)}
    c = moved @ known.weight + corr["c"] + received[1] + HALF
    if "r" in corr:
        c = c + corr["r"]
    product = c if known.bias is None else c + known.bias
    return {"opened.input": Column(moved), "opened.product": Column(product)}


def _own(
    prim: Primitive, corr: Shares, shares: tuple[Array, ...], xor: frozenset[int]
) -> dict[str, Column]:
    planes = {f.name: f.group == "xor" and f.dtype == "u8" for f in prim.fields()}
    own = {k: Column(v, planes=planes.get(k, False)) for k, v in corr.items()}
    own |= {f"input{i}": Column(v, planes=i in xor) for i, v in enumerate(shares)}
    return own


def joined(case: Case, outputs: tuple[Any, Any]) -> tuple[Array, ...]:
    """Clear outputs from both parties' shares, always as a tuple; opened counts must be equal."""
    if isinstance(case.prim, Compact):
        (x, told), (y, heard) = outputs
        internal(np.array_equal(told, heard), "both parties open the same counts")
        return x + y, told
    boolean = isinstance(case.prim, Compare | And)
    a, b = (o if isinstance(o, tuple) else (o,) for o in outputs)
    return tuple(x ^ y if boolean else x + y for x, y in zip(a, b, strict=True))


def simulated(case: Case, seeds: Seeds, *, item: int = 0) -> tuple[Array, ...]:
    """Return the outputs of the primitive's own integer oracle under the masks of ``seeds``."""
    prim = case.prim
    masks = LazyValues(prim.fields(), prim.derive, item, seeds)
    extra = () if case.known is None else (case.known.weight, case.known.bias)
    out = prim.simulate(masks, *case.inputs, *extra)
    return out if isinstance(out, tuple) else (out,)


def retyped(prim: Primitive, kind: type[Primitive]) -> Primitive:
    """Return a primitive of another class with the same public fields."""
    return kind(**vars(prim))


def with_primitive(case: Case, change: Callable[[Primitive], Primitive]) -> Case:
    """Return the case with its primitive passed through ``change``."""
    return replace(case, prim=change(case.prim))


@dataclass(frozen=True)
class Pair:
    """Two cases of one primitive that nobody should be able to tell apart."""

    make: Callable[[int], tuple[Case, Case]]
    ranks: tuple[int, ...] = field(default=(0, 1))

    def of(self, samples: int) -> tuple[Case, Case]:
        """Build both cases with ``samples`` elements of equal inputs."""
        first, second = self.make(samples)
        internal(first.prim == second.prim, "both cases have one primitive")
        return replace(first, samples=samples), replace(second, samples=samples)


def ring(value: int, shape: tuple[int, ...], dtype: str = "u8") -> Array:
    """Array filled with one signed integer as a ring word."""
    kind = np.dtype(dtype)
    return np.full(shape, value % (1 << (8 * kind.itemsize)), kind)


def _planes(bit: int, n: int) -> Words:
    return np.full(packed(n), (1 << 64) - 1 if bit else 0, np.uint64)


def _words(
    prim: Callable[[int], Primitive], *values: tuple[int, ...], dtype: str = "u8",
    tail: tuple[int, ...] = (),
) -> Pair:  # fmt: skip
    """Pair of a primitive on arrays ``(n, *tail)``; ``values`` are both choices of its inputs."""

    def make(n: int) -> tuple[Case, Case]:
        p = prim(n)
        first, second = (
            Case(p, tuple(ring(v, (n, *tail), dtype) for v in choice)) for choice in values
        )
        return first, second

    return Pair(make)


def _bits(
    prim: Callable[[int], Primitive], *values: tuple[int, ...], words: tuple[int, int] | None = None
) -> Pair:
    """Pair of a primitive on packed bits, and on one array if ``words`` is given."""

    def make(n: int) -> tuple[Case, Case]:
        p = prim(n)
        cases = []
        for i, choice in enumerate(values):
            inputs = [_planes(b, n) for b in choice]
            if words is not None:
                inputs.append(ring(words[i], (n,)))
            cases.append(Case(p, tuple(inputs), frozenset(range(len(choice)))))
        return cases[0], cases[1]

    return Pair(make)


def _blocks(n: int) -> tuple[Case, Case]:
    """Two blocks of one column each."""
    prim = BlockMatMul(n, 1, 2, 1, block=1)
    first, second = (
        Case(prim, (ring(x, (n, 1, 2)), ring(y, (n, 2, 1)))) for x, y in ((0, 0), (-1, 1 << 63))
    )
    return first, second


def _fours(n: int) -> tuple[Case, Case]:
    """Return groups of four: equal values, and values whose last is the largest."""
    rows = [ring(v, (n,)) for v in (-5, -(1 << 40), 0, 1 << 41)]
    prim = Maximum(n, 20)
    return Case(prim, (ring(7, (4, n)),)), Case(prim, (np.stack(rows),))


def _owned(prim: Callable[[int], Any], shape: tuple[int, ...], width: int, *, cut: bool) -> Pair:
    """Pair of a weight-owner product; the inputs and the server's operand both differ."""

    def make(n: int) -> tuple[Case, Case]:
        cases = []
        for value, weight in ((0, 1), (-(5 << 16), -(3 << 12))):
            bias = ring(weight << 10, (width,)) if cut else None
            known = Known(ring(weight, shape), bias)
            cases.append(Case(prim(n), (ring(value, (n, shape[0])),), known=known))
        return cases[0], cases[1]

    return Pair(make)


def _power(n: int) -> RowPower:
    """Three intervals of 1 / sqrt(x), with the multipliers of a bank."""
    grid, multipliers = (1 << 21, 1 << 22, 1 << 30), (1 << 41, 1 << 40, 1 << 39, 1 << 31)
    cubic = (3 << 55, -5 << 41, 7 << 27, -11 << 13)  # below 2^62 up to twice the interval
    return RowPower(n, grid, multipliers, (1, 3, 9, 27), cubic, 42)


PAIRS: Mapping[str, Pair] = {
    "truncate": _words(lambda n: Truncate((n,), 12), (EDGE,), (-EDGE,)),
    "truncate44": _words(lambda n: Truncate((n,), 44), (0,), (-1,)),
    "mul": _words(lambda n: Mul((n,)), (0, 0), ((1 << 64) - 1, 1 << 63)),
    "mul32": _words(lambda n: Mul((n,), "u4"), (0, 0), ((1 << 32) - 1, 1 << 31), dtype="u4"),
    "square": _words(lambda n: Square((n,)), (0,), (-1,)),
    "moments": _words(lambda n: Moments(n, 2), (0,), (1 << 30,), tail=(2,)),
    "scale_rows": _words(lambda n: ScaleRows(n, 1), (0, 0), (-1, 1 << 40), tail=(1,)),
    "matmul": _words(lambda n: MatMul(n, 1, 1, 1), (0, 0), (-1, 1 << 63), tail=(1, 1)),
    "matmul32": _words(
        lambda n: MatMul(n, 1, 1, 1, "u4"), (0, 0), (-1, 1 << 31), dtype="u4", tail=(1, 1)
    ),
    "linear": _owned(lambda n: Linear(n, 2, 1, 12, "w"), (2, 1), 1, cut=True),
    "linear_exact": _owned(lambda n: Linear(n, 2, 2, 0, "w"), (2, 2), 2, cut=False),
    "affine": _owned(lambda n: Affine(n, 1, 4, 14, "w"), (1,), 1, cut=True),
    "compare": _words(lambda n: Compare((n,)), (0,), (-1,)),
    "compare3": _words(lambda n: Compare((n,), (-7, 0, 1 << 40)), (-7,), (-8,)),
    "compare32": _words(lambda n: Compare((n,), (0, 9), 32), (0,), (-1,), dtype="u4"),
    "compare16": _words(lambda n: Compare((n,), (0, 9), 16), (0,), (-1,)),
    "and": _bits(And, (0, 0), (1, 1)),
    "bit_to_ring": _bits(lambda n: BitToRing((n,)), (0,), (1,)),
    "select": _bits(lambda n: Select((n,)), (0,), (1,), words=(-1, 1 << 62)),
    "maximum": Pair(_fours),
    "exp": _words(lambda n: Exp((n,), 16), (-(1 << 16),), (-(40 << 32),)),
    "exp0": _words(lambda n: Exp((n,), 0), (-1,), (-(15 << 16),)),
    "gelu": _words(lambda n: Gelu((n,)), (0,), (-(1 << 22),)),
    "gelu24": _words(lambda n: Gelu((n,), bits=24), (0,), (-(1 << 22),)),
    "gelu_low": _words(lambda n: GeluLow((n,)), (0,), (-(1 << 22),)),
    "gelu_low24": _words(lambda n: GeluLow((n,), 24), (0,), (-(1 << 22),)),
    "exp_low": _words(lambda n: ExpLow((n,), 17), (-(1 << 24),), (-(40 << 33),)),
    "block_matmul": Pair(_blocks),
    "row_power": _words(_power, (1 << 20,), (1 << 30,)),
    "row_power32": _words(lambda n: replace(_power(n), bits=32), (1,), (1 << 30,)),
    "reveal": Pair(
        lambda n: (Case(Reveal((n,)), (ring(0, (n,)),)), Case(Reveal((n,)), (ring(-1, (n,)),))),
        ranks=(0,),
    ),
}
"""Two adversarial inputs for every primitive; ``reveal`` may show the client its output."""
