"""Trees after deletions against trees that never saw the rows: equal bit for bit, or not."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import forest_data as data
import numpy as np
from forest_data import Rows, Table
from forest_settings import ACCURACY, SPEED, Settings, estimator
from forest_trees import equal_trees
from frame import Options, Report, absent, at_least
from sklearn.base import clone

SMALL = Settings(100, 20, 20, 10)
SETTINGS = dict.fromkeys(data.NAMES, SMALL) | ACCURACY | SPEED
MANNERS = ("one by one", "batched", "streamed")
QUERIES = 4  # asked between two changes of a stream


@dataclass(frozen=True)
class Outcome:
    """One history compared with a fresh fit on the rows that live at its end."""

    rows: int
    manner: str
    trees: int
    equal: int
    digests: bool
    answers: bool

    def words(self) -> str:
        """Return the outcome for a report."""
        digests = "equal" if self.digests else "DIFFERENT"
        answers = "equal" if self.answers else "DIFFERENT"
        return (
            f"{self.rows} rows {self.manner}: {self.equal}/{self.trees} trees, "
            f"digests {digests}, answers {answers}"
        )


def equality_section(report: Report, options: Options) -> None:
    """Add ``exact.*``: every table, 1, 100 and 10 % of its rows, in three manners."""
    for name in data.NAMES:
        bars = [f"exact.{name}.trees", f"exact.{name}.digests"]
        with report.section(f"equality on {name}", *bars):
            try:
                table = data.load(name)
            except data.DataMissing as error:
                report.add(*(absent(b, ">= 1", against="", reason=str(error)) for b in bars))
                continue
            settings = SETTINGS[name]
            if options.quick:
                table = quick_part(table)
                share = settings.per_row / settings.trees
                settings = replace(settings, trees=20, per_row=max(1, round(20 * share)))
            outcomes, noticed = compare(table, settings)
            total, equal = (sum(getattr(o, k) for o in outcomes) for k in ("trees", "equal"))
            same = sum(o.digests and o.answers for o in outcomes)
            detail = {
                "histories": [o.words() for o in outcomes],
                "one_row_more_is_noticed": noticed,
                "rows": len(table.y),
                "settings": settings.words(),
            }
            against = "a fresh fit on the remaining rows under the same key"
            report.add(
                at_least(bars[0], equal / total, 1, against=against, detail=detail),
                at_least(bars[1], same / len(outcomes) if noticed else 0.0, 1, against=against,
                         reason="" if noticed else "a forest with one row more compares equal"),
            )  # fmt: skip


def quick_part(table: Table, most: int = 8000) -> Table:
    """Return at most so many rows of the table."""
    if len(table.y) <= most:
        return table
    return table.take(data.SEED.child("part").generator().permutation(len(table.y))[:most])


def compare(table: Table, settings: Settings) -> tuple[list[Outcome], bool]:
    """Return all outcomes, and whether a forest that kept one row too many was told apart."""
    draw = data.SEED.child(table.name, "equality").generator()
    order = draw.permutation(len(table.y))
    spare, start = np.split(order, [len(order) // 20])  # spare rows are learned by the stream
    outcomes: list[Outcome] = []
    noticed = True
    for count in sorted({1, min(100, len(start) // 2), len(start) // 10}):
        doomed = draw.permutation(start)[:count]
        kept = np.setdiff1d(start, doomed)
        oracle = None
        for manner in MANNERS:
            model = _fit(estimator(table, settings, random_state=count), table, start)
            living = kept
            if manner == "one by one":
                for i in doomed.tolist():
                    model.unlearn([i])
            elif manner == "batched":
                model.unlearn(doomed)
            else:
                living, oracle = stream(model, table, doomed, spare, kept), None
            if oracle is None:
                oracle = _fit(clone(model).set_params(key=model.key_), table, living)
            outcomes.append(_outcome(model, oracle, table, count, manner))
        oracle.unlearn(living[:1])  # negative control: one row fewer must show
        noticed &= oracle.state_digest() != model.state_digest()
    return outcomes, noticed


def stream(model: Any, table: Table, doomed: Rows, spare: Rows, kept: Rows) -> Rows:  # noqa: ANN401
    """Delete, ask and learn in turn; some learned rows are deleted again. Return living rows."""
    draw = data.SEED.child(table.name, "stream", len(doomed)).generator()
    learned: list[int] = []
    for step, i in enumerate(doomed.tolist()):
        model.unlearn([i])
        model.predict(table.X[draw.integers(0, len(table.y), QUERIES)])
        if step < len(spare):
            row = spare[step : step + 1]
            model.learn(table.X[row], table.y[row], ids=row)
            learned.append(int(row[0]))
        if step % 3 == 2 and learned:
            model.unlearn([learned.pop(int(draw.integers(len(learned))))])
    return np.sort(np.concatenate([kept, np.array(learned, dtype=kept.dtype)]))


def _fit(model: Any, table: Table, rows: Rows) -> Any:  # noqa: ANN401
    return model.fit(table.X[rows], table.y[rows], ids=rows)


def _outcome(model: Any, oracle: Any, table: Table, rows: int, manner: str) -> Outcome:  # noqa: ANN401
    sample = table.X[:: max(1, len(table.y) // 500)]
    ask = "predict" if table.regression else "predict_proba"
    answers = np.array_equal(getattr(model, ask)(sample), getattr(oracle, ask)(sample))
    equal, trees = equal_trees(model._model.canonical(), oracle._model.canonical())
    digests = model.state_digest() == oracle.state_digest()
    return Outcome(rows, manner, trees, equal, digests, answers)
