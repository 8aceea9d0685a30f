"""How valuations look in a terminal, and the documents that machines get."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from rich.console import RenderableType
from rich.table import Table as Grid
from rich.text import Text

from privml._cli.tables import count, facts
from privml._cli.value_data import Table
from privml._cli.value_watch import duration
from privml.valuation.problem import Ints
from privml.valuation.report import outcome_digest
from privml.valuation.report.html import certificate
from privml.valuation.result import ValuationResult

_SHOWN: Final = 10
_ROUNDING: Final = 1e-12  # intervals are widened by less than this for rounding


def scored_on(kind: str, rows: int) -> str:
    """Return what values are scored on, in words."""
    return "rows outside each bag" if kind == "oob" else count(rows, "validation row")


def result(
    kind: str, found: ValuationResult, table: Table, folder: Path | None
) -> list[RenderableType]:
    """Return the summary of a result and its ends."""
    rows = [
        ("target", f"{found.target} by {found.method}"),
        ("players", f"{len(found.ids)}, scored on {scored_on(kind, len(table.problem.X_val))}"),
        ("ended", f"{found.status}: {found.stop_reason}"),
        ("cost", cost(found)),
    ]
    if not math.isnan(found.efficiency_residual):
        rows.append(("residual", f"{found.efficiency_residual:.2g} of sum = U(all) - U(nobody)"))
    if found.members is not None:
        rows.append(("answer", certificate(found)))
    if folder is not None:
        rows.append(("folder", str(folder)))
    out: list[RenderableType] = [facts("valuation", rows)]
    m = min(_SHOWN, len(found.ids))
    if found.members is not None:
        m, all_of_them = min(m, len(found.members)), len(found.members)
        title = "answer" if m == all_of_them else f"answer, first {m} of {all_of_them}"
        out.append(players(title, found, table.labels, found.members[:m]))
        return out
    out.append(players(f"smallest {m}", found, table.labels, found.bottom(m)))
    out.append(players(f"largest {m}", found, table.labels, found.top(m)))
    return out


def cost(found: ValuationResult) -> str:
    """Return what a result cost, in words."""
    spent = f"{found.evaluations} evaluations, {found.rows_trained} rows trained"
    return f"{spent}, {duration(found.seconds)}"


def players(title: str, found: ValuationResult, labels: list[str], chosen: Ints) -> Grid:
    """Return a table of some players."""
    grid = Grid(title=title, title_justify="left", title_style="bold", box=None, padding=(0, 2))
    level = f"{found.ci_level:.0%} interval"
    grid.add_column("player", style="cyan", overflow="fold")
    grid.add_column("label", overflow="fold")
    for name in ("value", level, "rank"):
        grid.add_column(name, justify="right", no_wrap=True)
    chance = found.membership_prob
    if chance is not None:
        grid.add_column("P(in answer)", justify="right")
    best, worst = found.rank_ci()
    for at in chosen:
        span = f"{_number(found.ci_low[at])} to {_number(found.ci_high[at])}"
        row = [_number(found.values[at]), span, f"{best[at]}–{worst[at]}"]
        row += [] if chance is None else [_number(chance[at])]
        grid.add_row(Text(str(found.ids[at])), Text(labels[at]), *row)
    return grid


def document(kind: str, found: ValuationResult, folder: Path) -> dict[str, Any]:
    """Return the JSON document of a run."""
    m = min(_SHOWN, len(found.ids))
    out: dict[str, Any] = {
        "ok": True,
        "verb": kind,
        "folder": str(folder),
        "status": found.status,
        "stop_reason": found.stop_reason,
        "target": found.target,
        "method": found.method,
        "players": len(found.ids),
        "evaluations": found.evaluations,
        "rows_trained": found.rows_trained,
        "seconds": found.seconds,
        "efficiency_residual": finite(found.efficiency_residual),
        "result_digest": outcome_digest(found),
        "top": [entry(found, int(at)) for at in found.top(m)],
        "bottom": [entry(found, int(at)) for at in found.bottom(m)],
    }
    if found.members is not None:
        out["members"] = [entry(found, int(at)) for at in found.members]
        out["eps"] = finite(found.eps_certificate)
        out["certificate"] = found.certificate_kind
    return out


def entry(found: ValuationResult, at: int) -> dict[str, Any]:
    """Return one player as JSON."""
    out: dict[str, Any] = {
        "id": found.ids[at],
        "value": finite(found.values[at]),
        "ci": [finite(found.ci_low[at]), finite(found.ci_high[at])],
    }
    if found.membership_prob is not None:
        out["membership_prob"] = finite(found.membership_prob[at])
    return out


def json_text(value: Mapping[str, Any]) -> str:
    """Return a JSON document as text; NaN never occurs in it."""
    return json.dumps(value, ensure_ascii=False, allow_nan=False, indent=1) + "\n"


def finite(value: float) -> float | None:
    """Return a number, or None where it is unknown."""
    return float(value) if math.isfinite(value) else None


def _number(value: float) -> str:
    if math.isnan(value):
        return "–"
    return "0" if abs(value) < _ROUNDING else f"{value:.4g}"
