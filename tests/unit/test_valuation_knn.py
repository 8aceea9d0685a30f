"""KNN-Shapley: enumeration as oracle, ties, truncation, groups, kernels, hostile inputs."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.base import clone

from privml.valuation.errors import ProblemError, SettingError
from privml.valuation.methods import knn, knn_formulas, knn_order
from privml.valuation.methods.exact import ExactValues
from privml.valuation.methods.knn import KNNShapley
from privml.valuation.methods.knn_order import Neighbours, ref_nearest
from privml.valuation.methods.shapley import Shapley
from privml.valuation.problem import Problem
from privml.valuation.stopping import MaxUnits
from privml.valuation.utilities import KnnUtility

KINDS = {
    "plain": {},
    "inverse": {"weights": "inverse"},
    "gaussian": {"weights": "gaussian", "bandwidth": 0.7},
    "normalised": {"normalised": True},
    "normalised-inverse": {"normalised": True, "weights": "inverse"},
    "normalised-number": {"normalised": True, "empty": 0.25},
}


def problem(
    n: int, seed: int, *, task: str = "classification", tied: bool = False, groups: int = 0
) -> Problem:
    rng = np.random.default_rng(seed)
    X, X_val = rng.normal(size=(n, 2)), rng.normal(size=(3, 2))
    if tied:
        X, X_val = np.round(X), np.round(X_val)
    if task == "classification":
        y, y_val = rng.integers(0, 3, n).astype(float), rng.integers(0, 3, 3).astype(float)
    else:
        y, y_val = rng.normal(size=n), rng.normal(size=3)
    owner = rng.integers(0, groups, n) if groups else None
    return Problem.of(X, y, X_val, y_val, task=task, groups=owner)  # type: ignore[arg-type]


def enumerated(method: KNNShapley, table: Problem) -> np.ndarray:
    return ExactValues().fit_game(method.game(table)).values_


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("task", ["classification", "regression"])
@settings(max_examples=15, deadline=None)
@given(n=st.integers(1, 8), k=st.integers(1, 10), seed=st.integers(0, 10**6), tied=st.booleans())
def test_values_equal_enumeration(task: str, kind: str, n: int, k: int, seed: int, tied: bool):
    table = problem(n, seed, task=task, tied=tied)
    method = KNNShapley(k, **KINDS[kind])  # type: ignore[arg-type]
    result = method.fit_problem(table).result_
    assert np.abs(result.values - enumerated(method, table)).max() <= 1e-12
    assert abs(result.efficiency_residual) <= 1e-12
    assert result.status == "exact"
    assert not result.stderr.any()


@settings(max_examples=30, deadline=None)
@given(n=st.integers(1, 9), seed=st.integers(0, 10**6), radius=st.floats(0, 4), tied=st.booleans())
def test_threshold_values_equal_enumeration(n: int, seed: int, radius: float, tied: bool):
    table = problem(n, seed, tied=tied)
    for empty in ("chance", 0.0, -2.5):
        method = KNNShapley(radius=radius, empty=empty)  # type: ignore[arg-type]
        result = method.fit_problem(table).result_
        assert np.abs(result.values - enumerated(method, table)).max() <= 1e-12
        assert abs(result.efficiency_residual) <= 1e-12


@pytest.mark.parametrize("task", ["classification", "regression"])
@settings(max_examples=20, deadline=None)
@given(
    n=st.integers(1, 14), groups=st.integers(1, 7), k=st.integers(1, 6), seed=st.integers(0, 999)
)
def test_groups_that_enter_whole_equal_enumeration(
    task: str, n: int, groups: int, k: int, seed: int
):
    table = problem(n, seed, task=task, groups=groups)
    for kind in ("plain", "gaussian"):
        method = KNNShapley(k, **KINDS[kind])  # type: ignore[arg-type]
        result = method.fit_problem(table).result_
        assert np.abs(result.values - enumerated(method, table)).max() <= 1e-12
        assert result.group_mode == "player"
    if task == "classification":
        method = KNNShapley(radius=1.2)
        values = method.fit_problem(table).values_
        assert np.abs(values - enumerated(method, table)).max() <= 1e-12


def test_the_game_is_that_of_the_utility_of_the_same_name() -> None:
    for task in ("classification", "regression"):
        table = problem(9, 3, task=task)
        ours = KNNShapley(3).game(table)
        theirs = KnnUtility(3, metric="match").open(table)
        sets = [[0], [1, 4], [2, 3, 5, 8], list(range(9)), []]
        assert np.allclose(ours.score(sets), theirs.score(sets), atol=1e-14)


def test_sums_over_groups_are_named_and_differ_from_whole_groups() -> None:
    table = problem(12, 1, groups=4)
    rows = problem(12, 1)
    summed = KNNShapley(3, group_mode="sum").fit_problem(table).result_
    single = KNNShapley(3).fit_problem(rows).result_
    assert summed.group_mode == "sum"
    assert np.allclose(summed.values, np.bincount(table.player_of, weights=single.values))
    assert np.abs(summed.values - KNNShapley(3).fit_problem(table).values_).max() > 1e-3
    assert single.group_mode == "row"


def test_validation_rows_and_batches_never_couple(monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(0)
    X, y = rng.normal(size=(50, 3)), rng.integers(0, 2, 50)
    X_val, y_val = rng.normal(size=(23, 3)), rng.integers(0, 2, 23)
    whole = KNNShapley(4).fit(X, y, X_val, y_val).values_
    alone = [
        KNNShapley(4).fit(X, y, X_val[i : i + 1], y_val[i : i + 1], task="classification").values_
        for i in range(23)
    ]
    assert np.abs(whole - np.mean(alone, axis=0)).max() <= 1e-15
    monkeypatch.setattr(knn, "_CELLS", 50)
    assert np.abs(KNNShapley(4).fit(X, y, X_val, y_val).values_ - whole).max() <= 1e-15


def test_workers_have_no_influence_on_bits() -> None:
    rng = np.random.default_rng(0)
    table = (
        rng.normal(size=(400, 3)),
        rng.normal(size=400),
        rng.normal(size=(900, 3)),
        rng.normal(size=900),
    )
    one, two = (KNNShapley(4, n_jobs=jobs).fit(*table).result_ for jobs in (1, 2))
    assert one.digest() == two.digest()


def test_ties_go_to_the_smaller_number_and_duplicates_of_a_class_are_equal() -> None:
    X, y = [[0.1]] * 4 + [[0.3]], ["a", "b", "a", "b", "a"]
    values = KNNShapley(1).fit(X, y, [[0.1 + 0.2]], ["a"]).values_
    order, _ = Neighbours.of(np.array(X), np.array([[0.1 + 0.2]])).nearest(0, 1, 5)
    assert order.tolist() == [[4, 0, 1, 2, 3]]
    assert values[4] == values.max()
    rng = np.random.default_rng(2)
    base = rng.normal(size=(20, 7))
    copies = np.concatenate([base, base, base])
    labels = np.tile(rng.integers(0, 2, 20), 3)
    for method in (KNNShapley(5), KNNShapley(5, weights="inverse"), KNNShapley(radius=2.0)):
        found = method.fit(copies, labels, rng.normal(size=(9, 7)), rng.integers(0, 2, 9)).values_
        assert np.abs(found[:20] - found[20:40]).max() <= 1e-15
        assert np.abs(found[:20] - found[40:]).max() <= 1e-15


@settings(max_examples=40, deadline=None)
@given(
    n=st.integers(1, 700), d=st.integers(1, 9), m=st.integers(1, 6), seed=st.integers(0, 10**6),
    tied=st.booleans(), share=st.floats(0, 1), precision=st.sampled_from(["float64", "float32"]),
)  # fmt: skip
def test_the_kernel_and_its_twin_agree_in_every_bit(
    n: int, d: int, m: int, seed: int, tied: bool, share: float, precision: str
):
    rng = np.random.default_rng(seed)
    x, t = rng.normal(size=(n, d)) * 10.0 ** rng.integers(-3, 4), rng.normal(size=(m, d))
    if tied:
        x, t = np.round(x), np.round(t)
    search = Neighbours.of(x, t, precision=precision)  # type: ignore[arg-type]
    keep = max(1, int(share * n))
    found, wanted = search.nearest(0, m, keep), ref_nearest(search.rows, search.tests, keep)
    assert np.array_equal(found[0], wanted[0])
    assert np.array_equal(found[1], wanted[1])


def test_long_runs_of_close_distances_are_sorted_in_full() -> None:
    """Distances that share their upper 32 bits, in falling order."""
    x = np.sqrt(1.0 + np.arange(3_000, 0, -1) * 1e-13)[:, None]
    search = Neighbours.of(x, np.zeros((1, 1)))
    assert np.array_equal(
        search.nearest(0, 1, 3_000)[0], ref_nearest(x, np.zeros((1, 1)), 3_000)[0]
    )


def test_overflowing_distances_are_last_and_ordered_by_number() -> None:
    x = np.array([[1e200], [0.0], [-1e200], [2.0]] * 100)
    search = Neighbours.of(x, np.array([[1.0]]))
    for keep in (400, 20, 250):
        found = search.nearest(0, 1, keep)[0]
        assert np.array_equal(found, ref_nearest(search.rows, search.tests, keep)[0])
    with pytest.raises(ProblemError, match="float32"):
        Neighbours.of(x, np.array([[1.0]]), precision="float32")


def test_native_sums_equal_the_formula(monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(4)
    table = rng.normal(size=(300, 4)), rng.integers(0, 3, 300), rng.normal(size=(40, 4))
    truth = rng.integers(0, 3, 40)
    for settings_ in ({}, {"truncate": 0.05}, {"k": 400}):
        native = KNNShapley(**settings_).fit(*table, truth).values_  # type: ignore[arg-type]
        with monkeypatch.context() as patch:
            patch.setattr(knn, "available", lambda: False)
            patch.setattr(knn_order, "available", lambda: False)
            twin = KNNShapley(**settings_).fit(*table, truth).values_  # type: ignore[arg-type]
        assert np.abs(native - twin).max() <= 1e-15


@pytest.mark.parametrize("eps", [0.2, 0.05, 0.01])
def test_truncated_values_stay_within_their_bound(eps: float) -> None:
    rng = np.random.default_rng(7)
    X, X_val = rng.normal(size=(500, 3)), rng.normal(size=(30, 3))
    y, y_val = (X[:, 0] > 0).astype(int), (X_val[:, 0] > 0).astype(int)
    exact = KNNShapley(3).fit(X, y, X_val, y_val).values_
    result = KNNShapley(3, truncate=eps).fit(X, y, X_val, y_val).result_
    assert np.abs(result.values - exact).max() <= eps
    assert (result.ci_low <= exact).all()
    assert (exact <= result.ci_high).all()
    assert "nearest" in result.stop_reason
    for row in range(30):
        one = KNNShapley(3).fit(X, y, X_val[[row]], y_val[[row]], task="classification").values_
        cut = KNNShapley(3, truncate=eps)
        cut.fit(X, y, X_val[[row]], y_val[[row]], task="classification")
        assert np.abs(cut.values_ - one).max() <= eps


def test_float32_differs_by_little() -> None:
    rng = np.random.default_rng(7)
    X, X_val = rng.normal(size=(2_000, 10)), rng.normal(size=(50, 10))
    y, y_val = rng.integers(0, 2, 2_000), rng.integers(0, 2, 50)
    wide = KNNShapley(5).fit(X, y, X_val, y_val).values_
    narrow = KNNShapley(5, precision="float32").fit(X, y, X_val, y_val).values_
    assert np.abs(wide - narrow).max() <= 1e-6


def test_where_there_is_no_form_sampling_the_game_is_offered_and_works() -> None:
    table = problem(40, 2)
    method = KNNShapley(10, weights="inverse", normalised=True)
    with pytest.raises(SettingError, match="fit_game"):
        method.fit_problem(table)
    sampled = Shapley(stopping=MaxUnits(20)).fit_game(method.game(table)).result_
    assert abs(sampled.efficiency_residual) <= 1e-12
    with pytest.raises(SettingError, match="group_mode='sum'"):
        KNNShapley(2, normalised=True).fit_problem(problem(9, 2, groups=3))
    many = problem(600, 2, groups=10_000)
    with pytest.raises(SettingError, match="group_mode='sum'"):
        KNNShapley(2).fit_problem(many)
    KNNShapley(2, group_mode="sum").fit_problem(many)


@pytest.mark.parametrize(
    "settings_",
    [
        {"k": 0}, {"k": -1}, {"k": True}, {"k": 1.5}, {"weights": "none"}, {"bandwidth": 0.0},
        {"bandwidth": float("nan")}, {"empty": "majority"}, {"empty": float("inf")},
        {"radius": -1.0}, {"radius": float("nan")}, {"radius": 1.0, "normalised": True},
        {"radius": 1.0, "weights": "inverse"}, {"truncate": 0.0}, {"truncate": 1.0},
        {"truncate": 0.1, "weights": "inverse"}, {"truncate": 0.1, "radius": 1.0},
        {"precision": "float16"}, {"group_mode": "rows"}, {"n_jobs": 0},
    ],
    ids=str,
)  # fmt: skip
def test_wrong_settings_are_refused(settings_: dict[str, object]) -> None:
    with pytest.raises(SettingError):
        KNNShapley(**settings_).fit_problem(problem(5, 0))  # type: ignore[arg-type]


def test_a_radius_needs_classes_and_truncation_too() -> None:
    with pytest.raises(ProblemError):
        KNNShapley(radius=1.0).fit_problem(problem(5, 0, task="regression"))
    with pytest.raises(SettingError):
        KNNShapley(truncate=0.5).fit_problem(problem(5, 0, task="regression"))


def test_it_is_an_estimator_and_a_class_absent_from_training_is_fine() -> None:
    method = KNNShapley(3, weights="gaussian", bandwidth=2.0)
    assert clone(method).get_params() == method.get_params()
    values = KNNShapley(2).fit([[0.0], [1.0]], ["a", "a"], [[0.5]], ["b"]).values_
    assert values.tolist() == [0.0, 0.0]
    with pytest.raises(ProblemError):
        KNNShapley().fit([[np.nan]], ["a"], [[0.5]], ["b"])


@pytest.mark.parametrize("broken", ["coefficient", "farthest", "pair", "extra"])
def test_broken_variants_are_caught(broken: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each formula with a typical slip fails the comparison with enumeration."""
    right = knn_formulas.coefficients
    if broken == "coefficient":  # forgets min(k, i) / i
        monkeypatch.setattr(knn_formulas, "coefficients", lambda n, k: np.full(n, 1.0 / k))
    elif broken == "farthest":  # 1 / n whatever k, as if k < n
        monkeypatch.setattr(
            knn_formulas, "coefficients", lambda n, k: np.append(right(n, k)[:-1], 1.0 / n)
        )
    elif broken == "pair":
        monkeypatch.setattr(knn_formulas, "_pair_coefficients", lambda n, k: right(n, k) * k)
    else:
        monkeypatch.setattr(knn_formulas, "harmonic", lambda count: np.zeros(count + 1))
    monkeypatch.setattr(knn, "available", lambda: False)
    task = "regression" if broken == "pair" else "classification"
    method = KNNShapley(9 if broken == "farthest" else 2, normalised=broken == "extra")
    tables = [problem(6, seed, task=task) for seed in range(5)]
    gaps = [np.abs(method.fit_problem(t).values_ - enumerated(method, t)).max() for t in tables]
    assert max(gaps) > 1e-3
