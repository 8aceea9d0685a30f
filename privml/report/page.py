"""One self-contained HTML page: every text escaped, images inline, nothing loaded from anywhere."""

from __future__ import annotations

import base64
from collections.abc import Iterable, Sequence
from html import escape

_STYLE = """
body{font:15px/1.5 system-ui,sans-serif;max-width:62rem;margin:2rem auto;padding:0 1rem;color:#222}
h1{font-size:1.6rem}h2{font-size:1.2rem;margin-top:2.2rem;border-bottom:1px solid #ccc}
table{border-collapse:collapse;margin:.8rem 0;font-size:.88rem}
th,td{padding:.2rem .7rem;border-bottom:1px solid #e3e3e3;text-align:left;vertical-align:top}
td.n,th.n{text-align:right;font-variant-numeric:tabular-nums}
td{overflow-wrap:anywhere}
img{max-width:100%}.warning{background:#fff3cd;border-left:4px solid #d39e00;padding:.6rem 1rem}
.scroll{overflow-x:auto}
"""
_POLICY = "default-src 'none'; img-src data:; style-src 'unsafe-inline'"

Cell = str | int | float


class Page:
    """A page under construction; every method returns the page.

    Parameters
    ----------
    title
        Its heading.
    """

    def __init__(self, title: str) -> None:
        self._title = title
        self._parts: list[str] = []

    def heading(self, text: str) -> Page:
        """Begin a section."""
        return self._add(f"<h2>{escape(text)}</h2>")

    def text(self, text: str) -> Page:
        """Add a paragraph."""
        return self._add(f"<p>{escape(text)}</p>")

    def warning(self, text: str) -> Page:
        """Add a paragraph that stands out."""
        return self._add(f'<p class="warning">{escape(text)}</p>')

    def facts(self, rows: Iterable[tuple[str, str]]) -> Page:
        """Add a two-column list: what, and its value."""
        lines = (
            f"<tr><th>{escape(name)}</th><td>{escape(value)}</td></tr>" for name, value in rows
        )
        return self._add(f"<table>{''.join(lines)}</table>")

    def table(self, header: Sequence[str], rows: Iterable[Sequence[Cell]]) -> Page:
        """Add a table; numbers stand on the right, with four significant digits."""
        body, numeric = [], [False] * len(header)
        for row in rows:
            cells = []
            for at, cell in enumerate(row):
                number = not isinstance(cell, str)
                numeric[at] |= number
                cells.append(f"<td{_CLASS * number}>{escape(number_text(cell))}</td>")
            body.append(f"<tr>{''.join(cells)}</tr>")
        heads = (f"<th{_CLASS * numeric[at]}>{escape(name)}</th>" for at, name in enumerate(header))
        table = f"<table><tr>{''.join(heads)}</tr>{''.join(body)}</table>"
        return self._add(f'<div class="scroll">{table}</div>')

    def image(self, png: bytes, *, about: str) -> Page:
        """Add a PNG; ``about`` says in words what it shows."""
        data = base64.b64encode(png).decode("ascii")
        return self._add(f'<img alt="{escape(about)}" src="data:image/png;base64,{data}">')

    def render(self) -> str:
        """Return the HTML document."""
        title = escape(self._title)
        return (
            '<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8">'
            f'<meta http-equiv="Content-Security-Policy" content="{_POLICY}">'
            '<meta name="viewport" content="width=device-width">'
            f"<title>{title}</title><style>{_STYLE}</style></head>\n<body><h1>{title}</h1>\n"
            + "\n".join(self._parts)
            + "\n</body></html>\n"
        )

    def _add(self, part: str) -> Page:
        self._parts.append(part)
        return self


_CLASS = ' class="n"'


def number_text(cell: Cell) -> str:
    """Return a cell as text; unknown numbers as a dash."""
    if isinstance(cell, str):
        return cell
    if isinstance(cell, int):
        return str(cell)
    return "–" if cell != cell else f"{cell:.4g}"
