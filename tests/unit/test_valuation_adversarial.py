"""Mixed scales in logistic walks, chains of deletions, what an audit must catch, tiny spreads."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from privml import _native as kernels
from privml.valuation import KnnUtility, LogisticUtility, Problem, TopM, ValuationResult
from privml.valuation.errors import CorruptResult, UtilityFailed
from privml.valuation.intervals import rounding
from privml.valuation.links import after_delete, audit_deletion
from privml.valuation.links.deletion import Deletion
from privml.valuation.samplers.estimates import WalkEstimate
from privml.valuation.stopping import MaxUnits
from privml.valuation.topm.journal import Snapshot
from privml.valuation.topm.survivors import SurvivorTarget
from privml.valuation.topm.target import Kind, evaluate
from privml.valuation.utilities import _native
from privml.valuation.utilities.logistic import ref_logistic_walk

N, M = 14, 11


@pytest.fixture(params=["scalar", "avx2", "avx512"])
def isa(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    name: str = request.param
    if not _native.available() or kernels.ISAS.index(name) > kernels.isa_level():
        pytest.skip("this machine or build has no such kernel")
    monkeypatch.setattr(kernels, "isa_level", lambda: kernels.ISAS.index(name))
    return name


def decisions(
    x: np.ndarray, y: np.ndarray, x_val: np.ndarray, *, c: float = 1.0, columns: bool = False
) -> np.ndarray:
    """Decisions of the model of all rows; by the kernel of long walks if ``columns``."""
    n = len(x)
    table = _native.Table.of(
        np.column_stack([x, np.ones(n)]), y[:, None], np.column_stack([x_val, np.ones(len(x_val))])
    )
    times = -(-(4 * table.d + 1) // n) if columns else 1
    rows, mark = np.tile(np.arange(n), times), np.zeros(n * times, np.uint8)
    mark[n - 1] = 1
    found, missed = _native.logistic_walk(table, rows, mark, c=c, tol=1e-8, most_steps=100)
    assert missed == 0
    return found[-1]


def optimum(x: np.ndarray, y: np.ndarray, x_val: np.ndarray, *, c: float = 1.0) -> np.ndarray:
    """Decisions at the optimum, by Newton steps in the singular directions."""
    u, s, vt = np.linalg.svd(x, full_matrices=False)
    own = np.column_stack([u[:, s > s[0] * 1e-14] * s[s > s[0] * 1e-14], np.ones(len(x))])
    kept = vt[s > s[0] * 1e-14]
    w, penalised = np.zeros(own.shape[1]), np.append(np.ones(len(kept)), 0.0)

    def objective(w: np.ndarray) -> float:
        z = own @ w
        return float(0.5 * penalised @ (w * w) + c * (np.logaddexp(0.0, z) - y * z).sum())

    for _ in range(200):
        p = 0.5 * (1 + np.tanh(own @ w / 2))
        gradient = penalised * w + c * (p - y) @ own
        hessian = (own.T * (c * p * (1 - p))) @ own + np.diag(np.maximum(penalised, 1e-14))
        scale = 1 / np.sqrt(np.diag(hessian))
        step = scale * np.linalg.solve(hessian * np.outer(scale, scale), gradient * scale)
        length = 1.0
        while length > 1e-9 and objective(w - length * step) > objective(w):
            length /= 2
        w = w - length * step
        if gradient @ step < 1e-22 * (1 + objective(w)):
            break
    return (x_val @ kept.T) @ w[:-1] + w[-1]


def rows_of(
    n: int, d: int, scale: np.ndarray | float, seed: int = 1
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    x, x_val = rng.normal(size=(n, d)), rng.normal(size=(M, d))
    y = (x @ rng.normal(size=d) / np.sqrt(d) + 0.3 * rng.normal(size=n) > 0).astype(float)
    y[:2] = 0, 1
    return x * scale, y, x_val * scale


@pytest.mark.parametrize("n", [40, 120])
@pytest.mark.parametrize("large", [1e4, 1e6])
def test_columns_of_mixed_scales_keep_the_small_ones(n: int, large: float, isa: str) -> None:
    x, y, x_val = rows_of(n, 70, np.where(np.arange(70) < 2, large, 1.0))
    want = optimum(x, y, x_val)
    for columns in (False, True):
        got = decisions(x, y, x_val, columns=columns)
        np.testing.assert_allclose(got, want, atol=1e-8 * np.abs(want).max())


def test_one_far_row_does_not_hide_the_others(isa: str) -> None:
    x, y, x_val = rows_of(40, 70, 1.0)
    x[5] *= 1e5
    want = optimum(x, y, x_val)
    np.testing.assert_allclose(decisions(x, y, x_val), want, atol=1e-7 * np.abs(want).max())


@pytest.mark.parametrize("gap", [0.0, 1e-9, 1e-6])
@pytest.mark.parametrize("c", [1.0, 1e6])
def test_rows_that_are_almost_equal(gap: float, c: float, isa: str) -> None:
    x, y, x_val = rows_of(60, 90, 1.0)
    x[30:] = x[:30] * (1 + gap * np.random.default_rng(3).normal(size=(30, 90)))
    want = optimum(x, y, x_val, c=c)
    np.testing.assert_allclose(decisions(x, y, x_val, c=c), want, atol=1e-6 * np.abs(want).max())


@pytest.mark.parametrize("d", [30, 300])
def test_separable_rows_of_a_large_c_converge(d: int, isa: str) -> None:
    """The misses at the optimum are far below the rounding of a share near 1."""
    rng = np.random.default_rng(4)
    x, x_val, n = rng.normal(size=(30, d)) * 70 / np.sqrt(d), rng.normal(size=(M, d)), 30
    y, one = np.arange(n) % 2, np.ones((n, 1))
    table = _native.Table.of(
        np.hstack([x, one]), y[:, None], np.hstack([x_val, np.ones((M, 1))])
    )  # fmt: skip
    settings: dict[str, Any] = {"c": 1e6, "tol": 1e-8, "most_steps": 100}
    mark = np.ones(n, np.uint8)
    got, missed = _native.logistic_walk(table, np.arange(n), mark, **settings)
    want, missed_there = ref_logistic_walk(table, np.arange(n), mark, **settings)
    assert missed == missed_there == 0
    np.testing.assert_allclose(got, want, atol=1e-4 * np.abs(want).max())


@pytest.mark.parametrize("scale", [1e4, 1e6])
def test_the_unit_of_the_columns_decides_nothing(scale: float, isa: str) -> None:
    """Rows times s at C are rows at C s^2; the objective of the former is far below 1."""
    x, y, x_val = rows_of(40, 70, 1.0)
    y = (x[:, 0] > 0).astype(float)
    got, want = decisions(x * scale, y, x_val * scale), decisions(x, y, x_val, c=scale**2)
    np.testing.assert_allclose(got, want, atol=1e-7 * np.abs(want).max())


@pytest.mark.parametrize("d", [5, 80])
def test_numbers_too_large_for_a_model_never_become_a_score(d: int) -> None:
    x, y, x_val = rows_of(30, d, 1e149)
    game = LogisticUtility().open(Problem.of(x, y.astype(int), x_val, [0] * M))
    with pytest.raises(UtilityFailed, match="scale the features"):
        game.walks(np.arange(30)[None])


# ---------------------------------------------------------------- top-m after deletions


def problem(seed: int = 0) -> Problem:
    rng = np.random.default_rng(seed)
    X, XV = rng.normal(size=(N, 3)), rng.normal(size=(25, 3))
    y = (X[:, 0] + 0.5 * rng.normal(size=N) > 0).astype(int)
    y[:2] = 0, 1
    return Problem.of(X, y, XV, (XV[:, 0] > 0).astype(int), ids=[f"r{k}" for k in range(N)])


def fitted(whole: Problem, **others: Any) -> TopM:
    settings = {"m": 3, "budget": "14n", "switch": "evaluations:4n", "random_state": 5, **others}
    return TopM(utility=KnnUtility(3), **settings).fit_problem(whole)


def go_on(deletion: Deletion, units: int) -> None:
    engine = deletion.method.engine_  # type: ignore[union-attr]
    game = KnnUtility(3).open(deletion.problem)
    for _ in range(units):
        for request in engine.ask(1):
            engine.tell(request, evaluate(game, [request])[0])


def test_sweeps_made_after_a_deletion_survive_the_next_one() -> None:
    whole = problem()
    first = after_delete(fitted(whole, budget="3n", switch="evaluations:10n"), whole, ["r3"])
    go_on(first, 3)
    engine = first.method.engine_  # type: ignore[union-attr]
    assert engine.sweep_units == engine.applied == 6
    then = after_delete(first.method, first.problem, ["r5"])  # type: ignore[arg-type]
    assert then.method.engine_.units_by_kind()[Kind.WALK] == 6  # type: ignore[union-attr]
    assert audit_deletion(first.method, first.problem, ["r5"], then, tolerance=0.0).consistent  # type: ignore[arg-type]


@pytest.mark.parametrize("switch", ["evaluations:4n", "evaluations:55"])
def test_a_resumed_engine_knows_which_units_were_sweeps(switch: str) -> None:
    whole = problem()
    deletion = after_delete(fitted(whole, switch=switch), whole, ["r3"])
    method: Any = deletion.method
    go_on(deletion, 2)
    engine = method.engine_
    again = method.engine_for(deletion.problem, engine.target)
    again.resume(engine.snapshot())
    assert again.sweep_units == engine.sweep_units == 4
    for one, other in zip(again.moments(), engine.moments(), strict=True):
        np.testing.assert_array_equal(one, other)
    method.engine_ = again
    then = after_delete(method, deletion.problem, ["r5"], pulls="drop")
    kinds = then.method.engine_.units_by_kind()  # type: ignore[union-attr]
    assert kinds[Kind.WALK] == sum(kinds.values()) == 4


def test_a_snapshot_of_a_former_version_is_refused() -> None:
    method = fitted(problem())
    snapshot = method.engine_.snapshot()
    head = {name: value for name, value in snapshot.head.items() if name != "live_at"}
    again = method.engine_for(problem(), method.engine_.target)
    with pytest.raises(CorruptResult, match="former version"):
        again.resume(Snapshot(snapshot.arrays, head))


@pytest.mark.parametrize("units", [3, 9, 20, 31])
def test_a_run_taken_up_anywhere_has_the_trace_of_one_run(units: int, tmp_path: Path) -> None:
    """The checkpoint lies between two lines of the trace, as after a kill."""
    whole = problem()
    want = fitted(whole).result_.digest()
    path = tmp_path / "run"
    fitted(whole, checkpoint=path, stopping=MaxUnits(units))
    assert fitted(whole, checkpoint=path).result_.digest() == want


def test_the_best_arms_and_whole_groups_may_go() -> None:
    whole = problem()
    method = fitted(whole)
    best = [whole.ids[arm] for arm in method.result_.members]  # type: ignore[union-attr]
    for names in (best, [f"r{k}" for k in range(N - 4)]):
        deletion = after_delete(method, whole, names)
        assert len(deletion.result.members) == 3  # type: ignore[arg-type]
        assert audit_deletion(method, whole, names, deletion, tolerance=0.0).consistent
    groups = Problem.of(
        whole.X, whole.y, whole.X_val, whole.y_val, groups=[f"g{k // 2}" for k in range(N)]
    )
    method = fitted(groups)
    deletion = after_delete(method, groups, ["g1", "g4"])
    assert audit_deletion(method, groups, ["g1", "g4"], deletion, tolerance=0.0).consistent


def broken(whole: Problem, method: TopM, z: int, how: str) -> Deletion:
    """A deletion of z that keeps something it must not, or claims too much."""
    honest = after_delete(method, whole, [f"r{z}"])
    after: Any = honest.method
    if how in {"certificate", "errors"}:
        change: dict[str, Any] = {"certificate": {"eps_certificate": 0.0}}.get(
            how, {"stderr": honest.result.stderr / 2}
        )
        after.result_ = replace(honest.result, **change)
        return replace(honest, result=after.result_)
    old, target = method.engine_, after.engine_.target
    lines = [old.lines[at] for at in target.units]
    left = np.delete(np.arange(N), z).tolist()
    units = [(line.kind, tuple(left.index(arm) for arm in line.arms)) for line in lines]
    scores = [line.scores for line in after.engine_.lines]
    if how == "scores":  # pulls keep the scores of coalitions that held the deleted record
        scores = [
            new if line.kind is Kind.WALK else line.scores
            for new, line in zip(scores, lines, strict=True)
        ]
    if how == "unit":  # a pull of the deleted record passes as one of another
        at = next(at for at, line in enumerate(old.lines) if z in line.arms)
        kind, arms = old.lines[at].kind, old.lines[at].arms
        number = tuple(0 if arm == z else left.index(arm) for arm in arms)
        target = SurvivorTarget(target.law, target.warm, old.target, (z,), (*target.units, at))
        units.append((kind, number if len(set(number)) == len(arms) else (1, *number[1:])))
        game = KnnUtility(3).open(honest.problem)
        request = target.request(old.seed, len(units) - 1, *units[-1])
        scores.append(evaluate(game, [request])[0])
    engine = after.engine_for(honest.problem, target)
    engine.adopt(units, scores, sweeps=4)
    game = KnnUtility(3).open(honest.problem)
    after.engine_ = engine
    after.result_ = after.result_from(engine, honest.problem, game, described="as said")
    return replace(honest, result=after.result_)


@pytest.mark.parametrize("how", ["certificate", "errors", "scores", "unit"])
def test_the_audit_finds_what_a_broken_deletion_keeps(how: str) -> None:
    whole = problem()
    method = fitted(whole)
    z = next(line.arms[0] for line in method.engine_.lines if line.arms)
    deletion = broken(whole, method, z, how)
    audit = audit_deletion(method, whole, [f"r{z}"], deletion, tolerance=0.0)
    assert not audit.consistent
    wanted = {"certificate": "eps_cert", "errors": "stderr", "scores": "values", "unit": "kept"}
    assert any(wanted[how] in finding for finding in audit.findings)


# ---------------------------------------------------------------- intervals


def result(values: Any, stderr: Any, *, seed: str, counts: Any = (5, 5)) -> ValuationResult:
    values, stderr = np.array(values, float), np.array(stderr, float)
    return ValuationResult(
        ids=(0, 1), values=values, stderr=stderr, ci_low=values - stderr, ci_high=values + stderr,
        rounding=1e-9, counts=np.array(counts), truncated_counts=np.zeros(2, np.int64),
        evaluations=1, rows_trained=1, seconds=0.0, status="budget", stop_reason="units",
        target="shapley", method="Permutation", seeds=(seed,),
    )  # fmt: skip


@pytest.mark.parametrize("size", [1e-300, 1e-170, 1.0, 1e160, 1e300])
def test_merged_errors_neither_vanish_nor_overflow(size: float) -> None:
    merged = result([size, 1], [size, 0], seed="a").merge(result([1, size], [size, 1], seed="b"))
    np.testing.assert_allclose(merged.stderr, [size / np.sqrt(2), 0.5], rtol=1e-12)
    assert np.isfinite([merged.ci_low, merged.ci_high]).all()
    one = result([size, 1], [size, 0], seed="a", counts=(5, 0))
    unknown = one.merge(result([np.nan, 1], [np.nan, 1], seed="b", counts=(0, 0)))
    assert unknown.values[0] == size
    assert unknown.stderr[0] == size
    assert np.isnan(unknown.values[1])


@pytest.mark.parametrize("size", [0.0, 5e-324, 1e-300, 1e-150, 1e-120, 1.0, 1e150])
def test_intervals_hold_whatever_the_size_of_the_scores(size: float) -> None:
    """Two units that differ by the size: the interval must hold both, if not by its spread."""
    estimate = WalkEstimate(2, np.ones(2))
    for sign in (1.0, -1.0):
        scores = np.array([[0.0, sign * size, 0.0]])
        estimate.add(*estimate.contribution(np.array([[0, 1]]), scores))
    low, high = estimate.interval(0.95)
    assert np.isfinite([low, high]).all()
    assert (low <= -size).all()
    assert (high >= size).all()
    assert np.isfinite(rounding(size, 1e9))
