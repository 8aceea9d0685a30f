"""Marginals of a forest that learns rows, against retraining a forest for each coalition."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from frame import Bar, Options, Report, absent, at_least, at_most
from sklearn.ensemble import RandomForestClassifier
from valuation_clock import Cost, costed, pinned
from valuation_data import SEED, Case, DataMissing, Ints, case

from privml.unlearning import DynForestClassifier
from privml.valuation import ForestUtility

TIMES = 100.0
TREES = 100
PLAYERS = {"breast_cancer": 200, "adult": 1000}
RETRAINED = 12
FOREST = ForestUtility(DynForestClassifier, params={"n_estimators": TREES}, seed=1)


def forest_section(report: Report, options: Options) -> None:
    """Add ``marginal.forest.*``."""
    for name, players in PLAYERS.items():
        bars = [f"marginal.forest.{name}{part}" for part in ("", ".exact")]
        with pinned(), report.section(f"forest marginals on {name}", *bars):
            if options.quick and name != "breast_cancer":
                reason = "not in --quick"
            else:
                try:
                    subject = case(name, 0, players=players, flips=0.0)
                    report.add(*_bars(subject, name, 1 if options.quick else 3))
                    continue
                except DataMissing as error:
                    reason = str(error)
            for bar, target in zip(bars, (f">= {TIMES:g} x", "<= 0"), strict=True):
                report.add(absent(bar, target, against="scikit-learn forest", reason=reason))


def _bars(subject: Case, name: str, walks: int) -> list[Bar]:
    problem = subject.problem
    game = FOREST.open(problem)
    draw = SEED.child("forest", name).generator()
    orders = np.array([draw.permutation(problem.players) for _ in range(walks)])
    scores, ours = costed(lambda: game.walks(orders), orders.size)
    sizes = ((np.arange(RETRAINED) + 0.5) * problem.players / RETRAINED).astype(int) + 1
    peers = [_retrained(subject, orders[0, :size]) for size in sizes]
    theirs = sum(cost.cpu_s for _, cost in peers) / len(peers)
    fresh = [FOREST.open(problem).score([np.sort(orders[0, :size])])[0] for size in sizes]
    differ = sum(float(a) != float(scores[0, size]) for a, size in zip(fresh, sizes, strict=True))
    what = f"{TREES} trees each, {problem.players} rows, {len(problem.y_val)} scored"
    detail = {
        "ours_ms": ours.each_us / 1e3, "theirs_ms": theirs * 1e3, "their_sizes": sizes.tolist(),
        "mean_accuracy": {
            "ours": float(np.mean([scores[0, size] for size in sizes])),
            "theirs": float(np.mean([score for score, _ in peers])),
        },
    }  # fmt: skip
    return [
        at_least(f"marginal.forest.{name}", theirs * 1e6 / ours.each_us, TIMES, unit="x",
                 detail=detail, against="retraining RandomForestClassifier on prefixes at evenly "
                 f"spaced sizes, CPU time, one thread; {what}"),
        at_most(f"marginal.forest.{name}.exact", differ, 0, unit="prefixes",
                against=f"scores of {len(sizes)} prefixes by a forest trained afresh on them"),
    ]  # fmt: skip


def _retrained(subject: Case, rows: Ints) -> tuple[float, Cost]:
    """Return accuracy and cost of training and scoring scikit-learn's forest."""
    problem = subject.problem
    model = RandomForestClassifier(TREES, n_jobs=1, random_state=1)
    work: Callable[[], float] = lambda: float(  # noqa: E731 - one piece of timed work
        (model.fit(problem.X[rows], problem.codes[rows]).predict(problem.X_val)
         == problem.val_codes).mean()
    )  # fmt: skip
    return costed(work)
