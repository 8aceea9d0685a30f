"""Top-m after a deletion: reduced units are proper units, reused or scored anew, bit for bit."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from sklearn.tree import DecisionTreeClassifier

from privml.rng import ScienceSeed
from privml.valuation import EstimatorUtility, KnnUtility, Problem, RidgeUtility, TopM
from privml.valuation.errors import RunMismatch, SettingError
from privml.valuation.laws import SizeLaw
from privml.valuation.links import after_delete, audit_deletion
from privml.valuation.topm.survivors import SurvivorTarget
from privml.valuation.topm.target import Kind, Target, evaluate

N = 14
LAWS: dict[str, Any] = {
    "shapley": SizeLaw.shapley,
    "banzhaf": SizeLaw.banzhaf,
    "beta": lambda n: SizeLaw.beta(n, 4.0, 1.0),
    "loo": SizeLaw.loo,
}


def problem(seed: int = 0, n: int = N) -> Problem:
    rng = np.random.default_rng(seed)
    X, XV = rng.normal(size=(n, 3)), rng.normal(size=(25, 3))
    y = (X[:, 0] + 0.5 * rng.normal(size=n) > 0).astype(int)
    y[:2] = 0, 1
    return Problem.of(X, y, XV, (XV[:, 0] > 0).astype(int), ids=[f"r{k}" for k in range(n)])


def method(utility: Any, **others: Any) -> TopM:
    settings = {"m": 3, "budget": "14n", "switch": "evaluations:4n", "random_state": 5, **others}
    return TopM(utility=utility, **settings)


@pytest.mark.parametrize("name", LAWS)
@pytest.mark.parametrize("kind", [Kind.SINGLE, Kind.PAIR])
def test_reduced_pulls_have_the_law_of_fewer_players(name: str, kind: Kind) -> None:
    """Sizes and members of S, without two deleted players, against the law of n - 2."""
    make, n, draws = LAWS[name], 7, 4_000
    law = make(n - 2)
    target = SurvivorTarget.after(
        Target.of(make(n)), law, np.array([1, 4]), tuple(range(draws))
    )  # fmt: skip
    arms = (0,) if kind is Kind.SINGLE else (0, 3)
    sizes, members = np.zeros(n), np.zeros(n - 2)
    for unit in range(draws):
        request = target.request(ScienceSeed(1), unit, kind, arms)
        rest = set(request.coalitions[0].tolist()) - set(arms)
        assert rest <= set(range(n - 2))
        sizes[len(rest)] += 1
        members[list(rest)] += 1
    wanted = law if kind is Kind.SINGLE else law.pair_law()
    p = np.zeros(n)
    p[: len(wanted.p)] = wanted.p
    error = np.sqrt(p * (1 - p) / draws)
    assert (np.abs(sizes / draws - p) <= 5 * error + 1e-12).all()
    others = [k for k in range(n - 2) if k not in arms]
    assert np.ptp(members[others]) <= 5 * np.sqrt(draws * 0.5)


@pytest.mark.parametrize("pulls", ["keep", "drop"])
@pytest.mark.parametrize(
    "utility",
    [RidgeUtility(), KnnUtility(3), EstimatorUtility(DecisionTreeClassifier(max_depth=2))],
    ids=lambda u: type(u).__name__,
)
def test_the_result_is_that_of_the_reduced_units_scored_from_scratch(
    utility: Any, pulls: Any
) -> None:
    whole = problem()
    fitted = method(utility).fit_problem(whole)
    assert fitted.engine_.live
    deletion = after_delete(fitted, whole, ["r3", "r9"], pulls=pulls)
    audit = audit_deletion(fitted, whole, ["r3", "r9"], deletion, tolerance=0.0)
    assert audit.consistent, audit.findings
    assert audit.identical
    result, engine = deletion.result, deletion.method.engine_  # type: ignore[union-attr]
    assert len(result.ids) == N - 2
    assert "r3" not in result.ids
    assert result.members is not None
    assert len(result.members) == 3
    kinds = engine.units_by_kind()
    assert kinds[Kind.WALK] == 4
    assert (kinds[Kind.PAIR] == 0) == (pulls == "drop")
    assert all(line.scores.shape == (N - 1,) for line in engine.lines[:4])
    never = utility.open(whole.without([3, 9]))
    for at, line in enumerate(engine.lines):
        request = engine.target.request(engine.seed, at, line.kind, line.arms)
        np.testing.assert_array_equal(evaluate(never, [request])[0], line.scores)


def test_only_what_held_a_deleted_player_is_scored_again() -> None:
    whole = problem()
    fitted = method(EstimatorUtility(DecisionTreeClassifier(max_depth=2))).fit_problem(whole)
    reused = after_delete(fitted, whole, ["r3"])
    anew = after_delete(fitted, whole, ["r3"], reuse="none")
    np.testing.assert_array_equal(reused.result.values, anew.result.values)
    np.testing.assert_array_equal(reused.result.members, anew.result.members)
    assert reused.evaluations == reused.result.evaluations < anew.evaluations
    held = sum(
        any(3 in members for members in fitted.engine_.target.request(
            fitted.engine_.seed, at, line.kind, line.arms).coalitions)
        for at, line in enumerate(fitted.engine_.lines) if 3 not in line.arms
    )  # fmt: skip
    walks = sum(
        N - 1 - int(np.flatnonzero(fitted.engine_.target.request(
            fitted.engine_.seed, at, line.kind).orders[0] == 3)[0])
        for at, line in enumerate(fitted.engine_.lines) if line.kind is Kind.WALK
    )  # fmt: skip
    assert walks <= reused.evaluations <= walks + 2 * held


def test_deletions_may_follow_each_other() -> None:
    whole = problem()
    fitted = method(KnnUtility(3)).fit_problem(whole)
    at_once = after_delete(fitted, whole, ["r3", "r9"])
    first = after_delete(fitted, whole, ["r9"])
    then = after_delete(first.method, first.problem, ["r3"])  # type: ignore[arg-type]
    np.testing.assert_array_equal(at_once.result.values, then.result.values)
    np.testing.assert_array_equal(at_once.result.members, then.result.members)
    assert audit_deletion(first.method, first.problem, ["r3"], then, tolerance=0.0).consistent  # type: ignore[arg-type]


def test_the_run_goes_on_after_a_deletion() -> None:
    whole = problem()
    fitted = method(KnnUtility(3)).fit_problem(whole)
    deletion = after_delete(fitted, whole, ["r3"])
    engine = deletion.method.engine_  # type: ignore[union-attr]
    game = KnnUtility(3).open(deletion.problem)
    done = engine.applied
    for _ in range(5):
        for request in engine.ask(2):
            assert request.kind in {Kind.PAIR, Kind.SINGLE}
            engine.tell(request, evaluate(game, [request])[0])
    assert engine.applied == done + 10
    again = after_delete(deletion.method, deletion.problem, ["r5"])  # type: ignore[arg-type]
    assert len(again.result.ids) == N - 2


@pytest.mark.parametrize("law", ["banzhaf", ("beta", 4.0, 1.0)])
def test_sweeps_of_single_pulls_are_kept_as_well(law: Any) -> None:
    whole = problem()
    fitted = method(KnnUtility(3), law=law).fit_problem(whole)
    deletion = after_delete(fitted, whole, ["r0"])
    assert audit_deletion(fitted, whole, ["r0"], deletion, tolerance=0.0).consistent
    assert np.isfinite(deletion.result.values).all()


def test_features_lose_the_lines_of_the_deleted() -> None:
    whole = problem()
    table = np.random.default_rng(2).normal(size=(N, 5))
    fitted = method(KnnUtility(3), features=table).fit_problem(whole)
    deletion = after_delete(fitted, whole, ["r3"])
    np.testing.assert_array_equal(deletion.method.features, np.delete(table, 3, axis=0))  # type: ignore[union-attr]


def test_what_cannot_be_kept_is_refused() -> None:
    whole = problem()
    law = SizeLaw.capped(N - 1, 4)
    with pytest.raises(SettingError, match="do not stay valid"):
        SurvivorTarget.after(Target.of(SizeLaw.capped(N, 4)), law, np.array([1]), ())
    fitted = method(KnnUtility(3)).fit_problem(whole)
    with pytest.raises(SettingError, match="pulls"):
        after_delete(fitted, whole, ["r1"], pulls="some")  # type: ignore[arg-type]
    with pytest.raises(RunMismatch):
        after_delete(fitted, problem(1), ["r1"])
    with pytest.raises(SettingError, match="below the arms"):
        after_delete(fitted, whole, [f"r{k}" for k in range(11)])


@pytest.mark.parametrize("settings", [{"cap": 4}, {"features": np.eye(N)}])
def test_what_cannot_be_reused_runs_anew(settings: dict[str, Any]) -> None:
    whole = problem()
    asked = method(KnnUtility(3), **settings)
    before = asked.fit_problem(whole) if "cap" in settings else asked
    deletion = after_delete(before, whole, ["r1"])
    anew = method(KnnUtility(3), **settings)
    if "features" in settings:
        anew.set_params(features=np.delete(np.eye(N), 1, axis=0))
    assert deletion.result.digest() == anew.fit_problem(whole.without([1])).result_.digest()
    assert audit_deletion(before, whole, ["r1"], deletion, tolerance=0.0).consistent
