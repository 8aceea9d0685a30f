"""Print docs/errors.md from the error classes: `python .ci/errors_page.py > docs/errors.md`."""

from __future__ import annotations

import sys
from collections.abc import Iterator

from privml import errors
from privml._cli.output import UsageError
from privml.errors import PrivmlError

HEAD = """\
# Errors

Every error says what was wrong and what to do; this table is the general advice. The command line
prints the message and the code on one line, `--json` gives both as a document, and the exit code
says which kind it was: 2 wrong usage, 3 refused before a share was sent, 4 a run that was aborted,
5 a failed verification, 70 a bug, 130 interrupted. In Python, catch the class;
`privml.errors.PrivmlError` is the root of all.

| code | exit | class | meaning | remedy |
|---|---|---|---|---|
"""
MORE = (
    ("child", 3, "", "A process of `privml infer` could not be started.", "free memory, try again"),
    ("protocol.child", 4, "", "A process of `privml infer` ended early.", "read its last words"),
    (
        "bug",
        70,
        "",
        "Something that privml did not expect.",
        "report it with the output of --debug",
    ),
    ("interrupted", 130, "", "Ctrl-C or a signal; nothing was left running.", "start again"),
)


def classes(root: type[PrivmlError]) -> Iterator[type[PrivmlError]]:
    """Yield an error class of the library and all below it."""
    yield root
    for child in root.__subclasses__():
        if child.__module__ in (errors.__name__, UsageError.__module__):
            yield from classes(child)


def page() -> str:
    """Return the whole page."""
    rows = {
        (e.code, e.exit_code, f"`{e.__name__}`", str(e.__doc__).split("\n")[0], e.remedy)
        for e in classes(PrivmlError)
    }
    lines = [
        f"| `{code}` | {exit_code} | {name} | {meaning} | {remedy} |\n"
        for code, exit_code, name, meaning, remedy in sorted({*rows, *MORE})
    ]
    return HEAD + "".join(lines)


if __name__ == "__main__":
    sys.stdout.write(page())
