"""Methods end to end: oracle, efficiency, accounting, determinism, resumption, hostile files."""

from __future__ import annotations

import dataclasses
import math
from pathlib import Path

import numpy as np
import pytest
from sklearn.base import clone
from sklearn.datasets import load_breast_cancer, load_diabetes, load_iris
from sklearn.preprocessing import StandardScaler

from privml.backbones import run_state
from privml.errors import PrivmlError
from privml.rng import ScienceSeed
from privml.valuation import engine, parallel
from privml.valuation.errors import (
    CorruptResult,
    NotConverged,
    RunMismatch,
    SettingError,
    UtilityFailed,
)
from privml.valuation.games import AirportGame, TableGame, exact_values
from privml.valuation.laws import SizeLaw
from privml.valuation.methods.exact import ExactValues
from privml.valuation.methods.loo import LeaveOneOut
from privml.valuation.methods.semivalues import Banzhaf, BetaShapley, Semivalue
from privml.valuation.methods.shapley import Shapley
from privml.valuation.problem import Problem
from privml.valuation.result import ValuationResult
from privml.valuation.samplers import TMC, Antithetic, Permutation, Stratified
from privml.valuation.stopping import MaxEvaluations, MaxUnits, Progress, StdErr
from privml.valuation.utilities import KnnUtility, LogisticUtility, RidgeUtility
from privml.valuation.utilities.base import Game

Table = tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]


def table(load=load_breast_cancer, rows: int = 30, val: int = 40) -> Table:  # type: ignore[no-untyped-def]
    X, y = load(return_X_y=True)
    order = np.random.default_rng(5).permutation(len(y))[: rows + val]
    X = StandardScaler().fit_transform(X[order])
    return X[:rows], y[order][:rows], X[rows:], y[order][rows:]


METHODS: list[Semivalue] = [
    Shapley(stopping=MaxUnits(3_000)),
    Shapley(stopping=MaxUnits(3_000), sampler=Stratified(3)),
    Shapley(stopping=MaxUnits(3_000), sampler=Permutation(), cap=3),
    BetaShapley(a=4.0, b=1.0, stopping=MaxUnits(3_000)),
    Banzhaf(stopping=MaxUnits(6_000)),
    Banzhaf(stopping=MaxUnits(3_000), sampler=Antithetic()),
]


@pytest.mark.parametrize("method", METHODS, ids=lambda m: f"{type(m).__name__}-{m.sampler}")
def test_methods_estimate_the_enumerated_value(method: Semivalue, rng: np.random.Generator) -> None:
    game = TableGame(rng.normal(size=64))
    result = clone(method).fit_game(game).result_
    wanted = exact_values(game, method.law(6))
    assert (np.abs(result.values - wanted) <= 5 * result.stderr).all()
    assert result.target == method.law(6).name
    assert (result.ci_low < result.values).all()
    assert result.status == "budget"
    if method.law(6).efficient:
        assert abs(result.efficiency_residual) <= 1e-12
    else:
        assert math.isnan(result.efficiency_residual)
        assert result.residual_reason


class Counted(Game):
    """A wrapper that counts for itself what it is asked."""

    def __init__(self, inner: Game) -> None:
        super().__init__(inner.players, inner.empty, row_counts=inner.row_counts)
        self.inner, self.asked, self.rows = inner, 0, 0

    def _score(self, coalitions):  # type: ignore[no-untyped-def]
        self.asked += len(coalitions)
        self.rows += sum(int(self.row_counts[c].sum()) for c in coalitions)
        return self.inner.score(coalitions)


@pytest.mark.parametrize(
    "method",
    [
        Shapley(stopping=MaxEvaluations(500)),
        Shapley(stopping=MaxEvaluations(500), sampler=TMC(0.05)),
        Shapley(stopping=MaxEvaluations(500), cap=4),
        Banzhaf(stopping=MaxEvaluations(500)),
        ExactValues(),
        LeaveOneOut(),
    ],
    ids=repr,
)
def test_reported_cost_is_what_a_counting_wrapper_sees(method) -> None:  # type: ignore[no-untyped-def]
    X, y, XV, yv = table()
    groups = np.arange(30) // 3
    problem = Problem.of(X, y, XV, yv, groups=groups)
    game = Counted(KnnUtility(3).open(problem))
    result = clone(method).fit_game(game).result_
    assert (result.evaluations, result.rows_trained) == (game.asked, game.rows)
    assert result.evaluations <= 500 or isinstance(method, ExactValues)


def test_truncation_is_counted_apart_and_breaks_efficiency() -> None:
    result = Shapley(
        RidgeUtility(), sampler=TMC(0.05), stopping=MaxEvaluations(2_000)
    ).fit(*table()).result_  # fmt: skip
    assert result.truncated_counts.sum() > 0
    assert abs(result.efficiency_residual) > 1e-6
    plain = Shapley(RidgeUtility(), stopping=MaxEvaluations(2_000)).fit(*table()).result_
    assert plain.truncated_counts.sum() == 0
    assert abs(plain.efficiency_residual) <= 1e-12


JOBS = [
    (RidgeUtility(), 2, "threading"),
    (RidgeUtility(), 4, "threading"),
    (RidgeUtility(), 2, "loky"),
    (LogisticUtility(), 2, "threading"),
    (KnnUtility(3), 4, "threading"),
    pytest.param(RidgeUtility(), 4, "loky", marks=pytest.mark.nightly),
    pytest.param(LogisticUtility(), 4, "multiprocessing", marks=pytest.mark.nightly),
]


@pytest.mark.parametrize(("utility", "jobs", "backend"), JOBS)
def test_workers_have_no_influence(utility, jobs: int, backend: str) -> None:  # type: ignore[no-untyped-def]
    one = Shapley(utility, stopping=MaxEvaluations(3_001), round_units=16).fit(*table())
    many = Shapley(
        utility, stopping=MaxEvaluations(3_001), round_units=16, n_jobs=jobs, backend=backend
    ).fit(*table())
    assert one.result_.digest() == many.result_.digest()


def test_processes_and_draws() -> None:
    one = Banzhaf(RidgeUtility(), stopping=MaxUnits(300)).fit(*table()).result_
    two = Banzhaf(RidgeUtility(), stopping=MaxUnits(300), n_jobs=2).fit(*table()).result_
    assert one.digest() == two.digest()


def test_rounds_have_no_influence_on_the_sums() -> None:
    found = [
        Shapley(RidgeUtility(), stopping=MaxUnits(48), round_units=size).fit(*table()).result_
        for size in (1, 3, 16, 48)
    ]
    assert len({result.values.tobytes() + result.stderr.tobytes() for result in found}) == 1


def test_one_job_starts_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    def forbidden(*_: object, **__: object) -> None:
        raise AssertionError("a pool was started")

    monkeypatch.setattr(parallel, "Parallel", forbidden)
    Shapley(RidgeUtility(), stopping=MaxUnits(2)).fit(*table())


def blas_threads(_: int) -> int:
    return parallel.blas_threads()


@pytest.mark.parametrize("backend", ["threading", "loky"])
def test_workers_hold_blas_at_one_thread(backend: str) -> None:
    assert parallel.Workers(2, backend=backend).map(blas_threads, [0, 1, 2]) == [1, 1, 1]
    assert parallel.Workers(1).map(blas_threads, [0]) == [1]


class Stopper:
    """Interrupts a run after some rounds."""

    def __init__(self, rounds: int) -> None:
        self.left = rounds

    def __call__(self, progress: Progress) -> None:
        self.left -= 1
        if self.left == 0:
            raise KeyboardInterrupt


@pytest.mark.parametrize(
    "method",
    [
        Shapley(RidgeUtility(), stopping=MaxEvaluations(6_001), round_units=8),
        Shapley(RidgeUtility(), sampler=TMC(0.01), stopping=MaxUnits(60), round_units=8),
        Banzhaf(RidgeUtility(), stopping=MaxUnits(500), round_units=50),
        BetaShapley(KnnUtility(3), stopping=MaxEvaluations(2_000), round_units=7),
    ],
    ids=lambda m: f"{type(m).__name__}-{m.sampler}",
)
def test_an_interrupted_run_is_valid_and_resumes_bit_for_bit(
    method: Semivalue, tmp_path: Path
) -> None:
    whole = clone(method).fit(*table()).result_
    path = tmp_path / "run.ckpt"
    parts = clone(method).set_params(checkpoint=path)
    for rounds in (1, 2):
        partial = parts.set_params(listener=Stopper(rounds)).fit(*table()).result_
        assert partial.status == "interrupted"
        assert np.isfinite(partial.values).all() or isinstance(method, Banzhaf)
        assert partial.evaluations < whole.evaluations
    resumed = parts.set_params(listener=None, n_jobs=2, backend="threading").fit(*table()).result_
    assert resumed.digest() == whole.digest()
    again = parts.fit(*table()).result_
    assert again.digest() == whole.digest()


def test_a_finished_run_continues_with_a_larger_budget(tmp_path: Path) -> None:
    path = tmp_path / "run.ckpt"
    for budget in (1_000, 1_777, 4_000):
        found = Shapley(
            RidgeUtility(), stopping=MaxEvaluations(budget), checkpoint=path
        ).fit(*table()).result_  # fmt: skip
    once = Shapley(RidgeUtility(), stopping=MaxEvaluations(4_000)).fit(*table()).result_
    assert found.digest() == once.digest()


def test_an_interrupt_before_the_first_round_leaves_unknown_values(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def interrupt(_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(engine, "evaluate_piece", interrupt)
    path = tmp_path / "run.ckpt"
    result = Shapley(RidgeUtility(), checkpoint=path).fit(*table()).result_
    assert result.status == "interrupted"
    assert np.isnan(result.values).all()
    assert math.isnan(result.efficiency_residual)
    assert result.evaluations == 1


def test_an_interrupt_while_adding_discards_the_round(monkeypatch: pytest.MonkeyPatch) -> None:
    calls, original = [0], engine.add

    def add(estimate, observed) -> None:  # type: ignore[no-untyped-def]
        calls[0] += 1
        if calls[0] == 13:
            raise KeyboardInterrupt
        original(estimate, observed)

    monkeypatch.setattr(engine, "add", add)
    method = Shapley(RidgeUtility(), stopping=MaxUnits(40), round_units=8)
    cut = clone(method).fit(*table()).result_
    monkeypatch.undo()
    wanted = clone(method).set_params(stopping=MaxUnits(8)).fit(*table()).result_
    np.testing.assert_array_equal(cut.values, wanted.values)
    assert cut.evaluations == wanted.evaluations


def test_another_run_refuses_the_checkpoint(tmp_path: Path) -> None:
    path = tmp_path / "run.ckpt"
    method = Shapley(RidgeUtility(), stopping=MaxUnits(4), checkpoint=path)
    method.fit(*table())
    changes: list[Semivalue] = [
        clone(method).set_params(random_state=1),
        clone(method).set_params(utility=RidgeUtility(alpha=2.0)),
        clone(method).set_params(utility=RidgeUtility(empty=0.3)),
        clone(method).set_params(sampler=Permutation()),
        clone(method).set_params(cap=5),
        BetaShapley(RidgeUtility(), stopping=MaxUnits(4), checkpoint=path),
    ]
    for other in changes:
        with pytest.raises(RunMismatch, match="another path"):
            other.fit(*table())
    X, y, XV, yv = table()
    with pytest.raises(RunMismatch):
        clone(method).fit(X + 1e-12, y, XV, yv)


def test_damaged_checkpoints_are_typed_errors(tmp_path: Path) -> None:
    path = tmp_path / "run.ckpt"
    method = Shapley(RidgeUtility(), stopping=MaxUnits(4), checkpoint=path)
    method.fit(*table())
    good = path.read_bytes()
    rng = np.random.default_rng(0)
    broken = [good[:k] for k in (0, 1, 7, 8, 9, 100, len(good) // 2, len(good) - 1)]
    broken += [b"\xff" * 8 + good[8:], good + b"x", b"{}", b"\x80\x04N."]
    for place in rng.integers(0, len(good), 60):
        flipped = bytearray(good)
        flipped[place] ^= 1 << int(rng.integers(8))
        broken.append(bytes(flipped))
    for data in broken:
        path.write_bytes(data)
        with pytest.raises(PrivmlError) as caught:
            clone(method).fit(*table())
        assert isinstance(caught.value, CorruptResult | RunMismatch)
    path.unlink()
    path.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(PrivmlError):
        clone(method).fit(*table())


@pytest.mark.parametrize(
    "change",
    [
        {"units": -1},
        {"units": 1.5},
        {"units": True},
        {"evaluations": "many"},
        {"full": [1]},
        {"more": 1},
        {"seconds": None},
    ],
)
def test_well_signed_nonsense_is_refused(change: dict[str, object], tmp_path: Path) -> None:
    path = tmp_path / "run.ckpt"
    method = Shapley(RidgeUtility(), stopping=MaxUnits(4), checkpoint=path)
    method.fit(*table())
    tree = path.read_bytes()
    at = tree.index(b'"run":"') + len(b'"run":"')
    run = tree[at : at + 64].decode()
    saved = run_state.load_run(path, run=run)
    assert saved is not None
    state = {**saved.state, **change}
    run_state.save_run(path, run=run, arrays=saved.arrays, state=state)  # type: ignore[arg-type]
    with pytest.raises(CorruptResult):
        clone(method).fit(*table())


def test_budgets_too_small_and_failures_are_errors(tmp_path: Path) -> None:
    with pytest.raises(SettingError, match="at least 61"):
        Shapley(RidgeUtility(), stopping=MaxEvaluations(60)).fit(*table())
    with pytest.raises(NotConverged):
        Shapley(RidgeUtility(), stopping=MaxUnits(2), must_converge=True).fit(*table())
    with pytest.raises(UtilityFailed):
        Shapley(LogisticUtility(max_iter=1, tol=1e-12)).fit(*table())
    sloppy = StdErr(10.0, least_units=2)
    easy = Shapley(RidgeUtility(), stopping=sloppy, must_converge=True, round_units=4)
    assert easy.fit(*table()).result_.status == "converged"


@pytest.mark.parametrize(
    "method",
    [
        Shapley(),
        Shapley(RidgeUtility),  # type: ignore[arg-type]
        Shapley(RidgeUtility(), random_state=-1),
        Shapley(RidgeUtility(), random_state="seed"),  # type: ignore[arg-type]
        Shapley(RidgeUtility(), n_jobs=0),
        Shapley(RidgeUtility(), backend="carrier pigeon"),
        Shapley(RidgeUtility(), ci_level=1.0),
        Shapley(RidgeUtility(), round_units=0),
        Shapley(RidgeUtility(), cap=31),
        BetaShapley(RidgeUtility(), a=0),
        LeaveOneOut(),
        ExactValues(RidgeUtility()),
    ],
    ids=repr,
)
def test_wrong_settings_are_refused_at_fit(method) -> None:  # type: ignore[no-untyped-def]
    with pytest.raises(SettingError):
        method.fit(*table())


def test_scikit_learn_conventions() -> None:
    for method in (Shapley(RidgeUtility(), cap=3), BetaShapley(a=2.0), Banzhaf(), LeaveOneOut()):
        copy = clone(method)
        assert copy.get_params() == method.get_params()
        assert not hasattr(copy, "result_")
    method = Shapley(RidgeUtility(), stopping=MaxUnits(3), random_state=ScienceSeed(9))
    first = method.fit(*table()).values_
    np.testing.assert_array_equal(method.fit(*table()).values_, first)
    same = clone(method).set_params(random_state=9).fit(*table()).values_
    np.testing.assert_array_equal(same, first)
    assert not np.array_equal(method.set_params(random_state=10).fit(*table()).values_, first)


def test_groups_names_and_a_plan() -> None:
    X, y, XV, yv = table()
    groups = [f"site {k % 4}" for k in range(30)]
    method = Shapley(RidgeUtility(), stopping=MaxEvaluations(801))
    result = method.fit(X, y, XV, yv, groups=groups).result_
    assert result.ids == ("site 0", "site 1", "site 2", "site 3")
    assert result.group_mode == "player"
    exact = ExactValues(RidgeUtility()).fit(X, y, XV, yv, groups=groups).result_
    assert (np.abs(result.values - exact.values) <= 5 * result.stderr + 1e-9).all()
    assert method.plan(4) == {"evaluations_per_unit": 8, "units": 100, "evaluations": 801}
    assert result.evaluations == 801
    one = Shapley(RidgeUtility(), stopping=MaxUnits(2)).fit(X, y, XV, yv, groups=[1] * 30)
    assert one.result_.values[0] == pytest.approx(exact.values.sum())


@pytest.mark.parametrize("load", [load_breast_cancer, load_iris, load_diabetes])
@pytest.mark.parametrize("intercept", ["free", "penalised", "none"])
@pytest.mark.parametrize("grouped", [False, True])
def test_leave_one_out_in_closed_form(load, intercept: str, grouped: bool) -> None:  # type: ignore[no-untyped-def]
    metric = "neg_mse" if load is load_diabetes else "margin"
    utility = RidgeUtility(intercept=intercept, metric=metric)  # type: ignore[arg-type]
    task = "regression" if load is load_diabetes else None
    groups = np.arange(30) // 4 if grouped else None
    both = [
        LeaveOneOut(utility, closed_form=closed).fit(*table(load), groups=groups, task=task).result_
        for closed in (True, False)
    ]
    np.testing.assert_allclose(both[0].values, both[1].values, rtol=1e-7, atol=1e-10)
    assert both[0].evaluations == both[1].evaluations
    assert both[0].rows_trained == both[1].rows_trained
    assert "closed form" in both[0].method


def test_leave_one_out_of_few_players() -> None:
    X, y, XV, yv = table()
    for utility in (RidgeUtility(), LogisticUtility()):
        alone = LeaveOneOut(utility).fit(X, y, XV, yv, groups=[0] * 30).result_
        full = utility.open(Problem.of(X, y, XV, yv)).score([range(30)])[0]
        assert alone.values[0] == pytest.approx(full - 0.5)
        assert alone.evaluations == 1
        by_class = LeaveOneOut(utility).fit(X, y, XV, yv, groups=y).result_
        right = [(yv == 1).mean(), (yv == 0).mean()]
        np.testing.assert_allclose(by_class.values, full - np.array(right))


def test_exact_values_agree_with_the_oracle(rng: np.random.Generator) -> None:
    game = AirportGame(rng.random(8).tolist())
    result = ExactValues().fit_game(game, ids=tuple("abcdefgh")).result_
    np.testing.assert_allclose(result.values, game.shapley(), atol=1e-13)
    assert (result.status, result.evaluations, result.stderr.max()) == ("exact", 255, 0)
    assert abs(result.efficiency_residual) <= 1e-12
    beta = ExactValues(law=lambda n: SizeLaw.beta(n, 4, 1)).fit_game(game).result_
    assert math.isnan(beta.efficiency_residual)


def test_results_of_two_seeds_merge(rng: np.random.Generator) -> None:
    runs: list[ValuationResult] = [
        Shapley(RidgeUtility(), stopping=MaxUnits(40), random_state=s).fit(*table()).result_
        for s in (1, 2)
    ]
    both = runs[0].merge(runs[1])
    np.testing.assert_allclose(both.values, (runs[0].values + runs[1].values) / 2)
    assert both.evaluations == sum(run.evaluations for run in runs)
    assert abs(both.efficiency_residual) < 1e-12
    for other in (runs[0], dataclasses.replace(runs[1], spec_digest="x")):
        with pytest.raises(RunMismatch):
            runs[0].merge(other)
