"""``privml plan``: the bill and the claim of a run, before anything is computed or sent."""

from __future__ import annotations

from pathlib import Path

from privml._cli.machine import memory_bytes
from privml._cli.output import Output, UsageError
from privml._cli.pruning import Options, expected, expected_rows
from privml._cli.tables import at_most, facts, megabytes, plan_rows
from privml.errors import Corrupt, MalformedMessage
from privml.protocols.mpc.plan import Plan
from privml.protocols.mpc.spec import EmbeddingMode
from privml.storage import fs


def run(
    out: Output, *, model: str, n: int, rows: int, embedding: EmbeddingMode, source: str,
    path: Path | None, force: bool, prune: Options,
) -> None:  # fmt: skip
    """Make a plan, print it, and write it to ``path`` if given; ``force`` replaces another one."""
    pruning = prune.spec()
    out.progress(f"loading {model}", 0.0)
    from privml.backbones.loader import load_encoder
    from privml.protocols.mpc.model import PrivateModel
    from privml.protocols.mpc.spec import Spec

    encoder = load_encoder(model)
    out.progress("calibrating ranges", 0.3)
    if pruning is not None and pruning.thresholds is not None:
        pruning.thresholds.require(encoder)
    spec = Spec(embedding=embedding, prune=pruning)
    plan = PrivateModel(encoder, spec).plan(n=n, rows=rows, source=source)
    summary, typical = plan.summary(), expected(plan, prune)
    summary["price"] = "largest" if at_most(summary) else "exact"
    if typical is not None:
        summary["expected"] = typical
    if path is not None:
        _save(plan, path, force=force)
    out.document({"ok": True, "plan": summary, "file": None if path is None else str(path)})
    if out.mode.quiet:
        out.show(str(summary["digest"]))
        return
    price = expected_rows(typical, plan)
    out.show(facts("plan", [*plan_rows(summary), *price, ("digest", summary["digest"])]))
    _warn(out, plan)
    if path is not None:
        out.note(f"plan written to {path}; it is public, give it to both parties and the dealer")


def _save(plan: Plan, path: Path, *, force: bool) -> None:
    """Write the plan; another one at the path stays unless ``force``."""
    exists = fs.exists(path)
    same = exists and _holds(path, plan)
    if exists and not same and not force:
        raise UsageError(
            f"{path} holds something else, and pools may have been dealt for it; choose another "
            "path, or pass --force to replace it"
        )
    if not same:
        plan.save(path)


def _holds(path: Path, plan: Plan) -> bool:
    """Return whether the file is this plan; the name of the model's directory is no part of it."""
    try:
        return Plan.load(path).digest == plan.digest
    except (Corrupt, MalformedMessage):
        return False


def _warn(out: Output, plan: Plan) -> None:
    longest, model = plan.config.max_length, plan.config.name
    if plan.length > longest:
        out.note(
            f"warning: texts of {model} have at most {longest} tokens, so n = {plan.length} only "
            "adds padding"
        )
    here = memory_bytes()
    for party, need in zip(("server", "client"), plan.memory_bytes(), strict=True):
        if need > here:
            out.note(
                f"warning: the {party} needs about {megabytes(need / 1e6)} of memory, this machine "
                f"has {megabytes(here / 1e6)}; a smaller --n or --rows needs less"
            )
