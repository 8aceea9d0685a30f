"""Named checks that a protocol stack must pass; a broken stack must fail one of them.

A :class:`Build` is the stack with its replaceable parts, honest by default. A check returns what it
found; the empty list means passed. Users can hold their own primitives against the same checks.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from math import sqrt
from typing import Protocol

import numpy as np

from privml.backbones.config import EncoderConfig
from privml.backbones.synthetic import random_batch, random_params
from privml.errors import CorrelationExhausted
from privml.protocols.cipherprune.exp_low import ExpLow
from privml.protocols.cipherprune.gelu_low import CUT, GeluLow
from privml.protocols.mpc.arithmetic.truncate import Truncate
from privml.protocols.mpc.boolean.compare import Compare, packed
from privml.protocols.mpc.boolean.logic import Select
from privml.protocols.mpc.correlations.supply import PoolSupply
from privml.protocols.mpc.engine import Planner
from privml.protocols.mpc.fields import Array, Seeds, setup_mask
from privml.protocols.mpc.nonlinear.exp import Exp
from privml.protocols.mpc.nonlinear.gelu import Gelu
from privml.protocols.mpc.nonlinear.maximum import Maximum
from privml.protocols.mpc.primitive import Context, Primitive
from privml.rng import Csprng, ScienceSeed
from privml.testing.cases import (
    EDGE,
    PAIRS,
    Case,
    SupplyMaker,
    fresh_seeds,
    joined,
    play,
    ring,
    with_primitive,
)
from privml.testing.oracles import wrong
from privml.testing.programs import Keys, SupplyKind, TinyModel, make_supply
from privml.testing.shuffles import SHUFFLES, hard_shuffles, shuffle
from privml.testing.simulate import LocalSupply
from privml.testing.views import View, repeated, search, uniform

SAMPLES = 10_048
"""Runs per secret in a view check, a multiple of 64 above 10,000."""


def _same(prim: Primitive) -> Primitive:
    """Keep a primitive as it is."""
    return prim


class Prologue(Protocol):
    """What a party does before a program; the client is given the padding of its batch."""

    def __call__(self, ctx: Context, *, padding: Array) -> None:
        """Use the party's context."""


def _nothing(ctx: Context, *, padding: Array) -> None:
    """Send nothing ahead of the program."""


@dataclass(frozen=True)
class Build:
    """The protocol stack with its replaceable parts.

    Attributes
    ----------
    primitive
        What is run in place of a primitive.
    seeds
        How the keys of a run are drawn.
    supply
        How a party expands the correlations of one primitive.
    pool_supply
        The supply of a whole run.
    prologue
        What a party does before the program; the client is given the padding of its batch.
    """

    primitive: Callable[[Primitive], Primitive] = _same
    seeds: Callable[[], Seeds] = fresh_seeds
    supply: SupplyMaker = LocalSupply
    pool_supply: SupplyKind = PoolSupply
    prologue: Prologue = _nothing


HONEST = Build()


def view(build: Build, name: str) -> list[str]:
    """Search both parties' views of a primitive for structure and for the secret."""
    pair = PAIRS[name]
    first, second = (
        play(with_primitive(c, build.primitive), build.seeds(), supply=build.supply)
        for c in pair.of(SAMPLES)
    )
    found: list[str] = []
    for rank in pair.ranks:
        lines = search(first.views[rank], second.views[rank], samples=SAMPLES)
        found += [f"rank {rank}: {line}" for line in lines]
    return found


def queries(build: Build, name: str) -> list[str]:
    """Search the views of two consecutive queries of one run together."""
    pair = PAIRS[name]
    found: list[str] = []
    views: list[tuple[View, View]] = []
    for cases in (pair.of(SAMPLES), pair.of(SAMPLES)[::-1]):
        seeds = build.seeds()
        played = [
            play(with_primitive(c, build.primitive), seeds, item=i, supply=build.supply)
            for i, c in enumerate(cases)
        ]
        views.append((_merged([p.views[0] for p in played]), _merged([p.views[1] for p in played])))
    for rank in pair.ranks:
        lines = search(views[0][rank], views[1][rank], samples=SAMPLES)
        found += [f"rank {rank}: {line}" for line in lines]
    return found


def _merged(views: list[View]) -> View:
    return {
        f"own.{i}.{k[4:]}" if k.startswith("own.") else f"query{i}.{k}": c
        for i, v in enumerate(views)
        for k, c in v.items()
    }


def hard_cases(name: str) -> list[Case]:
    """Return inputs on which a wrong primitive is likely to show, about 512 elements each."""
    seed = ScienceSeed(20_26).child("hard", name)
    random = seed.generator()
    edges = np.array([0, 1, -1, 2, -2, EDGE, -EDGE, EDGE - 1, EDGE // 3, -EDGE // 3], np.int64)
    wide = random.integers(-EDGE, EDGE, 512, np.int64)
    x = np.concatenate([edges, wide, wide >> np.int64(30)]).view(np.uint64)
    n = x.shape
    exps = -(random.uniform(0, 40, 512) * 2.0**32).astype(np.int64) - (1 << 16)
    cuts = np.array([-1, 0, 1], np.int64)
    grid = np.concatenate([np.linspace(-9, 9, 1201) * 2.0**12, 13107 * np.array([-1, 1])])
    dense = np.concatenate([np.rint(grid).astype(np.int64), 13107 + cuts, -13107 + cuts])
    near = np.concatenate([t + cuts for t in (-7, 0, 1 << 40)]).view(np.uint64)
    low = np.concatenate([dense, CUT + cuts, -CUT + cuts, np.array([1 << 40, -(1 << 40)])])
    short = np.concatenate([-(1 << 24) - (exps << 1), np.array([-8, 8, -16, -64]) << 33])
    short = -np.abs(
        np.concatenate([short, (-8 << 33) + 4000 * np.arange(-64, 64), -(1 << 24) + cuts])
    )
    planes = random.integers(0, 1 << 64, packed(x.size), np.uint64)
    table: Mapping[str, list[Case]] = {
        "truncate": [Case(Truncate(n, f), (x,)) for f in (1, 12, 16, 28, 44, 60)],
        "compare": [Case(Compare(v.shape, (-7, 0, 1 << 40)), (v,)) for v in (x, near)],
        "compare16": [_short(16, (0, 9)), _short(16, (-(1 << 14), 1 << 14))],
        "compare32": [_short(32, (0, 9)), _short(28, (-1, 0, 1 << 26))],
        "select": [Case(Select(n), (planes, x), frozenset({0}))],
        "maximum": [Case(Maximum(q.shape[1], start), (q,)) for q, start in quadruples(seed)],
        "row_power": [Case(PAIRS["row_power"].of(n)[0].prim, (v,)) for n, v in powers(seed)],
        "exp": [Case(Exp(exps.shape, 16), (exps.view(np.uint64),))],
        "exp_low": [Case(ExpLow(short.shape, 17), (short.view(np.uint64),))],
        "gelu_low": [Case(GeluLow(low.shape), (low.view(np.uint64),))],
        "gelu": [Case(Gelu(dense.shape), (dense.view(np.uint64),))],
    }  # fmt: skip
    if name in SHUFFLES:
        return hard_shuffles(name)
    return table[name] if name in table else [*PAIRS[name].of(130)]


def _short(bits: int, thresholds: tuple[int, ...]) -> Case:
    """Values at both ends of what ``bits`` bits can compare, at each threshold, and between."""
    half = 1 << (bits - 1)
    low, high = max(thresholds) - half, min(thresholds) + half
    ends = [low, low + 1, high - 1, 0, 1, -1, half // 2, -half // 2]
    near = [t + d for t in thresholds for d in (-1, 0, 1)]
    even = np.linspace(low, high - 1, 300)
    values = np.concatenate([np.array(ends + near, np.int64), np.rint(even).astype(np.int64)])
    words = np.clip(values, low, high - 1).view(np.uint64).astype(np.uint32)
    return Case(Compare(words.shape, thresholds, bits), (words,))


def quadruples(seed: ScienceSeed) -> list[tuple[Array, int]]:
    """Return groups of four, many of them with equal or nearly equal values, and units to try."""
    out, random = [], seed.generator()
    for start in (0, 20, 40):
        near = random.integers(-4, 5, (4, 256), np.int64) << np.int64(max(start - 1, 0))
        wide = random.integers(-(1 << 21), 1 << 21, (4, 256), np.int64) << np.int64(start)
        rest = random.integers(0, 1 << start, (4, 256), np.int64)
        last = np.int64((1 << 22) - 1 << start)  # differences of 2^23 - 2 units
        ends = last * np.array([[1, -1, 1, 0], [-1, -1, 1, 1], [0, 0, 0, -1], [1, 1, -1, 1]])
        both = np.concatenate([near, near + rest, wide + rest, ends], axis=1)
        out.append((both.view(np.uint64), start))
    return out


def powers(seed: ScienceSeed) -> list[tuple[int, Array]]:
    """Return values for the intervals of the power's case, their ends among them."""
    random = seed.generator()
    parts = [random.integers(1, 1 << 20, 100), random.integers(1 << 20, 3 << 20, 300)]
    parts += [(1 << np.array([0, 20, 21, 22, 30])), (1 << np.array([20, 21, 22])) - 1]
    values = np.concatenate(parts).astype(np.uint64)
    return [(values.size, values)]


def oracle(build: Build, name: str) -> list[str]:
    """Hold a primitive's outputs against exact integers and declared errors."""
    found: list[str] = []
    for case in hard_cases(name):
        played = play(with_primitive(case, build.primitive), build.seeds(), supply=build.supply)
        found += wrong(case, joined(case, played.outputs))
    return found


def cost(build: Build, name: str) -> list[str]:
    """Hold flights and payload of a primitive against what it declares."""
    found: list[str] = []
    for samples in (1, 65, 130):
        for case in PAIRS[name].of(samples):
            prim = build.primitive(case.prim)
            ends = play(replace(case, prim=prim), build.seeds(), supply=build.supply).wires
            declared, sent = prim.online(), (ends[0].sent, ends[1].sent)
            flights = [e.flights for e in ends]
            if flights != [declared.flights] * 2 or sent != declared.sent:
                found.append(f"{declared} declared, {flights} flights and {sent} bytes measured")
    return found


def bias(build: Build, name: str = "truncate", *, elements: int = 1 << 20) -> list[str]:
    """Measure the mean rounding error of a truncation at both range edges and in the middle."""
    random = ScienceSeed(7).child("bias").generator()
    found: list[str] = []
    for f in (12, 44):
        for low in (-EDGE, -(1 << 50), EDGE - (1 << 40)):
            x = (low + random.integers(0, 1 << 40, elements, np.int64)).view(np.uint64)
            case = Case(build.primitive(Truncate((elements,), f)), (x,))
            (y,) = joined(case, play(case, build.seeds(), supply=build.supply).outputs)
            found += rounding_problems(x, y, f)
    return found


def rounding_problems(x: Array, y: Array, f: int) -> list[str]:
    """Hold truncated words ``y`` of ``x`` to zero failures and a mean error within 5 errors."""
    floor = x.view(np.int64) >> np.int64(f)
    up = y.view(np.int64) - floor
    rest = (x & np.uint64((1 << f) - 1)).astype(np.float64) / 2.0**f
    failures = int(((up != 0) & ((up != 1) | (rest == 0))).sum())
    spread = sqrt(float((rest * (1 - rest)).sum())) or 1.0
    z = float((np.clip(up, -2, 2) - rest).sum()) / spread
    found = [f"f = {f}: {failures} of {x.size} elements are wrong"] if failures else []
    return found + ([f"f = {f}: mean error is {z:.1f} standard errors"] if abs(z) > 5 else [])


def fresh(build: Build, name: str) -> list[str]:
    """Look for 16-byte blocks that occur twice in two runs on the same inputs."""
    case = with_primitive(PAIRS[name].of(512)[0], build.primitive)
    runs = [play(case, build.seeds(), supply=build.supply) for _ in range(2)]
    sent = repeated(m for run in runs for end in run.wires for m in end.view)
    learned = [
        c.array.tobytes() for run in runs for k, c in run.views[0].items() if k.startswith("opened")
    ]
    count = sent + repeated(learned)
    return [f"{count} blocks of 16 bytes occur again"] if count else []


def sizes(build: Build, name: str, *, pairs: int = 20) -> list[str]:
    """Compare number, order and sizes of messages over many inputs."""
    random = ScienceSeed(11).child("sizes", name).generator()
    shapes = set()
    for _ in range(pairs):
        for case in PAIRS[name].of(70):
            drawn = [
                random.integers(0, np.iinfo(x.dtype).max, x.shape, x.dtype, endpoint=True)
                for x in case.inputs
            ]
            for inputs in (case.inputs, tuple(drawn)):
                moved = with_primitive(replace(case, inputs=inputs), build.primitive)
                ends = play(moved, build.seeds(), supply=build.supply).wires
                shapes.add(tuple(tuple(map(len, end.view)) for end in ends))
    return [f"{len(shapes)} different message patterns"] if len(shapes) > 1 else []


def setup(build: Build, name: str = "w") -> list[str]:
    """Search the set-up messages of two pools for how two weights differ."""
    shape = (256, 256)
    first = ring(0, shape) - setup_mask(_setup_key(build), name, shape)
    second = ring(1 << 20, shape) - setup_mask(_setup_key(build), name, shape)
    return uniform(second - first) + uniform(first)


def _setup_key(build: Build) -> Csprng:
    key = build.seeds().setup
    if key is None:
        raise AssertionError("internal error in privml: the dealer holds the set-up key")
    return key


def order(build: Build, name: str = "supply") -> list[str]:
    """Ask a supply for a correlation twice and for another than the next one."""
    steps = [Truncate((64,), 12), Compare((64,)), Truncate((64,), 12)]
    planner = Planner()
    for prim in steps:
        planner.call(prim, (), None)
    found: list[str] = []
    for items in ((0, 0), (1,), (0, 2), (0, 1, 2, 2)):
        source = make_supply(1, planner.steps, Keys.fresh(), {}, kind=build.pool_supply)
        try:
            for item in items:
                source.take(steps[item], item)
        except CorrelationExhausted:
            continue
        found.append(f"items {items} were handed out")
    return found


CONFIG = EncoderConfig(
    name="tiny", layers=1, hidden=16, heads=2, ffn=32, vocab=40, max_positions=8, max_length=8
)


def tiny(config: EncoderConfig = CONFIG, *, rows: int = 2, seed: int = 3) -> TinyModel:
    """Make a random encoder with weights large enough that every step matters."""
    drawn = random_params(config, seed=seed)
    params = {k: v if k.endswith("gamma") else 15 * v for k, v in drawn.items()}
    return TinyModel.make(config, params, rows=rows, length=config.max_length)


def program(build: Build, name: str = "encoder") -> list[str]:
    """Run a whole encoder: equal to simulation, cost as planned, sizes fixed, uniform views."""
    model = tiny()
    found: list[str] = []
    patterns = set()
    heard: tuple[list[Array], list[Array]] = ([], [])
    for seed in range(4):
        batch = random_batch(CONFIG, rows=2, length=8, seed=seed)
        ahead = partial(build.prologue, padding=(~batch.mask).astype(np.uint64))
        run = model.run(batch, supply=build.pool_supply, prologue=ahead)
        found += run.problems()
        patterns.add(tuple(tuple(map(len, end.view)) for end in run.wires))
        heard[0].extend(c.array for c in run.views[0].values())
        heard[1].extend(c.array for c in list(run.views[1].values())[:-1])
    if len(patterns) > 1:
        found.append(f"{len(patterns)} different message patterns")
    for rank in (0, 1):
        flat = np.concatenate([a.reshape(-1).view(np.uint8) for a in heard[rank]])
        found += [f"rank {rank}: {line}" for line in uniform(flat)]
    return found


CHECKS: Mapping[str, Callable[[Build, str], list[str]]] = {
    "bias": bias,
    "cost": cost,
    "fresh": fresh,
    "oracle": oracle,
    "order": order,
    "program": program,
    "queries": queries,
    "setup": setup,
    "shuffle": shuffle,
    "sizes": sizes,
    "view": view,
}
