"""Over random keys, a forest that forgot is distributed like one that never knew.

For each history the root attribute (chi-square), the root threshold, the rows and the size of the
tree and the answer at a probe (Kolmogorov-Smirnov) of forests that went through it are
compared with forests fitted under *independent* keys on what is left. The p-values of all histories
together are held to a false alarm of 1e-4 by Holm's rule. The same suite, given the walk forest
with one of the published faults, must reject.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy import stats

from privml.rng import Generator, ScienceSeed
from privml.testing.forest_faults import Fault
from privml.testing.forest_walk import WalkForest
from privml.testing.forests import subset
from privml.unlearning.forest import siphash
from privml.unlearning.forest.canonical import canonical_bytes
from privml.unlearning.forest.ids import default_ids
from privml.unlearning.forest.keys import ForestKey
from privml.unlearning.forest.model import open_core
from privml.unlearning.forest.params import CLASSIFICATION, ForestParams
from privml.unlearning.forest.reference import Rows

FALSE_ALARM = 1e-4
N, P = 24, 6
PARAMS = ForestParams(
    task=CLASSIFICATION,
    n_trees=1,
    trees_per_row=1,
    max_depth=20,
    n_thresholds=3,
    max_features=2,
    min_samples_split=2,
    n_features=P,
    n_classes=2,
    target_bits=0,
    categorical=(False,) * P,
)
Program = Callable[[Any, Rows], NDArray[np.int64]]


def table(seed: int = 0) -> Rows:
    """Return rows with one holder of extremes and columns that a single row keeps alive."""
    rng = ScienceSeed(seed).generator()
    X = rng.normal(size=(N, P)).astype(np.float32)
    y = (X[:, 0] + 0.5 * X[:, 1] > 0).astype(np.int64)
    X[:, 0] = np.round(X[:, 0])  # multiplicities
    X[0, :3] = 40.0  # the outlier: the unique maximum of three columns
    X[:, 3:] = 1.0
    X[1, 3:] = 9.0  # the only row that keeps the last three columns alive
    return Rows(default_ids(N), X, y)


def fit(core: Any, pool: Rows, where: Sequence[int] | NDArray[np.int64]) -> None:
    rows = subset(pool, where)
    core.fit(rows.X, rows.y, rows.ids)
    core.resolve()


def outlier(core: Any, pool: Rows) -> NDArray[np.int64]:
    fit(core, pool, range(N))
    core.unlearn(pool.ids[:1])
    return np.arange(1, N)


def interior(core: Any, pool: Rows) -> NDArray[np.int64]:
    fit(core, pool, range(N))
    for i in range(2, 16):
        core.unlearn(pool.ids[i : i + 1])
        core.resolve()
    return np.r_[0:2, 16:N]


def to_constant(core: Any, pool: Rows) -> NDArray[np.int64]:
    fit(core, pool, range(N))
    core.unlearn(pool.ids[1:2])
    return np.r_[0:1, 2:N]


def wakes(core: Any, pool: Rows) -> NDArray[np.int64]:
    fit(core, pool, np.r_[0:1, 2:N])
    row = subset(pool, [1])
    core.learn(row.X, row.y, row.ids)
    return np.arange(N)


def half(core: Any, pool: Rows) -> NDArray[np.int64]:
    fit(core, pool, range(N))
    core.unlearn(pool.ids[: N // 2])
    return np.arange(N // 2, N)


def stream(core: Any, pool: Rows) -> NDArray[np.int64]:
    fit(core, pool, range(N - 4))
    for i in range(4):
        row = subset(pool, [N - 4 + i])
        core.learn(row.X, row.y, row.ids)
        core.predict(pool.X[:2])
        core.unlearn(pool.ids[i : i + 1])
    return np.arange(4, N)


def burst(core: Any, pool: Rows) -> NDArray[np.int64]:
    """Forget many rows one by one without a query, most of them below a tag."""
    fit(core, pool, range(N))
    for i in range(12):
        core.unlearn(pool.ids[i : i + 1])
    return np.arange(12, N)


PROGRAMS: tuple[Program, ...] = (outlier, interior, to_constant, wakes, half, stream, burst)


@dataclass(frozen=True)
class Sample:
    """What is observed of one forest: root attribute (-1: none), threshold, sizes, answer."""

    attribute: int
    threshold: float
    rows: int
    nodes: int
    answer: float


def observe(core: Any, pool: Rows) -> Sample:
    """Read the root of the only tree off the canonical form, and ask for one answer."""
    body = core.canonical() if isinstance(core, WalkForest) else core.canonical((0, 1))
    start = 12 + 80 + P + 32
    at = start + 8 + int.from_bytes(body[start : start + 8], "little") * (24 + 4 * P + 8) + 4
    kind, rows = body[at], int.from_bytes(body[at + 1 : at + 9], "little")
    attribute, w = -1, 0.0
    if kind == 2:
        attribute = int.from_bytes(body[at + 25 : at + 29], "little")
        w = float(np.frombuffer(body, np.float32, 1, at + 33)[0])
    answer = float(core.predict(pool.X[-1:])[0, 1])
    return Sample(attribute, w, rows, len(body) - at, answer)


def p_values(ours: list[Sample], fresh: list[Sample]) -> list[float]:
    """Return the p-values of equal distribution of everything observed."""
    seen = sorted({s.attribute for s in (*ours, *fresh)})
    counts = np.array([[sum(s.attribute == a for s in g) for a in seen] for g in (ours, fresh)])
    values = [float(stats.chi2_contingency(counts).pvalue)] if len(seen) > 1 else []
    for name in ("threshold", "rows", "nodes", "answer"):
        pair = [[getattr(s, name) for s in group] for group in (ours, fresh)]
        values.append(float(stats.ks_2samp(*pair).pvalue))
    return values


def rejected(
    programs: Sequence[Program], open_forest: Callable[[ForestKey], Any], *, keys: int, base: int
) -> bool:
    """Return whether Holm's rule rejects equality somewhere: the smallest p-value decides."""
    pool, found = table(), []
    for number, program in enumerate(programs):
        ours, fresh = [], []
        for k in range(keys):
            one, other = (key_of(base, number, k, side) for side in (0, 1))
            core = open_forest(one)
            left = program(core, pool)
            ours.append(observe(core, pool))
            plain = open_core(PARAMS, other)
            fit(plain, pool, left)
            fresh.append(observe(plain, pool))
        found += p_values(ours, fresh)
    return min(found) < FALSE_ALARM / len(found)


def key_of(base: int, *labels: int) -> ForestKey:
    return ForestKey(ScienceSeed(base).child(*labels).value.to_bytes(16, "little") * 2)


def test_forgetting_leaves_no_trace_over_keys() -> None:
    assert not rejected(PROGRAMS, lambda key: open_core(PARAMS, key), keys=1_500, base=1)


@pytest.mark.parametrize(
    ("fault", "program", "keys"),
    [
        (Fault.OTHER_ATTRIBUTE, outlier, 400),
        (Fault.STALE_BEST, interior, 400),
        (Fault.GIVES_UP, to_constant, 400),
        (Fault.CONSTANTS_SLEEP, wakes, 400),
        (Fault.MAX_MULTIPLICITY, outlier, 300),
        (Fault.BATCH_COUNTS, half, 100),
        (Fault.TAG_STATISTICS, burst, 500),
    ],
)
def test_a_published_fault_is_a_trace(fault: Fault, program: Program, keys: int) -> None:
    def broken(key: ForestKey) -> WalkForest:
        return WalkForest(PARAMS, key, fault=fault, block_rows=2)

    assert rejected((program,), broken, keys=keys, base=2)


def test_the_walk_forest_without_fault_is_no_trace() -> None:
    def sound(key: ForestKey) -> WalkForest:
        return WalkForest(PARAMS, key, block_rows=2)

    assert not rejected((outlier, wakes), sound, keys=150, base=3)


def test_hash_outputs_are_uniform() -> None:
    """Trees of rows, permutations, thresholds and bits over many ids, nodes and keys."""
    rng = ScienceSeed(4).generator()
    params = open_params(trees=10, per_row=3)
    core = open_core(params, ForestKey(rng.bytes(32)))
    ids = default_ids(20_000)
    held = core.affected(ids)
    assert (np.diff(held.astype(int), axis=1) > 0).all()  # distinct
    counts = np.bincount(held.ravel(), minlength=10)
    assert stats.chisquare(counts).pvalue > 1e-6
    pairs = np.bincount((held[:, 0] * 10 + held[:, 1]).astype(int), minlength=100)
    pairs = pairs[pairs > 0]
    assert len(pairs) == 36  # the smaller two of three out of ten
    kappas = rng.integers(0, 2**64, 20_000, dtype=np.uint64).tolist()
    u = [(siphash.node_draw(k, siphash.THRESHOLD, 3, 1) >> 11) * 2.0**-53 for k in kappas]
    v = [(siphash.node_draw(k, siphash.THRESHOLD, 3, 2) >> 11) * 2.0**-53 for k in kappas]
    assert stats.kstest(u, "uniform").pvalue > 1e-6
    assert abs(float(np.corrcoef(u, v)[0, 1])) < 5 / len(u) ** 0.5
    bits = np.array([siphash.node_draw(k, siphash.CATEGORY, 0, 0, 7) >> 63 for k in kappas])
    assert abs(bits.mean() - 0.5) < 5 * 0.5 / len(bits) ** 0.5


def open_params(*, trees: int, per_row: int) -> ForestParams:
    values = {name: getattr(PARAMS, name) for name in PARAMS.__dataclass_fields__}
    return ForestParams(**{**values, "n_trees": trees, "trees_per_row": per_row})


def test_permutations_are_uniform(rng: Generator) -> None:
    from privml.unlearning.forest.reference import permutation

    orders = [tuple(permutation(int(k), 4)) for k in rng.integers(0, 2**63, 24_000)]
    _, counts = np.unique(np.array(orders), axis=0, return_counts=True)
    assert len(counts) == 24
    assert stats.chisquare(counts).pvalue > 1e-6


@pytest.mark.nightly
def test_forgetting_leaves_no_trace_over_many_fresh_keys() -> None:
    base = int.from_bytes(np.random.default_rng().bytes(8), "little")
    assert not rejected(PROGRAMS, lambda key: open_core(PARAMS, key), keys=12_000, base=base)


def test_the_observer_reads_the_canonical_form() -> None:
    pool = table()
    core = open_core(PARAMS, key_of(5, 0))
    fit(core, pool, range(N))
    from privml.unlearning.forest.reference import Split, build_forest

    twin = build_forest(pool, key_of(5, 0), PARAMS)
    root = twin.trees[0]
    assert isinstance(root, Split)
    seen = observe(core, pool)
    assert (seen.attribute, seen.threshold) == (root.attribute, float(root.threshold))
    assert canonical_bytes(twin) == core.canonical((0, 1))
