"""Accuracy, AUC and R2 against scikit-learn's ExtraTrees with the same number of trees.

Large tables are split 80 to 20 anew for each seed. Below :data:`SMALL_ROWS` rows a single test row
would weigh more than the bar allows, so there each seed is a five-fold cross-validation. The peer
gets categories as indicator columns, and is taken twice: with scikit-learn's default settings, and
with the best of ten settings on the validation rows that ours were chosen on (``tuned``).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import forest_data as data
import numpy as np
from forest_data import Rows, Table
from forest_settings import ACCURACY, EXTRA_TREES, Settings, estimator
from frame import Bar, Options, Report, absent, at_least
from machine import usable_cores
from numpy.typing import NDArray
from sklearn.ensemble import ExtraTreesClassifier, ExtraTreesRegressor
from sklearn.metrics import accuracy_score, r2_score, roc_auc_score

POINTS = -0.3
SMALL_ROWS = 2000
QUICK = ("shopping", "breast_cancer", "digits", "diabetes")
JUDGED = {
    "adult": "accuracy", "cardio": "accuracy", "shopping": "auc", "breast_cancer": "accuracy",
    "digits": "accuracy", "diabetes": "r2", "california_like": "r2",
}  # fmt: skip
"""AUC where the classes are as uneven as 1 to 5, else accuracy."""
Scores = dict[str, float]


def accuracy_section(report: Report, options: Options) -> None:
    """Add ``accuracy.*``."""
    for name in QUICK if options.quick else tuple(ACCURACY):
        bars = [f"accuracy.{name}", f"accuracy.{name}.tuned"]
        with report.section(f"accuracy on {name}", *bars):
            try:
                table = data.load(name)
            except data.DataMissing as error:
                against = "scikit-learn ExtraTrees"
                reason = str(error)
                report.add(
                    *(absent(b, f">= {POINTS}", against=against, reason=reason) for b in bars)
                )
                continue
            seeds = 1 if options.quick else 5
            report.add(*_bars(bars, table, ACCURACY[name], EXTRA_TREES[name], seeds=seeds))


def _bars(
    names: Sequence[str], table: Table, settings: Settings, tuned: Mapping[str, Any], *, seeds: int
) -> list[Bar]:
    ours: list[Scores] = []
    theirs: tuple[list[Scores], list[Scores]] = ([], [])
    spread = data.one_hot(table) if table.categorical else table
    for number in range(seeds):
        pairs = folds(len(table.y), number)
        model = estimator(table, settings, random_state=number, n_jobs=usable_cores())
        ours.append(scores(model, table, pairs))
        for found, more in zip(theirs, ({}, tuned), strict=True):
            found.append(scores(peer(table, settings.trees, number, more), spread, pairs))
    sides = zip(names, theirs, ("default settings", str(dict(tuned) or "default")), strict=True)
    return [_bar(name, table, settings, ours, found, words) for name, found, words in sides]


def _bar(
    name: str,
    table: Table,
    settings: Settings,
    ours: list[Scores],
    theirs: list[Scores],
    words: str,
) -> Bar:
    key = JUDGED[table.name]
    points = [100 * (a[key] - b[key]) for a, b in zip(ours, theirs, strict=True)]
    detail = {
        "metric": key,
        "ours": _means(ours),
        "extra_trees": _means(theirs),
        "extra_trees_settings": words,
        "points_by_seed": [round(p, 3) for p in points],
        "ours_sd": round(float(np.std([s[key] for s in ours])), 5),
        "settings": settings.words(),
        "protocol": "five-fold" if len(table.y) < SMALL_ROWS else "80 to 20",
    }
    against = f"ExtraTrees, {settings.trees} trees, {words}, mean of {len(ours)} seeds, {key}"
    return at_least(
        name, float(np.mean(points)), POINTS, unit="points", detail=detail, against=against
    )


def folds(n: int, number: int) -> list[tuple[Rows, Rows]]:
    """Return (train, test) rows of a seed: one pair, or five for small tables."""
    seed = data.SEED.child("fold", number)
    if n >= SMALL_ROWS:
        return [data.split(n, seed)]
    parts = np.array_split(seed.generator().permutation(n), 5)
    return [(np.concatenate(parts[:i] + parts[i + 1 :]), parts[i]) for i in range(5)]


def peer(table: Table, trees: int, number: int, more: Mapping[str, Any]) -> Any:  # noqa: ANN401
    """Return unfitted ExtraTrees with default settings but for `more`."""
    kind = ExtraTreesRegressor if table.regression else ExtraTreesClassifier
    return kind(trees, random_state=number, n_jobs=usable_cores(), **more)


def scores(model: Any, table: Table, pairs: list[tuple[Rows, Rows]]) -> Scores:  # noqa: ANN401
    """Return the metrics over the test rows of all pairs together, each fitted on its own."""
    answers, truth = [], []
    for train, test in pairs:
        model.fit(table.X[train], table.y[train])
        ask = model.predict if table.regression else model.predict_proba
        answers.append(ask(table.X[test]))
        truth.append(table.y[test])
    return metrics(np.concatenate(answers), np.concatenate(truth), regression=table.regression)


def metrics(answer: NDArray[Any], truth: NDArray[Any], *, regression: bool) -> Scores:
    """Return R2, or accuracy and, for two classes, AUC."""
    if regression:
        return {"r2": float(r2_score(truth, answer))}
    found = {"accuracy": float(accuracy_score(truth, answer.argmax(axis=1)))}
    if answer.shape[1] == 2:
        found["auc"] = float(roc_auc_score(truth, answer[:, 1]))
    return found


def _means(runs: list[Scores]) -> Scores:
    return {key: round(float(np.mean([run[key] for run in runs])), 5) for key in runs[0]}
