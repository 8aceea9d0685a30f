"""How plans, results and bills look in a terminal and in plain text."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from rich import box
from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

_SHOWN = 160
#: When a pruned run costs as much as its plan says; pools are dealt for it.
KEEPS_ALL = "a text that keeps every token"


def facts(title: str, rows: Iterable[tuple[str, str]]) -> Table:
    """Return a two-column table: what, and its value."""
    table = Table(
        title=title, title_justify="left", title_style="bold", box=None, show_header=False,
        padding=(0, 2, 0, 2),
    )  # fmt: skip
    table.add_column(style="cyan", no_wrap=True)
    table.add_column(overflow="fold")
    for name, value in rows:
        table.add_row(name, Text(value))
    return table


def plan_rows(summary: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Return what a plan promises, as rows of :func:`facts`."""
    seconds, top = summary["predicted_s"], at_most(summary)
    up, down = summary["online_mb_client_to_server"], summary["online_mb_server_to_client"]
    moved, if_all = both_ways(up, down), f", reached by {KEEPS_ALL}" if top else ""
    dealt = f"{megabytes(summary['offline_mb_per_run'])} per run in the client's pool"
    dealt += f", enough for {KEEPS_ALL}" if top else ""
    once = set_up(summary["setup_mb_per_pool"], summary["setup_mb_per_model"])
    server, client = (megabytes(summary[f"memory_mb_{who}"]) for who in ("server", "client"))
    return [
        ("model", str(summary["model"])),
        ("batch", f"{count(summary['rows'], 'row')} of {summary['length']} tokens, padded; public"),
        ("on line", f"{top}{summary['flights']} flights, {moved}{if_all}"),
        ("off line", f"{dealt}; the server's pool holds seeds only"),
        ("set-up", f"{once}, from the server"),
        ("predicted", top + ", ".join(f"{name} {value:.1f} s" for name, value in seconds.items())),
        ("memory", f"about {server} at the server, {client} at the client"),
        ("claim", str(summary["claim"])),
        ("failure", str(summary["failure_condition"])),
        *leakage_rows(summary["leakage"]),
    ]


def at_most(summary: Mapping[str, Any]) -> str:
    """Return the words before a price that only a text without a pruned token reaches."""
    return "at most " if summary.get("prune", {}).get("reveal") in ("bucket", "count") else ""


def leakage_rows(lines: Sequence[str]) -> list[tuple[str, str]]:
    """Return who learns what, one row each."""
    return [("learns" if k == 0 else "", line) for k, line in enumerate(lines)]


def answers(results: Sequence[Mapping[str, Any]], *, compare: bool) -> Table:
    """Return the table of answers.

    Parameters
    ----------
    results
        Records with ``text``, ``label``, ``score``, ``margin`` and, to ``compare``,
        ``clear_label``, ``clear_score`` and ``agree``.
    compare
        Show the clear answers beside the private ones.
    """
    rich_box = box.ROUNDED if sys.stdout.isatty() else box.ASCII
    table = Table(box=rich_box, title_justify="left")
    table.add_column("sentence", overflow="fold", ratio=1 if compare else None)
    table.add_column("private answer", style="bold green")
    table.add_column("score", justify="right")
    table.add_column("margin", justify="right")
    if compare:
        table.add_column("clear answer")
        table.add_column("score", justify="right")
        table.add_column("agree", justify="center")
    for r in results:
        row: list[RenderableType] = [
            Text(shorten(r["text"])),
            Text(str(r["label"])),
            f"{r['score']:.4f}",
            "" if r["margin"] is None else f"{r['margin']:.4f}",
        ]
        if compare:
            row += [Text(str(r["clear_label"])), f"{r['clear_score']:.4f}",
                    "yes" if r["agree"] else "NO"]  # fmt: skip
        table.add_row(*row)
    return table


def shorten(text: str) -> str:
    """Return a text on one line, cut at 160 characters; the JSON document has all of it."""
    line = " ".join(text.split())
    return line if len(line) <= _SHOWN else line[: _SHOWN - 1] + "…"


def scores(results: Sequence[Mapping[str, Any]]) -> Table:
    """Return every score of every text."""
    table = Table(box=None, show_header=True, padding=(0, 2, 0, 2))
    names = list(results[0]["scores"])
    table.add_column("all scores", style="cyan")
    for name in names:
        table.add_column(Text(name), justify="right")
    for number, r in enumerate(results, start=1):
        table.add_row(f"text {number}", *(f"{r['scores'][name]:.4f}" for name in names))
    return table


def set_up(per_pool: float, per_model: float) -> str:
    """Return the set-up traffic from the server in MB, in words; parts that are zero left out."""
    parts = ((per_pool, "once per pool"), (per_model, "once per model"))
    return ", ".join(f"{megabytes(value)} {when}" for value, when in parts if value > 0)


def both_ways(to_server: float, to_client: float) -> str:
    """Return the traffic of a run in MB, in words."""
    return f"{megabytes(to_server)} to the server, {megabytes(to_client)} to the client"


def count(number: int, what: str) -> str:
    """Return a number and its noun, as in 2 runs."""
    return f"{number} {what}{'s' if number != 1 else ''}"


def megabytes(value: float) -> str:
    """Return a size given in MB for people, in kB, MB or GB."""
    if value >= 1000:
        return f"{value / 1000:.2f} GB"
    return f"{value:.1f} MB" if value >= 0.1 else f"{value * 1000:.0f} kB"
