"""``privml fhe install-concrete-ml``: the environment that scikit-learn models are compiled in."""

from __future__ import annotations

from pathlib import Path

from privml._cli.output import Output, UsageError
from privml.errors import UnsupportedError
from privml.protocols.fhe.concrete_ml import environment
from privml.protocols.fhe.licence import NOTICE


def run(out: Output, *, python: Path | None, status: bool, remove: bool) -> None:
    """Build it, remove it, or say whether it is there."""
    if status and remove:
        raise UsageError("give --status or --remove, not both")
    if remove:
        removed = environment.remove()
        out.document({"ok": True, "removed": removed})
        out.show("removed" if removed else "there was none")
        return
    if status:
        reason = environment.missing()
        if reason is not None:
            raise UnsupportedError(reason)
        folder = environment.place()
    else:
        out.note(NOTICE)
        folder = environment.install(python=python, say=out.note).folder
    out.document({"ok": True, "folder": str(folder), "version": environment.VERSION,
                  "licence": NOTICE})  # fmt: skip
    out.show(str(folder))
