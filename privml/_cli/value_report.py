"""``privml value report``: the HTML page of a run, with prices on request."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from privml._cli.output import Output, UsageError
from privml._cli.tables import facts
from privml._cli.value_build import utility_of
from privml._cli.value_data import Table, load_table
from privml._cli.value_folder import Folder, Job
from privml._cli.value_run import check_data
from privml._cli.value_show import finite
from privml._cli.value_watch import Trace
from privml.report import Series
from privml.storage.publish import atomic_write
from privml.valuation.parallel import pinned
from privml.valuation.report import (
    Curve,
    Extras,
    Prices,
    compare,
    duplicates,
    html_report,
    pricing,
    removal_curves,
)
from privml.valuation.report.equal_rows import leaked_rows
from privml.valuation.result import ValuationResult


@dataclass(frozen=True)
class Options:
    """Options of the verb; None takes what the spec says."""

    file: Path | None = None
    budget: float | None = None
    floor: float | None = None
    others: tuple[Path, ...] = ()


def run(out: Output, *, folder: Path, options: Options) -> None:
    """Write the page and show where it is, with prices if a budget is given."""
    place = Folder(folder)
    job = place.job()
    result = ValuationResult.load(folder)
    table = load_table(job.spec, needs_validation=job.kind != "oob")
    check_data(job, table)
    out.progress("writing the report", 0.0)
    extras = _extras(place, job, table, result, options)
    page = html_report(
        result, extras, title=f"Data valuation: {folder.resolve().name}",
        shown=job.spec["report"]["shown"],
    )  # fmt: skip
    target = options.file or place.report
    if not target.parent.is_dir():
        raise UsageError(f"{target.parent} is no folder")
    atomic_write(target, page.encode("utf-8"), mode=0o644)
    prices = extras.prices
    document: dict[str, Any] = {"ok": True, "report": str(target), "bytes": len(page.encode())}
    rows = [("page", f"{target}, {len(page.encode()) / 1e3:.0f} kB, self-contained")]
    if prices is not None:
        document["pricing"] = price_document(prices)
        out.note(prices.warning)
        rows += [(str(prices.ids[k]), _price_line(prices, int(k))) for k in _paid_first(prices)]
    out.show(facts("report", rows))
    out.document(document)


def _extras(
    place: Folder, job: Job, table: Table, result: ValuationResult, options: Options
) -> Extras:
    asked = job.spec["report"]
    budget = asked["budget"] if options.budget is None else options.budget
    floor = asked["floor"] if options.floor is None else options.floor
    curves: tuple[Curve, ...] = ()
    where = ""
    if asked["curves"] and np.isfinite(result.values).all():
        curves, where = _curves(job, table, result)
    sources = _sources(table, result)
    prices = None
    if budget is not None:
        prices = pricing(sources if sources is not None else result, budget=budget, floor=floor)
    return Extras(
        columns={"label": table.labels},
        curves=curves,
        curves_on=where,
        sources=sources,
        duplicates=duplicates(table.problem) if asked["duplicates"] else None,
        leaked=leaked_rows(table.problem),
        prices=prices,
        trace=_traces(place, job, result),
        others={o.name: compare(result, ValuationResult.load(o)) for o in options.others},
        facts=[
            ("run", f"privml value {job.kind}"),
            *((f"{one['role']} file", f"{one['name']}, SHA-256 {one['sha256']}")
              for one in job.inputs),
            *(("data", note) for note in table.notes),
        ],
    )  # fmt: skip


def _curves(job: Job, table: Table, result: ValuationResult) -> tuple[tuple[Curve, ...], str]:
    where = "the report rows, which the values have not seen"
    problem = table.report
    if problem is None:
        problem = table.problem
        where = (
            "the validation rows that the values were computed on, which flatters them: name other "
            "rows as data.report"
        )
    with pinned():
        game = utility_of(job.spec, problem).open(problem)
        return removal_curves(result, game), where


def _sources(table: Table, result: ValuationResult) -> ValuationResult | None:
    """Return totals per source; the players themselves if they are groups."""
    if table.problem.group_mode == "player":
        return result
    return None if table.sources is None else result.by_group(table.sources)


def _traces(place: Folder, job: Job, result: ValuationResult) -> Mapping[str, list[Series]]:
    trace = Trace.load(place.trace, job.digest())
    if not trace.rounds:
        return {}
    spent = np.array(trace.evaluations, dtype=np.float64)
    gap = np.array([_largest(values - result.values) for values in trace.values])
    return {
        "error": [
            Series("largest standard error", spent, np.array(trace.stderr)),
            Series("largest distance from the final values", spent, gap),
        ]
    }


def _largest(gap: Any) -> float:  # noqa: ANN401 - (n,) floats
    known = np.abs(gap[np.isfinite(gap)])
    return float(known.max()) if len(known) else float("nan")


def price_document(prices: Prices) -> dict[str, Any]:
    """Return a price list as JSON."""
    columns = ("values", "ci_low", "ci_high", "price", "price_low", "price_high", "unpaid_prob")
    each = {
        "values": prices.values, "ci_low": prices.ci_low, "ci_high": prices.ci_high,
        "price": prices.price, "price_low": prices.price_low, "price_high": prices.price_high,
        "unpaid_prob": prices.unpaid_prob,
    }  # fmt: skip
    return {
        "warning": prices.warning,
        "rule": "floor, and the rest in proportion to the positive part of the value",
        "budget": prices.budget,
        "floor": prices.floor,
        "equal_split": prices.equal,
        "level": prices.level,
        "players": [
            {"id": name, **{column: finite(each[column][k]) for column in columns}}
            for k, name in enumerate(prices.ids)
        ],
    }


def _paid_first(prices: Prices) -> Any:  # noqa: ANN401 - indices
    return np.argsort(-prices.price, kind="stable")[:10]


def _price_line(prices: Prices, k: int) -> str:
    value = f"value {prices.values[k]:.4g} ({prices.ci_low[k]:.4g} to {prices.ci_high[k]:.4g})"
    span = f"{prices.price_low[k]:.4g} to {prices.price_high[k]:.4g}"
    return f"{value}: {prices.price[k]:.4g} ({span})"
