"""Utility engine: against scikit-learn, against its twins, counted, and a function of the set."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch
from sklearn.datasets import load_breast_cancer, load_diabetes, load_iris
from sklearn.linear_model import LogisticRegression, Ridge, RidgeClassifier
from sklearn.naive_bayes import GaussianNB
from sklearn.neighbors import KNeighborsClassifier, KNeighborsRegressor, NearestCentroid
from sklearn.preprocessing import StandardScaler
from sklearn.tree import DecisionTreeClassifier, DecisionTreeRegressor

from privml import _native as kernels
from privml.unlearning.forest import DynForestClassifier, DynForestRegressor
from privml.valuation.errors import ProblemError, SettingError, UtilityFailed
from privml.valuation.problem import Problem
from privml.valuation.utilities import (
    EstimatorUtility,
    ForestUtility,
    KnnUtility,
    LogisticUtility,
    NaiveBayesUtility,
    NearestCentroidUtility,
    RidgeUtility,
    TorchUtility,
    Utility,
    _native,
)
from privml.valuation.utilities.base import Game, Truncation
from privml.valuation.utilities.logistic import ref_logistic_walk
from privml.valuation.utilities.ridge import ref_ridge_walk

ROWS, VAL = 40, 50


def table(
    load: Callable[..., tuple[np.ndarray, np.ndarray]], seed: int = 0
) -> tuple[np.ndarray, ...]:
    X, y = load(return_X_y=True)
    order = np.random.default_rng(seed).permutation(len(y))[: ROWS + VAL]
    X = StandardScaler().fit_transform(X[order])
    return X[:ROWS], y[order][:ROWS], X[ROWS:], y[order][ROWS:]


def problem(load: Callable[..., tuple[np.ndarray, np.ndarray]], **others: object) -> Problem:
    task = "regression" if load is load_diabetes else None
    return Problem.of(*table(load), task=task, **others)  # type: ignore[arg-type]


def linear(features: int, outputs: int) -> torch.nn.Module:
    return torch.nn.Linear(features, outputs)


CLASSES: list[Utility] = [
    RidgeUtility(),
    RidgeUtility(intercept="penalised", metric="margin"),
    RidgeUtility(intercept="none", metric="log_likelihood"),
    RidgeUtility(metric="balanced_accuracy"),
    LogisticUtility(),
    LogisticUtility(metric="log_likelihood", C=10.0),
    KnnUtility(3),
    KnnUtility(2, metric="match"),
    KnnUtility(4, metric="log_likelihood"),
    NearestCentroidUtility(metric="margin"),
    NaiveBayesUtility(),
    EstimatorUtility(DecisionTreeClassifier(max_features=2)),
    EstimatorUtility(DecisionTreeClassifier(), metric="log_likelihood"),
    ForestUtility(DynForestClassifier, {"n_estimators": 10}),
    ForestUtility(DynForestClassifier, {"n_estimators": 10}, metric="margin"),
    TorchUtility(linear, steps=2),
]
TARGETS: list[Utility] = [
    RidgeUtility(),
    RidgeUtility(intercept="penalised", metric="neg_mse"),
    KnnUtility(3, metric="neg_mae"),
    KnnUtility(3, metric="match"),
    EstimatorUtility(DecisionTreeRegressor()),
    ForestUtility(DynForestRegressor, {"n_estimators": 10}),
    TorchUtility(linear, steps=2),
]
ALL = [(load_breast_cancer, u) for u in CLASSES] + [(load_iris, u) for u in CLASSES]
ALL += [(load_diabetes, u) for u in TARGETS]


def name(case: object) -> str:
    if isinstance(case, Utility):
        return f"{case.kind}-{getattr(case, 'metric', '')}"
    return getattr(case, "__name__", "")


@pytest.mark.parametrize("grouped", [False, True], ids=["rows", "groups"])
@pytest.mark.parametrize(("load", "utility"), ALL, ids=name)
def test_walks_scores_truncation_and_counts_agree(
    load: Callable[..., tuple[np.ndarray, np.ndarray]],
    utility: Utility,
    grouped: bool,
    rng: np.random.Generator,
) -> None:
    game = utility.open(problem(load, groups=np.arange(ROWS) // 5 if grouped else None))
    n = game.players
    orders = np.stack([rng.permutation(n)[: n - 1] for _ in range(2)])
    walks = game.walks(orders)
    sizes = game.row_counts[orders].cumsum(axis=1)
    assert (game.tally.evaluations, game.tally.rows_trained) == (orders.size, sizes.sum())
    some = [0, 1, 2, n // 2, n - 1]
    single = game.score([order[:k] for order in orders for k in some])
    np.testing.assert_allclose(single.reshape(2, -1), walks[:, some], atol=1e-9, rtol=1e-9)
    assert (walks[:, 0] == game.empty).all()
    full = float(walks[0, -1])
    game.tally.__init__()  # type: ignore[misc]
    cut = game.walks(orders, truncation=Truncation(full, 0.02))
    stopped = np.isnan(cut)
    np.testing.assert_allclose(cut[~stopped], walks[~stopped], atol=1e-9, rtol=1e-9)
    for row, gone in zip(np.abs(walks - full) < 0.02, stopped, strict=True):
        first = int(row.argmax()) if row.any() else len(row)
        assert not gone[: first + 1].any()
        assert gone[first + 1 :].all()
    assert game.tally.evaluations == (~stopped[:, 1:]).sum()
    assert game.tally.rows_trained == sizes[~stopped[:, 1:]].sum()


@pytest.mark.parametrize(("load", "utility"), ALL[:16] + ALL[32:], ids=name)
def test_scores_do_not_depend_on_the_batch(
    load: Callable[..., tuple[np.ndarray, np.ndarray]], utility: Utility, rng: np.random.Generator
) -> None:
    orders = np.stack([rng.permutation(ROWS)[:8] for _ in range(5)])
    game = utility.open(problem(load))
    together = game.walks(orders)
    alone = np.concatenate([utility.open(problem(load)).walks(order[None]) for order in orders])
    np.testing.assert_array_equal(together, alone)
    sets = [np.sort(order[:k]) for k, order in zip((3, 8, 1, 5, 2), orders, strict=True)]
    np.testing.assert_array_equal(
        game.score(sets), [game.score([members[::-1]])[0] for members in sets]
    )


@pytest.mark.parametrize(("load", "utility"), ALL[:32], ids=name)
def test_rows_of_one_class_predict_that_class(
    load: Callable[..., tuple[np.ndarray, np.ndarray]], utility: Utility
) -> None:
    own = problem(load)
    game = utility.open(own)
    for code in range(len(own.classes)):
        members = np.flatnonzero(own.codes == code)[:4]
        right = float((own.val_codes == code).mean())
        found = game.score([members[:1], members])
        metric = getattr(utility, "metric", None)
        if metric in {None, "accuracy"}:
            np.testing.assert_allclose(found, right)
        elif metric == "match":
            np.testing.assert_allclose(found, [right / 2, right])
        else:
            assert np.ptp(found) < 1e-12
        np.testing.assert_allclose(game.walks(members[None])[0, [1, 4]], found)


def subsets(own: Problem, rng: np.random.Generator, count: int = 320) -> list[np.ndarray]:
    sizes = np.concatenate([[1, 2] * 10, rng.integers(1, own.n + 1, count - 20)])
    return [np.sort(rng.permutation(own.n)[:size]) for size in sizes]


def awkward(load: Callable[..., tuple[np.ndarray, np.ndarray]]) -> Problem:
    """A table with a constant column, a copied column and copied rows."""
    X, y, XV, yv = table(load)
    X[:, 1], XV[:, 1] = 3.0, 3.0
    X[:, 2], XV[:, 2] = X[:, 3], XV[:, 3]
    X[5:10], y[5:10] = X[:5], y[:5]
    return Problem.of(X, y, XV, yv, task="regression" if load is load_diabetes else None)


@pytest.mark.parametrize("load", [load_breast_cancer, load_iris, load_diabetes], ids=name)
def test_ridge_equals_scikit_learn(
    load: Callable[..., tuple[np.ndarray, np.ndarray]], rng: np.random.Generator
) -> None:
    own = awkward(load)
    regression = own.task == "regression"
    free = RidgeUtility(alpha=0.5).open(own)
    for members in subsets(own, rng):
        decided = free._walk(  # the model itself, not only its score
            free._table, members, np.eye(len(members), dtype=np.uint8)[-1], alpha=0.5, free=True
        )[0]
        if regression:
            model = Ridge(alpha=0.5).fit(own.X[members], own.y[members])
            np.testing.assert_allclose(decided[0], model.predict(own.X_val), atol=1e-8)
            continue
        codes = own.codes[members]
        if (codes == codes[0]).all():
            continue
        model = RidgeClassifier(alpha=0.5).fit(own.X[members], codes)
        wanted = model.decision_function(own.X_val).reshape(len(own.X_val), -1).T
        rows = [0] if len(own.classes) == 2 else model.classes_
        if len(model.classes_) == 2 and len(own.classes) > 2:
            wanted = np.concatenate([-wanted, wanted])
        np.testing.assert_allclose(decided[rows], wanted, atol=1e-10)
        if len(model.classes_) == len(own.classes):
            assert free.score([members])[0] == pytest.approx(model.score(own.X_val, own.val_codes))


def test_ridge_with_penalised_intercept_equals_a_constant_column(rng: np.random.Generator) -> None:
    own = problem(load_breast_cancer)
    game = RidgeUtility(intercept="penalised").open(own)
    for members in subsets(own, rng, 40):
        codes = own.codes[members]
        if (codes == codes[0]).all():
            continue
        z, zv = (np.column_stack([x, np.ones(len(x))]) for x in (own.X[members], own.X_val))
        model = Ridge(alpha=1.0, fit_intercept=False).fit(z, np.where(codes > 0, 1, -1))
        right = (model.predict(zv) > 0) == (own.val_codes > 0)
        assert game.score([members])[0] == pytest.approx(right.mean())


@pytest.mark.parametrize("C", [0.1, 1.0, 100.0])
def test_logistic_equals_scikit_learn(C: float, rng: np.random.Generator) -> None:
    own = awkward(load_breast_cancer)
    game = LogisticUtility(C=C).open(own)
    asked = [m for m in subsets(own, rng, 120) if len(set(own.codes[m])) == 2]
    found = game.score(asked)
    wanted = []
    for members in asked:
        model = LogisticRegression(C=C, tol=1e-10, max_iter=5_000, solver="newton-cholesky")
        wanted.append(model.fit(own.X[members], own.codes[members]).score(own.X_val, own.val_codes))
    gap = np.abs(found - wanted) * len(own.X_val)
    assert (gap < 0.5).mean() >= 0.98
    assert gap.max() < 1.5


def test_logistic_of_three_classes_is_one_against_the_rest(rng: np.random.Generator) -> None:
    own = problem(load_iris)
    game = LogisticUtility().open(own)
    for members in subsets(own, rng, 40):
        classes = np.unique(own.codes[members])
        if len(classes) < 2:
            continue
        decisions = np.full((len(own.X_val), 3), -np.inf)
        for code in classes:
            model = LogisticRegression(tol=1e-10, max_iter=5_000, solver="newton-cholesky")
            model.fit(own.X[members], own.codes[members] == code)
            decisions[:, code] = model.decision_function(own.X_val)
        wanted = (decisions.argmax(axis=1) == own.val_codes).mean()
        assert game.score([members])[0] == pytest.approx(wanted, abs=0.5 / VAL)


@pytest.mark.filterwarnings("ignore:invalid value encountered in divide:RuntimeWarning")
@pytest.mark.filterwarnings("ignore:self.within_class_std_dev_ has:UserWarning")  # equal rows
def test_other_models_equal_scikit_learn(rng: np.random.Generator) -> None:
    own, targets = problem(load_iris), problem(load_diabetes)
    pairs: list[tuple[Utility, object, Problem]] = [
        (NearestCentroidUtility(), NearestCentroid(), own),
        (EstimatorUtility(NearestCentroid()), NearestCentroid(), own),
    ]
    for members in subsets(own, rng, 60):
        if len(np.unique(own.codes[members])) < 3 or len(members) < 3:
            continue
        near, far = KNeighborsClassifier(3, algorithm="brute"), KNeighborsRegressor(3)
        smooth = 1e-3 * own.X.var(axis=0).max() / own.X[members].var(axis=0).max()
        for utility, model, data in [
            *pairs,
            (KnnUtility(3), near, own),
            (NaiveBayesUtility(), GaussianNB(var_smoothing=smooth), own),
            (KnnUtility(3), far, targets),
        ]:
            labels = data.codes if data is own else data.y
            truth = data.val_codes if data is own else data.y_val
            fitted = model.fit(data.X[members], labels[members])  # type: ignore[attr-defined]
            wanted = fitted.score(data.X_val, truth)
            assert utility.open(data).score([members])[0] == pytest.approx(wanted, abs=1e-9)


@pytest.mark.parametrize("isa", ["scalar", "avx2", "avx512"])
@pytest.mark.parametrize(
    "shape", [(1, 1, 1, 1), (9, 3, 2, 7), (40, 17, 1, 50), (30, 33, 4, 61), (90, 71, 1, 20)]
)
def test_native_kernels_equal_their_twins(
    isa: str,
    shape: tuple[int, int, int, int],
    rng: np.random.Generator,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    if not _native.available() or kernels.ISAS.index(isa) > kernels.isa_level():
        pytest.skip("this machine or build has no such kernel")
    n, d, c, m = shape
    x, t, xv = rng.normal(size=(n, d)), rng.normal(size=(n, c)), rng.normal(size=(m, d))
    with monkeypatch.context() as patch:
        patch.setattr(kernels, "isa_level", lambda: kernels.ISAS.index(isa))
        rows = rng.permutation(n)
        for mark in (np.ones(n, np.uint8), (np.arange(n) % 3 == 2).astype(np.uint8)):
            if not mark.any():
                continue
            own = _native.Table.of(x, t, xv)
            for free in (True, False):
                got = _native.ridge_walk(own, rows, mark, alpha=0.7, free=free)
                want = ref_ridge_walk(own, rows, mark, alpha=0.7, free=free)
                np.testing.assert_allclose(got, want, atol=1e-11)
            own = _native.Table.of(
                np.column_stack([x, np.ones(n)]), t[:, :1] > 0, np.column_stack([xv, np.ones(m)])
            )
            settings = {"c": 2.0, "tol": 1e-8, "most_steps": 50}
            got, missed = _native.logistic_walk(own, rows, mark, **settings)  # type: ignore[arg-type]
            want, missed_too = ref_logistic_walk(own, rows, mark, **settings)  # type: ignore[arg-type]
            np.testing.assert_allclose(got, want, atol=1e-8)
            assert missed == missed_too == 0


def test_without_the_library_the_twins_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    order = np.arange(ROWS)[None]
    for utility in (RidgeUtility(), LogisticUtility()):
        fast = utility.open(problem(load_breast_cancer)).walks(order)
        with monkeypatch.context() as patch:
            patch.setattr(_native, "available", lambda: False)
            slow = utility.open(problem(load_breast_cancer)).walks(order)
        np.testing.assert_array_equal(fast, slow)


def test_fewer_rows_than_columns_give_the_same_model(rng: np.random.Generator) -> None:
    X, XV = rng.normal(size=(12, 40)), rng.normal(size=(30, 40))
    y, yv = (X[:, 0] > 0).astype(int), (XV[:, 0] > 0).astype(int)
    own = Problem.of(X, y, XV, yv)
    members = np.arange(9)
    ridge = RidgeUtility(metric="margin").open(own)
    assert ridge._table.d == 12
    model = RidgeClassifier().fit(X[:9], y[:9])
    signed = np.where(yv > 0, 1, -1) * model.decision_function(XV)
    assert ridge.score([members])[0] == pytest.approx(np.clip(signed, -1, 1).mean(), abs=1e-10)
    logistic = LogisticUtility(metric="log_likelihood").open(own)
    clear = LogisticRegression(tol=1e-12, max_iter=5_000, solver="newton-cholesky").fit(
        X[:9], y[:9]
    )
    own_class = clear.predict_proba(XV)[np.arange(30), yv]
    wanted = np.log(np.clip(own_class, 1e-3, 1)).mean()
    assert logistic.score([members])[0] == pytest.approx(wanted, abs=1e-6)


def test_u_of_nothing_is_a_stated_constant() -> None:
    own, targets = problem(load_breast_cancer), problem(load_diabetes)
    common = np.bincount(own.codes).argmax()
    cases = [
        (RidgeUtility(), own, 0.5),
        (RidgeUtility(empty="majority"), own, (own.val_codes == common).mean()),
        (RidgeUtility(empty=0.25), own, 0.25),
        (RidgeUtility(metric="log_likelihood"), own, -np.log(2)),
        (RidgeUtility(metric="auc"), own, 0.5),
        (RidgeUtility(metric="margin"), own, 0.0),
        (RidgeUtility(), targets, 0.0),
        (RidgeUtility(metric="neg_mse"), targets, -targets.y_val.var()),
        (KnnUtility(3, metric="match"), own, 0.0),
        (KnnUtility(3, metric="match"), targets, -(targets.y_val**2).mean()),
    ]
    for utility, data, wanted in cases:
        game = utility.open(data)
        assert game.empty == pytest.approx(wanted)
        assert game.score([[]])[0] == game.empty
        assert game.tally.evaluations == 0
    assert len({str(u.spec()) for u, _, _ in cases}) == len({str(u.spec()) for u, _, _ in cases})
    assert RidgeUtility(empty=0.25).spec() != RidgeUtility().spec()


def test_the_forest_is_updated_not_trained_again(rng: np.random.Generator) -> None:
    calls: list[str] = []

    class Counting(DynForestClassifier):
        def fit(self, X, y, *, ids=None):  # type: ignore[no-untyped-def]
            calls.append("fit")
            return super().fit(X, y, ids=ids)

        def learn(self, X, y, *, ids=None):  # type: ignore[no-untyped-def]
            calls.append(f"learn {len(X)}")
            return super().learn(X, y, ids=ids)

        def unlearn(self, ids):  # type: ignore[no-untyped-def,override]
            calls.append(f"unlearn {len(ids)}")
            return super().unlearn(ids)

    own = problem(load_breast_cancer)
    game = ForestUtility(Counting, {"n_estimators": 10}).open(own)
    everybody = np.arange(ROWS)
    scores = game.score([everybody, np.delete(everybody, 3), np.delete(everybody, 7), everybody])
    assert calls == ["fit", "unlearn 1", "learn 1", "unlearn 1", "learn 1"]
    fresh = DynForestClassifier(10, classes=[0, 1], random_state=0)
    left = np.delete(everybody, 7)
    fresh.fit(own.X[left].astype(np.float32), own.codes[left], ids=left)
    right = fresh.predict(own.X_val.astype(np.float32)) == own.val_codes
    assert scores[2] == right.mean()
    assert scores[0] == scores[3]


class Broken(DecisionTreeClassifier):
    def fit(self, X, y, **others):  # type: ignore[no-untyped-def]
        raise RuntimeError("no luck")


class Silent(Game):
    def _score(self, coalitions):  # type: ignore[no-untyped-def]
        return np.array([np.nan if len(c) == 2 else 1.0 for c in coalitions])


def test_failures_are_errors_never_scores() -> None:
    own = problem(load_breast_cancer)
    with pytest.raises(UtilityFailed, match="no luck") as caught:
        EstimatorUtility(Broken()).open(own).score([range(20)])
    assert caught.value.coalition == tuple(range(20))
    game = Silent(3, 0.0)
    with pytest.raises(UtilityFailed, match="not finite") as caught:
        game.score([[0], [1, 2]])
    assert caught.value.coalition == (1, 2)
    with pytest.raises(UtilityFailed):
        game.walks(np.array([[0, 1, 2]]))
    assert game.tally.evaluations == 0
    with pytest.raises(UtilityFailed, match="did not converge"):
        LogisticUtility(max_iter=1, tol=1e-12).open(own).score([range(20)])


def test_wrong_settings_are_refused() -> None:
    own, targets = problem(load_breast_cancer), problem(load_diabetes)
    iris = problem(load_iris)
    cases: list[tuple[Utility, Problem, type[Exception]]] = [
        (RidgeUtility(alpha=0), own, SettingError),
        (RidgeUtility(intercept="maybe"), own, SettingError),  # type: ignore[arg-type]
        (RidgeUtility(metric="luck"), own, SettingError),
        (RidgeUtility(metric="r2"), own, ProblemError),
        (RidgeUtility(metric="auc"), iris, ProblemError),
        (RidgeUtility(empty="zero"), own, SettingError),  # type: ignore[arg-type]
        (RidgeUtility(empty=np.nan), own, SettingError),
        (LogisticUtility(C=-1), own, SettingError),
        (LogisticUtility(tol=1), own, SettingError),
        (LogisticUtility(), targets, ProblemError),
        (KnnUtility(0), own, SettingError),
        (NaiveBayesUtility(smoothing=0), own, SettingError),
        (NearestCentroidUtility(), targets, ProblemError),
        (EstimatorUtility(DecisionTreeClassifier), own, SettingError),
        (EstimatorUtility(object()), own, SettingError),
        (ForestUtility(DecisionTreeClassifier), own, Exception),
        (TorchUtility(linear, steps=0), own, SettingError),
        (TorchUtility(lambda a, b: torch.nn.Sequential(torch.nn.Dropout(0.5))), own, SettingError),
    ]
    for utility, data, error in cases:
        with pytest.raises(error):
            utility.open(data)


def test_random_models_are_functions_of_the_set() -> None:
    own = problem(load_breast_cancer)
    for utility in (
        EstimatorUtility(DecisionTreeClassifier(max_features=1, splitter="random")),
        TorchUtility(linear, steps=3),
    ):
        first, again = utility.open(own), utility.open(own)
        sets = [np.arange(k) for k in (10, 20, 30)]
        np.testing.assert_array_equal(first.score(sets), again.score(sets[::-1])[::-1])


def test_a_forest_of_hostile_structure_is_refused() -> None:
    class Half:
        def __init__(self, **settings: object) -> None:
            pass

    with pytest.raises(SettingError, match="no fit"):
        ForestUtility(Half).open(problem(load_breast_cancer))
