"""``privml plan``: the bill and the claim of a run, before anything is computed or sent."""

from __future__ import annotations

from pathlib import Path

from privml._cli.output import Output
from privml._cli.tables import facts, plan_rows
from privml.protocols.mpc.spec import EmbeddingMode


def run(
    out: Output, *, model: str, n: int, rows: int, embedding: EmbeddingMode, source: str,
    path: Path | None,
) -> None:  # fmt: skip
    """Make a plan, print it, and write it to ``path`` if given."""
    out.progress(f"loading {model}", 0.0)
    from privml.backbones.loader import load_encoder
    from privml.protocols.mpc.model import PrivateModel
    from privml.protocols.mpc.spec import Spec

    encoder = load_encoder(model)
    out.progress("calibrating ranges", 0.3)
    plan = PrivateModel(encoder, Spec(embedding=embedding)).plan(n=n, rows=rows, source=source)
    summary = plan.summary()
    if path is not None:
        plan.save(path)
    out.document({"ok": True, "plan": summary, "file": None if path is None else str(path)})
    out.show(facts("plan", [*plan_rows(summary), ("digest", summary["digest"])]))
    if path is not None:
        out.note(f"plan written to {path}; it is public, give it to both parties and the dealer")
