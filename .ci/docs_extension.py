"""Griffe extension for `make docs`: docstrings keep the habits of Sphinx and NumPy, pages do not.

Roles such as :class:`X` become `X`, and an entry for several names becomes one entry for each.
"""

from __future__ import annotations

import re
from typing import Any

import griffe

_ROLE = re.compile(r":(?:class|func|meth|mod|attr|data|exc):`~?([^`]+)`")
_NAMES = re.compile(r"\w+(?:, \w+)+")


class PlainDocstrings(griffe.Extension):
    """Rewrites every docstring before it is parsed."""

    def on_object(self, *, obj: griffe.Object, **_: Any) -> None:  # noqa: ANN401 - griffe's hook
        """Rewrite the docstring of one object."""
        if obj.docstring is not None:
            text = _ROLE.sub(lambda found: f"`{_short(found[1])}`", obj.docstring.value)
            obj.docstring.value = "\n".join(_one_name_each(text.split("\n")))


def _short(target: str) -> str:
    """Return what a role shows: the last one or two parts of a dotted name of ours."""
    parts = target.split(".")
    own = [part for part in parts if part[:1].isupper()]
    return ".".join(parts[parts.index(own[0]) :]) if own and len(parts) > 2 else target


def _one_name_each(lines: list[str]) -> list[str]:
    """Repeat the description of entries like ``rows, length`` for each name."""
    out: list[str] = []
    at = 0
    while at < len(lines):
        end = at + 1
        while end < len(lines) and lines[end].startswith("    "):
            end += 1
        if _NAMES.fullmatch(lines[at]) and end > at + 1:
            for name in lines[at].split(", "):
                out += [name, *lines[at + 1 : end]]
        else:
            out += lines[at:end]
        at = end
    return out
