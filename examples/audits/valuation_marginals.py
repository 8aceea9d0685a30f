"""Cost of a marginal against pyDVL and OpenDataVal: same rows, same utility, values compared.

Both sides take turns on one core with one thread; the CPU time of their public ``fit`` counts. The
values of the peer are compared with ours twice: from the very walks that the peer took, which its
sampler tells, and from walks of our own, within the Monte-Carlo error.

scikit-learn's logistic regression stops before the optimum by default, which moves some validation
rows across the threshold and, where a walk ends at tiny steps, the end of the walk. Costs are taken
at that default; equality from the same walks is judged with the peer's solver run to the end.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from frame import Bar, Options, Report, absent, at_least, at_most, reported
from peers.environments import PeerUnavailable
from peers.valuation_peers import OPENDATAVAL, PYDVL, Worker
from sklearn.utils import check_random_state
from valuation_clock import Cost, Duel, costed, duel, pinned, told
from valuation_data import SCORED, SEED, Case, Floats, Ints, case

from privml.valuation import LogisticUtility, MaxUnits, Permutation, RidgeUtility, Shapley
from privml.valuation.utilities.base import Game, Utility

PLAYERS = 100
MODELS: Mapping[str, tuple[Utility, float]] = {
    "ridge": (RidgeUtility(alpha=1.0, intercept="free"), 1000.0),
    "logistic": (LogisticUtility(C=1.0), 15.0),
}
"""Utility and how many times cheaper than pyDVL's update a marginal has to be."""
WALKS = {"ridge": 5000, "logistic": 200}
EQUAL = "breast cancer, 100 rows, 200 scored, free intercept, accuracy, single classes predicted"
REFERENCE = 4000
SLACK = 1.25
CONVERGED: Mapping[str, dict[str, float]] = {
    "ridge": {}, "logistic": {"tol": 1e-10, "max_iter": 5000},
}  # fmt: skip
"""Arguments with which the peer's solver runs to the end."""
SAME, SAME_FLOAT32 = 1e-9, 1e-6
LEAST, STILL = 5, 10  # OpenDataVal: rows of its first coalition, tiny steps that end a walk
TINY = 1e-8


def marginals_section(report: Report, options: Options) -> None:
    """Add ``marginal.ridge.*`` and ``marginal.logistic.*``."""
    with pinned():
        _pydvl(report, options)
        _opendataval(report, options)


def _pydvl(report: Report, options: Options) -> None:
    names = [f"marginal.{m}.{n}" for m in MODELS for n in ("ours", "pydvl", "same_walks", "error")]
    with report.section("marginals against pyDVL 0.10.0", *names):
        subject = case("breast_cancer", 0, players=PLAYERS, flips=0.0)
        for model in MODELS:
            cost = costs(subject, model, options)
            report.add(
                reported(f"marginal.{model}.ours", cost.each_us, unit="us",
                         against=f"fit of {WALKS[model]} walks; {EQUAL}")
            )  # fmt: skip
        try:
            with Worker(PYDVL, options.peer_dir, create=options.peers,
                        progress=report.progress) as worker:  # fmt: skip
                for model in MODELS:
                    report.progress(f"  {model}")
                    _against_pydvl(report, options, worker, subject, model)
        except PeerUnavailable as error:
            for model, (_, limit) in MODELS.items():
                targets = {"pydvl": f">= {limit:g} x", "same_walks": "equal", "error": "as our own"}
                report.add(*(absent(f"marginal.{model}.{n}", t, against="pyDVL 0.10.0",
                                    reason=str(error)) for n, t in targets.items()))  # fmt: skip


def costs(subject: Case, model: str, options: Options, turn: int = 0, walks: int = 0) -> Cost:
    """Return the cost of fitting our Shapley method."""
    walks = walks or (WALKS[model] // 2 if options.quick else WALKS[model])
    method = Shapley(
        MODELS[model][0], sampler=Permutation(), stopping=MaxUnits(walks), random_state=turn
    )
    return costed(lambda: method.fit_problem(subject.problem), walks * PLAYERS)[1]


def _against_pydvl(
    report: Report, options: Options, worker: Worker, subject: Case, model: str
) -> None:
    utility, limit = MODELS[model]
    game = utility.open(subject.problem)
    turns, walks = (3, 1 if model == "logistic" else 2) if options.quick else (5, 10)
    asked = {
        "rows": worker.give(model, subject.arrays), "model": model, "empty": game.empty,
    }  # fmt: skip
    answers: list[dict[str, Any]] = []

    def theirs(turn: int) -> Cost:
        answers.append(worker.ask("shapley", **asked, walks=walks, seed=turn))
        return told(answers[-1], answers[-1]["updates"])

    both = duel(lambda turn: costs(subject, model, options, turn), theirs, turns)
    few = costs(subject, model, options, walks=walks)
    detail = both.as_dict() | worker.facts | {
        "our_walks": WALKS[model], "their_walks": walks,
        "ratio_at_equal_walks": both.theirs[0].each_us / few.each_us,
    }  # fmt: skip
    if not options.quick:
        detail["peer_default_threads_us"] = _default_threads(options, subject, asked)
    same = answers[-1]
    if solver := CONVERGED[model]:
        same = worker.ask("shapley", **asked, walks=walks, seed=0, solver=solver)
    report.add(
        at_least(f"marginal.{model}.pydvl", both.ratio, limit, unit="x",
                 against=f"one update of pyDVL 0.10.0, CPU time, one thread; {EQUAL}",
                 detail=detail),
        _same(game, model, same),
        _error(game, model, answers, 200 if options.quick else REFERENCE),
        _single(worker, asked, game, model, 20 if options.quick else 300),
    )  # fmt: skip


def _default_threads(options: Options, subject: Case, asked: Mapping[str, Any]) -> float:
    with Worker(PYDVL, options.peer_dir, create=False, progress=print, threads=None) as free:
        rows = free.give("rows", subject.arrays)
        found = free.ask("shapley", **{**asked, "rows": rows}, walks=2, seed=0)
        return float(found["wall_s"]) / found["updates"] * 1e6


def _same(game: Game, model: str, answer: Mapping[str, Any]) -> Bar:
    """Return the bar that compares pyDVL's values with ours from the same walks."""
    orders = np.array(answer["orders"], dtype=np.int64)
    gap = float(np.abs(answer["values"] - marginals(game, orders).mean(axis=0)).max())
    solver = ", ".join(f"{name}={value:g}" for name, value in CONVERGED[model].items())
    return at_most(
        f"marginal.{model}.same_walks", gap, SAME,
        against=f"largest difference of values from pyDVL's own {len(orders)} walks"
        + (f", its solver run to the end ({solver})" if solver else ""),
    )  # fmt: skip


def _error(game: Game, model: str, answers: Sequence[Mapping[str, Any]], reference: int) -> Bar:
    """Return the bar that compares pyDVL's values with those of other walks, by ours."""
    walks = sum(len(a["orders"]) for a in answers)
    theirs = np.mean([a["values"] for a in answers], axis=0)
    draw = SEED.child("reference", model).generator()
    own = marginals(game, np.array([draw.permutation(PLAYERS) for _ in range(reference)]))
    far, usual = distances(theirs, own, walks)
    return at_most(
        f"marginal.{model}.error", far, SLACK * max(usual), unit="se",
        against=f"largest of {PLAYERS} differences between pyDVL's {walks} walks and {reference} "
        f"of ours; limit: {SLACK:g} times the largest among {len(usual)} groups of our own walks "
        "of that size",
        detail={"median_of_own_groups": float(np.median(usual))},
    )  # fmt: skip


def distances(values: Floats, own: Floats, walks: int) -> tuple[float, list[float]]:
    """Return how far values of some walks are from ours, and how far our own groups are.

    Marginals of accuracies have heavy tails, so the law of the largest distance is taken from
    groups of as many walks of our own, not from a normal law.

    Parameters
    ----------
    values
        (players,) means of ``walks`` walks.
    own
        (w, players) marginals of our walks.
    """
    scale = np.maximum(own.std(axis=0, ddof=1), 1e-12) / walks**0.5
    middle = own.mean(axis=0)
    groups = [own[at : at + walks] for at in range(0, len(own) - walks + 1, walks)]
    far = [float(np.abs((group.mean(axis=0) - middle) / scale).max()) for group in groups]
    return float(np.abs((values - middle) / scale).max()), far


def _single(worker: Worker, asked: Mapping[str, Any], game: Game, model: str, count: int) -> Bar:
    """Return how often single utilities are equal, and how far apart the others are."""
    draw = SEED.child("coalitions", model).generator()
    sets = [
        np.sort(draw.permutation(PLAYERS)[: draw.integers(1, PLAYERS + 1)]) for _ in range(count)
    ]
    theirs = worker.ask("scores", **asked, coalitions=[s.tolist() for s in sets])["scores"]
    rows = np.abs(game.score(sets) - np.array(theirs)) * SCORED
    return at_least(
        f"marginal.{model}.equal_scores", float((rows < 0.5).mean()),
        1.0 if model == "ridge" else 0.98,
        against=f"scikit-learn as pyDVL calls it, {count} coalitions of 1 to {PLAYERS} rows",
        detail={"largest_difference_in_scored_rows": float(rows.max())},
    )  # fmt: skip


def marginals(game: Game, orders: Ints) -> Floats:
    """Return (w, players) marginals of walks, by player."""
    steps = np.diff(game.walks(orders), axis=1)
    out = np.empty_like(steps)
    np.put_along_axis(out, orders, steps, axis=1)
    return out


def _opendataval(report: Report, options: Options) -> None:
    parts = {"": "", "_same_walks": f"<= {SAME_FLOAT32:g}", "_default_solver": ""}
    with report.section("marginals against OpenDataVal 1.3.0",
                        *(f"marginal.logistic.opendataval{part}" for part in parts)):  # fmt: skip
        if options.quick:
            report.add(*_no_opendataval(parts, "not in --quick"))
            return
        subject = case("breast_cancer", 0, players=PLAYERS, flips=0.0)
        try:
            with Worker(OPENDATAVAL, options.peer_dir, create=options.peers,
                        progress=report.progress) as worker:  # fmt: skip
                _against_opendataval(report, options, worker, subject)
        except PeerUnavailable as error:
            report.add(*_no_opendataval(parts, str(error)))


def _no_opendataval(parts: Mapping[str, str], reason: str) -> list[Bar]:
    return [
        absent(f"marginal.logistic.opendataval{part}", target, against="OpenDataVal 1.3.0",
               reason=reason)
        for part, target in parts.items()
    ]  # fmt: skip


def _against_opendataval(report: Report, options: Options, worker: Worker, subject: Case) -> None:
    turns, walks = 3, 8
    asked = {"rows": worker.give("rows", subject.arrays), "walks": walks, "least": LEAST}
    answers: list[dict[str, Any]] = []

    def theirs(turn: int) -> Cost:
        answers.append(worker.ask("shapley", **asked, seed=turn))
        return told(answers[-1], answers[-1]["models"])

    both = duel(lambda turn: costs(subject, "logistic", options, turn), theirs, turns)
    solver = CONVERGED["logistic"]
    ended = [worker.ask("shapley", **asked, seed=turn, solver=solver) for turn in range(turns)]
    game = MODELS["logistic"][0].open(subject.problem)
    ours = [truncated(game, _their_orders(turn, walks)) for turn in range(turns)]
    default = np.array([answer["values"] for answer in answers])
    report.add(*_opendataval_bars(both, worker.facts, np.array(ours), default, ended))


def _their_orders(seed: int, walks: int) -> Ints:
    """Return the walks that OpenDataVal's sampler takes."""
    state = check_random_state(seed)
    return np.array([state.permutation(PLAYERS) for _ in range(walks)])


def _opendataval_bars(
    both: Duel, facts: Mapping[str, Any], ours: Floats, default: Floats,
    ended: Sequence[Mapping[str, Any]],
) -> list[Bar]:  # fmt: skip
    gaps = np.abs(default - ours)
    same = np.abs(np.array([answer["values"] for answer in ended]) - ours)
    rules = (
        f"its rules (none below {LEAST} rows, an end after {STILL} tiny steps) applied to our "
        "scores of its own walks"
    )
    solver = ", ".join(f"{name}={value:g}" for name, value in CONVERGED["logistic"].items())
    return [
        reported("marginal.logistic.opendataval", both.ratio, unit="x",
                 detail=both.as_dict() | dict(facts),
                 against=f"one model of OpenDataVal's Data Shapley, CPU time; {EQUAL}"),
        at_most("marginal.logistic.opendataval_same_walks", float(same.max()), SAME_FLOAT32,
                detail={"median": float(np.median(same))},
                against=f"largest difference of values, {rules}; its solver run to the end "
                f"({solver}); it takes accuracies in float32"),
        reported("marginal.logistic.opendataval_default_solver", float(gaps.max()),
                 detail={"root_mean_square": float(np.sqrt((gaps**2).mean())),
                         "standard_error": float(np.sqrt(default.var(axis=0, ddof=1).mean()))},
                 against=f"largest difference of values, {rules}; its solver as it comes, which "
                 "stops early: one scored row can move where a walk ends"),
    ]  # fmt: skip


def truncated(game: Game, orders: Ints) -> Floats:
    """Return values by OpenDataVal's estimator from our scores of walks."""
    n = orders.shape[1]
    total, count = np.zeros((n, n)), np.full((n, n), TINY)
    for order, score in zip(orders, game.walks(orders), strict=True):
        gained, still = n * TINY, 0
        for size in range(LEAST, n):
            step, row = score[size + 1] - score[size], order[size]
            gained += step - TINY
            total[row, size] += step
            count[row, size] += 1
            still = still + 1 if abs(step) / gained < TINY else 0
            if still == STILL:
                count[order[size + 1 :], np.arange(size + 1, n)] += 1
                break
    return (total / count).sum(axis=1) / n
