"""Whole programs in one process: planned, simulated and executed, with what each party saw.

A *body* is a program over an engine; it is given the engine, the server's operands and who holds
the inputs: ``"plan"`` (shapes only), ``"simulate"`` (clear words), or rank 0 or 1 (shares).
Correlations come from an in-memory dealer through the same supply that pools use.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, cast

import numpy as np
from numpy.typing import NDArray

from privml.backbones.base import Op
from privml.backbones.batch import Encoded
from privml.backbones.config import EncoderConfig
from privml.backbones.interpreter import run_program
from privml.backbones.program import encoder_ops
from privml.backbones.public import PublicPart, table_names
from privml.backbones.synthetic import random_batch
from privml.errors import CorrelationExhausted, internal
from privml.protocols.mpc.arithmetic.affine import Affine
from privml.protocols.mpc.arithmetic.matmul import Linear
from privml.protocols.mpc.correlations.run import RunMaterial
from privml.protocols.mpc.correlations.supply import PoolSupply
from privml.protocols.mpc.correlations.tags import Tagger, tagged
from privml.protocols.mpc.engine import (
    Engine,
    Executor,
    Known,
    Planner,
    Simulator,
    Step,
    Val,
    places,
)
from privml.protocols.mpc.fields import Seeds, corrections, setup_mask
from privml.protocols.mpc.inputs import client_inputs, server_inputs
from privml.protocols.mpc.plan import Plan
from privml.protocols.mpc.primitive import Context, Cost, Words
from privml.protocols.mpc.program import Inputs
from privml.protocols.mpc.quantise import quantise
from privml.protocols.mpc.spec import Spec
from privml.rng import Csprng
from privml.testing.simulate import LocalWire, in_two_threads, split, wires
from privml.testing.views import Tap, View

Holder = Literal["plan", "simulate", 0, 1]
Params = Mapping[str, Known]
Body = Callable[[Engine, Params, Holder], Val]
Floats = Mapping[str, NDArray[np.float32]]


@dataclass(frozen=True)
class Keys:
    """The 32-byte keys of one run and its pool."""

    runs: tuple[bytes, bytes]
    setup: bytes

    @classmethod
    def fresh(cls) -> Keys:
        """Draw keys from the operating system's entropy."""
        root = Csprng.fresh()
        return cls((root.token(32), root.token(32)), root.token(32))

    @property
    def seeds(self) -> Seeds:
        """The keys as the dealer and the simulator hold them."""
        return Seeds((Csprng(self.runs[0]), Csprng(self.runs[1])), Csprng(self.setup))


class MemoryMaterial:
    """Material of one run in memory, with the interface of a claimed run of a pool."""

    def __init__(self, seed: bytes, data: bytes) -> None:
        self.seed = seed
        self._rest = memoryview(data)

    def read(self, nbytes: int) -> memoryview:
        """Return the next bytes, once."""
        if nbytes > len(self._rest):
            raise CorrelationExhausted("no corrections are left; deal a new pool")
        view, self._rest = self._rest[:nbytes], self._rest[nbytes:]
        return view

    def close(self) -> None:
        """Forget what is left."""
        self._rest = memoryview(b"")


SupplyKind = Callable[..., PoolSupply]


def make_supply(
    rank: int, steps: Sequence[Step], keys: Keys, params: Params, *,
    kind: SupplyKind = PoolSupply, prefixes: bool = False,
) -> PoolSupply:  # fmt: skip
    """Deal in memory and return one party's supply for the steps of a plan."""
    seeds, parts = keys.seeds, []
    tags = Tagger(seeds.runs[1])
    opened: dict[str, Words] = {}
    for item, step in enumerate(steps):
        prim = step.primitive
        if rank == 1:
            dealt = corrections(prim.fields(), prim.derive, item, seeds)
            parts += [bytes(piece) for piece in tagged(dealt, tags)]
        if isinstance(prim, Linear | Affine):
            opened[prim.weight] = masked_weight(prim.weight, params, keys)
    material = MemoryMaterial(keys.runs[rank], b"".join(parts))
    return kind(
        rank, cast("RunMaterial", material), steps, opened=opened, prefixes=prefixes,
    )  # fmt: skip


def masked_weight(name: str, params: Params, keys: Keys) -> Words:
    """W - B of one operand: what the server sends once per pool."""
    weight = params[name].weight
    if weight is None:
        raise AssertionError("internal error in privml: a secret operand without words")
    return weight - setup_mask(Csprng(keys.setup), name, weight.shape)


@dataclass(frozen=True)
class Run:
    """What came of a body: its plan, the simulation and the execution.

    Attributes
    ----------
    steps, cost
        Planned primitives and their price.
    simulated, executed
        Result with clear words.
    head
        Largest share of the ring's range that each kind of value used.
    wires, views
        Link records and what was learned, by rank.
    """

    steps: tuple[Step, ...]
    cost: Cost
    simulated: Val
    executed: Val
    head: Mapping[str, float]
    wires: tuple[LocalWire, LocalWire]
    views: tuple[View, View]
    found: tuple[tuple[int, ...], ...] = ()

    def problems(self) -> list[str]:
        """Differences between simulation and execution, and between declared and metered cost."""
        found = []
        if not np.array_equal(clear(self.simulated), clear(self.executed)):
            found.append("execute differs from simulate")
        flights = [w.flights for w in self.wires]
        if flights != [self.cost.flights] * 2:
            found.append(f"{self.cost.flights} flights declared, {flights} measured")
        sent = (self.wires[0].sent, self.wires[1].sent)
        if sent != self.cost.sent:
            found.append(f"{self.cost.sent} payload bytes declared, {sent} measured")
        return found


def clear(value: Val) -> Words:
    """Words of a value that has them."""
    if value.words is None:
        raise AssertionError("internal error in privml: a value without words")
    return value.words


Prologue = Callable[[Context], None]


def three_ways(
    body: Body, params: Params | None = None, *, keys: Keys | None = None,
    supply: SupplyKind = PoolSupply, prologue: Prologue | None = None, opens: bool = False,
    dealt: Sequence[Step] | None = None,
) -> Run:  # fmt: skip
    """Plan, simulate and execute a body under the same masks.

    Parameters
    ----------
    params
        The server's operands by name.
    keys
        Keys of the run; fresh ones if absent.
    supply
        Kind of supply.
    prologue
        Called with each party's context before the body.
    opens
        Whether the body itself opens its result to rank 1, instead of ending with shares.
    dealt
        Steps that correlations are dealt for, at their largest sizes, if sizes depend on the inputs
        and on what the body opens; the body's own steps if absent.
    """
    operands, keys = params or {}, keys or Keys.fresh()
    blank = {name: Known() for name in operands}
    planner = Planner()
    body(planner, blank, "plan")
    steps = tuple(planner.steps if dealt is None else dealt)
    index = None if dealt is None else places(steps)
    simulator = Simulator(keys.seeds, index=index)
    simulated = body(simulator, operands, "simulate")
    ends = wires()
    found: dict[int, list[tuple[int, ...]]] = {}

    def job(rank: int) -> tuple[Val, View]:
        tap = Tap(ends[rank])
        if prologue is not None:
            prologue(tap)
        prefixes = index is not None
        source = make_supply(rank, steps, keys, operands, kind=supply, prefixes=prefixes)
        source.prepare(memory_bytes=1 << 20)
        engine = Executor(tap, source, index=index)
        found[rank] = engine.found
        out = body(engine, operands if rank == 0 else blank, 0 if rank == 0 else 1)
        return out, dict(tap.seen)

    (first, view0), (second, view1) = in_two_threads(job)
    words = clear(second) if opens else clear(first) + clear(second)
    if index is not None:
        internal(found[0] == found[1] == simulator.found, "all three found the same sizes")
        planner = Planner(found[0])
        body(planner, blank, "plan")
    return Run(steps, planner.total(), simulated, second.like(words),
               simulator.head, ends, (view0, view1), tuple(simulator.found))  # fmt: skip


def function(f: Callable[..., Val], *inputs: Val) -> Body:
    """Body that calls ``f(engine, *inputs)`` on clear inputs, shared afresh for each run."""
    cut = [split(clear(v), Csprng.fresh().child(i)) for i, v in enumerate(inputs)]

    def body(e: Engine, params: Params, holder: Holder) -> Val:
        held = [
            v.like(None, shape=v.shape) if holder == "plan"
            else v if holder == "simulate" else v.like(c[holder])
            for v, c in zip(inputs, cut, strict=True)
        ]  # fmt: skip
        return f(e, *held, *params.values())

    return body


@dataclass(frozen=True)
class TinyModel:
    """A random encoder small enough for tests, ready to run under the protocol."""

    plan: Plan
    floats: Floats
    known: Params = field(repr=False)
    public: PublicPart = field(repr=False)

    @classmethod
    def make(
        cls, config: EncoderConfig, params: Floats, *, rows: int, length: int,
        spec: Spec | None = None,
    ) -> TinyModel:  # fmt: skip
        """Calibrate on random batches, plan and quantise; the program's own interpreter decides."""
        spec = spec or Spec()
        released = spec.embedding == "released"
        tables = {n: params[n] for n in table_names(config)} if released else {}
        public = PublicPart(config, None, tables)
        bounds = measured_bounds(config, params, length=length)
        plan = Plan(config, spec, rows, length, "dealer", bounds, public.digest())
        return cls(plan, params, quantise(plan.program, params), public)

    def body(self, batch: Encoded) -> Body:
        """Return the encoder's program on one batch of the plan's size."""
        internal(batch.ids.shape == (self.plan.rows, self.plan.length), "the batch fits the plan")
        mine = client_inputs(self.plan, batch, self.public)
        held: Mapping[Holder, Inputs] = {
            "plan": Inputs(length=mine.length), "simulate": mine, 1: mine,
            0: server_inputs(self.plan, mine.length),
        }  # fmt: skip

        def body(e: Engine, params: Params, holder: Holder) -> Val:
            return self.plan.program.run(e, params, held[holder])

        return body

    def run(
        self, batch: Encoded, *, keys: Keys | None = None, supply: SupplyKind = PoolSupply,
        prologue: Prologue | None = None,
    ) -> Run:  # fmt: skip
        """Plan, simulate and execute one batch."""
        dealt = None if self.plan.index is None else self.plan.steps
        return three_ways(self.body(batch), self.known, keys=keys, supply=supply,
                          prologue=prologue, opens=True, dealt=dealt)  # fmt: skip


def measured_bounds(
    config: EncoderConfig, params: Floats, *, length: int, factor: float = 4.0
) -> dict[str, float]:
    """Absolute bound of each value of the program over random batches, times ``factor``."""
    bounds: dict[str, float] = {}
    ops = encoder_ops(config)
    for seed in range(3):
        batch = random_batch(config, rows=4, length=length, seed=seed)
        values = run_program(ops, params, batch)
        for node in ops:
            peak = float(np.abs(values[node.name]).max())
            bounds[node.name] = max(bounds.get(node.name, 0.0), factor * peak)
            if node.kind == Op.ATTENTION:
                name = f"{node.name.rsplit('.', 1)[0]}.scores"
                peak = _largest_score(values[node.inputs[0].name], node.int_attr("heads"))
                bounds[name] = max(bounds.get(name, 0.0), factor * peak)
    return bounds


def _largest_score(qkv: NDArray[np.floating], heads: int) -> float:
    rows, n, width = qkv.shape
    q, k, _ = np.moveaxis(qkv.reshape(rows, n, 3, heads, width // 3 // heads), 2, 0)
    scores = np.einsum("bihd,bjhd->bhij", q, k) / np.sqrt(q.shape[-1])
    return float(np.abs(scores).max())
