"""``privml pool``: what a pool file is for, and how many runs it has left."""

from __future__ import annotations

from pathlib import Path

from privml._cli.output import Output
from privml._cli.tables import facts, megabytes
from privml.protocols.mpc.correlations.peek import peek


def run(out: Output, *, path: Path) -> None:
    """Show the state of a pool; nothing is locked or changed."""
    state = peek(path)
    header = state.header
    party = ("server", "client")[header.rank]
    out.document({
        "ok": True, "pool": header.pool_id, "party": party, "plan": header.plan_digest,
        "runs": header.runs, "remaining": state.remaining,
        "mb_per_run": header.correction_bytes / 1e6, "claim": header.claim,
    })  # fmt: skip
    if out.mode.quiet:
        out.show(str(state.remaining))
        return
    size = megabytes(header.correction_bytes / 1e6)
    out.show(
        facts(f"pool {path}", [
            ("left", f"{state.remaining} of {header.runs} runs"),
            ("party", party),
            ("pool", f"{header.pool_id}, the same in the pools of one deal"),
            ("plan", header.plan_digest),
            ("size", f"{size} per run" if header.rank else "seeds only"),
            ("claim", header.claim),
        ])
    )  # fmt: skip
