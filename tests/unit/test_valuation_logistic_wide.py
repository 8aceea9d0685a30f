"""Logistic walks over more columns than a direct factorisation takes: in the span of the rows."""

from __future__ import annotations

import numpy as np
import pytest
from sklearn.linear_model import LogisticRegression

from privml import _native as kernels
from privml.valuation import LogisticUtility, Problem
from privml.valuation.utilities import _native
from privml.valuation.utilities.logistic import ref_logistic_walk

Table = _native.Table
M = 19


@pytest.fixture(params=["scalar", "avx2", "avx512"])
def isa(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    name: str = request.param
    if not _native.available() or kernels.ISAS.index(name) > kernels.isa_level():
        pytest.skip("this machine or build has no such kernel")
    monkeypatch.setattr(kernels, "isa_level", lambda: kernels.ISAS.index(name))
    return name


def wide(n: int, d: int, *, scale: float | np.ndarray = 1.0, offset: float = 0.0, seed: int = 1,
         rank: int | None = None, copies: bool = False) -> tuple[Table, np.ndarray]:  # fmt: skip
    rng = np.random.default_rng(seed)
    own = d if rank is None else rank
    turn = np.eye(d) if rank is None else rng.normal(size=(rank, d))
    x, x_val = rng.normal(size=(n, own)) @ turn * scale, rng.normal(size=(M, own)) @ turn * scale
    if copies:
        x[n // 2 :] = x[: n - n // 2]
    y = x[:, 0] / np.std(x[:, 0]) + 0.3 * rng.normal(size=n) > 0
    one = np.ones((n, 1))
    table = Table.of(
        np.hstack([x + offset, one]), y[:, None], np.hstack([x_val + offset, np.ones((M, 1))])
    )
    return table, rng.permutation(n)


def both(table: Table, rows: np.ndarray, mark: np.ndarray, c: float) -> tuple[np.ndarray, ...]:
    settings = {"c": c, "tol": 1e-8, "most_steps": 100}
    got, missed = _native.logistic_walk(table, rows, mark, **settings)  # type: ignore[arg-type]
    want, _ = ref_logistic_walk(table, rows, mark, **settings)  # type: ignore[arg-type]
    assert missed == 0
    return got, want


CASES = {
    "square": ({"n": 90, "d": 90}, 1.0, 1e-8),
    "more columns": ({"n": 50, "d": 130}, 1.0, 1e-8),
    "more rows": ({"n": 250, "d": 70}, 1.0, 1e-8),
    "copies": ({"n": 80, "d": 90, "copies": True}, 1.0, 1e-8),
    "low rank": ({"n": 90, "d": 80, "rank": 5}, 1.0, 1e-8),
    "weak": ({"n": 70, "d": 90}, 1e-4, 1e-8),
    "strong": ({"n": 60, "d": 90}, 100.0, 1e-7),
    "tiny": ({"n": 60, "d": 90, "scale": 1e-6}, 1.0, 1e-8),
    "wide": ({"n": 40, "d": 90, "scale": 30.0}, 1.0, 1e-6),
    "scales": ({"n": 90, "d": 90, "scale": np.logspace(-8, 1, 90)}, 1.0, 1e-7),
    "offset": ({"n": 60, "d": 90, "offset": 10.0}, 1.0, 1e-7),
}


@pytest.mark.parametrize("name", CASES)
def test_the_span_gives_the_model_of_the_columns(name: str, isa: str) -> None:
    arguments, c, tolerance = CASES[name]
    table, rows = wide(**arguments)  # type: ignore[arg-type]
    count = len(rows)
    for mark in (
        np.ones(count, np.uint8),
        (np.arange(count) % 7 == 6).astype(np.uint8),
        np.eye(count, dtype=np.uint8)[-1].copy(),
    ):
        got, want = both(table, rows, mark, c)
        np.testing.assert_allclose(got, want, atol=tolerance * (1 + np.abs(want).max()))


def test_equal_rows_and_rows_of_zeros_have_no_coordinates(isa: str) -> None:
    x = np.zeros((12, 80))
    x[6:, 3] = 1.0
    y = np.arange(12) % 2 > 0
    table = Table.of(np.hstack([x, np.ones((12, 1))]), y[:, None], np.ones((M, 81)))
    got, want = both(table, np.arange(12), np.ones(12, np.uint8), 1.0)
    np.testing.assert_allclose(got, want, atol=1e-8)


def test_prefixes_of_one_class_are_that_class(isa: str) -> None:
    table, _ = wide(30, 90)
    rows = np.argsort(-table.target[:, 0], kind="stable")
    ones = int(table.target.sum())
    got, want = both(table, rows, np.ones(30, np.uint8), 1.0)
    assert (got[:ones] == 1.0).all()
    np.testing.assert_allclose(got, want, atol=1e-7)


def test_walks_of_any_length_agree_where_their_kernels_differ(isa: str) -> None:
    """Walks far longer than wide take the columns as they are; a part of one takes the span."""
    table, rows = wide(300, 70, seed=4)
    mark = np.zeros(300, np.uint8)
    mark[[99, 199, 299]] = 1
    long, _ = both(table, rows, mark, 1.0)
    for at, length in ((0, 100), (1, 200)):
        short, _ = both(table, rows[:length].copy(), mark[:length].copy(), 1.0)
        np.testing.assert_allclose(short[-1], long[at], atol=1e-8)


def test_a_walk_that_needs_more_steps_says_so(isa: str) -> None:
    table, rows = wide(40, 90, scale=30.0)
    mark = np.ones(40, np.uint8)
    _, missed = _native.logistic_walk(table, rows, mark, c=1e3, tol=1e-8, most_steps=2)
    assert 0 < missed <= 40


@pytest.mark.parametrize("classes", [2, 3])
def test_scores_are_those_of_scikit_learn_at_its_optimum(classes: int) -> None:
    rng = np.random.default_rng(2)
    d = 384
    spectrum = np.arange(1, d + 1) ** -0.5
    X = rng.normal(size=(260, d)) * spectrum
    X /= np.linalg.norm(X, axis=1, keepdims=True)
    value = X @ (rng.normal(size=d) * spectrum)
    y = np.searchsorted(np.quantile(value, np.arange(1, classes) / classes), value)
    own = Problem.of(X[:200], y[:200], X[200:], y[200:])
    game = LogisticUtility(C=2.0).open(own)
    order = rng.permutation(200)
    found = game.walks(order[None])[0]
    for k in (9, 40, 120, 199):
        rows = order[: k + 1]
        decisions = np.full((60, classes), -np.inf)
        for code in np.unique(y[rows]):
            model = LogisticRegression(C=2.0, tol=1e-11, max_iter=10_000, solver="newton-cholesky")
            model.fit(X[rows], y[rows] == code)
            decisions[:, code] = model.decision_function(X[200:])
        right = (decisions.argmax(axis=1) == y[200:]).mean()
        assert found[k + 1] == pytest.approx(right, abs=1e-12)
        assert game.score([rows])[0] == pytest.approx(right, abs=1e-12)


def test_equal_requests_get_equal_bits() -> None:
    table, rows = wide(60, 100)
    own = Problem.of(table.x[:, :100], table.target[:, 0].astype(int), table.x[:9, :100], [0] * 9)
    game = LogisticUtility(metric="log_likelihood").open(own)
    orders = np.stack([rows, rows[::-1]])
    together = game.walks(orders)
    alone = np.concatenate([game.walks(order[None]) for order in orders])
    np.testing.assert_array_equal(together, alone)
