"""Correlations of a run whose sizes are found on the way: prefixes, once each, never larger."""

from __future__ import annotations

import threading
from collections.abc import Sequence

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import given, settings

from privml.errors import CorrelationExhausted
from privml.protocols.cipherprune.blocks import BlockMatMul
from privml.protocols.cipherprune.compact import Compact
from privml.protocols.cipherprune.exp_low import ExpLow
from privml.protocols.cipherprune.gelu_low import GeluLow
from privml.protocols.mpc.arithmetic.moments import Moments
from privml.protocols.mpc.arithmetic.mul import ScaleRows
from privml.protocols.mpc.arithmetic.truncate import Truncate
from privml.protocols.mpc.boolean.compare import Compare
from privml.protocols.mpc.correlations.supply import PoolSupply
from privml.protocols.mpc.engine import Planner, Step
from privml.protocols.mpc.nonlinear.maximum import Maximum
from privml.protocols.mpc.nonlinear.rows import RowPower
from privml.protocols.mpc.primitive import Primitive
from privml.testing.programs import Keys, make_supply

PLANNED: Sequence[Primitive] = (
    Truncate((64,), 12), Compare((70,)), Truncate((32,), 12), ExpLow((40,), 17), GeluLow((9, 4)),
    ScaleRows(6, 5), BlockMatMul(2, 4, 16, 3), Compact(5, 7, 3, 0, 2), Maximum(70, 20),
    RowPower(9, (10, 100), (50, 9, 3), (1, 2, 3), (1, 2, 3, 4), 42), Moments(7, 5),
)  # fmt: skip


def steps() -> list[Step]:
    planner = Planner()
    for prim in PLANNED:
        planner.call(prim, (), None)
    return planner.steps


def supply(rank: int = 1, *, keys: Keys | None = None, prefixes: bool = True) -> PoolSupply:
    made = make_supply(rank, steps(), keys or Keys.fresh(), {}, prefixes=prefixes)
    made.prepare(memory_bytes=1)
    return made


def smaller(item: int, size: int) -> Primitive:
    """The planned primitive at ``size`` in place of its leading number."""
    kinds = {
        0: Truncate((size,), 12), 1: Compare((size,)), 2: Truncate((size,), 12),
        3: ExpLow((size,), 17), 4: GeluLow((size, 4)), 5: ScaleRows(size, 5),
        8: Maximum(size, 20), 10: Moments(size, 5),
        9: RowPower(size, (10, 100), (50, 9, 3), (1, 2, 3), (1, 2, 3, 4), 42),
    }  # fmt: skip
    return kinds[item]


LARGEST = {0: 64, 1: 70, 2: 32, 3: 40, 4: 9, 5: 6, 8: 70, 9: 9, 10: 7}
REQUESTS = st.lists(
    st.tuples(st.sampled_from(sorted(LARGEST)), st.integers(1, 80), st.booleans()), max_size=12
)


@settings(max_examples=40)
@given(REQUESTS, st.sampled_from([0, 1]))
def test_an_item_is_handed_out_once_and_never_larger_than_planned(
    requests: list[tuple[int, int, bool]], rank: int
) -> None:
    source, gone, reached = supply(rank), set[int](), 0
    for item, size, forget in requests:
        allowed = item not in gone and size <= LARGEST[item]
        if allowed:
            source.take(smaller(item, size), item)
            gone.add(item)
            reached = max(reached, item + 1)
        else:
            with pytest.raises(CorrelationExhausted, match="nothing was handed out"):
                source.take(smaller(item, size), item)
        if forget:
            source.forget_passed()
            gone |= set(range(reached))


@pytest.mark.parametrize("rank", [0, 1])
def test_a_refused_request_leaves_everything_as_it_was(rank: int) -> None:
    keys = Keys.fresh()
    tried, untouched = supply(rank, keys=keys), supply(rank, keys=keys)
    wrong = [
        (Truncate((65,), 12), 0),
        (Truncate((64,), 13), 0),
        (Compare((8,)), 0),
        (Truncate((4,), 12), -1),
        (Truncate((4,), 12), len(PLANNED)),
        (Compact(6, 7, 3, 0, 2), 7),
        (Compact(5, 6, 3, 0, 2), 7),
        (Compact(5, 7, 4, 0, 2), 7),
        (Compact(5, 7, 3, 0, 1), 7),
        (Compact(5, 7, 3, 2, 2), 7),
        (BlockMatMul(2, 4, 16, 4), 6),
        (BlockMatMul(3, 4, 16, 3), 6),
        (BlockMatMul(2, 4, 24, 3), 6),
        (GeluLow((9, 5)), 4),
        (Compare((4,), (0, 1)), 1),
        (Compare((4,), (0,), 32), 1),
        (Maximum(70, 21), 8),
    ]
    for prim, item in wrong:
        with pytest.raises(CorrelationExhausted):
            tried.take(prim, item)
    for item, prim in enumerate(PLANNED):
        one, two = tried.take(prim, item), untouched.take(prim, item)
        assert all(np.array_equal(one[name], two[name]) for name in one)


@pytest.mark.parametrize("item", sorted(LARGEST))
def test_a_prefix_is_the_beginning_of_what_was_dealt(item: int) -> None:
    keys = Keys.fresh()
    for rank in (0, 1):
        whole = supply(rank, keys=keys).take(PLANNED[item], item)
        for size in (1, LARGEST[item] // 2, LARGEST[item]):
            part = supply(rank, keys=keys).take(smaller(item, size), item)
            for name, array in part.items():
                cut = tuple(slice(0, s) for s in array.shape)
                assert np.array_equal(array, whole[name][cut])


def test_many_threads_get_every_item_once_between_them() -> None:
    for rank in (0, 1):
        source, won, lock = supply(rank), list[int](), threading.Lock()

        def race(source: PoolSupply, won: list[int], lock: threading.Lock, turn: int) -> None:
            order = np.random.default_rng(turn).permutation(len(PLANNED))
            for item in order.tolist():
                try:
                    source.take(PLANNED[item], item)
                except CorrelationExhausted:
                    continue
                with lock:
                    won.append(item)

        threads = [
            threading.Thread(target=race, args=(source, won, lock, turn)) for turn in range(6)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert sorted(won) == list(range(len(PLANNED)))


def test_what_was_forgotten_or_closed_is_gone() -> None:
    source = supply()
    source.take(PLANNED[3], 3)
    source.take(PLANNED[1], 1)
    source.forget_passed()
    for item in (0, 1, 2, 3):
        with pytest.raises(CorrelationExhausted):
            source.take(PLANNED[item], item)
    source.take(PLANNED[4], 4)
    source.close()
    for item in range(len(PLANNED)):
        with pytest.raises(CorrelationExhausted):
            source.take(PLANNED[item], item)


def test_a_closed_server_supply_makes_nothing_from_its_seed() -> None:
    source = supply(0)
    source.close()
    with pytest.raises(CorrelationExhausted):
        source.take(PLANNED[0], 0)


def test_without_prefixes_order_and_sizes_are_exact() -> None:
    for prim, item in ((Truncate((63,), 12), 0), (PLANNED[1], 1)):
        with pytest.raises(CorrelationExhausted):
            supply(prefixes=False).take(prim, item)
