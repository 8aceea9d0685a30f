"""Hostile tables, models, settings and files: refused with a reason, never a silent number."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from sklearn.base import BaseEstimator

from privml.backbones import run_state
from privml.errors import PrivmlError
from privml.valuation.errors import CorruptResult, ProblemError, SettingError, UtilityFailed
from privml.valuation.games import AdditiveGame
from privml.valuation.laws import SizeLaw
from privml.valuation.methods import base as methods_base
from privml.valuation.methods.base import versions
from privml.valuation.methods.data_oob import DataOOB
from privml.valuation.methods.exact import ExactValues
from privml.valuation.methods.knn import KNNShapley
from privml.valuation.methods.loo import LeaveOneOut
from privml.valuation.methods.semivalues import Banzhaf, BetaShapley
from privml.valuation.methods.shapley import Shapley
from privml.valuation.problem import Problem
from privml.valuation.result import ValuationResult
from privml.valuation.samplers import TMC, Permutation, Stratified
from privml.valuation.stopping import MaxEvaluations, MaxRows, MaxUnits
from privml.valuation.topm import TopM
from privml.valuation.utilities import (
    EstimatorUtility,
    KnnUtility,
    LogisticUtility,
    RidgeUtility,
)
from privml.valuation.utilities.base import Game, Utility

RNG = np.random.default_rng(3)
X, XV = RNG.normal(size=(8, 2)), RNG.normal(size=(5, 2))
Y, YV = np.array([0, 1] * 4), np.array([0, 1, 1, 0, 1])


def made(**changes: Any) -> Problem:
    given: dict[str, Any] = {"X": X, "y": Y, "X_val": XV, "y_val": YV, **changes}
    tables = [given.pop(name) for name in ("X", "y", "X_val", "y_val")]
    return Problem.of(*tables, **given)


BAD: list[tuple[dict[str, Any], str]] = [
    ({"X": X + 1j}, "not complex"),
    ({"X": np.zeros((8, 2), "M8[s]")}, "not datetime"),
    ({"X": np.zeros((8, 2), "m8[s]")}, "not timedelta"),
    ({"X": X.astype(np.longdouble) * np.longdouble("1e400")}, "infinity"),
    ({"X": np.full((8, 2), 10**400, dtype=object)}, "too large"),
    ({"X": X * 1e200}, "beyond 1e\\+150"),
    ({"X": np.ma.masked_greater(X, 0.0)}, "masked"),
    ({"y": np.ma.masked_equal(Y, 1)}, "masked"),
    ({"y": np.array([0, 1, float("nan"), 1] * 2, dtype=object)}, "NaN"),
    ({"y": [2**70, 2**70 + 1] * 4, "y_val": [2**70] * 5}, "2\\^53"),
    ({"y": [10**400, 1] * 4}, "2\\^53"),
    ({"y": np.array([2**63, 2**63 + 1] * 4, dtype=np.uint64)}, "2\\^53"),
    ({"y": ["a\0", "a"] * 4, "y_val": ["a"] * 5}, "zero character"),
    ({"y": ["\ud800", "a"] * 4, "y_val": ["a"] * 5}, "Unicode"),
    ({"y": [[1], [1, 2]]}, "one label"),
    ({"y": X[:, 0] * 1e200, "y_val": XV[:, 0], "task": "regression"}, "beyond"),
    ({"ids": ["\ud800", *"abcdefg"]}, "Unicode"),
    ({"ids": "abcdefgh"}, "list of names"),
    ({"ids": 5}, "list of names"),
    ({"groups": 5}, "list of names"),
    ({"task": ["classification"]}, "unknown"),
]


@pytest.mark.parametrize(("change", "message"), BAD, ids=range(len(BAD)))
def test_hostile_tables_are_refused(change: dict[str, Any], message: str) -> None:
    with pytest.raises(ProblemError, match=message):
        made(**change)


def test_odd_but_sound_tables_are_one_problem() -> None:
    frame = pd.DataFrame(X, index=[5, 5, 5, 1, 2, 3, 9, 9])
    read_only = X.copy()
    read_only.flags.writeable = False
    own = made().digest()
    for table in (frame, read_only, np.asfortranarray(X), X.astype(object), X.astype(">f8"), [*X]):
        assert made(X=table).digest() == own
    boxed = np.array([np.int64(label) for label in Y], dtype=object)
    assert made(y=boxed, y_val=YV.astype(float)).classes == (0.0, 1.0)
    texts = np.array([np.str_("no"), "yes"] * 4, dtype=object)
    assert made(y=texts, y_val=["no"] * 5).classes == ("no", "yes")


def test_players_are_named_by_whole_numbers() -> None:
    problem = made()
    for wrong in (["a"], [1.7], [True], [None]):
        with pytest.raises(ProblemError, match="whole numbers"):
            problem.without(wrong)  # type: ignore[arg-type]
    assert problem.without([np.int64(1)]).ids == (0, 2, 3, 4, 5, 6, 7)
    for coalition in ([8], [-1]):
        with pytest.raises(ProblemError, match="outside"):
            problem.rows_of_all(coalition)


def test_distances_keep_their_digits_far_from_the_origin() -> None:
    rng = np.random.default_rng(1)
    near, val = rng.integers(0, 9, size=(30, 3)).astype(float), rng.integers(0, 9, size=(9, 3))
    labels, truth = rng.integers(0, 2, 30), rng.integers(0, 2, 9)
    for utility in (KnnUtility(3), KnnUtility(3, metric="match")):
        scores = [
            utility.open(Problem.of(near + far, labels, val + far, truth)).score(
                [range(20), [4, 5]]
            )
            for far in (0.0, 2.0**40)
        ]
        assert np.array_equal(*scores)
    few = Problem.of(near[:8] + 2.0**40, labels[:8], val + 2.0**40, truth)
    own = ExactValues(KnnUtility(3, metric="match")).fit_problem(few).values_
    assert np.abs(own - KNNShapley(3).fit_problem(few).values_).max() < 1e-12


def test_numbers_that_leave_the_range_of_a_model_are_refused() -> None:
    with pytest.raises(ProblemError, match="lose their digits"):
        RidgeUtility().open(made(X=X * 1e8))
    assert RidgeUtility(alpha=1e6).open(made(X=X * 1e8)).players == 8
    with pytest.raises(ProblemError, match="too small"):
        KNNShapley().fit_problem(made(X=X * 1e-200, X_val=XV * 1e-200))
    with pytest.raises(ProblemError, match="float32"):
        KNNShapley(precision="float32").fit_problem(made(X=X * 1e25, X_val=XV * 1e25))
    with pytest.raises(ProblemError, match="float32"):
        DataOOB(bags=2).fit_problem(made(X=X * 1e60))
    for settings in (
        {"weights": "gaussian", "bandwidth": 1e-200},
        {"weights": "inverse", "bandwidth": 1e-300},
        {"radius": 1e200},
    ):
        for normalised in (False, "radius" not in settings):
            method = KNNShapley(2, normalised=normalised, **settings)  # type: ignore[arg-type]
            table = made(X=np.round(X), X_val=np.round(XV))
            exact = ExactValues().fit_game(method.game(table)).values_
            assert np.abs(method.fit_problem(table).values_ - exact).max() < 1e-12
    flat = TopM(m=2, budget="4n", features=np.full((8, 1), 1e300)).fit_problem(made()).result_
    assert np.isfinite(flat.values).all()


def test_a_singular_closed_form_is_a_failed_utility(monkeypatch: pytest.MonkeyPatch) -> None:
    def singular(*_: object) -> None:
        raise np.linalg.LinAlgError("Singular matrix")

    monkeypatch.setattr(np.linalg, "solve", singular)
    with pytest.raises(UtilityFailed, match="closed_form=False"):
        LeaveOneOut(RidgeUtility()).fit_problem(made())


def test_a_failed_model_names_players_not_rows() -> None:
    table = made(groups=list("aabbccdd"))
    with pytest.raises(UtilityFailed) as caught:
        LogisticUtility(max_iter=1, tol=1e-12).open(table).score([[1, 3]])
    assert caught.value.coalition == (1, 3)


# ---------------------------------------------------------------------- models and games


class Answers(BaseEstimator):  # type: ignore[misc]
    def __init__(self, labels: Any = 0, shares: Any = 0.5) -> None:
        self.labels = labels
        self.shares = shares

    def fit(self, x: Any, y: Any) -> Answers:
        x[:], y[:] = 0, 1  # the utility's own tables must not notice
        self.classes_ = np.array([0, 1])
        return self

    def predict(self, x: Any) -> Any:
        return np.full(len(x), self.labels)

    def predict_proba(self, x: Any) -> Any:
        return np.full((len(x), 2), self.shares)


class Short(Answers):
    def predict(self, x: Any) -> Any:
        return np.zeros((len(x), 1))


def test_what_is_no_prediction_is_no_score() -> None:
    table = made()
    before = table.X.copy()
    assert EstimatorUtility(Answers()).open(table).score([range(8)]).shape == (1,)
    assert np.array_equal(table.X, before)
    for model in (Answers(np.nan), Answers("a"), Answers(2), Answers(-1), Answers(0.5), Short()):
        with pytest.raises(UtilityFailed, match="predicted"):
            EstimatorUtility(model).open(table).score([range(8)])
    for shares in (5.0, np.nan, -0.5):
        with pytest.raises(UtilityFailed, match="probabilities"):
            EstimatorUtility(Answers(shares=shares), metric="margin").open(table).score([range(8)])


class Playing(Game):
    def __init__(self, answer: Callable[[Any], Any]) -> None:
        super().__init__(4, 0.0)
        self.answer = answer

    def _score(self, coalitions: Any) -> Any:
        return self.answer(coalitions)


class Walking(Playing):
    def _walks(self, orders: Any) -> Any:
        return self.answer(orders)


ANSWERS: list[Callable[[Any], Any]] = [
    lambda asked: np.zeros(len(asked) + 1),
    lambda _: 1.0,
    lambda asked: np.zeros((len(asked), 1)),
    lambda _: None,
    lambda asked: np.full(len(asked), 1j),
    lambda asked: np.full(len(asked), 1e308),
    lambda asked: ["a"] * len(asked),
    lambda asked: [members.fill(0) for members in asked],
]


@pytest.mark.parametrize("answer", ANSWERS, ids=range(len(ANSWERS)))
def test_games_that_misbehave_fail(answer: Callable[[Any], Any]) -> None:
    for game in (Playing(answer), Walking(answer)):
        for method in (
            Shapley(stopping=MaxUnits(2)), Banzhaf(stopping=MaxUnits(3)), ExactValues(),
            Shapley(stopping=MaxUnits(2), sampler=TMC(1e-9)),
        ):  # fmt: skip
            with pytest.raises(UtilityFailed):
                method.fit_game(game)
        assert game.tally.evaluations == 0


def test_orders_of_the_caller_stay_his() -> None:
    orders = np.array([[0, 1, 2, 3]])

    def sorting(asked: Any) -> Any:
        asked.sort(axis=1)

    with pytest.raises(UtilityFailed, match="read-only"):
        Walking(sorting).walks(orders)
    orders[0, 0] = 0


# ---------------------------------------------------------------------- settings


SETTINGS: list[dict[str, Any]] = [
    {"n_jobs": 1.5}, {"n_jobs": None}, {"ci_level": "high"}, {"ci_level": np.nan},
    {"round_units": 1.5}, {"sampler": "walks"}, {"sampler": Permutation}, {"stopping": 5},
    {"sampler": TMC(np.nan)}, {"sampler": TMC(np.inf)}, {"sampler": Stratified(2.5)},  # type: ignore[arg-type]
    {"cap": 1.5},
]  # fmt: skip


@pytest.mark.parametrize("setting", SETTINGS, ids=str)
def test_hostile_settings_are_refused(setting: dict[str, Any]) -> None:
    with pytest.raises(SettingError):
        Shapley(RidgeUtility(), **{"stopping": MaxUnits(2), **setting}).fit_problem(made())


def test_more_hostile_settings_are_refused() -> None:
    table = made()
    wrong: list[Callable[[], object]] = [
        lambda: MaxUnits(1.5),  # type: ignore[arg-type]
        lambda: MaxEvaluations("a"),  # type: ignore[arg-type]
        lambda: MaxRows(2.5),  # type: ignore[arg-type]
        lambda: SizeLaw.beta(3, "a", 1),  # type: ignore[arg-type]
        lambda: KnnUtility(1.5).open(table),  # type: ignore[arg-type]
        lambda: KnnUtility(True).open(table),
        lambda: KNNShapley(radius="x").fit_problem(table),  # type: ignore[arg-type]
        lambda: KNNShapley(bandwidth="x").fit_problem(table),  # type: ignore[arg-type]
    ]
    for make in wrong:
        with pytest.raises(SettingError):
            make()
    with pytest.raises(ProblemError):
        DataOOB().fit([1, 2, 3], [0, 1, 1])
    with pytest.raises(ProblemError):
        DataOOB().fit([[1], [2, 3]], [0, 1])


def test_a_run_does_the_units_it_was_given(tmp_path: Path) -> None:
    table, path = made(), tmp_path / "run"
    for units in (1, 3, 70):
        run = Shapley(KnnUtility(1), stopping=MaxUnits(units)).fit_problem(table).result_
        assert run.extras["units"] == units
        assert run.stop_reason == f"{units} units"
    both = MaxUnits(3) & MaxUnits(5)
    assert both.units() == 5
    assert (MaxUnits(3) | MaxEvaluations(9)).units() == 3
    assert Shapley(KnnUtility(1), stopping=both).fit_problem(table).result_.extras["units"] == 5
    Shapley(KnnUtility(1), stopping=MaxUnits(9), checkpoint=path).fit_problem(table)
    further = Shapley(KnnUtility(1), stopping=MaxUnits(4), checkpoint=path).fit_problem(table)
    assert further.result_.stop_reason == "9 units, more than the 4 asked for"


# ---------------------------------------------------------------------- laws, files, results


def test_laws_that_differ_have_names_that_differ(tmp_path: Path) -> None:
    assert SizeLaw.beta(5, 16, 1.0).name == "beta(16,1)"
    names = {SizeLaw.beta(5, a, 1).name for a in (1.0, 1.0000001, 1.00000012, 1 / 3)}
    assert len(names) == 4
    path = tmp_path / "run"
    one = BetaShapley(KnnUtility(1), a=1.0000001, stopping=MaxUnits(2), checkpoint=path)
    one.fit_problem(made())
    with pytest.raises(PrivmlError, match="belongs to a run"):
        one.set_params(a=1.00000012).fit_problem(made())


def test_every_flipped_bit_of_a_result_is_found(tmp_path: Path) -> None:
    result = Shapley(KnnUtility(1), stopping=MaxUnits(2)).fit_problem(made()).result_
    result.save(tmp_path)
    assert ValuationResult.load(tmp_path).digest() == result.digest()
    for name in ("result.json", "values.safetensors"):
        path = tmp_path / name
        whole = path.read_bytes()
        for at in range(len(whole)):
            damaged = bytearray(whole)
            damaged[at] ^= 1 << (at % 8)
            path.write_bytes(damaged)
            try:
                found = ValuationResult.load(tmp_path)
            except CorruptResult:
                continue
            assert name == "result.json"
            assert json.loads(damaged) == json.loads(whole)  # 1e-3 as 1E-3 is the same number
            assert found.digest() == result.digest()
        path.write_bytes(whole)
    tree = json.loads((tmp_path / "result.json").read_bytes())
    tree["result"]["status"] = "converged"
    (tmp_path / "result.json").write_text(json.dumps(tree))
    with pytest.raises(CorruptResult, match="damaged"):
        ValuationResult.load(tmp_path)


def test_impossible_states_of_a_checkpoint_are_refused(tmp_path: Path) -> None:
    table, path = made(), tmp_path / "run"

    def run() -> ValuationResult:
        method = Shapley(KnnUtility(1), stopping=MaxUnits(4), checkpoint=path)
        return method.fit_problem(table).result_

    run()
    whole = path.read_bytes()
    digest = json.loads(whole[whole.index(b'{"digest"') :].rstrip(b" ").split(b"\0")[0])["run"]
    saved = run_state.load_run(path, run=digest)
    assert saved is not None
    for name, value in (("mean", np.nan), ("mean", np.inf), ("squares", -1.0), ("cut", -5)):
        array = np.full_like(saved.arrays[name], value)
        state: dict[str, Any] = dict(saved.state)
        arrays = {**saved.arrays, name: array}
        run_state.save_run(path, run=digest, arrays=arrays, state=state)
        with pytest.raises(CorruptResult, match="impossible"):
            run()


def test_merged_runs_say_how_many_units_they_have() -> None:
    one, two = (
        Shapley(KnnUtility(1), stopping=MaxUnits(units), random_state=units).fit_problem(made())
        for units in (3, 4)
    )
    assert one.result_.merge(two.result_).extras["units"] == 7


def test_versions_are_looked_up_once(monkeypatch: pytest.MonkeyPatch) -> None:
    first = versions()
    monkeypatch.setattr(methods_base, "version", None)
    assert versions() == first
    versions()["numpy"] = "0"
    assert versions() == first


# ---------------------------------------------------------------------- top m


def test_tells_that_do_not_fit_are_refused() -> None:
    fitted = TopM(m=2, budget="2n", switch="evaluations:20n").fit_problem(made())
    other = TopM(m=2, budget="2n", switch="evaluations:20n", random_state=1).fit_problem(made())
    engine = fitted.engine_
    first, second = engine.ask(2)
    right = np.linspace(0.0, 1.0, first.scores)
    hostile: list[Any] = [
        np.full(first.scores, np.nan), np.full(first.scores, 1e308), np.full(first.scores, 1j),
        ["a"] * first.scores, None, [[1], [1, 2]], [1.0],
    ]  # fmt: skip
    for scores in hostile:
        with pytest.raises(SettingError):
            engine.tell(first, scores)
    foreign = other.engine_.ask(1)[0]
    assert foreign.unit == first.unit
    for unit in (foreign, "x", True, [first.unit], -1, second.unit + 1):
        with pytest.raises(SettingError):
            engine.tell(unit, right)  # type: ignore[arg-type]
    engine.tell(second, right)
    with pytest.raises(SettingError):
        engine.tell(second, right)
    engine.tell(first.unit, right)
    for wrong in (0, 1.5, "a"):
        with pytest.raises(SettingError):
            engine.ask(wrong)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "setting",
    [
        {"prior_mean": np.nan}, {"prior_mean": "x"}, {"noise_weight": 0.0}, {"lengthscale": 1e300},
        {"lengthscale": 1e-300}, {"hyperparameters": 5}, {"switch": 5}, {"width": np.inf},
        {"norm": np.inf}, {"m": 1.5}, {"rank": 1.5},
    ],
    ids=str,
)  # fmt: skip
def test_hostile_settings_of_the_search_are_refused(setting: dict[str, Any]) -> None:
    with pytest.raises(SettingError):
        TopM(m=2, options=setting).fit_problem(made())


def test_equal_searches_have_equal_digests() -> None:
    one, two = (TopM(m=2, budget="12n").fit_problem(made()).result_ for _ in range(2))
    assert one.digest() == two.digest()
    assert dataclasses.replace(one, values=one.values + 1).digest() != one.digest()


def test_additive_games_have_their_weights_as_values() -> None:
    game = AdditiveGame([-1.0, 0.5, 2.0])
    values = Shapley(stopping=MaxUnits(3)).fit_game(game).values_
    assert np.abs(values - game.weights).max() < 1e-12


def test_utilities_have_names_of_their_own() -> None:
    def below(kind: type) -> set[type]:
        return {kind, *(c for sub in kind.__subclasses__() for c in below(sub))}

    kinds = [kind.kind for kind in below(Utility) if kind.__module__.startswith("privml.")]  # type: ignore[attr-defined]
    assert len(set(kinds)) == len(kinds)
