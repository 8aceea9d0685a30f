"""Who looks at a forest cannot tell whether it forgot a row or never knew it.

A classifier is trained on the structure around a row, forests that forgot it against forests that
were fitted without it, under independent keys, and judged on other forests by the area under its
curve, which must be a half within chance. The published faults are read off with ease by the same
classifier: the positive control. A second test looks at the root attribute after deletions
of interior rows alone, the finest of the published traces.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy import stats
from sklearn.ensemble import ExtraTreesClassifier
from sklearn.metrics import roc_auc_score

from privml.rng import ScienceSeed
from privml.testing.forest_faults import Fault
from privml.testing.forest_walk import WalkForest
from privml.testing.forests import subset
from privml.unlearning.forest.flat import FlatTrees, flatten
from privml.unlearning.forest.ids import default_ids
from privml.unlearning.forest.keys import ForestKey
from privml.unlearning.forest.model import open_core
from privml.unlearning.forest.params import CLASSIFICATION, ForestParams
from privml.unlearning.forest.reference import Rows

N, P = 40, 4
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
OUTLIER, INNER, WAKING = 0, 1, 2
Open = Callable[[ForestKey], Any]


def table() -> Rows:
    """Return rows with an outlier, one in the middle, and one that alone varies a column."""
    rng = ScienceSeed(11).generator()
    X = rng.normal(size=(N, P)).astype(np.float32)
    y = (X[:, 0] + 0.7 * X[:, 1] + 0.3 * rng.normal(size=N) > 0).astype(np.int64)
    X[:, 3] = 1.0
    X[WAKING, 3] = 5.0
    X[OUTLIER, :3] = 30.0
    X[INNER, :3] = np.median(X[:, :3], axis=0)
    return Rows(default_ids(N), X, y)


def key_of(*labels: int) -> ForestKey:
    return ForestKey(ScienceSeed(77).child(*labels).value.to_bytes(16, "little") * 2)


def native(key: ForestKey) -> Any:
    return open_core(PARAMS, key)


def faulty(fault: Fault) -> Open:
    return lambda key: WalkForest(PARAMS, key, fault=fault, block_rows=2)


def without(open_forest: Open, key: ForestKey, pool: Rows, row: int, *, forget: bool) -> Any:
    """Return a forest that forgot one row among others that came and went, or never had it."""
    core = open_forest(key)
    rest = np.delete(np.arange(N), row)
    start = subset(pool, np.arange(N) if forget else rest)
    core.fit(start.X, start.y, start.ids)
    if forget:
        core.unlearn(pool.ids[[row]])
    return core


def seen_around(core: Any, key: ForestKey, pool: Rows, row: int) -> list[float]:
    """Return what the structure shows at a row: path, thresholds, leaf, answer, sizes."""
    body = core.canonical() if isinstance(core, WalkForest) else core.canonical((0, 1))
    trees = flatten(bytes(body), PARAMS, key)
    answer = float(core.predict(pool.X[[row]])[0, 1])
    return [answer, float(len(trees.attribute)), *_path(trees, pool.X[row])]


def _path(trees: FlatTrees, x: NDArray[np.float32], length: int = 3) -> list[float]:
    node, found, depth = int(trees.roots[0]), [], 0
    for _ in range(length):
        attribute = int(trees.attribute[node])
        threshold = float(trees.threshold[node]) if attribute >= 0 else 0.0
        found += [float(attribute), threshold]
        if attribute >= 0:
            node = int((trees.left if x[attribute] <= threshold else trees.right)[node])
            depth += 1
    return [*found, float(depth)]


def area_under_curve(open_forest: Open, row: int, *, keys: int, base: int) -> float:
    """Return how well a classifier tells unlearned forests from fresh ones; 0.5 is not at all."""
    pool = table()
    rows, truth = [], []
    for k in range(keys):
        for forget in (False, True):
            key = key_of(base, row, k, int(forget))
            maker = open_forest if forget else native
            core = without(maker, key, pool, row, forget=forget)
            rows.append(seen_around(core, key, pool, row))
            truth.append(forget)
    X, y = np.array(rows), np.array(truth)
    half = keys  # the first half of the forests trains, the second judges
    judge = ExtraTreesClassifier(200, min_samples_leaf=8, random_state=0).fit(X[:half], y[:half])
    return float(roc_auc_score(y[half:], judge.predict_proba(X[half:])[:, 1]))


def chance(keys: int) -> float:
    """Return the standard error of the area for as many forests of each kind as judge."""
    n = keys / 2
    return float(np.sqrt((2 * n + 1) / (12 * n * n)))


@pytest.mark.parametrize("row", [OUTLIER, INNER, WAKING])
def test_a_classifier_cannot_tell_who_was_forgotten(row: int) -> None:
    keys = 1_000
    area = area_under_curve(native, row, keys=keys, base=1)
    assert abs(area - 0.5) < 4.5 * chance(keys)


@pytest.mark.parametrize("fault", [Fault.OTHER_ATTRIBUTE, Fault.MAX_MULTIPLICITY])
def test_the_classifier_reads_published_faults(fault: Fault) -> None:
    keys = 400
    assert area_under_curve(faulty(fault), OUTLIER, keys=keys, base=2) > 0.5 + 6 * chance(keys)


INTERIOR = 20


def interior_pool() -> tuple[Rows, NDArray[np.int64]]:
    """Return rows, and twenty of them that hold no extreme of any column."""
    rng = ScienceSeed(12).generator()
    X = rng.normal(size=(60, P)).astype(np.float32)
    y = (X.sum(axis=1) + rng.normal(size=60) > 0).astype(np.int64)
    extreme = {int(i) for column in X.T for i in (column.argmin(), column.argmax())}
    inner = [i for i in range(60) if i not in extreme]
    return Rows(default_ids(60), X, y), np.array(inner[:INTERIOR])


def root_attributes(open_forest: Open, *, keys: int, base: int) -> NDArray[np.int64]:
    """Return counts of the root attribute: after the deletions, one by one, and fitted without."""
    pool, gone = interior_pool()
    rest = subset(pool, np.setdiff1d(np.arange(60), gone))
    counts = np.zeros((2, P + 1), dtype=np.int64)
    for k in range(keys):
        one, other = key_of(base, 0, k), key_of(base, 1, k)
        core = open_forest(one)
        core.fit(pool.X, pool.y, pool.ids)
        for i in gone:
            core.unlearn(pool.ids[[i]])
        fresh = open_core(STUMP, other)
        fresh.fit(rest.X, rest.y, rest.ids)
        for side, (made, key) in enumerate(((core, one), (fresh, other))):
            body = made.canonical() if isinstance(made, WalkForest) else made.canonical((0, 1))
            trees = flatten(bytes(body), STUMP, key)
            counts[side, int(trees.attribute[trees.roots[0]])] += 1
    return counts[:, counts.any(axis=0)]


STUMP = replace(PARAMS, max_depth=1)  # the root is all that is looked at


def test_interior_deletions_leave_the_root_attribute_distributed_as_retrained() -> None:
    """D3: a chi-square of 168 on 8 degrees of freedom in the published code."""
    counts = root_attributes(lambda key: open_core(STUMP, key), keys=10_000, base=3)
    assert stats.chi2_contingency(counts).pvalue > 1e-4


def test_a_stale_best_score_shows_in_the_root_attribute() -> None:
    """D3 as a mutant: the same test sees it."""
    counts = root_attributes(
        lambda key: WalkForest(STUMP, key, fault=Fault.STALE_BEST, block_rows=2), keys=600, base=4
    )
    assert stats.chi2_contingency(counts).pvalue < 1e-4
