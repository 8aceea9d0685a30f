"""``privml query``: classify texts with a remote model that never sees them; loads no torch."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from privml._cli import bill, cert, classify
from privml._cli.inputs import Question, fit_labels, load_plan
from privml._cli.output import Failure, Output, UsageError
from privml._cli.tables import answers, count, facts, scores
from privml.backbones.public import PublicPart
from privml.errors import CorrelationExhausted, PrivmlError
from privml.protocols.mpc.cache import ClientCache
from privml.protocols.mpc.correlations.peek import PoolState, peek
from privml.protocols.mpc.endpoints import connect, parse_peer
from privml.protocols.mpc.plan import Plan
from privml.protocols.mpc.runtime import ClientRun, checked_public


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
    parse_peer(options.peer)
    asked = fit_labels(asked, plan.config.labels, model=plan.config.name)
    pool = _enough(out, plan, asked, options.pool)
    public = _public_here(plan, options.cache)

    def once() -> AbstractContextManager[ClientRun]:
        return connect(
            peer=options.peer, plan=plan, pool=options.pool, identity=identity, pin=options.pin,
            cache=options.cache, used=options.used, insecure_loopback=options.insecure_loopback,
            connect_s=options.connect_s, deadline_s=options.deadline_s, progress=out.progress,
        )  # fmt: skip

    with _counting(options.pool, pool):
        got = classify.ask(plan, asked, once, public=public)
    left = peek(options.pool).remaining
    names = plan.config.labels or asked.labels
    results = classify.as_documents(asked, names, got)
    cost = bill.total([b.as_dict() for b in got.bills], setup_bytes=plan.setup_bytes())
    document: dict[str, Any] = {
        "ok": True, "results": results, "bill": cost, "claim": str(plan.claim),
        "failure_probability": plan.claim.failure_prob, "leakage": list(plan.leakage),
        "pool": {"runs": pool.header.runs, "remaining": left},
        "transport": "plaintext loopback" if identity is None else "mutual TLS 1.3",
    }  # fmt: skip
    out.document(document)
    out.show(answers(results, compare=False))
    out.detail(
        scores(results),
        facts("bill", [
            *bill.client_rows(cost),
            ("pool", f"{left} of {count(pool.header.runs, 'run')} left"),
            ("claim", document["claim"]),
        ]),
    )  # fmt: skip


def _enough(out: Output, plan: Plan, asked: Question, path: Path) -> PoolState:
    """Say how many runs the question takes, and refuse it if the pool has not as many left."""
    state = peek(path)
    rows = classify.rows_of(asked)
    need = classify.runs_needed(rows, plan)
    labels, texts = count(len(asked.labels), "label"), count(len(asked.texts), "text")
    said = f"{labels} and {texts}: {count(rows, 'row')} = {count(need, 'run')}"
    if need > state.remaining:
        advice = "deal a new pool for both parties"
        if state.remaining:
            advice = f"ask fewer texts, or {advice}"
        gone = (
            f"has {state.remaining} of {state.header.runs} left" if state.remaining else
            f"is empty, all {count(state.header.runs, 'run')} are spent"
        )  # fmt: skip
        raise CorrelationExhausted(f"{said}, but the pool {path} {gone}; {advice}")
    out.note(f"{said}; the pool has {state.remaining} left")
    return state


def _public_here(plan: Plan, cache: Path | None) -> PublicPart | None:
    """Return the model's public part if an earlier run left it here."""
    data = ClientCache(cache).public(plan.public)
    return None if data is None else checked_public(data, plan)


@contextmanager
def _counting(path: Path, before: PoolState) -> Iterator[None]:
    """Add to an error what it cost: a failed question has no answers, but may have spent runs."""
    try:
        yield
    except (PrivmlError, Failure) as error:
        left = peek(path).remaining
        spent = before.remaining - left
        if not spent:
            raise
        raise Failure(
            error.code,
            f"{error}; no answer is given, {count(spent, 'run')} of the pool "
            f"{'is' if spent == 1 else 'are'} spent and {left} left",
            error.exit_code,
        ) from error
