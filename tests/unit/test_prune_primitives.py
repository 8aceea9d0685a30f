"""Sorting, moving and the cheap functions of token pruning against slow, obvious oracles."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from privml.errors import ParameterError, ProtocolError
from privml.protocols.cipherprune.blocks import BlockMatMul
from privml.protocols.cipherprune.compact import Compact, places
from privml.protocols.cipherprune.exp_low import ExpLow
from privml.protocols.cipherprune.gelu_low import CUT, SQUARE, GeluLow
from privml.protocols.cipherprune.keys import StableKeys
from privml.protocols.mpc.fields import Shares
from privml.protocols.mpc.primitive import Context, Primitive
from privml.rng import Csprng
from privml.testing.cases import Case, fresh_seeds, joined, play, simulated
from privml.testing.oracles import EXP_LOW_ERROR, wrong
from privml.testing.shuffles import SHUFFLES, hard_shuffles, move_case, permuted, sort_case
from privml.testing.simulate import LocalSupply, in_two_threads, split, wires
from privml.testing.views import Column

RNG = np.random.default_rng(29)


def words(*shape: int) -> Any:
    return RNG.integers(0, 1 << 64, shape, np.uint64)


def checked(case: Case) -> tuple[Any, ...]:
    """Play a case; hold it to its oracle, its simulation and its cost; return clear outputs."""
    seeds = fresh_seeds()
    played = play(case, seeds)
    out = joined(case, played.outputs)
    assert wrong(case, out) == []
    for got, want in zip(out, simulated(case, seeds), strict=True):
        assert np.array_equal(got, want)
    declared = case.prim.online()
    assert [end.flights for end in played.wires] == [declared.flights] * 2
    assert tuple(end.sent for end in played.wires) == declared.sent
    return out


@pytest.mark.parametrize("name", ["stable_keys", "compact"])
def test_hard_sorts_and_moves(name: str) -> None:
    for case in hard_shuffles(name):
        checked(case)


@given(classes=st.lists(st.integers(0, 2), min_size=1, max_size=70), planes=st.sampled_from([1, 2]))
def test_sort_then_move_is_a_stable_partition(classes: list[int], planes: int) -> None:
    n = len(classes)
    keys, bits = checked(sort_case(classes, planes))
    rank = [min(c, planes) for c in classes]
    order = sorted(range(n), key=lambda i: (-rank[i], i))
    assert [int(k) for k in keys[order]] == list(range(n))
    kept = max(1, sum(c > 0 for c in classes))
    rows = words(n, 2)
    moved, _ = checked(move_case(rows, [int(k) for k in keys], (kept,), spare=2))
    assert np.array_equal(moved, rows[order[:kept]])
    assert int(bits[:n].sum()) == sum(c > 0 for c in classes)


@pytest.mark.parametrize("classes", [(2,), (0, 0, 0, 0), (1,) * 5, (2,) * 5, (2, 0, 1, 0, 2, 1)])
@pytest.mark.parametrize("planes", [1, 2])
def test_edges_of_the_partition(classes: tuple[int, ...], planes: int) -> None:
    """One row, nothing kept, empty low and high classes, everything in one class."""
    checked(sort_case(classes, planes))


def test_bits_of_rows_beyond_the_last_do_not_matter() -> None:
    """Padding of packed planes is random in a run: shares of it need not cancel."""
    dirty = sort_case((2, 0, 1), 2)
    noisy = dirty.inputs[0] | np.uint64(0xABC << 20)
    checked(Case(dirty.prim, (noisy,), frozenset({0})))


@pytest.mark.parametrize("keep", [0, 1, 4, 5])
def test_rows_that_come_out(keep: int) -> None:
    rows = words(5, 3)
    out, told = checked(move_case(rows, (3, 0, 4, 1, 2), (2, 1), keep=keep, spare=4))
    assert out.shape == (keep or 2, 3)
    assert told.tolist() == [2, 1]


@pytest.mark.parametrize(
    ("keys", "counts"),
    [((0, 0, 1), (2,)), ((0, 1, 9), (2,)), ((2, 1, 0), (4,)), ((2, 1, 0), (-1,))],
)
def test_impossible_openings_stop_both_parties(
    keys: tuple[int, ...], counts: tuple[int, ...]
) -> None:
    case = move_case(words(3, 2), keys, counts, spare=1)
    with pytest.raises(ProtocolError, match="deal new pools"):
        play(case, fresh_seeds())


def test_nothing_is_kept() -> None:
    out, told = checked(move_case(words(3, 2), (2, 0, 1), (0, 0), spare=1))
    assert out.shape == (0, 2)
    assert told.tolist() == [0, 0]


def test_places_inverts_a_permutation() -> None:
    keys = np.random.default_rng(1).permutation(40).astype(np.uint64)
    assert np.array_equal(keys[places(keys)], np.arange(40))
    with pytest.raises(ProtocolError):
        places(np.array([1, 2], np.uint64))


@pytest.mark.parametrize(
    "wrong_shape",
    [
        lambda: Compact(5, 4, 1, 1, 0), lambda: Compact(0, 4, 1, 1, 0),
        lambda: Compact(3, 4, 1, 4, 0), lambda: Compact(3, 4, 1, 0, 0),
        lambda: StableKeys(4, 3), lambda: BlockMatMul(1, 1, 9, 1), lambda: BlockMatMul(1, 1, 0, 1),
        lambda: ExpLow((1,), 16), lambda: ExpLow((1,), 45), lambda: ExpLow((1,), -3),
    ],
)  # fmt: skip
def test_shapes_that_do_not_fit_are_refused(wrong_shape: Any) -> None:
    with pytest.raises(ParameterError):
        wrong_shape()


def test_counts_must_be_as_many_as_declared() -> None:
    case = move_case(words(3, 2), (0, 1, 2), (1, 1))
    with pytest.raises(ParameterError, match="counts"):
        play(Case(Compact(3, 3, 2, 0, 1), case.inputs), fresh_seeds())


@pytest.mark.parametrize("shift", [1, 17, 29])
def test_low_exp_on_a_dense_grid(shift: int) -> None:
    one = 1 << (16 + shift)
    x = -np.concatenate([np.linspace(2.0**-9, 8.1, 9973), np.linspace(8.1, 60, 501)])
    edges = [-8 * one, -8 * one - 1, -8 * one + 1, -(one >> 9), -16 * one, -64 * one]
    ring = np.concatenate([np.rint(x * one).astype(np.int64), np.array(edges)]).view(np.uint64)
    (out,) = checked(Case(ExpLow(ring.shape, shift), (ring,)))
    exact = np.exp(np.where(x >= -8, x, -np.inf))
    error = out[: x.size].view(np.int64) / 2.0**30 - exact
    assert np.abs(error).max() < EXP_LOW_ERROR
    assert abs(error.mean()) < 1e-4
    assert not out[: x.size][x < -8.0].any()


def test_low_gelu_on_a_dense_grid() -> None:
    marks = np.array([CUT - 1, CUT, CUT + 1, 1 << 35, (1 << 41) - 1], np.int64)
    grid = np.arange(-8 << 12, 8 << 12, 5, dtype=np.int64)
    x = np.concatenate([grid, marks, -marks])
    (out,) = checked(Case(GeluLow(x.shape), (x.view(np.uint64),)))
    real = grid / 4096.0
    gelu = np.array([0.5 * v * (1 + math.erf(v / math.sqrt(2))) for v in real])
    error = out[: grid.size].view(np.int64) / 2.0**32 - gelu
    assert np.abs(error).max() < 0.07
    assert np.sqrt((error**2).mean()) < 0.022
    jump = (SQUARE << 8) * CUT * CUT - (CUT << 27)
    assert abs(jump) < 2.0**40 * 5e-6


def test_product_of_blocks() -> None:
    for b, n, k, m, block in ((1, 1, 1, 1, 1), (2, 3, 24, 5, 8), (3, 1, 6, 4, 2)):
        (out,) = checked(Case(BlockMatMul(b, n, k, m, block), (words(b, n, k), words(b, k, m))))
        assert out.shape == (b, n, m)


def low(n: int) -> Any:
    return (-RNG.integers(1 << 24, 9 << 33, n)).astype(np.int64).view(np.uint64)


def sorted_inputs(n: int, planes: int) -> Any:
    return sort_case([2, *RNG.integers(0, 3, n - 1).tolist()], planes).inputs[0]


PREFIXES: list[tuple[Primitive, Case]] = [
    (StableKeys(70, 1), Case(StableKeys(33, 1), (sorted_inputs(33, 1),), frozenset({0}))),
    (StableKeys(70, 2), Case(StableKeys(33, 2), (sorted_inputs(33, 2),), frozenset({0}))),
    (StableKeys(70, 2), Case(StableKeys(1, 2), (sorted_inputs(1, 2),), frozenset({0}))),
    (Compact(9, 9, 4, 0, 2), move_case(words(5, 4), (1, 3, 0, 4, 2), (3, 1), spare=4)),
    (Compact(9, 9, 4, 0, 2), move_case(words(1, 4), (0,), (1, 1), spare=8)),
    (Compact(9, 11, 4, 9, 0), move_case(words(9, 4), range(9), (), keep=2, spare=2)),
    (GeluLow((200,)), Case(GeluLow((70,)), (words(70) >> np.uint64(48),))),
    (ExpLow((200,), 17), Case(ExpLow((65,), 17), (low(65),))),
    (BlockMatMul(2, 5, 24, 6), Case(BlockMatMul(2, 3, 16, 4), (words(2, 3, 16), words(2, 16, 4)))),
    (BlockMatMul(2, 5, 24, 6), Case(BlockMatMul(2, 5, 8, 6), (words(2, 5, 8), words(2, 8, 6)))),
]


def cut(shares: Shares, small: Primitive) -> Shares:
    """Prefixes of the shares of a larger primitive along every axis."""
    return {f.name: shares[f.name][tuple(map(slice, f.shape))] for f in small.fields()}


@pytest.mark.parametrize(("large", "case"), PREFIXES, ids=lambda x: repr(x)[:40])
def test_prefixes_of_larger_correlations_serve_a_smaller_size(large: Primitive, case: Case) -> None:
    seeds, ends = fresh_seeds(), wires()
    inputs = [
        split(x, Csprng.fresh(), xor=i in case.xor) for i, x in enumerate(case.inputs)
    ]  # fmt: skip

    def job(rank: int) -> Any:
        corr = cut(LocalSupply(rank, seeds).take(large, 0), case.prim)
        return case.prim.run(Context(ends[rank]), corr, *(x[rank] for x in inputs))

    out = joined(case, in_two_threads(job))
    assert wrong(case, out) == []
    assert ends[0].sent == case.prim.online().sent[0]


def test_free_masks_cover_what_a_sort_or_a_move_sends() -> None:
    """As many mask bytes as masked bytes; a move's opened keys and counts have none."""
    for name in SHUFFLES:
        prim: Any = SHUFFLES[name][0].prim
        masks = sum(f.nbytes for f in prim.fields() if not f.derived and f.name != "order")
        told = 8 * (prim.slots + prim.opened) if isinstance(prim, Compact) else 0
        assert masks + told == prim.online().sent[0] == prim.online().sent[1]


def test_moving_128_rows_to_55_fits_its_budget() -> None:
    """At most 4 MB both ways and 6 flights, with the residual, the keys and the comparison."""
    move, sort = Compact(128, 128, 2 * 768, 0, 2).online(), StableKeys(128, 2).online()
    assert sum(move.sent) + sum(sort.sent) <= 3.2e6
    assert move.flights + sort.flights == 3


def test_the_search_for_shuffles_sees_what_it_should() -> None:
    draw = np.random.default_rng(3)
    fresh = draw.permuted(np.tile(np.arange(4, dtype=np.uint64), (2048, 1)), axis=1)
    rest = {"own.x": Column(draw.integers(0, 1 << 64, 2048, np.uint64))}
    assert permuted(fresh, rest) == []
    known = {"own.x": Column(fresh[:, 0] << np.uint64(60))}
    halves = np.repeat(fresh[:1024], 2, axis=0)
    for opened, view in ((fresh, known), (halves, rest), (np.sort(fresh), rest), (fresh * 2, rest)):
        assert permuted(opened, view) != []
