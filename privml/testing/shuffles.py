"""Many small runs of the primitives that sort and move rows, and what their views may show.

A sort of n rows needs correlations of n^2 words, so independent samples of its view come from many
small runs in one session instead of from many elements of one run. A view of a compaction has two
kinds of parts: masked words, which must be jointly uniform, and the opened keys, which must be a
uniformly random permutation that depends neither on the secrets, nor on anything that the party
holds, nor on the permutation of the run before.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import permutations
from typing import Protocol

import numpy as np
from numpy.typing import ArrayLike, NDArray

from privml.protocols.cipherprune.compact import Compact
from privml.protocols.cipherprune.keys import StableKeys
from privml.protocols.mpc.fields import Array, Seeds
from privml.protocols.mpc.ops import pack_bits
from privml.protocols.mpc.primitive import Primitive, Words
from privml.rng import Csprng, ScienceSeed
from privml.testing.cases import Case, SupplyMaker, one_party, with_primitive
from privml.testing.simulate import in_two_threads, split, wires
from privml.testing.views import ALPHA, Column, Limits, View, search, signs

RUNS = 2048
"""Runs per secret of a check."""
SHUFFLED, COUNTS = "opened.2", "opened.3"
"""The parts of a compaction's view that are opened on purpose."""


class Stack(Protocol):
    """The parts of a protocol stack that a check replaces."""

    @property
    def primitive(self) -> Callable[[Primitive], Primitive]:
        """What is run in place of a primitive."""

    @property
    def seeds(self) -> Callable[[], Seeds]:
        """How the keys of a session are drawn."""

    @property
    def supply(self) -> SupplyMaker:
        """How a party expands correlations."""


def sort_case(classes: ArrayLike, planes: int) -> Case:
    """Sort rows of the given classes (0 dropped, 1 kept, 2 high) by one or two planes of bits."""
    kind = np.asarray(classes)
    flat = np.concatenate([kind >= 1, kind >= 2][:planes]).astype(np.uint8)
    return Case(StableKeys(kind.size, planes), (pack_bits(flat),), frozenset({0}))


def move_case(
    rows: Array, keys: Sequence[int], counts: Sequence[int], *, keep: int = 0, spare: int = 0
) -> Case:
    """Compact ``rows`` ``(n, width)`` by the permutation ``keys`` with ``spare`` virtual rows."""
    n, width = rows.shape
    prim = Compact(n, n + spare, width, keep, len(counts))
    return Case(prim, (rows, np.array(keys, np.uint64), np.array(counts, np.int64).view(np.uint64)))


def _rows(*values: int) -> Array:
    return np.array([[v % (1 << 64)] for v in values], np.uint64)


SHUFFLES: Mapping[str, tuple[Case, Case]] = {
    "stable_keys": (sort_case((2, 2, 0, 1), 2), sort_case((2, 0, 1, 2), 2)),
    "stable_keys1": (sort_case((1, 1, 0, 0), 1), sort_case((1, 0, 0, 1), 1)),
    "compact": (
        move_case(_rows(0, 0, 0), (0, 1, 2), (2, 1), spare=1),
        move_case(_rows(-1, 1 << 62, 5), (2, 0, 1), (2, 1), spare=1),
    ),
    "compact_fixed": (
        move_case(_rows(0, 0, 0, 0), (0, 1, 2, 3), (), keep=2),
        move_case(_rows(-1, 1, -1, 9), (3, 2, 0, 1), (), keep=2),
    ),
}
"""Two secrets with equal counts that nobody should be able to tell apart."""


def hard_shuffles(name: str) -> list[Case]:
    """Return sorts or moves on which a wrong one is likely to show."""
    random = ScienceSeed(20_27).child("hard", name).generator()
    if name == "stable_keys":
        classes = [random.integers(0, 3, n) for n in (1, 2, 33, 64, 100)]
        classes += [np.full(9, c) for c in (0, 1, 2)]
        return [sort_case(c, planes) for c in classes for planes in (1, 2)]
    cases = []
    for n, kept in ((1, 1), (2, 1), (7, 7), (33, 5), (64, 64)):
        rows = random.integers(0, 1 << 64, (n, 6), np.uint64)
        keys = [int(k) for k in random.permutation(n)]
        cases += [move_case(rows, keys, (kept, 0), spare=spare) for spare in (0, 3)]
        cases.append(move_case(rows, keys, (), keep=kept, spare=1))
    return cases


def many(stack: Stack, case: Case, runs: int) -> tuple[View, View]:
    """Return both views of ``runs`` runs of a case, items 0, 1, 2, ... of one session.

    Parts are stacked along a new first axis, empty ones left out; packed bits are kept as words.
    """
    case = with_primitive(case, stack.primitive)
    seeds, ends = stack.seeds(), wires()
    cut = [
        split(np.broadcast_to(x, (runs, *x.shape)), Csprng.fresh(), xor=i in case.xor)
        for i, x in enumerate(case.inputs)
    ]

    def job(rank: int) -> View:
        supply = stack.supply(rank, seeds)
        parts: dict[str, list[Array]] = {}
        for item in range(runs):
            shares = tuple(c[rank][item] for c in cut)
            corr = supply.take(case.prim, item)
            _, view = one_party(case, ends[rank], corr, shares, seeds)
            for name, column in view.items():
                parts.setdefault(name, []).append(column.array)
        return {k: Column(np.stack(arrays)) for k, arrays in parts.items() if arrays[0].size}

    return in_two_threads(job)


def shuffle(stack: Stack, name: str, *, runs: int = RUNS) -> list[str]:
    """Search the views of many small runs for structure, for the secret and for the shuffle."""
    secrets = [many(stack, case, runs) for case in SHUFFLES[name]]
    found: list[str] = []
    for rank in (0, 1):
        views = [s[rank] for s in secrets]
        masked = [{k: c for k, c in v.items() if k not in (SHUFFLED, COUNTS)} for v in views]
        lines: list[str] = []
        for view, rest in zip(views, masked, strict=True):
            if SHUFFLED in view:
                lines += permuted(view[SHUFFLED].array, rest)
        if not lines:
            lines = search(masked[0], masked[1], samples=runs)
        found += [f"rank {rank}: {line}" for line in dict.fromkeys(lines)]
    return found


@dataclass(frozen=True)
class _Cells:
    """Every permutation of ``size`` places as a cell number."""

    size: int

    def of(self, keys: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the cell of each row of ``keys``, or -1 where it is no permutation."""
        at = {p: i for i, p in enumerate(permutations(range(self.size)))}
        return np.array([at.get(tuple(row), -1) for row in keys.tolist()], np.int64)


def permuted(opened: Words, masked: View, *, alpha: float = ALPHA) -> list[str]:
    """Departures of opened permutations ``(runs, slots)`` from fresh uniform ones.

    Looks at how often each permutation occurs, at the quotient of each one and the next (which is
    uniform as well if both are fresh), and at every bit of the opened keys against every bit of
    the rest of the view.
    """
    runs, slots = opened.shape
    limits, cells = Limits.of(alpha), _Cells(slots)
    keys = opened.astype(np.int64)
    at = cells.of(keys)
    if (at < 0).any():
        return ["opened keys are no permutation"]
    ratio = np.take_along_axis(np.argsort(keys[1:], axis=1), keys[:-1], axis=1)
    found = []
    for what, values in (("a permutation", at), ("a pair of permutations", cells.of(ratio))):
        counts = np.bincount(values, minlength=len(list(permutations(range(slots)))))
        expected = values.size / counts.size
        statistic = float(((counts - expected) ** 2).sum() / expected)
        if statistic > limits.chi2(counts.size - 1):
            found.append(f"{what} is not uniform (chi-square {statistic:.0f})")
    low = signs(Column(opened.astype(np.uint8)), runs)
    for name, column in masked.items():
        if (np.abs(low @ signs(column, runs).T) > limits.bits(runs)).any():
            found.append(f"the shuffle depends on {name}")
    return found
