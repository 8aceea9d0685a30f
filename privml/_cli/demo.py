"""``privml demo``: the acts one after the other."""

from __future__ import annotations

from typing import Any

from rich.text import Text

import privml
from privml._cli.acts import ACTS
from privml._cli.output import Output


def run(out: Output) -> None:
    """Perform every act and print one document."""
    sections: dict[str, Any] = {}
    for act in ACTS:
        out.detail(Text(act.title, style="bold underline"))
        sections[act.name] = act.perform(out)
    out.document({"ok": True, "version": privml.__version__, "acts": sections})
    out.detail(Text('your own text: privml infer --text "..." --labels a,b,c'))
