"""``TopM``: conventions, cost, checkpoints, interrupts, groups, targets, presets."""

from __future__ import annotations

import math

import numpy as np
import pytest
from sklearn.base import clone

from privml.valuation.errors import CorruptResult, RunMismatch, SettingError
from privml.valuation.laws import SizeLaw
from privml.valuation.result import ValuationResult
from privml.valuation.stopping import MaxRows
from privml.valuation.topm import TopM
from privml.valuation.topm import run as run_module
from privml.valuation.utilities.ridge import RidgeUtility

N = 24
BAD = [3, 7, 11]


def table(seed=0):
    """Return two clusters with three wrong labels, and clean validation rows."""
    rng = np.random.default_rng(seed)
    y, y_val = np.arange(N) % 2, np.arange(60) % 2
    X = rng.standard_normal((N, 3)) + 2.0 * y[:, None]
    X_val = rng.standard_normal((60, 3)) + 2.0 * y_val[:, None]
    y = y.copy()
    y[BAD] = 1 - y[BAD]
    return X, y, X_val, y_val


def fit(**given):
    settings = {"m": 3, "sign": -1, "budget": "14n", "eps": 0.0, **given}
    return TopM(**settings).fit(*table())


def same(left: ValuationResult, right: ValuationResult):
    """Compare all but the time taken."""
    for name in ("values", "stderr", "ci_low", "counts", "members", "membership_prob"):
        np.testing.assert_array_equal(getattr(left, name), getattr(right, name))
    assert left.eps_certificate == right.eps_certificate
    assert (left.evaluations, left.rows_trained) == (right.evaluations, right.rows_trained)


def test_finds_the_wrong_labels():
    result = fit(budget="40n").result_
    assert set(result.members.tolist()) == set(BAD)
    assert result.membership_prob[BAD].min() > 0.5
    assert (result.target, result.method, result.certificate_kind) == (
        "shapley", "TopM", "nominal",
    )  # fmt: skip
    assert result.status in {"budget", "certified"}
    assert result.evaluations <= 40 * N
    assert (result.ci_low < result.values).all()
    assert result.extras["preset"] == "default"
    assert "pull" in result.extras["deviations"]
    trace = result.trace
    assert (np.diff(trace["evaluations"]) > 0).all()
    assert len(trace["eps"]) > 10


def test_cost_is_what_the_game_counted(monkeypatch):
    games = []
    opened = RidgeUtility.open

    def kept(self, problem):
        games.append(opened(self, problem))
        return games[-1]

    monkeypatch.setattr(RidgeUtility, "open", kept)
    for given in [{}, {"cap": 5}, {"law": "banzhaf", "batch": 4}, {"pull": "both"}]:
        result = fit(**given).result_
        assert result.evaluations == games[-1].tally.evaluations
        assert result.rows_trained == games[-1].tally.rows_trained
        assert result.evaluations <= 14 * N


def test_result_depends_on_seed_and_settings_only(tmp_path):
    one = fit(random_state=5).result_
    same(one, fit(random_state=5).result_)
    assert (one.values != fit(random_state=6).result_.values).any()
    one.save(tmp_path)
    same(one, ValuationResult.load(tmp_path))


@pytest.mark.parametrize("batch", [1, 4])
def test_number_of_jobs_does_not_matter(batch):
    same(fit(batch=batch).result_, fit(batch=batch, n_jobs=2, backend="threading").result_)


def test_conventions():
    model = TopM(m=2, rule="ugape", budget=50)
    copy = clone(model)
    assert copy.get_params() == model.get_params()
    copy.set_params(m=4)
    assert (copy.m, model.m) == (4, 2)
    assert not hasattr(model, "result_")


@pytest.mark.parametrize("every", [0.0, 1e9])
def test_longer_budget_goes_on_from_the_checkpoint(tmp_path, every):
    path = tmp_path / "run.ckpt"
    whole = fit(budget="14n", batch=3).result_
    for budget in ("5n", "11n", "14n"):
        last = fit(budget=budget, batch=3, checkpoint=path, checkpoint_every=every).result_
    same(whole, last)


def test_interrupts_give_a_valid_result_and_a_checkpoint(tmp_path, monkeypatch):
    path = tmp_path / "run.ckpt"
    whole = fit().result_
    calls = {"left": 25}
    evaluate = run_module.evaluate

    def stopping(game, requests):
        calls["left"] -= 1
        if calls["left"] == 0:
            raise KeyboardInterrupt
        return evaluate(game, requests)

    monkeypatch.setattr(run_module, "evaluate", stopping)
    part = fit(checkpoint=path).result_
    assert part.status == "interrupted"
    assert len(part.members) == 3
    assert part.evaluations < whole.evaluations
    monkeypatch.setattr(run_module, "evaluate", evaluate)
    same(whole, fit(checkpoint=path).result_)


def test_interrupt_before_any_answer_gives_unknown_values(monkeypatch):
    def at_once(game, requests):
        raise KeyboardInterrupt

    monkeypatch.setattr(run_module, "evaluate", at_once)
    result = fit().result_
    assert np.isnan(result.values).all()
    assert result.members is None
    assert math.isnan(result.eps_certificate)


def test_checkpoints_of_other_runs_and_damaged_ones_are_refused(tmp_path):
    path = tmp_path / "run.ckpt"
    fit(checkpoint=path, budget="3n")
    for other in ({"m": 4}, {"random_state": 9}, {"cap": 6}, {"batch": 2}):
        with pytest.raises(RunMismatch):
            fit(checkpoint=path, **other)
    data = path.read_bytes()
    for bad in (data[: len(data) // 2], data[:-9] + bytes([data[-9] ^ 1]) + data[-8:], b""):
        path.write_bytes(bad)
        with pytest.raises(CorruptResult):
            fit(checkpoint=path)


def test_groups_are_arms():
    X, y, X_val, y_val = table()
    groups = [f"source {row % 6}" for row in range(N)]
    model = TopM(m=2, budget="20n", eps=0.0).fit(X, y, X_val, y_val, groups=groups)
    assert model.result_.ids == tuple(f"source {k}" for k in range(6))
    assert model.result_.group_mode == "player"
    features = np.random.default_rng(1).standard_normal((6, 4))
    again = TopM(m=2, budget="20n", eps=0.0, features=features)
    assert len(again.fit(X, y, X_val, y_val, groups=groups).result_.members) == 2


def test_regression_and_given_features():
    rng = np.random.default_rng(2)
    X, X_val = rng.standard_normal((N, 3)), rng.standard_normal((40, 3))
    w = np.array([1.0, -2.0, 0.5])
    y = X @ w + 0.1 * rng.standard_normal(N)
    y[5] += 20.0
    for kernel in ("rbf-label", "linear-label", "agreement", "mixture"):
        model = TopM(m=1, sign=-1, budget="20n", eps=0.0, kernel=kernel, features=X[:, :2])
        assert model.fit(X, y, X_val, X_val @ w).result_.members.tolist() == [5]


@pytest.mark.parametrize(
    ("given", "target"),
    [
        ({"cap": 6}, "shapley[s=6]"),
        ({"law": "banzhaf"}, "banzhaf"),
        ({"law": ("beta", 4, 1)}, "beta(4,1)"),
        ({"law": "loo"}, "loo"),
        ({"law": SizeLaw.beta(N, 2, 2)}, "beta(2,2)"),
    ],
)
def test_results_name_their_target(given, target):
    assert fit(**given).result_.target == target


def test_paper_preset_records_its_deviations():
    result = fit(preset="paper", pull="pair").result_
    found = result.extras["deviations"]
    assert "preset's" in found["pull"]
    assert "rule" in found
    assert result.extras["settings"]["width"] == "theory"
    assert result.certificate_kind == "nominal"  # hyperparameters are fitted


def test_certified_runs_stop_early():
    result = fit(eps=0.5, sign=1, budget=None).result_
    assert result.status == "certified"
    assert result.eps_certificate <= 0.5


def test_further_stopping_rules():
    result = fit(stopping=MaxRows(800), options={"lengthscale": 1.5, "draws": 50}).result_
    assert result.status == "budget"
    assert "rows" in result.stop_reason
    assert result.rows_trained >= 800


@pytest.mark.parametrize(
    "given",
    [
        {"m": N}, {"m": 0}, {"cap": 0}, {"law": "shape"}, {"law": "banzhaf", "cap": 3},
        {"law": SizeLaw.shapley(5)}, {"budget": "many"}, {"budget": 0}, {"batch": 0},
        {"ci_level": 1.0}, {"features": np.zeros((5, 2))}, {"preset": "x"}, {"options": {"x": 1}},
        {"random_state": -1}, {"utility": RidgeUtility}, {"features": np.full((N, 1), np.nan)},
    ],
    ids=lambda given: str(given)[:40],
)  # fmt: skip
def test_parameters_are_checked(given):
    with pytest.raises(SettingError):
        fit(**given)
