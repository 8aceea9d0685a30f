"""The report of one result: a self-contained HTML page."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from privml.report import Page, Series, bars_png, curves_png, distribution_png
from privml.valuation.problem import Ints, PlayerId
from privml.valuation.report.comparison import Comparison
from privml.valuation.report.curves import Curve
from privml.valuation.report.equal_rows import DuplicateGroup
from privml.valuation.report.export import outcome_digest
from privml.valuation.report.payments import Prices
from privml.valuation.result import ValuationResult

_BARS = 40
_GROUPS = 30
_PRICES = 200

CAUTION = (
    "A value is a statement about one model, one metric and these validation rows, and about "
    "nothing else. Intervals hold for each player alone, not for all at once."
)


@dataclass(frozen=True, eq=False, kw_only=True)
class Extras:
    """Parts of a report beyond the result; each is left out if it is not given.

    Attributes
    ----------
    columns
        Further texts of each player by column name, shown in the tables.
    curves, curves_on
        Removal and addition curves, and which rows they were scored on.
    sources
        Totals per source: a result of :meth:`~privml.valuation.result.ValuationResult.by_group`,
        or of players that are groups.
    duplicates, leaked
        Equal training rows, and training rows that also stand in the validation rows.
    prices
        A price list.
    trace
        Curves over the utility evaluations: name of the axis and curves, in order.
    others
        Comparisons with other results, by name.
    facts
        Further lines of the reproducibility statement.
    """

    columns: Mapping[str, Sequence[str]] = field(default_factory=dict)
    curves: Sequence[Curve] = ()
    curves_on: str = ""
    sources: ValuationResult | None = None
    duplicates: Sequence[DuplicateGroup] | None = None
    leaked: Sequence[PlayerId] = ()
    prices: Prices | None = None
    trace: Mapping[str, Sequence[Series]] = field(default_factory=dict)
    others: Mapping[str, Comparison] = field(default_factory=dict)
    facts: Sequence[tuple[str, str]] = ()


def html_report(
    result: ValuationResult, extras: Extras | None = None, *, title: str = "Data valuation",
    shown: int = 20,
) -> str:  # fmt: skip
    """Return the report as one HTML document: no script, no remote file, every text escaped.

    Parameters
    ----------
    result
        Values of all players; needs matplotlib (extra ``report``) for the plots.
    extras
        Further parts.
    title
        Heading.
    shown
        Players in the tables of top and bottom.
    """
    more, page = extras or Extras(), Page(title)
    _summary(page, result)
    _values(page, result)
    _tables(page, result, more, shown)
    _curves(page, more)
    _trace(page, result, more)
    _sources(page, more)
    _duplicates(page, more)
    _prices(page, more)
    _others(page, more)
    _reproducibility(page, result, more)
    return page.render()


def _summary(page: Page, result: ValuationResult) -> None:
    page.text(CAUTION)
    if result.status == "interrupted":
        page.warning(f"Partial result: {result.stop_reason}. Errors are those of what was done.")
    known = int(np.isfinite(result.values).sum())
    spent = f"{result.evaluations} utility evaluations, {result.rows_trained} rows trained"
    rows = [
        ("target", result.target),
        ("method", result.method),
        ("players", f"{len(result.ids)} ({_MODES.get(result.group_mode, result.group_mode)})"),
        ("known values", str(known)),
        ("ended", f"{result.status}: {result.stop_reason}"),
        ("cost", f"{spent}, {result.seconds:.1f} s"),
        ("efficiency residual", _residual(result)),
    ]
    if result.members is not None:
        rows.append(("answer", certificate(result)))
    page.facts(rows)


_MODES = {
    "row": "rows",
    "player": "groups that enter as a whole",
    "sum": "sums over the members of groups",
}


def certificate(result: ValuationResult) -> str:
    """Return what a top-m result says for sure, in words."""
    count = 0 if result.members is None else len(result.members)
    if not math.isfinite(result.eps_certificate):
        return f"{count} players; no certificate yet"
    kind = "theory" if result.certificate_kind == "theory" else "nominal"
    note = "" if kind == "theory" else " (it holds as far as the widths of the model do)"
    return f"{count} players, within {result.eps_certificate:.4g} of the best; {kind}{note}"


def _residual(result: ValuationResult) -> str:
    if math.isnan(result.efficiency_residual):
        return f"does not apply: {result.residual_reason or 'not computed'}"
    return f"{result.efficiency_residual:.3g} (values sum to U(all) - U(nobody))"


def _values(page: Page, result: ValuationResult) -> None:
    page.heading("Values")
    if not np.isfinite(result.values).any():
        page.text("No value is known yet.")
        return
    image = distribution_png(result.values, result.ci_low, result.ci_high, marked=result.members)
    about = f"histogram of the values, and values in order with {result.ci_level:.0%} intervals"
    page.image(image, about=about)
    if (result.stderr == 0).all():
        page.text("These values are exact: they have no sampling error.")
    if result.members is not None:
        page.text("The players of the answer are red.")


def _tables(page: Page, result: ValuationResult, more: Extras, shown: int) -> None:
    m = min(shown, len(result.ids))
    if result.members is not None:
        page.heading("The answer")
        _players(page, result, more, result.members)
    page.heading(f"Largest {m}")
    _players(page, result, more, result.top(m))
    page.heading(f"Smallest {m}")
    _players(page, result, more, result.bottom(m))


def _players(page: Page, result: ValuationResult, more: Extras, chosen: Ints) -> None:
    best, worst = result.rank_ci()
    chance = result.membership_prob
    interval = f"{result.ci_level:.0%} interval"
    head = ["player", *more.columns, "value", "from", f"to ({interval})", "observations", "rank"]
    head += [] if chance is None else ["P(in the answer)"]
    page.table(
        head,
        (
            [
                str(result.ids[at]),
                *(str(texts[at]) for texts in more.columns.values()),
                float(result.values[at]),
                float(result.ci_low[at]),
                float(result.ci_high[at]),
                int(result.counts[at]),
                f"{best[at]} to {worst[at]}",
                *([] if chance is None else [float(chance[at])]),
            ]
            for at in chosen
        ),
    )


def _curves(page: Page, more: Extras) -> None:
    if not more.curves:
        return
    page.heading("Removal and addition")
    if more.curves_on:
        page.text(f"Scored on {more.curves_on}.")
    for verb in ("remove", "add"):
        chosen = [c for c in more.curves if c.name.startswith(verb)]
        if chosen:
            series = [Series(c.name, c.share, c.score, c.low, c.high) for c in chosen]
            png = curves_png(series, x="share of the players", y="utility of those that are in")
            page.image(png, about=f"utility as players are {verb}d by value")


def _trace(page: Page, result: ValuationResult, more: Extras) -> None:
    traces = dict(more.trace)
    if "eps" in result.trace and len(result.trace["eps"]):
        spent = result.trace["evaluations"]
        traces["certificate"] = [Series("epsilon", spent, result.trace["eps"])]
    if not traces:
        return
    page.heading("Convergence")
    for name, series in traces.items():
        drawable = [one for one in series if len(one.x)]
        if drawable:
            png = curves_png(drawable, x="utility evaluations", y=name, logarithmic=True)
            page.image(png, about=f"{name} over utility evaluations")


def _sources(page: Page, more: Extras) -> None:
    if more.sources is None:
        return
    found = more.sources
    page.heading("Sources")
    if found.group_mode == "sum":
        page.text(
            "Sums of the values of each source's rows. Their intervals add the errors of the rows, "
            "which is the most the error of a sum can be."
        )
    order = found.top(len(found.ids))
    first = order[:_BARS]
    names = [str(found.ids[at]) for at in first]
    bars = bars_png(
        names, found.values[first], found.ci_low[first], found.ci_high[first], x="value"
    )
    page.image(bars, about="value of each source with its interval")
    page.table(
        ["source", "value", "from", "to"],
        (
            [str(found.ids[k]), float(found.values[k]), float(found.ci_low[k]),
             float(found.ci_high[k])]
            for k in order
        ),
    )  # fmt: skip


def _duplicates(page: Page, more: Extras) -> None:
    if more.leaked:
        page.warning(
            f"{len(more.leaked)} training rows also stand in the validation rows: the values of "
            f"these flatter them. First: {_listed(more.leaked)}."
        )
    if more.duplicates is None:
        return
    page.heading("Duplicates")
    if not more.duplicates:
        page.text("No two training rows have equal features.")
        return
    torn = sum(group.conflict for group in more.duplicates)
    page.text(
        f"{len(more.duplicates)} groups of training rows have equal features; in {torn} of them "
        "labels differ, so at least one is wrong or the features do not suffice."
    )
    page.table(
        ["rows", "labels", "which"],
        (
            [len(g.rows), "differ" if g.conflict else "equal", _listed(g.row_ids)]
            for g in more.duplicates[:_GROUPS]
        ),
    )


def _prices(page: Page, more: Extras) -> None:
    prices = more.prices
    if prices is None:
        return
    page.heading("Values and payments")
    page.warning(prices.warning)
    page.text(
        f"Budget {prices.budget:g}; floor {prices.floor:g} for each of {len(prices.ids)} players; "
        f"the rest in proportion to the positive part of the value. Split evenly: "
        f"{prices.equal:.4g} each. Ranges are {prices.level:.0%} and carry the errors of all "
        "values, taken as independent."
    )
    order = np.argsort(-prices.price, kind="stable")[:_PRICES]
    page.table(
        ["player", "value", "from", "to", "payment", "from", "to", "P(floor only)"],
        (
            [str(prices.ids[k]), *(float(column[k]) for column in (
                prices.values, prices.ci_low, prices.ci_high, prices.price, prices.price_low,
                prices.price_high, prices.unpaid_prob,
            ))]
            for k in order
        ),
    )  # fmt: skip


def _others(page: Page, more: Extras) -> None:
    if not more.others:
        return
    page.heading("Other metrics and seeds")
    page.table(
        ["result", "rank correlation", "m", "top in common", "bottom in common", "by chance"],
        ([name, c.spearman, c.m, c.top, c.bottom, c.chance] for name, c in more.others.items()),
    )


def _reproducibility(page: Page, result: ValuationResult, more: Extras) -> None:
    page.heading("Reproducibility")
    page.text(
        "Equal settings, data and seed give equal values bit for bit, whatever the number of "
        "processes and wherever a run was interrupted and resumed, on one type of processor."
    )
    page.facts(
        [
            ("result digest", outcome_digest(result)),
            ("settings digest", result.spec_digest),
            ("data digest", result.data_digest),
            ("seeds", ", ".join(result.seeds) or "none: nothing is drawn"),
            ("versions", ", ".join(f"{k} {v}" for k, v in sorted(result.versions.items()))),
            *more.facts,
        ]
    )


def _listed(names: Iterable[PlayerId]) -> str:
    known = [str(name) for name in names]
    more = f" and {len(known) - 8} more" if len(known) > 8 else ""
    return ", ".join(known[:8]) + more
