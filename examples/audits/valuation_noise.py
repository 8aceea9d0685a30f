"""Wrong labels: share of flipped labels among the records of smallest value.

Judged on each set is the method that was best on other seeds than those here (100 to 103, on Adult
100 and 101): KNN-Shapley with its defaults on breast cancer, Data-OOB over boosted trees on Adult;
the others are reported. The issue leaves the number of rows open: 300 of breast cancer's 569, of
which 200 others score, and 10 000 of Adult; 30 000 gained .003 on seed 100, 2 000 are reported.

On Adult many labels follow from no column. Two bounds say how far any method could get: a boosted
classifier trained on the clean labels of all other rows of the table, and what an ideal ranking
would find if that classifier's probabilities were the true ones.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from frame import Bar, Options, Report, absent, at_least, reported
from numpy.typing import NDArray
from sklearn.ensemble import HistGradientBoostingClassifier
from valuation_clock import costed
from valuation_data import Case, DataMissing, Floats, case, pool
from valuation_ranking import mean_and_error

from privml.valuation import MaxEvaluations, RidgeUtility, Shapley
from privml.valuation.methods.data_oob import DataOOB
from privml.valuation.methods.knn import KNNShapley

SETS = {"breast_cancer": (300, 200), "adult": (10_000, 1000)}
"""Rows to value and rows to score on."""
FEWER = {"adult": 2000}
FLIPS, INSPECTED, RECALL = 0.2, 0.25, 0.9
SMALL = (100, 0.20, 0.9, 2.0)
"""Rows, share inspected, recall and seconds of the reference measurement on breast cancer."""
EVALUATIONS, WALKED = 90_000, 1000
"""Of walks, and the most rows that these say anything about."""
QUICK = ("knn_shapley", "data_oob_leaf20", "data_oob_boosted")
JUDGED = {"breast_cancer": "knn_shapley", "adult": "data_oob_boosted"}
METHODS: Mapping[str, Callable[[Case], Floats]] = {
    "knn_shapley": lambda one: KNNShapley().fit_problem(one.problem).values_,
    "shapley_ridge": lambda one: ridge_values(one, EVALUATIONS),
    "data_oob": lambda one: oob_values(one, bags=100),
    "data_oob_leaf20": lambda one: oob_values(
        one, bags=50, tree="best", min_samples_leaf=20, max_features=0.3, score="probability"
    ),
    "data_oob_boosted": lambda one: oob_values(
        one, HistGradientBoostingClassifier(
            max_iter=60, max_leaf_nodes=15, learning_rate=0.08, random_state=0
        ), bags=20, score="probability",
    ),
}  # fmt: skip


def oob_values(one: Case, *model: object, **settings: Any) -> Floats:  # noqa: ANN401
    """Return Data-OOB values."""
    return DataOOB(*model, **settings).fit_problem(one.problem).values_


def ridge_values(one: Case, evaluations: int) -> Floats:
    """Return Shapley values of the ridge classifier."""
    budget = MaxEvaluations(evaluations)
    return Shapley(RidgeUtility(), stopping=budget).fit_problem(one.problem).values_


def noise_section(report: Report, options: Options) -> None:
    """Add ``noise.*``."""
    turns = 2 if options.quick else 8
    for name, (players, scored) in SETS.items():
        bar, target = f"noise.{name}", f">= {RECALL:g} recall"
        with report.section(f"flipped labels in {name}", bar):
            if options.quick and name != "breast_cancer":
                report.add(absent(bar, target, against="", reason="not in --quick"))
                continue
            try:
                cases = [
                    case(name, t, players=players, flips=FLIPS, scored=scored) for t in range(turns)
                ]
            except DataMissing as error:
                report.add(absent(bar, target, against="", reason=str(error)))
                continue
            methods = QUICK if options.quick else tuple(METHODS)
            if players > WALKED:
                methods = tuple(method for method in methods if method != "shapley_ridge")
            report.add(*_bars(name, cases, methods))
    with report.section("flipped labels, reference setting", "noise.small", "noise.small.seconds"):
        report.add(*small(turns))


def recall(values: Floats, flipped: NDArray[np.bool_], share: float) -> float:
    """Return the share of flipped rows among the smallest values, ties by row."""
    looked = np.argsort(values, kind="stable")[: round(share * len(values))]
    return float(flipped[looked].sum() / flipped.sum())


def _bars(name: str, cases: Sequence[Case], methods: Sequence[str]) -> list[Bar]:
    rows, judged = cases[0].problem.players, JUDGED[name]
    what = f"{FLIPS:.0%} flipped, {INSPECTED:.0%} inspected, {rows:,} rows, {len(cases)} seeds"
    found = {
        method: mean_and_error([recall(METHODS[method](c), c.flipped, INSPECTED) for c in cases])
        for method in methods
    }
    detail: dict[str, object] = {"mean_and_se": found, "seeds": len(cases)}
    further, reason = [], ""
    if name in FEWER:
        limit, ideal = (mean_and_error(each) for each in zip(*map(bounds, cases), strict=True))
        detail |= {"ceiling": limit, "ideal": ideal}
        further = [*_further(name, len(cases)), *_limits(name, limit, ideal, what)]
        reason = f"a model of all other rows with clean labels reaches {limit[0]:.3f}"
    mean, error = found[judged]
    return [
        at_least(f"noise.{name}", mean, RECALL, detail=detail, reason=reason,
                 against=f"recall by {judged}, standard error {error:.3f}; {what}"),
        *(reported(f"noise.{name}.{method}", each[0],
                   against=f"recall, standard error {each[1]:.3f}; {what}")
          for method, each in found.items() if method != judged),
        *further,
    ]  # fmt: skip


def _further(name: str, turns: int) -> list[Bar]:
    """Return what the judged method finds among fewer rows."""
    rows, judged = FEWER[name], JUDGED[name]
    cases = [case(name, t, players=rows, flips=FLIPS) for t in range(turns)]
    mean, error = mean_and_error(
        [recall(METHODS[judged](c), c.flipped, INSPECTED) for c in cases]
    )  # fmt: skip
    against = f"recall by {judged}, standard error {error:.3f}; {rows:,} rows"
    return [reported(f"noise.{name}.of_{rows}", mean, against=against)]


def _limits(
    name: str, limit: tuple[float, float], ideal: tuple[float, float], what: str
) -> list[Bar]:
    return [
        reported(f"noise.{name}.ceiling", limit[0], against="recall by gradient boosting trained "
                 f"on all other rows of the table with clean labels; {what}"),
        reported(f"noise.{name}.ideal", ideal[0], against="expected recall of the best ranking "
                 f"there is, if that model's probabilities were the true ones; {what}"),
    ]  # fmt: skip


def bounds(one: Case) -> tuple[float, float]:
    """Return what a model of the table's other, clean rows finds, and should by its own account."""
    X, y = pool(one.name)
    n = one.problem.players
    model = HistGradientBoostingClassifier(random_state=1).fit(X[one.others], y[one.others])
    own = model.predict_proba(X[one.rows])[np.arange(n), one.problem.codes]
    wrong = FLIPS * (1 - own) / (FLIPS * (1 - own) + (1 - FLIPS) * own)  # of two classes
    looked = np.sort(wrong)[::-1][: round(INSPECTED * n)]
    return recall(own, one.flipped, INSPECTED), float(looked.sum() / wrong.sum())


def small(turns: int) -> list[Bar]:
    """Return recall and time on 100 rows of breast cancer, as the reference measured them."""
    players, share, least, limit = SMALL
    found, seconds = [], []
    for turn in range(turns):
        one = case("breast_cancer", 500 + turn, players=players, flips=FLIPS)
        values, cost = costed(lambda one=one: ridge_values(one, 1000 * players))
        found.append(recall(values, one.flipped, share))
        seconds.append(cost.cpu_s)
    mean, error = mean_and_error(found)
    what = f"breast cancer, {players} rows, 1 000 evaluations a row, bottom {share:.0%}"
    return [
        at_least("noise.small", mean, least, against=f"recall by ridge Shapley; {what}",
                 reason="the reference measurement, .95, was one split",
                 detail={"se": error, "each": found}),
        reported("noise.small.seconds", float(np.median(seconds)), unit="s",
                 against=f"CPU time, to be at most {limit:g} s; {what}"),
    ]  # fmt: skip
