"""The bill of one or several runs, as plain values and as rows for people."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from privml._cli.tables import both_ways, megabytes

_SUMS = (
    "flights", "online_s", "prepare_s", "setup_s", "online_sent_mb", "online_received_mb",
    "setup_mb", "offline_mb",
)  # fmt: skip


def total(bills: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Add the bills of one party up; ``runs`` says how many there were."""
    return {"runs": len(bills), **{key: sum(bill[key] for bill in bills) for key in _SUMS}}


def client_rows(bill: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Return the client's bill as rows: what was measured."""
    runs = f" in {bill['runs']} runs" if bill["runs"] > 1 else ""
    moved = both_ways(bill["online_sent_mb"], bill["online_received_mb"])
    expanded = f"expanded in {bill['prepare_s']:.2f} s before the query"
    setup = "nothing; this client kept it from an earlier run"
    if bill["setup_mb"] > 0.01:  # less is the handshake alone
        setup = f"{megabytes(bill['setup_mb'])} once per pool, in {bill['setup_s']:.2f} s"
    return [
        ("on line", f"{bill['online_s']:.2f} s{runs}, {bill['flights']} flights, {moved}"),
        ("off line", f"{megabytes(bill['offline_mb'])} of correlations, {expanded}"),
        ("set-up", setup),
    ]
