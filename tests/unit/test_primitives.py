"""Every primitive against its integer oracle, bit for bit, and its declared cost, exactly."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from privml.protocols.cipherprune.blocks import BlockMatMul
from privml.protocols.cipherprune.exp_low import ExpLow
from privml.protocols.cipherprune.gelu_low import GeluLow
from privml.protocols.cipherprune.keys import StableKeys
from privml.protocols.mpc.arithmetic.affine import Affine
from privml.protocols.mpc.arithmetic.matmul import Linear, MatMul
from privml.protocols.mpc.arithmetic.moments import Moments
from privml.protocols.mpc.arithmetic.mul import Mul, ScaleRows, Square
from privml.protocols.mpc.arithmetic.truncate import Truncate
from privml.protocols.mpc.boolean.compare import Compare
from privml.protocols.mpc.boolean.logic import And, BitToRing, Select
from privml.protocols.mpc.fields import LazyValues, setup_mask
from privml.protocols.mpc.nonlinear.exp import Exp
from privml.protocols.mpc.nonlinear.gelu import Gelu
from privml.protocols.mpc.nonlinear.maximum import Maximum
from privml.protocols.mpc.nonlinear.rows import RowPower, intervals
from privml.protocols.mpc.primitive import Primitive
from privml.rng import Csprng
from privml.testing.simulate import fixed_seeds, run_primitive, split

RNG = np.random.default_rng(11)


def reals(shape: tuple[int, ...], scale: int, size: float) -> Any:
    """Random fixed-point ring words in [-size, size]."""
    return np.round(RNG.uniform(-size, size, shape) * 2.0**scale).astype(np.int64).view(np.uint64)


def words(shape: tuple[int, ...], dtype: str = "u8") -> Any:
    return RNG.integers(0, 1 << (8 * int(dtype[1:])), shape, dtype=np.dtype(dtype), endpoint=False)


def power(n: int, bits: int) -> RowPower:
    thresholds, multipliers = intervals(1 << 12, 1 << 30)
    factors = tuple(range(len(multipliers)))
    return RowPower(n, thresholds, multipliers, factors, (3 << 50, -5 << 36, 7, 11), 42, bits)


SHAPES = [(0,), (1,), (65,), (3, 7), (2, 3, 4, 5)]
CASES: list[tuple[Primitive, list[Any]]] = []
for s in SHAPES:
    CASES += [
        (Truncate(s, 12), [reals(s, 28, 1000.0)]),
        (Truncate(s, 44), [reals(s, 60, 0.9)]),
        (Truncate(s, 18), [reals(s, 36, 10.0)]),
        (Mul(s), [words(s), words(s)]),
        (Mul(s, "u4"), [words(s, "u4"), words(s, "u4")]),
        (Square(s), [words(s)]),
        (Select(s), ["bits", words(s)]),
        (BitToRing(s), ["bits"]),
        (Compare(s, (0,)), [reals(s, 16, 9.0)]),
        (Compare(s, (-5, 0, 1 << 20)), [reals(s, 16, 30.0)]),
        (Compare(s, (0, 7), bits=32), [words(s, "u4") >> np.uint32(2)]),
        (Compare(s, (0, 7), bits=16), [reals(s, 8, 100.0)]),
        (Compare(s, (0, 7), bits=28), [words(s)]),
        (Exp(s, 16), [(-abs(reals(s, 32, 20.0).view(np.int64)) - (1 << 16)).view(np.uint64)]),
        (Gelu(s), [reals(s, 12, 8.0)]),
        (Gelu(s, bits=24), [reals(s, 12, 8.0)]),
        (Gelu(s, bits=28), [words(s)]),
        (Exp(s, 16), [words(s)]),
        (ExpLow(s, 17), [words(s)]),
        (GeluLow(s, 24), [reals(s, 12, 8.0)]),
        (ExpLow(s, 17), [(-abs(reals(s, 33, 10.0).view(np.int64)) - (1 << 24)).view(np.uint64)]),
        (GeluLow(s), [reals(s, 12, 8.0)]),
    ]
CASES += [
    (MatMul(3, 4, 5, 6), [words((3, 4, 5)), words((3, 5, 6))]),
    (MatMul(2, 1, 7, 3, "u4"), [words((2, 1, 7), "u4"), words((2, 7, 3), "u4")]),
    (Moments(5, 9), [reals((5, 9), 16, 50.0)]),
    (Moments(2, 1), [words((2, 1))]),
    (ScaleRows(6, 11), [words((6, 11)), words((6, 1))]),
    *((Maximum(n, 20), [reals((4, n), 32, 50.0)]) for n in (0, 1, 65, 130)),
    (Maximum(70, 0), [words((4, 70))]),
    (Maximum(70, 40, 16), [words((4, 70)) >> np.uint64(10)]),
    (And(130), [words((3,)), words((3,))]),
    (BlockMatMul(2, 3, 8, 5, block=4), [words((2, 3, 8)), words((2, 8, 5))]),
    (StableKeys(65, 1), [words((2,))]),
    (StableKeys(65, 2), [words((3,))]),
    (power(70, 64), [words((70,)) >> np.uint64(34)]),
    (power(70, 32), [words((70,)) >> np.uint64(34)]),
    (power(70, 64), [words((70,))]),
    (power(1, 32), [words((1,))]),
]


def xor_inputs(prim: Primitive, index: int) -> bool:
    first = Select | BitToRing | StableKeys
    return isinstance(prim, And) or (isinstance(prim, first) and index == 0)


@pytest.mark.parametrize("case", range(len(CASES)), ids=lambda i: f"{i}-{CASES[i][0]!r:.60}")
def test_execute_equals_simulate_and_costs_as_declared(case: int) -> None:
    prim, raw = CASES[case]
    seeds = fixed_seeds(case + 1)
    n = int(np.prod(prim.shape)) if hasattr(prim, "shape") else 0
    inputs = [words((-(-n // 64),)) if isinstance(x, str) else np.asarray(x) for x in raw]
    rng = Csprng.fresh()
    cut = [split(x, rng.child(i), xor=xor_inputs(prim, i)) for i, x in enumerate(inputs)]
    shares = (tuple(c[0] for c in cut), tuple(c[1] for c in cut))
    (y0, y1), ends = run_primitive(prim, shares, seeds)
    want = prim.simulate(LazyValues(prim.fields(), prim.derive, 0, seeds), *inputs)
    boolean = isinstance(prim, Compare | And)
    pairs = zip(y0, y1, want, strict=True) if isinstance(want, tuple) else [(y0, y1, want)]
    for a, b, w in pairs:
        got = a ^ b if boolean else a + b
        if isinstance(prim, Compare):
            got, w = trim(got, n), trim(w, n)
        assert np.array_equal(got, w)
    cost = prim.online()
    assert [e.flights for e in ends] == [cost.flights] * 2
    assert (ends[0].sent, ends[1].sent) == cost.sent


def trim(planes: Any, n: int) -> Any:
    """Bits of each plane without padding."""
    bits = np.unpackbits(np.ascontiguousarray(planes).view(np.uint8), bitorder="little")
    return bits.reshape(planes.shape[0], -1)[:, :n]


@pytest.mark.parametrize("f", [0, 12, 16])
@pytest.mark.parametrize("bias", [False, True])
def test_linear(f: int, bias: bool) -> None:
    prim = Linear(5, 7, 9, f, "w")
    seeds = fixed_seeds(3)
    x, w = reals((5, 7), 16, 5.0), reals((7, 9), 12, 2.0)
    b = reals((9,), 28, 3.0) if bias else None
    check_owner(prim, seeds, x, w, b, (7, 9))


def test_affine() -> None:
    prim = Affine(6, 10, 34, 14, "g")
    check_owner(
        prim,
        fixed_seeds(4),
        reals((6, 10), 50, 5.0),
        reals((10,), 14, 2.0),
        reals((10,), 30, 1.0),
        (10,),
    )


def check_owner(prim: Any, seeds: Any, x: Any, w: Any, b: Any, shape: tuple[int, ...]) -> None:
    from privml.protocols.mpc.primitive import Context
    from privml.testing.simulate import LocalSupply, in_two_threads, wires

    opened = w - setup_mask(seeds.setup, prim.weight, shape)
    x0, x1 = split(x, Csprng.fresh())
    ends = wires()

    def job(rank: int) -> Any:
        corr = LocalSupply(rank, seeds).take(prim, 0)
        z1 = prim.prepare(corr, opened) if rank == 1 or isinstance(prim, Affine) else None
        assert z1 is None or z1.shape == prim.prepared
        corr = {**corr, "z1": z1}
        if rank == 0:
            return prim.run(Context(ends[0]), corr, x0, w, b)
        return prim.run(Context(ends[1]), corr, x1, z1, None)

    y0, y1 = in_two_threads(job)
    want = prim.simulate(LazyValues(prim.fields(), prim.derive, 0, seeds), x, w, b)
    assert np.array_equal(y0 + y1, want)
    assert (ends[0].sent, ends[1].sent) == prim.online().sent
    assert [e.flights for e in ends] == [prim.online().flights] * 2
