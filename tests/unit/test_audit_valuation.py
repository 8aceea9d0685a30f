"""The valuation audit's own checks: they notice unequal values, and say what was not measured."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import numpy as np
import pytest


@pytest.fixture
def tiny(load):
    """A case of few rows that needs no file."""
    return load("valuation_data").case("breast_cancer", 3, players=20, flips=0.2, scored=30)


# ---------------------------------------------------------------- data


def test_flips_are_exact_and_rows_are_apart(load, tiny) -> None:
    assert tiny.flipped.sum() == 4
    assert np.array_equal(tiny.flipped, tiny.problem.codes != tiny.clean)
    np.testing.assert_allclose(tiny.problem.X.mean(axis=0), 0, atol=1e-12)
    known = {tuple(row) for row in tiny.problem.X}
    assert not known & {tuple(row) for row in tiny.problem.X_val}
    again = load("valuation_data").case("breast_cancer", 3, players=20, flips=0.2, scored=30)
    other = load("valuation_data").case("breast_cancer", 4, players=20, flips=0.2, scored=30)
    assert again.problem.digest() == tiny.problem.digest() != other.problem.digest()


@pytest.mark.parametrize("name", ["adult", "sst2", "agnews"])
def test_a_set_that_is_not_there_says_how_to_name_it(load, monkeypatch, tmp_path, name) -> None:
    data, frame = load("valuation_data"), load("frame")
    monkeypatch.setattr(data, "__file__", str(tmp_path / "a/b/c/d/e.py"))
    monkeypatch.setattr(load("forest_data"), "__file__", str(tmp_path / "a/b/c/d/e.py"))
    monkeypatch.setenv("PRIVML_DATA", "")
    data.use_data(frame.Options(paths={"data": tmp_path}))
    with pytest.raises(data.DataMissing, match=r"--data|PRIVML_DATA"):
        data.case(name, 0, players=10, flips=0.0)


# ---------------------------------------------------------------- comparison with peers


def test_values_from_other_walks_are_far_only_if_wrong(load, tiny) -> None:
    audit = load("valuation_marginals")
    game = audit.MODELS["ridge"][0].open(tiny.problem)
    draw = np.random.default_rng(1)
    walks = np.array([draw.permutation(20) for _ in range(440)])
    own, theirs = audit.marginals(game, walks[:400]), audit.marginals(game, walks[400:])
    np.testing.assert_allclose(own.sum(axis=1), own.sum(axis=1)[0])
    far, usual = audit.distances(theirs.mean(axis=0), own, 40)
    assert len(usual) == 10
    assert far <= audit.SLACK * max(usual)
    wrong = theirs.mean(axis=0) + np.eye(20)[4] * own[:, 4].std()
    assert audit.distances(wrong, own, 40)[0] > audit.SLACK * max(usual)


class Steps:
    """A game whose score is given by the number of players."""

    def __init__(self, by_size: list[float]) -> None:
        self.by_size = np.array(by_size)

    def walks(self, orders):
        """Return the same scores for every walk."""
        return np.tile(self.by_size, (len(orders), 1))


def test_opendatavals_estimator_skips_small_sets_and_ends_early(load) -> None:
    audit = load("valuation_marginals")
    order = np.arange(30)[None, :]
    values = audit.truncated(Steps([0.0, *np.arange(1, 31) / 30]), order)
    assert (values[: audit.LEAST] == 0).all()
    np.testing.assert_allclose(values[audit.LEAST :], 1 / 30 / 30, rtol=1e-6)
    flat = [*np.arange(8) / 10, *[0.7] * 22, 0.9]
    assert audit.truncated(Steps(flat), order)[-1] < 1e-9  # the walk had ended before


class FakeWorker:
    """A peer that answers with our own numbers, or with wrong ones."""

    def __init__(self, audit, case, *, off: float = 0.0) -> None:
        self.audit, self.case, self.off, self.facts = audit, case, off, {}

    def give(self, name, arrays):
        """Take the arrays of a case."""
        assert set(arrays) == {"X", "y", "X_val", "y_val"}
        return name

    def ask(self, do, **asked):
        """Answer as the worker of pyDVL would."""
        game = self.audit.MODELS[asked["model"]][0].open(self.case.problem)
        if do == "scores":
            return {"scores": (game.score(asked["coalitions"]) + self.off).tolist()}
        draw = np.random.default_rng(asked["seed"])
        orders = [draw.permutation(game.players).tolist() for _ in range(asked["walks"])]
        values = self.audit.marginals(game, np.array(orders)).mean(axis=0) + self.off
        return {"cpu_s": 1e3, "wall_s": 1e3, "updates": 1, "values": values, "orders": orders}


@pytest.mark.parametrize(("off", "holds"), [(0.0, True), (0.25, False)])
def test_a_peer_with_other_values_is_noticed(load, tiny, monkeypatch, off, holds) -> None:
    audit, frame = load("valuation_marginals"), load("frame")
    monkeypatch.setattr(audit, "PLAYERS", 20)
    monkeypatch.setitem(audit.WALKS, "ridge", 40)
    report, options = frame.Report(), frame.Options(quick=True)
    audit._against_pydvl(report, options, FakeWorker(audit, tiny, off=off), tiny, "ridge")
    bars = {bar.name.rpartition(".")[2]: bar for bar in report.bars}
    assert bars["pydvl"].holds
    assert {bars[n].holds for n in ("same_walks", "error", "equal_scores")} == {holds}
    json.dumps([bar.as_dict() for bar in report.bars], allow_nan=False)


class FakeOpenDataVal:
    """OpenDataVal's estimator on our own scores, or with wrong values."""

    def __init__(self, audit, case, *, off: float) -> None:
        self.audit, self.off, self.facts = audit, off, {}
        self.game = audit.MODELS["logistic"][0].open(case.problem)

    def give(self, name, arrays):
        """Take the arrays of a case."""
        return name

    def ask(self, do, *, rows, walks, least, seed, solver=None):
        """Answer as its worker would; a solver that stops early moves values."""
        values = self.audit.truncated(self.game, self.audit._their_orders(seed, walks))
        early = 0.0 if solver else 1e-3
        return {"cpu_s": 1.0, "wall_s": 1.0, "models": 1, "values": values + self.off + early}


@pytest.mark.parametrize(("off", "holds"), [(0.0, True), (1e-4, False)])
def test_opendataval_is_judged_with_its_solver_run_to_the_end(
    load, tiny, monkeypatch, off, holds
) -> None:
    audit, frame = load("valuation_marginals"), load("frame")
    monkeypatch.setattr(audit, "PLAYERS", 20)
    monkeypatch.setitem(audit.WALKS, "logistic", 4)
    report, worker = frame.Report(), FakeOpenDataVal(audit, tiny, off=off)
    audit._against_opendataval(report, frame.Options(), worker, tiny)
    bars = {bar.name.rpartition("opendataval")[2]: bar for bar in report.bars}
    assert set(bars) == {"", "_same_walks", "_default_solver"}
    assert bars["_same_walks"].holds is holds
    assert bars["_default_solver"].holds is None
    assert bars["_default_solver"].value == pytest.approx(1e-3 + off)
    json.dumps([bar.as_dict() for bar in report.bars], allow_nan=False)


@pytest.mark.parametrize("quick", [True, False])
def test_absent_peers_are_absent_bars(load, monkeypatch, tmp_path, quick) -> None:
    audit, knn, frame = load("valuation_marginals"), load("valuation_knn"), load("frame")
    monkeypatch.setattr(audit, "WALKS", {"ridge": 2, "logistic": 2})
    monkeypatch.setattr(knn, "LARGE", (100, 10))
    report, options = frame.Report(), frame.Options(quick=quick, peer_dir=tmp_path)
    audit.marginals_section(report, options)
    knn.knn_section(report, options)
    assert report.exit_status == 0
    named = [bar for bar in report.bars if "pydvl" in bar.name or "opendataval" in bar.name]
    assert len(named) == 2 + 3 + 4 + 4
    assert all(bar.holds is None and bar.value is None for bar in named)
    assert any("--peers" in bar.reason for bar in named)


WORKER = """
import json
print("a note of an import")
print(json.dumps({"versions": {}}), flush=True)
import sys
for line in sys.stdin:
    asked = json.loads(line)
    if asked["do"] == "leave":
        sys.exit("no more")
    answer = {"failed": "ValueError: no"} if asked["do"] == "fail" else {"got": asked["k"]}
    print(json.dumps(answer), flush=True)
"""


def test_the_client_of_a_worker(load, monkeypatch, tmp_path) -> None:
    peers = load("peers.valuation_peers")
    script = tmp_path / "worker.py"
    script.write_text(WORKER, encoding="utf-8")
    monkeypatch.setattr(peers, "SCRIPTS", {peers.PYDVL.name: str(script)})
    monkeypatch.setattr(peers, "obtain", lambda *a, **k: Path(sys.executable))
    with peers.Worker(peers.PYDVL, tmp_path, create=False, progress=print) as worker:
        assert worker.facts == {"versions": {}}
        assert worker.ask("knn", k=3) == {"got": 3}
        with pytest.raises(peers.PeerFailed, match="ValueError: no"):
            worker.ask("fail")
        with pytest.raises(peers.PeerFailed, match="no more"):
            worker.ask("leave")
    script.write_text("raise SystemExit('broken')", encoding="utf-8")
    with pytest.raises(peers.PeerUnavailable, match="broken"):
        peers.Worker(peers.PYDVL, tmp_path, create=False, progress=print)


# ---------------------------------------------------------------- top-m, noise, updates


def test_every_scheme_stays_inside_its_budget(load, tiny) -> None:
    topm = load("valuation_topm")
    found = topm.run_all(tiny, 0, m=4, walks=40, most=10)
    assert set(found["schemes"]) == set(topm.SCHEMES)
    for scheme, marks in found["schemes"].items():
        assert list(marks) == [2, 4, 10]
        assert 0 < found["evaluations"][scheme] <= 10 * 20
        assert all(0 <= mark["right"] <= mark["near"] <= 1 for mark in marks.values())
    assert found["evaluations"]["walks"] == 200


def test_the_reference_judges_answers(load) -> None:
    topm = load("valuation_topm")
    values = np.array([5.0, 4.0, 3.0, 2.9, 0.0])
    halves = np.stack([values, values[::-1]])
    reference = topm.Reference(values, np.full(5, 0.1), halves)
    assert reference.judge(np.array([0, 1, 2])) == {"right": 1.0, "near": 1.0, "captured": 1.0}
    close = reference.judge(np.array([0, 1, 3]))
    assert close["right"] == pytest.approx(2 / 3)
    assert close["near"] == 1.0
    assert reference.judge(np.array([4]))["captured"] < 0
    assert reference.ceiling(1) == 0.0
    assert reference.ceiling(5) == 1.0


def runs_of(topm, hybrid: list[float], other: list[float]) -> list[dict]:
    def run(h, o):
        marks = {b: {"right": o, "near": o, "captured": o} for b in topm.BUDGETS}
        mine = {b: {"right": h, "near": h, "captured": h} for b in topm.BUDGETS}
        schemes = {s: mine if s == "hybrid" else marks for s in topm.SCHEMES}
        return {
            "schemes": schemes,
            "ceiling": 0.9,
            "error_over_spread": 0.1,
            "evaluations": dict.fromkeys(topm.SCHEMES, 1),
        }

    return [run(h, o) for h, o in zip(hybrid, other, strict=True)]


@pytest.mark.parametrize(
    ("hybrid", "other", "holds", "close"),
    [([0.8, 0.7], [0.7, 0.7], True, True), ([0.7, 0.7], [0.75, 0.9], False, False),
     ([0.6, 0.8], [0.7, 0.72], False, True), ([0.1, 0.2, 0.6], [0.6, 0.2, 0.1], True, True)],
)  # fmt: skip
def test_not_below_means_the_mean_is_not_smaller(load, hybrid, other, holds, close) -> None:
    ranking, topm = load("valuation_ranking"), load("valuation_topm")
    runs = runs_of(topm, hybrid, other)
    bars = ranking._bars("digits", runs, most=40, players=50, quick=False)
    assert bars[0].holds is holds
    assert bars[0].detail["within_one_se"] is close
    assert bars[0].value == pytest.approx(np.mean(np.subtract(hybrid, other)))
    assert bars[0].detail["split_half_ceiling"][0] == pytest.approx(0.9)
    assert "near" in bars[0].detail["mean_and_se"]
    quick = ranking._bars("digits", runs, most=40, players=50, quick=True)
    assert quick[0].holds is None
    early = ranking._bars("synthetic", runs, most=40, players=50, quick=False)[-1]
    assert early.name == "topm.synthetic.early_gain"


def test_missing_sets_leave_the_count_open_only_while_they_matter(load) -> None:
    held = load("valuation_ranking")._held
    assert held({"a": True, "b": True, "c": True, "d": True, "e": None}, quick=False).holds is True
    assert held({"a": True, "b": True, "c": True, "d": None, "e": None}, quick=False).holds is None
    assert held({"a": True, "b": False, "c": False, "d": None, "e": True}, quick=False).holds is (
        False
    )


def test_recall_counts_the_smallest_values(load) -> None:
    noise = load("valuation_noise")
    flipped = np.array([True, False, True, False, False, False, False, False])
    assert noise.recall(np.arange(8.0), flipped, 0.25) == 0.5
    assert noise.recall(np.arange(8.0), flipped, 0.5) == 1.0
    assert noise.recall(-np.arange(8.0), flipped, 0.5) == 0.0


def test_the_bounds_on_recall_come_from_rows_that_are_not_valued(load, tiny) -> None:
    assert len(tiny.rows) == 20
    assert not set(tiny.rows) & set(tiny.others)
    X, y = load("valuation_data").pool(tiny.name)
    assert len(tiny.rows) + len(tiny.others) == len(X)
    assert np.array_equal(y[tiny.rows], tiny.clean)
    reached, ideal = load("valuation_noise").bounds(tiny)
    assert 0.5 <= reached <= 1
    assert 0.9 <= ideal <= 1


def test_every_method_for_wrong_labels_is_reported_and_one_is_judged(
    load, tiny, monkeypatch
) -> None:
    noise, frame = load("valuation_noise"), load("frame")
    monkeypatch.setattr(noise, "EVALUATIONS", 20 * 30)
    report = frame.Report()
    report.add(*noise._bars(tiny.name, [tiny, tiny], tuple(noise.METHODS)))
    judged = [bar for bar in report.bars if bar.target]
    assert [bar.name for bar in judged] == ["noise.breast_cancer"]
    assert "by knn_shapley" in judged[0].against
    assert len(report.bars) == len(noise.METHODS)
    assert all(0 <= bar.value <= 1 for bar in report.bars)


def test_updates_are_measured_in_the_loop_and_alone(load, monkeypatch) -> None:
    updates = load("valuation_updates")
    for back_end in ("joint", "features"):
        found = updates.measure(40, back_end, 5)
        assert {name: len(ms) for name, ms in found.items()} == {
            "loop": 6, "whole": 5, "alone": 5,
        }  # fmt: skip
        assert min(found["whole"]) > 0


def test_a_pair_is_cheaper_than_two_single_pulls(load) -> None:
    bar = load("valuation_updates").pair_gain(3000)
    assert bar.value > 1.2
    assert bar.detail["single_variance"] > 0


def test_a_forest_that_grows_answers_as_one_trained_afresh(load, tiny) -> None:
    forest = load("valuation_forest")
    bars = {bar.name: bar for bar in forest._bars(tiny, "tiny", 1)}
    assert bars["marginal.forest.tiny.exact"].holds
    assert bars["marginal.forest.tiny"].value > 1
    json.dumps([bar.as_dict() for bar in bars.values()], allow_nan=False)
