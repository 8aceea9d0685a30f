"""``privml query``: classify texts with a remote model that never sees them; loads no torch."""

from __future__ import annotations

import os
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from privml._cli import bill, cert, classify
from privml._cli.inputs import Question, load_plan
from privml._cli.output import Output, UsageError
from privml._cli.tables import answers, facts, scores
from privml.protocols.mpc.endpoints import connect
from privml.protocols.mpc.runtime import ClientRun


@dataclass(frozen=True, kw_only=True)
class Options:
    """What the command line says."""

    plan: Path
    pool: Path
    peer: str
    identity: str | None
    pin: str | None
    cache: Path | None
    used: Path | None
    insecure_loopback: bool
    connect_s: float
    deadline_s: float


def default_cache() -> Path:
    """Return the user's cache directory, from ``XDG_CACHE_HOME`` or the home."""
    base = Path(os.environ.get("XDG_CACHE_HOME", ""))
    return (base if base.is_absolute() else Path.home() / ".cache") / "privml"


def run(out: Output, asked: Question, options: Options) -> None:
    """Ask, and print the answers and the bill."""
    if not options.insecure_loopback and (options.identity is None or options.pin is None):
        raise UsageError(
            "name this client's --identity DIR/NAME and --pin the server's fingerprint, or pass "
            "--insecure-loopback to talk in the clear on this machine"
        )
    identity = cert.load(options.identity)
    plan = load_plan(options.plan)

    def once() -> AbstractContextManager[ClientRun]:
        return connect(
            peer=options.peer, plan=plan, pool=options.pool, identity=identity, pin=options.pin,
            cache=options.cache, used=options.used, insecure_loopback=options.insecure_loopback,
            connect_s=options.connect_s, deadline_s=options.deadline_s, progress=out.progress,
        )  # fmt: skip

    got = classify.ask(plan, asked, once)
    names = plan.config.labels or asked.labels
    results = classify.as_documents(asked, names, got)
    cost = bill.total([b.as_dict() for b in got.bills])
    document: dict[str, Any] = {
        "ok": True, "results": results, "bill": cost, "claim": str(plan.claim),
        "failure_probability": plan.claim.failure_prob, "leakage": list(plan.leakage),
        "transport": "plaintext loopback" if identity is None else "mutual TLS 1.3",
    }  # fmt: skip
    out.document(document)
    out.show(answers(results, compare=False))
    out.detail(
        scores(results),
        facts("bill", [*bill.client_rows(cost), ("claim", document["claim"])]),
    )
