"""Accuracy and AUC before and after 1000 deletions and of a forest trained without the rows."""

from __future__ import annotations

import numpy as np
from forest_accuracy import metrics
from forest_data import DataMissing
from forest_settings import SPEED
from forest_speed import Case
from frame import Bar, Options, Report, absent, at_least, reported
from sklearn.base import clone

KEYS = 5
STAGES = ("before", "after", "retrained")
SCORES = ("accuracy", "auc")
QUICK = ("shopping_onehot",)


def bar_names(name: str) -> list[str]:
    """Return the bars of one table."""
    shown = [f"forgetting.{name}.{score}_{stage}" for score in SCORES for stage in STAGES]
    return [*shown, f"forgetting.{name}.answers_equal"]


def forgetting_section(report: Report, options: Options) -> None:
    """Add ``forgetting.*``."""
    for name in QUICK if options.quick else tuple(SPEED):
        bars = bar_names(name)
        with report.section(f"forgetting on {name}", *bars):
            try:
                case = Case(name, 1000)
            except DataMissing as error:
                report.add(*(absent(b, "", against="", reason=str(error)) for b in bars))
                continue
            report.add(*measure(case, KEYS))


def measure(case: Case, keys: int) -> list[Bar]:
    """Return the bars over so many keys."""
    found: dict[str, list[float]] = {f"{s}_{stage}": [] for s in SCORES for stage in STAGES}
    equal = 0
    for number in range(keys):
        answers = stages(case, 100 + number)
        equal += np.array_equal(answers["after"], answers["retrained"])
        for stage, proba in answers.items():
            scored = metrics(proba, case.test.y, regression=False)
            for score in SCORES:
                found[f"{score}_{stage}"].append(scored[score])
    mean = f"mean of {keys} keys, {len(case.doomed)} deletions, {case.settings.words()}"
    bars = [
        reported(f"forgetting.{case.name}.{key}", float(np.mean(values)), against=mean,
                 detail={"each": values, "sd": float(np.std(values))})
        for key, values in found.items()
    ]  # fmt: skip
    against = "a forest trained without the rows under the same key: equal by construction"
    return [*bars, at_least(f"forgetting.{case.name}.answers_equal", equal / keys, 1,
                            against=against)]  # fmt: skip


def stages(case: Case, seed: int) -> dict[str, np.ndarray]:
    """Return the probabilities for the test rows at each stage."""
    model, _ = case.fitted(seed)
    before = model.predict_proba(case.test.X)
    for row in case.doomed.tolist():
        model.unlearn([row])
    kept = np.setdiff1d(np.arange(len(case.train.y)), case.doomed)
    without = clone(model).fit(case.train.X[kept], case.train.y[kept], ids=kept)
    after, retrained = (m.predict_proba(case.test.X) for m in (model, without))
    return {"before": before, "after": after, "retrained": retrained}
