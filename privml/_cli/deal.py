"""``privml deal``: write the two pools of a plan and be gone."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path

from privml._cli.inputs import load_plan
from privml._cli.output import Output, UsageError
from privml._cli.tables import count, facts, megabytes
from privml.protocols.mpc.correlations.dealer import deal
from privml.storage import fs


def run(out: Output, *, plan_file: Path, runs: int, server: Path, client: Path) -> None:
    """Deal ``runs`` inferences."""
    plan = load_plan(plan_file)
    for path in (server, client):
        if fs.exists(path):
            raise UsageError(f"{path} exists already; choose another path or remove it first")
    size = runs * plan.pool_bytes() / 1e6
    out.note(
        f"{count(runs, 'run')}: the client's pool takes {megabytes(size)}, the server's holds "
        "seeds only"
    )
    done = deal(
        plan, runs=runs, server=server, client=client,
        progress=lambda step, steps: out.progress("dealing correlations", step / steps),
    )  # fmt: skip
    out.document(
        {"ok": True, "dealt": {**asdict(done), "server": str(server), "client": str(client)}}
    )
    if out.mode.quiet:
        out.show(done.pool_id)
        return
    out.show(
        facts("dealt", [
            ("pool", done.pool_id),
            ("runs", f"{done.runs}, in {done.seconds:.1f} s"),
            ("server's pool", f"{server}: seeds only"),
            ("client's pool", f"{client}: {megabytes(size)}"),
        ])
    )  # fmt: skip
    out.note(
        "send each pool to its party over a channel you would trust with a key, then delete it "
        "here; whoever holds both can read everything"
    )
