"""Small random forests and histories for tests: tables full of ties, extremes and gaps."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final, TypeAlias

import numpy as np
from hypothesis import strategies as st
from numpy.typing import NDArray

from privml.rng import Generator, ScienceSeed
from privml.unlearning.forest import reference
from privml.unlearning.forest.canonical import canonical_bytes
from privml.unlearning.forest.interface import Core
from privml.unlearning.forest.keys import ForestKey
from privml.unlearning.forest.params import CLASSIFICATION, REGRESSION, ForestParams
from privml.unlearning.forest.reference import Floats, Rows

Column: TypeAlias = Callable[[Generator, int], Floats]

KINDS: Final = ("learn", "learn", "unlearn", "unlearn", "unlearn", "predict", "resolve", "purge")
SHARES: Final = (0.0, 0.1, 0.3, 0.6, 1.0)


@dataclass(frozen=True)
class Step:
    """One operation of a history on about ``share`` of the rows it can touch."""

    kind: str
    share: float
    seed: int


@dataclass(frozen=True)
class History:
    """A pool of rows, the positions fitted first, and what happens then."""

    params: ForestParams
    key: ForestKey
    pool: Rows
    first: NDArray[np.int64]
    steps: tuple[Step, ...]


def subset(pool: Rows, where: NDArray[np.int64] | Sequence[int]) -> Rows:
    """Return copies of the rows at some positions."""
    index = np.asarray(where, dtype=np.int64)
    return Rows(pool.ids[index], pool.X[index], pool.y[index])


def play(core: Core, history: History, check: Callable[[Core, Rows], None]) -> Rows:
    """Run a history on an empty core; ``check`` sees the core at every query. Return what lives."""
    pool, living = history.pool, set(history.first.tolist())
    start = subset(pool, sorted(living))
    core.fit(start.X, start.y, start.ids)
    for step in history.steps:
        rng = ScienceSeed(step.seed).generator()
        if step.kind == "learn":
            some = _some(rng, sorted(set(range(len(pool.y))) - living), step.share)
            rows = subset(pool, some)
            core.learn(rows.X, rows.y, rows.ids)
            living |= set(some.tolist())
        elif step.kind == "unlearn":
            some = _some(rng, sorted(living), step.share)
            core.unlearn(pool.ids[some])
            living -= set(some.tolist())
        elif step.kind == "predict":
            check(core, subset(pool, sorted(living)))
        elif step.kind == "resolve":
            core.resolve(None if step.share > 0.5 else 0.0)
        else:
            core.purge()
    return subset(pool, sorted(living))


def twin_form(rows: Rows, params: ForestParams, key: ForestKey) -> bytes:
    """Return the canonical form that the twin gives."""
    return canonical_bytes(reference.build_forest(rows, key, params))


@st.composite
def histories(
    draw: st.DrawFn, *, task: int = CLASSIFICATION, mixed: bool = False, scale: int = 1
) -> History:
    """Draw a history of :func:`random_history`; it shrinks to few rows, columns and steps."""
    rng = ScienceSeed(draw(st.integers(0, 2**32 - 1))).generator()
    n = scale * draw(st.sampled_from((1, 3, 8, 15, 25, 40, 60)))
    p, steps = draw(st.sampled_from((1, 2, 3, 5))), draw(st.sampled_from((1, 0, 3, 6, 12)))
    return random_history(rng, n=n, p=p, steps=steps, task=task, mixed=mixed)


def random_history(
    rng: Generator, *, n: int, p: int, steps: int, task: int = CLASSIFICATION, mixed: bool = False
) -> History:
    """Return a random history.

    Parameters
    ----------
    rng
        Source of everything.
    n, p
        Rows in the pool, columns.
    steps
        Number of operations after the fit; four times as many where each touches one row.
    task
        Classification or regression.
    mixed
        Whether missing values and categorical columns occur.
    """
    categorical = tuple(bool(mixed and rng.random() < 0.4) for _ in range(p))
    makers = [_codes if flag else NUMBERS[int(rng.integers(len(NUMBERS)))] for flag in categorical]
    X = np.stack([maker(rng, n) for maker in makers], axis=1).astype(np.float32)
    if mixed:
        X[rng.random((n, p)) < rng.choice((0.0, 0.1, 0.5))] = np.nan
    copies = rng.random(n) < rng.choice((0.0, 0.3))
    X[copies] = X[rng.integers(0, n, int(copies.sum()))]
    steady = bool(rng.random() < 0.5)  # many single changes of a deep forest, or a few wild ones
    params = _parameters(rng, task, categorical, steady=steady)
    y = _targets(rng, n) if task == REGRESSION else _labels(rng, X, params.n_classes)
    chosen = np.flatnonzero(rng.random(n) < rng.choice((0.3, 0.7, 1.0)))
    first = chosen if len(chosen) else np.zeros(1, dtype=np.int64)
    plan = tuple(
        Step(
            str(rng.choice(KINDS)),
            0.0 if steady else float(rng.choice(SHARES)),
            int(rng.integers(2**32)),
        )
        for _ in range(4 * steps if steady else steps)
    )
    key = ForestKey(rng.bytes(32))
    return History(params, key, Rows(_ids(rng, n), X, y.astype(np.int64)), first, plan)


def _parameters(
    rng: Generator, task: int, categorical: tuple[bool, ...], *, steady: bool
) -> ForestParams:
    trees = int(rng.integers(1, 5))
    classes = (2, 2, 3) if steady else (1, 2, 3, 10)
    return ForestParams(
        task=task,
        n_trees=trees,
        trees_per_row=int(rng.integers(1, trees + 1)),
        max_depth=20 if steady else int(rng.choice((0, 1, 3, 20))),
        n_thresholds=int(rng.choice((1, 2, 5, 9))),
        max_features=int(rng.integers(1, len(categorical) + 2)),
        min_samples_split=2 if steady else int(rng.choice((2, 3, 10))),
        n_features=len(categorical),
        n_classes=0 if task == REGRESSION else int(rng.choice(classes)),
        target_bits=int(rng.choice((0, 20))) if task == REGRESSION else 0,
        categorical=categorical,
    )


def _some(rng: Generator, pool: list[int], share: float) -> NDArray[np.int64]:
    """Return a shuffled choice: one row for a share of 0, at least one if there is any."""
    count = min(len(pool), max(1, round(share * len(pool))))
    return rng.permutation(np.array(pool, dtype=np.int64))[:count]


def _ids(rng: Generator, n: int) -> NDArray[np.uint64]:
    ids = np.zeros((n, 3), dtype=np.uint64)
    ids[:, 1] = rng.permutation(n).astype(np.uint64)
    ids[rng.random(n) < 0.2, 1] += np.uint64(2**64 - 5 * n)  # some negative integers
    text = rng.random(n) < 0.2
    ids[text, 0] = 1
    ids[text, 2] = rng.integers(0, 2**63, int(text.sum())).astype(np.uint64)
    return ids


def _targets(rng: Generator, n: int) -> NDArray[np.int64]:
    size = int(rng.choice((2, 50, 2**30, 2**46)))
    return rng.integers(-size, size, n)


def _labels(rng: Generator, X: Floats, classes: int) -> NDArray[np.int64]:
    """Return classes that follow a column up to some noise, or nothing at all."""
    column = np.nan_to_num(X[:, int(rng.integers(X.shape[1]))])
    y = np.searchsorted(np.unique(column), column) * classes // (len(np.unique(column)) + 1)
    noise = rng.random(len(y)) < rng.choice((0.0, 0.1, 1.0))
    return np.array(np.where(noise, rng.integers(0, classes, len(y)), y), dtype=np.int64)


def _codes(rng: Generator, n: int) -> Floats:
    codes = rng.integers(0, 2**24, int(rng.choice((1, 2, 3, 12))))
    return rng.choice(codes, n).astype(np.float32)


def _constant(rng: Generator, n: int) -> Floats:
    column = np.full(n, rng.choice((0.0, -3.5, 3e38)), dtype=np.float32)
    wakers = rng.integers(0, n, int(rng.integers(0, 4)))  # rows that wake the column
    column[wakers] = rng.choice((-1.0, 7.0))
    return column


def _two(rng: Generator, n: int) -> Floats:
    low = rng.choice((0, 1, -2))
    return np.array(low + (rng.random(n) < rng.choice((0.1, 0.5))), dtype=np.float32)


def _few(rng: Generator, n: int) -> Floats:
    return rng.integers(-3, 4, n).astype(np.float32)


def _adjacent(rng: Generator, n: int) -> Floats:
    start = np.float32(rng.choice((1.0, -1.0, 1e30, 0.0)))
    ladder = [start]
    for _ in range(3):
        ladder.append(np.nextafter(ladder[-1], np.float32(np.inf)))
    return np.array(rng.choice(np.array(ladder, dtype=np.float32), n))


def _extreme(rng: Generator, n: int) -> Floats:
    values = (0.0, -0.0, 1e-45, -1e-45, 3.4e38, -3.4e38, 1.0)
    return np.array(rng.choice(np.array(values, dtype=np.float32), n))


def _spread(rng: Generator, n: int) -> Floats:
    return rng.normal(size=n).astype(np.float32)


NUMBERS: Final[tuple[Column, ...]] = (
    _constant, _constant, _two, _few, _adjacent, _extreme, _spread, _spread,
)  # fmt: skip
