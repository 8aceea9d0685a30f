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
    seconds = summary["predicted_s"]
    up, down = summary["online_mb_client_to_server"], summary["online_mb_server_to_client"]
    moved = both_ways(up, down)
    once = f"{megabytes(summary['setup_mb_per_pool'])} once per pool from the server"
    return [
        ("model", str(summary["model"])),
        ("batch", f"{summary['rows']} rows of {summary['length']} tokens, padded; public"),
        ("on line", f"{summary['flights']} flights, {moved}"),
        ("off line", f"{megabytes(summary['offline_mb_per_run'])} per run from the dealer, {once}"),
        ("predicted", ", ".join(f"{name} {value:.1f} s" for name, value in seconds.items())),
        ("memory", f"about {megabytes(summary['memory_mb'])} per party"),
        ("claim", str(summary["claim"])),
        ("failure", str(summary["failure_condition"])),
        *leakage_rows(summary["leakage"]),
    ]


def leakage_rows(lines: Sequence[str]) -> list[tuple[str, str]]:
    """Return who learns what, one row each."""
    return [("learns" if k == 0 else "", line) for k, line in enumerate(lines)]


def answers(results: Sequence[Mapping[str, Any]], *, compare: bool) -> Table:
    """Return the table of answers.

    Parameters
    ----------
    results
        Records with ``text``, ``label``, ``score`` and, to ``compare``, ``clear_label``,
        ``clear_score`` and ``agree``.
    compare
        Show the clear answers beside the private ones.
    """
    rich_box = box.ROUNDED if sys.stdout.isatty() else box.ASCII
    table = Table(box=rich_box, title_justify="left")
    table.add_column("sentence", overflow="fold", ratio=1 if compare else None)
    table.add_column("private answer", style="bold green")
    table.add_column("score", justify="right")
    if compare:
        table.add_column("clear answer")
        table.add_column("score", justify="right")
        table.add_column("agree", justify="center")
    for r in results:
        row: list[RenderableType] = [
            Text(shorten(r["text"])),
            Text(str(r["label"])),
            f"{r['score']:.4f}",
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


def both_ways(to_server: float, to_client: float) -> str:
    """Return the traffic of a run in MB, in words."""
    return f"{megabytes(to_server)} to the server, {megabytes(to_client)} to the client"


def megabytes(value: float) -> str:
    """Return a size in MB or GB for people."""
    return f"{value / 1000:.2f} GB" if value >= 1000 else f"{value:.1f} MB"
