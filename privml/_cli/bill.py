"""The bill of one or several runs, as plain values and as rows for people."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import fmean
from typing import Any

from privml._cli.pruning import tokens
from privml._cli.tables import both_ways, megabytes, set_up

_SUMS = (
    "flights", "online_s", "prepare_s", "setup_s", "online_sent_mb", "online_received_mb",
    "setup_mb_per_pool", "setup_mb_per_model", "offline_mb",
)  # fmt: skip


def total(bills: Sequence[Mapping[str, Any]], *, setup_bytes: int) -> dict[str, Any]:
    """Add the bills of one party up; ``runs`` says how many there were.

    Parameters
    ----------
    setup_bytes
        Length of a pool's set-up message, by the plan; the rest of the set-up is the public part.
    """
    parts = [{**bill, **_split(bill["setup_mb"], setup_bytes / 1e6)} for bill in bills]
    found = {"runs": len(bills), **{key: sum(part[key] for part in parts) for key in _SUMS}}
    pruned = [{"length": bill["length"], "kept": bill["kept"]} for bill in bills if "kept" in bill]
    return {**found, "tokens": pruned} if pruned else found


def _split(setup_mb: float, per_pool: float) -> dict[str, float]:
    pool = per_pool if setup_mb >= per_pool else 0.0
    return {"setup_mb_per_pool": pool, "setup_mb_per_model": setup_mb - pool}


def client_rows(bill: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Return the client's bill as rows: what was measured."""
    runs = f" in {bill['runs']} runs" if bill["runs"] > 1 else ""
    moved = both_ways(bill["online_sent_mb"], bill["online_received_mb"])
    expanded = f"expanded in {bill['prepare_s']:.2f} s before the query"
    pool, model = bill["setup_mb_per_pool"], bill["setup_mb_per_model"]
    setup = "nothing; this client kept it from an earlier run"
    if pool + model > 0:
        setup = f"{set_up(pool, model)}, in {bill['setup_s']:.2f} s"
    return [
        *_token_rows(bill.get("tokens", ())),
        ("on line", f"{bill['online_s']:.2f} s{runs}, {bill['flights']} flights, {moved}"),
        ("off line", f"{megabytes(bill['offline_mb'])} of correlations, {expanded}"),
        ("set-up", setup),
    ]


def mean_tokens(runs: Sequence[Mapping[str, Any]]) -> tuple[float, list[list[float]]]:
    """Return mean length, and mean counts of each layer but the last, of pruned runs."""
    layers = zip(*(run["kept"] for run in runs), strict=True)
    means = [[fmean(pair[k] for pair in layer) for k in (0, -1)] for layer in layers]
    return fmean(run["length"] for run in runs), means


def _token_rows(runs: Sequence[Mapping[str, Any]]) -> list[tuple[str, str]]:
    """Return what pruned runs opened, on the mean if there were several."""
    if not runs:
        return []
    mean = f" (mean of {len(runs)} runs)" if len(runs) > 1 else ""
    return [("opened", tokens(*mean_tokens(runs)) + mean)]
