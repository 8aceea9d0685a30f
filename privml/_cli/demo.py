"""``privml demo``: the acts one after the other."""

from __future__ import annotations

from typing import Any, Final, Literal, TypeAlias

from rich.text import Text

import privml
from privml._cli.acts import ACTS, PRUNED
from privml._cli.output import Output, UsageError

Only: TypeAlias = Literal["inference", "forest", "values", "digits"]
NAMES: Final[dict[Only, str]] = {
    "inference": "private_inference",
    "forest": "forgetting",
    "values": "valuation",
    "digits": "encrypted_images",
}
"""Acts as ``--only`` names them."""


def run(out: Output, only: Only | None = None, *, cipherprune: bool = False) -> None:
    """Perform every act, or one, and print one document."""
    if cipherprune and only not in {None, "inference"}:
        raise UsageError(f"--cipherprune is about inference; leave --only {only} out")
    wanted = [act for act in ACTS if only is None or act.name == NAMES[only]]
    wanted = [PRUNED] if cipherprune else wanted
    sections: dict[str, Any] = {}
    for act in wanted:
        out.detail(Text(act.title, style="bold underline"))
        sections[act.name] = act.perform(out)
    out.document({"ok": True, "version": privml.__version__, "acts": sections})
    if only in {None, "inference"}:
        out.detail(Text('your own text: privml infer --text "..." --labels a,b,c'))
