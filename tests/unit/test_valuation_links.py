"""Values after a deletion: each rule of reuse equals a run that never saw the record."""

from __future__ import annotations

import dataclasses
import itertools
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.naive_bayes import GaussianNB

from privml.unlearning import forest as forests
from privml.valuation.errors import CorruptResult, ProblemError, RunMismatch, SettingError
from privml.valuation.games import AdditiveGame, TableGame, exact_values
from privml.valuation.laws import SizeLaw
from privml.valuation.links import (
    Deletion,
    DeRDaVa,
    Survivors,
    after_delete,
    audit_deletion,
    audit_unlearning,
    cost_of_forgetting,
    mentions,
    record,
)
from privml.valuation.methods.base import Valuer
from privml.valuation.methods.classwise import ClasswiseShapley
from privml.valuation.methods.data_oob import DataOOB
from privml.valuation.methods.exact import ExactValues
from privml.valuation.methods.knn import KNNShapley
from privml.valuation.methods.loo import LeaveOneOut
from privml.valuation.methods.semivalues import Banzhaf, BetaShapley, Semivalue
from privml.valuation.methods.shapley import Shapley
from privml.valuation.problem import Problem
from privml.valuation.samplers import TMC, Permutation, Stratified
from privml.valuation.stopping import MaxUnits
from privml.valuation.utilities import (
    EstimatorUtility,
    ForestUtility,
    KnnUtility,
    NearestCentroidUtility,
    RidgeUtility,
)

N = 14


def problem(seed: int = 0, *, n: int = N, groups: bool = False) -> Problem:
    rng = np.random.default_rng(seed)
    X, X_val = rng.normal(size=(n, 4)), rng.normal(size=(40, 4))
    y, y_val = (X[:, 0] > 0).astype(int), (X_val[:, 0] > 0).astype(int)
    y[:2] = 0, 1
    ids = [f"person-{number}" for number in range(n)]
    owner = [f"site-{number % 7}" for number in range(n)] if groups else None
    return Problem.of(X, y, X_val, y_val, ids=ids, groups=owner)


def never_saw(table: Problem, gone: list[int]) -> Problem:
    """The problem built from tables that never held the rows."""
    keep = np.delete(np.arange(table.n), gone)
    return Problem.of(
        table.X[keep], np.array(table.classes)[table.codes[keep]], table.X_val,
        np.array(table.classes)[table.val_codes],
        ids=[table.row_ids[row] for row in keep], task=table.task,
    )  # fmt: skip


ANEW: list[Valuer] = [
    KNNShapley(3),
    KNNShapley(radius=1.5),
    KNNShapley(2, weights="inverse", normalised=True),
    LeaveOneOut(RidgeUtility()),
    LeaveOneOut(KnnUtility(3)),
    ExactValues(NearestCentroidUtility()),
    ClasswiseShapley(KnnUtility(1), contexts=4),
]


@pytest.mark.parametrize("method", ANEW, ids=lambda m: f"{m!r}"[:50])
def test_methods_computed_anew_equal_a_run_without_the_rows(method: Valuer) -> None:
    table = problem(n=9)
    deletion = after_delete(method, table, ["person-4", "person-7"])
    other = never_saw(table, [4, 7])
    assert deletion.problem.digest() == other.digest()
    scratch = type(method)(**method.get_params()).fit_problem(other).result_
    assert np.array_equal(deletion.result.values, scratch.values)
    assert deletion.result.digest() == scratch.digest()
    audit = audit_deletion(method, table, ["person-4", "person-7"], deletion)
    assert audit.consistent
    assert audit.identical


SAMPLED: list[Semivalue] = [
    Shapley(KnnUtility(3)),
    Shapley(RidgeUtility(metric="margin")),
    Shapley(RidgeUtility(metric="margin"), sampler=Permutation()),
    Shapley(NearestCentroidUtility(), sampler=Stratified(3)),
    BetaShapley(KnnUtility(3), a=4.0, b=1.0),
    Shapley(EstimatorUtility(GaussianNB())),
    Banzhaf(RidgeUtility(metric="margin")),
    Banzhaf(KnnUtility(3)),
]


@pytest.mark.parametrize("groups", [False, True])
@pytest.mark.parametrize("method", SAMPLED, ids=lambda m: f"{m!r}"[:60])
def test_reuse_equals_a_run_from_scratch_with_the_reduced_units(
    method: Semivalue, groups: bool
) -> None:
    table = problem(groups=groups)
    gone = ["site-3"] if groups else ["person-3"]
    recording = record(method, table, units=12)
    twelve = {"stopping": MaxUnits(12), "round_units": 12}
    plain = type(method)(**{**method.get_params(), **twelve}).fit_problem(table)
    assert np.array_equal(recording.result(table).values, plain.values_)
    assert recording.result(table).spec_digest != plain.result_.spec_digest  # names its sampler
    for reuse in ("auto", "suffix", "none"):
        deletion = after_delete(method, table, gone, recording=recording, reuse=reuse)  # type: ignore[arg-type]
        audit = audit_deletion(method, table, gone, deletion)
        assert audit.consistent, audit.findings
        if reuse == "auto":
            # sums of a ridge over all rows round otherwise once a row is gone
            assert audit.identical or (method.law(3).name, audit.difference < 1e-15) == (
                "banzhaf",
                True,
            )
            assert deletion.result.data_digest == deletion.problem.digest()
            base = method.sampler or method.default_sampler()
            sampler = Survivors(base, table.players, (3,))
            scratch = type(method)(**{**method.get_params(), "sampler": sampler, **twelve})
            again = scratch.fit_problem(deletion.problem).result_
            assert np.allclose(again.values, deletion.result.values, rtol=0, atol=1e-15)
            assert np.allclose(again.stderr, deletion.result.stderr, rtol=0, atol=1e-15)
            assert again.spec_digest == deletion.result.spec_digest
        if deletion.result.target == "shapley":
            assert abs(deletion.result.efficiency_residual) <= 1e-12


def test_walks_are_evaluated_behind_the_deleted_player_only() -> None:
    table = problem()
    method = Shapley(EstimatorUtility(GaussianNB()))
    recording = record(method, table, units=40)
    deletion = after_delete(method, table, ["person-5"], recording=recording)
    sampler = recording.sampler
    left = sum(
        N - 1 - int(np.flatnonzero(walk == 5)[0])
        for number in range(40)
        for walk in sampler.before(number, recording.seed).orders
    )
    assert deletion.evaluations == left
    assert 0.4 < left / (40 * 2 * (N - 1)) < 0.6
    three = Shapley(method.utility, stopping=MaxUnits(3), round_units=3)
    fresh = after_delete(three, table, ["person-5"])
    assert fresh.evaluations == 3 * 2 * (N - 1) + 1  # without a recording all is evaluated


def test_draws_without_the_deleted_player_stay_and_nothing_else_is_evaluated() -> None:
    table = problem()
    method = Banzhaf(KnnUtility(3))
    recording = record(method, table, units=60)
    deletion = after_delete(method, table, ["person-2"], recording=recording, refill=False)
    reduced = deletion.recording
    assert reduced is not None
    kept = [
        number
        for number in range(60)
        if 2 not in recording.sampler.before(number, recording.seed).coalitions[0]
    ]
    assert np.flatnonzero(reduced.used).tolist() == kept
    assert deletion.evaluations == 1  # U of all survivors
    full = after_delete(method, table, ["person-2"], recording=recording)
    assert full.evaluations == 60 - len(kept) + 1
    scores = KnnUtility(3).open(deletion.problem).score(
        [reduced.sampler.unit(k, reduced.seed, reduced.law).coalitions[0] for k in kept]
    )  # fmt: skip
    assert np.array_equal(scores, reduced.scores[kept, 0])
    assert np.isnan(np.delete(reduced.scores, kept, axis=0)).all()


def test_deletions_commute_and_recordings_go_on() -> None:
    table = problem()
    method = Shapley(RidgeUtility(metric="margin"))
    recording = record(method, table, units=6)
    one = after_delete(method, table, ["person-9"], recording=recording)
    then = after_delete(method, one.problem, ["person-2"], recording=one.recording)
    both = after_delete(method, table, ["person-2", "person-9"], recording=recording)
    assert np.array_equal(then.result.values, both.result.values)
    assert then.result.digest() == both.result.digest()
    assert one.recording is not None
    unrecorded = Shapley(
        RidgeUtility(metric="margin"),
        sampler=one.recording.sampler,
        stopping=MaxUnits(6),
        round_units=6,
    )
    again = after_delete(unrecorded, one.problem, ["person-2"])
    assert np.array_equal(again.result.values, both.result.values)


@settings(max_examples=20, deadline=None)
@given(seed=st.integers(0, 999), size=st.integers(1, 6))
def test_reduced_walks_are_walks_of_the_survivors(seed: int, size: int) -> None:
    gone = tuple(sorted(np.random.default_rng(seed).permutation(9)[:size].tolist()))
    for base in (Permutation(), Stratified(4)):
        sampler = Survivors(base, 9, gone)
        law = SizeLaw.shapley(9 - size)
        sampler.check(law)
        recording = record(Shapley(KnnUtility(1), random_state=seed), problem(n=9), units=1)
        orders = sampler.unit(4, recording.seed, law).orders
        assert np.array_equal(
            np.sort(orders, axis=1), np.tile(np.arange(9 - size), (len(orders), 1))
        )
        assert sampler.evaluations(law) == orders.size


def test_only_bags_that_held_the_row_are_trained_again() -> None:
    table = problem()
    method = DataOOB(bags=40, keep=True).fit_problem(table)
    assert method.bags_ is not None
    held = sum(bool(method.bags_.counts(bag)[3]) for bag in range(40))
    deletion = after_delete(method, table, ["person-3"])
    assert deletion.evaluations == held < 40
    audit = audit_deletion(method, table, ["person-3"], deletion)
    assert audit.consistent
    assert audit.identical
    forgetful = DataOOB(bags=40).fit_problem(table)
    other = after_delete(forgetful, table, ["person-3"])
    assert other.evaluations == 40
    assert np.array_equal(other.result.values, deletion.result.values, equal_nan=True)
    further = after_delete(deletion.method, deletion.problem, ["person-8"])  # type: ignore[arg-type]
    both = after_delete(method, table, ["person-3", "person-8"])
    assert np.array_equal(further.result.values, both.result.values, equal_nan=True)
    with pytest.raises(SettingError, match="fit"):
        after_delete(DataOOB(), table, ["person-3"])


def test_units_that_do_not_stay_valid_are_refused() -> None:
    table = problem()
    with pytest.raises(SettingError, match="untruncated"):
        record(Shapley(KnnUtility(1), sampler=TMC(0.1)), table, units=2)
    with pytest.raises(SettingError, match="capped"):
        record(Shapley(KnnUtility(1), cap=3), table, units=2)
    with pytest.raises(SettingError):
        record(Shapley(KnnUtility(1)), table, units=0)
    with pytest.raises(SettingError):
        Survivors(Permutation(), 5, (5,)).check(SizeLaw.shapley(4))
    recording = record(Shapley(KnnUtility(1)), table, units=2)
    with pytest.raises(SettingError, match="not of this problem"):
        after_delete(Shapley(KnnUtility(1)), problem(1), ["person-1"], recording=recording)
    with pytest.raises(ProblemError, match="nobody"):
        after_delete(KNNShapley(), table, ["nobody"])
    with pytest.raises(ProblemError):
        after_delete(KNNShapley(), table, [])
    with pytest.raises(ProblemError):
        after_delete(KNNShapley(), table, list(table.ids))


def test_audits_catch_stale_values_and_leftovers(tmp_path: Path) -> None:
    table = problem()
    method = Shapley(KnnUtility(3))
    recording = record(method, table, units=8)
    before = recording.result(table)
    deletion = after_delete(method, table, ["person-3"], recording=recording)
    before.save(tmp_path / "before")
    deletion.result.save(tmp_path / "after")
    recording.save(tmp_path / "old.run")
    assert deletion.recording is not None
    deletion.recording.save(tmp_path / "new.run")
    clean = [tmp_path / "after", tmp_path / "new.run"]
    assert audit_deletion(method, table, ["person-3"], deletion, artefacts=clean).consistent
    found = audit_deletion(method, table, ["person-3"], deletion, artefacts=[tmp_path / "before"])
    assert not found.consistent
    assert {text.split("holds the ")[1] for text in found.findings} == {
        "name of a deleted record", "data digest of a deleted record",
    }  # fmt: skip
    assert "person-3" not in "".join(found.findings)
    stale = dataclasses.replace(
        deletion.result, values=np.delete(before.values, 3), data_digest=before.data_digest
    )
    audit = audit_deletion(method, table, ["person-3"], dataclasses.replace(deletion, result=stale))
    assert not audit.consistent
    assert len(audit.findings) == 2
    (tmp_path / "cache.bin").write_bytes(b"x" + table.X[3].astype(np.float32).tobytes() + b"y")
    assert len(mentions(table, ["person-3"], [tmp_path / "cache.bin"])) == 1
    assert not mentions(table, ["person-4"], [tmp_path / "cache.bin"])
    numbered = Problem.of(table.X, table.y, table.X_val, table.y_val)
    KNNShapley().fit_problem(numbered).result_.save(tmp_path / "numbers")
    assert mentions(numbered, [3], [tmp_path / "numbers" / "result.json"])
    after_delete(KNNShapley(), numbered, [3]).result.save(tmp_path / "numbers")
    assert not mentions(numbered, [3], [tmp_path / "numbers"])


def test_recordings_are_saved_and_wrong_ones_refused(tmp_path: Path) -> None:
    table = problem()
    recording = record(Shapley(KnnUtility(3)), table, units=4)
    path = tmp_path / "a.run"
    with pytest.raises(CorruptResult):
        recording.load(path)
    recording.save(path)
    blank = dataclasses.replace(recording, scores=np.zeros_like(recording.scores))
    assert np.array_equal(blank.load(path).scores, recording.scores)
    deletion = after_delete(Shapley(KnnUtility(3)), table, ["person-1"], recording=recording)
    with pytest.raises(RunMismatch):
        deletion.recording.load(path)  # type: ignore[union-attr]
    data = bytearray(path.read_bytes())
    data[-3] ^= 1
    path.write_bytes(data)
    with pytest.raises(CorruptResult):
        recording.load(path)
    shorter = dataclasses.replace(recording, scores=recording.scores[:2])
    recording.save(path)
    with pytest.raises(CorruptResult, match="form"):
        shorter.load(path)


def forest_utility() -> ForestUtility:
    make = forests.DynForestClassifier
    return ForestUtility(make, params={"n_estimators": 5, "max_depth": 4}, metric="accuracy")


def test_models_that_unlearned_score_as_models_that_never_saw() -> None:
    table = problem(n=60)
    gone = [f"person-{number}" for number in (3, 8, 21)]
    audit = audit_unlearning(forest_utility(), table, gone, coalitions=12)
    assert audit.consistent, audit.findings
    assert audit.identical
    assert audit.difference == 0.0
    assert audit_unlearning(KnnUtility(3), table, gone).consistent


class Forgetless(forests.DynForestClassifier):
    """A forest that acknowledges deletions and does nothing."""

    def unlearn(self, ids):  # type: ignore[no-untyped-def]
        return None


def test_a_forest_that_does_not_forget_is_caught() -> None:
    params = {"n_estimators": 5, "max_depth": 6}
    utility = ForestUtility(Forgetless, params=params, metric="margin")
    table = problem(n=40)
    gone = [f"person-{k}" for k in range(0, 40, 3)]
    audit = audit_unlearning(utility, table, gone, coalitions=0)
    assert not audit.consistent
    assert audit.to_json()["findings"]


def test_the_cost_report_adds_values_and_measures_the_change() -> None:
    table = problem(n=30)
    method = Shapley(RidgeUtility(metric="margin"))
    recording = record(method, table, units=200)
    result = recording.result(table)
    gone = ["person-0", "person-5", "person-9"]
    plain = cost_of_forgetting(table, result, gone)
    exact = cost_of_forgetting(
        table, result, gone, utility=RidgeUtility(metric="margin"), recording=recording
    )
    assert plain.value == exact.value == pytest.approx(result.values[[0, 5, 9]].sum())
    assert plain.interval == "sum of intervals"
    assert exact.interval == "units"
    assert exact.value_high - exact.value_low < plain.value_high - plain.value_low
    assert exact.value_low < exact.value < exact.value_high
    game = RidgeUtility(metric="margin").open(table)
    full, rest = game.score([range(30), np.delete(np.arange(30), [0, 5, 9])])
    assert exact.change == pytest.approx(rest - full)
    assert exact.change_low < exact.change < exact.change_high
    assert exact.evaluations == 22
    assert plain.to_json()["change"] is None
    assert exact.share == pytest.approx(exact.value / result.values.sum())
    assert exact.affected == exact.units == 200
    draws = record(Banzhaf(KnnUtility(1)), table, units=50)
    report = cost_of_forgetting(table, draws.result(table), gone, recording=draws)
    assert 35 < report.affected < 50
    assert np.isnan(report.share)
    with pytest.raises(RunMismatch):
        cost_of_forgetting(problem(5, n=30), result, gone)
    with pytest.raises(SettingError):
        cost_of_forgetting(table, result, gone, utility=RidgeUtility(), folds=1)


def brute_force(table: np.ndarray, chance: list[float]) -> tuple[np.ndarray, np.ndarray]:
    """Return exact deletion-robust values, by all staying sets, and the chance of each set."""
    n = len(chance)
    out, weights = np.zeros(n), []
    for stays in itertools.product([False, True], repeat=n):
        weight = float(np.prod([c if s else 1 - c for c, s in zip(chance, stays, strict=True)]))
        members = np.flatnonzero(stays)
        if len(members):
            index = [
                int(
                    (
                        1 << members[np.flatnonzero([(k >> b) & 1 for b in range(len(members))])]
                    ).sum()
                )
                for k in range(1 << len(members))
            ]
            game = TableGame(table[index])
            out[members] += weight * exact_values(game, SizeLaw.shapley(len(members)))
        weights.append(weight)
    return out, np.array(weights)


def test_deletion_robust_values_estimate_their_definition() -> None:
    rng = np.random.default_rng(0)
    game = TableGame(rng.normal(size=32))
    chance = [0.9, 0.3, 0.6, 1.0, 0.0]
    wanted, weights = brute_force(game.table, chance)
    assert weights.sum() == pytest.approx(1.0)
    result = DeRDaVa(staying=chance, units=6_000).fit_game(game).result_
    assert (np.abs(result.values - wanted) <= 5 * result.stderr + 1e-12).all()
    assert result.values[4] == 0.0
    assert abs(result.efficiency_residual) <= 1e-12
    assert result.target == "derdava"


def test_with_everybody_staying_it_is_the_shapley_value() -> None:
    rng = np.random.default_rng(1)
    game = TableGame(rng.normal(size=16))
    wanted = exact_values(game, SizeLaw.shapley(4))
    result = DeRDaVa(staying=1.0, units=4_000).fit_game(game).result_
    assert (np.abs(result.values - wanted) <= 5 * result.stderr).all()
    additive = AdditiveGame([1.0, -2.0, 3.0])
    assert np.allclose(DeRDaVa(staying=1.0, units=5).fit_game(additive).values_, [1, -2, 3])
    halves = DeRDaVa(staying=0.5, units=4_000).fit_game(additive).result_
    assert np.allclose(halves.values, [0.5, -1.0, 1.5], atol=0.15)


def test_the_tail_looks_at_the_worst_or_best_sets() -> None:
    game = AdditiveGame([1.0, 1.0, 1.0, 1.0])
    runs = {
        tail: DeRDaVa(staying=0.5, units=2_000, tail=tail).fit_game(game).result_
        for tail in (None, 1.0, 0.1, -0.1)
    }
    assert np.array_equal(runs[None].values, runs[1.0].values)
    assert runs[0.1].values.sum() < runs[None].values.sum() < runs[-0.1].values.sum()
    assert runs[0.1].counts[0] == 200
    assert abs(runs[0.1].efficiency_residual) <= 1e-12
    assert runs[-0.1].target == "derdava[tail=-0.1]"


def test_deletion_robust_runs_do_not_depend_on_workers_and_check_settings() -> None:
    table = problem()
    one, two = (
        DeRDaVa(KnnUtility(3), units=70, n_jobs=jobs, backend="threading")
        .fit_problem(table)
        .result_
        for jobs in (1, 2)
    )
    assert one.digest() == two.digest()
    for wrong in ({"staying": 1.1}, {"staying": [0.5]}, {"units": 1}, {"tail": 0.0}, {"tail": 2.0}):
        with pytest.raises(SettingError):
            DeRDaVa(KnnUtility(3), **wrong).fit_problem(table)  # type: ignore[arg-type]
    nobody = DeRDaVa(KnnUtility(3), staying=0.0, units=3).fit_problem(table).result_
    assert not nobody.values.any()
    assert nobody.evaluations == 0


def test_nothing_of_a_deletion_names_the_deleted(tmp_path: Path) -> None:
    table = problem()
    for method in (KNNShapley(), Shapley(KnnUtility(1), stopping=MaxUnits(4)), DataOOB(bags=5)):
        if isinstance(method, DataOOB):
            method.fit_problem(table)
        deletion: Deletion = after_delete(method, table, ["person-3"])
        deletion.result.save(tmp_path)
        assert not mentions(table, ["person-3"], [tmp_path])
        assert "person-3" not in repr(deletion.result)


def test_recordings_do_not_depend_on_workers() -> None:
    table = problem()
    for method in (Shapley(KnnUtility(3)), Banzhaf(KnnUtility(3))):
        one = record(method, table, units=70)
        method.set_params(n_jobs=2, backend="threading")
        two = record(method, table, units=70)
        assert np.array_equal(one.scores, two.scores)
        assert (one.evaluations, one.rows_trained) == (two.evaluations, two.rows_trained)
