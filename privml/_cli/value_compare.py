"""``privml value compare``: how much runs over the same players agree."""

from __future__ import annotations

from dataclasses import asdict
from itertools import combinations
from pathlib import Path
from typing import Any

from rich.table import Table as Grid
from rich.text import Text

from privml._cli.output import Output, UsageError
from privml._cli.value_show import finite
from privml.valuation.report import compare
from privml.valuation.result import ValuationResult


def run(out: Output, *, folders: list[Path], m: int | None) -> None:
    """Compare every pair of results."""
    if len(folders) < 2:
        raise UsageError("compare needs two or more folders")
    for folder in folders:
        if not (folder / "result.json").exists():
            raise UsageError(f"{folder} holds no result; name folders that runs have written")
    found = [ValuationResult.load(folder) for folder in folders]
    grid = Grid(title="agreement", title_justify="left", title_style="bold", box=None)
    grid.add_column("runs", overflow="fold", style="cyan")
    for name in (
        "rank correlation",
        "top in common",
        "bottom",
        "by chance",
        "largest z",
        "|z|>1.96",
    ):
        grid.add_column(name, justify="right")
    pairs: list[dict[str, Any]] = []
    for a, b in combinations(range(len(found)), 2):
        same = compare(found[a], found[b], m=m)
        plain = {k: finite(v) if isinstance(v, float) else v for k, v in asdict(same).items()}
        pairs.append({"a": str(folders[a]), "b": str(folders[b]), **plain})
        z = "" if not same.same_target else f"{same.largest_z:.2f}"
        outside = "" if not same.same_target else f"{same.outside:.1%}"
        grid.add_row(
            Text(f"{folders[a].name} · {folders[b].name}"), f"{same.spearman:.3f}",
            f"{same.top:.0%} of {same.m}", f"{same.bottom:.0%}", f"{same.chance:.0%}", z, outside,
        )  # fmt: skip
    out.show(grid)
    if not all(pair["same_target"] for pair in pairs):
        out.note("runs with other targets, data or settings are compared by rank only")
    out.document({"ok": True, "pairs": pairs})
