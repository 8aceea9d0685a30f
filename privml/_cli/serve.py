"""``privml serve``: answer pinned clients from one pool, one after the other."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from privml._cli import cert
from privml._cli.inputs import load_plan
from privml._cli.main import Terminated
from privml._cli.output import Output, UsageError
from privml._cli.pruning import with_thresholds
from privml.protocols.mpc.plan import MAX_PLAN_BYTES, Plan

if TYPE_CHECKING:
    from collections.abc import Callable

    from privml.backbones.encoder import Encoder
    from privml.protocols.mpc.endpoints import Server, ServerEvent


@dataclass(frozen=True, kw_only=True)
class Options:
    """What the command line says."""

    plan: str
    model: str
    thresholds: Path | None
    pool: Path
    identity: str | None
    pins: tuple[str, ...]
    host: str
    port: int
    runs: int | None
    used: Path | None
    insecure_loopback: bool
    deadline_s: float


def run(out: Output, options: Options) -> None:
    """Serve until the pool is empty, the runs are done, or a signal arrives."""
    if not options.insecure_loopback and (options.identity is None or not options.pins):
        raise UsageError(
            "name this server's --identity DIR/NAME and --pin each client's fingerprint, or pass "
            "--insecure-loopback to talk in the clear on this machine"
        )
    identity = cert.load(options.identity)
    plan = None if options.plan == "-" else load_plan(Path(options.plan))
    if plan is not None:
        with_thresholds(plan.spec, options.thresholds)
    model = _load(out, options.model)
    if plan is None:
        plan = Plan.from_json(sys.stdin.buffer.read(MAX_PLAN_BYTES + 1))
    from privml.protocols.mpc.endpoints import Server
    from privml.protocols.mpc.model import PrivateModel

    bills: list[dict[str, Any]] = []
    failed: list[dict[str, str]] = []

    def hear(event: ServerEvent) -> None:
        if event.bill is not None:
            bills.append(event.bill.as_dict())
        if event.kind == "failed":
            failed.append({"code": event.code, "message": event.message})
        out.note(f"{event.kind}: {event.message}", kind=event.kind, code=event.code)

    private = PrivateModel(model, with_thresholds(plan.spec, options.thresholds))
    with Server(
        private, plan, options.pool, host=options.host, port=options.port, identity=identity,
        pins=options.pins, used=options.used, insecure_loopback=options.insecure_loopback,
        deadline_s=options.deadline_s,
    ) as server:  # fmt: skip
        how = "in PLAINTEXT on loopback" if identity is None else "over mutual TLS"
        out.note(
            f"listening on {options.host} port {server.port} {how}; runs left: {server.remaining}",
            kind="listening", port=server.port,
        )  # fmt: skip
        if identity is not None:
            out.note(f"clients pin this fingerprint: {identity.fingerprint}")
        ended = _until_signal(server, options.runs, hear=hear, out=out)
        remaining = server.remaining
    out.note(f"{ended}; runs served: {len(bills)}, failed: {len(failed)}, left: {remaining}")
    out.document({
        "ok": True, "ended": ended, "served": len(bills), "failed": failed,
        "remaining": remaining, "bills": bills,
    })  # fmt: skip


def _until_signal(
    server: Server, runs: int | None, *, hear: Callable[[ServerEvent], None], out: Output
) -> str:
    """Serve; a signal ends it like a stop, after the present run was aborted."""
    try:
        server.serve(runs, on_event=hear, progress=out.progress)
    except (KeyboardInterrupt, Terminated):
        return "stopped by a signal"
    return "done" if server.remaining else "pool exhausted"


def _load(out: Output, name: str) -> Encoder:
    out.progress(f"loading {name}", 0.0)
    from privml.backbones.loader import load_encoder

    encoder = load_encoder(name)
    out.progress(f"loading {name}", 1.0)
    return encoder
