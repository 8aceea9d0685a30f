"""Labelled rows and plain texts from files, with the options of the command line in errors."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from privml._cli.output import UsageError
from privml.errors import Corrupt
from privml.storage.files import read_file

if TYPE_CHECKING:
    from privml.protocols.cipherprune import TaskData

_MAX_BYTES = 256 << 20


def read_rows(path: Path, classes: Sequence[str], header: bool | None) -> TaskData:
    """Read labelled rows; ``header`` is the option ``--header`` or ``--no-header``, if given.

    Raises
    ------
    Corrupt, ParameterError
        As :meth:`privml.protocols.cipherprune.TaskData.from_tsv` does, in words of the options.
    """
    from privml.protocols.cipherprune import TaskData

    try:
        return TaskData.from_tsv(path, classes=classes, header="auto" if header is None else header)
    except Corrupt as error:
        raise Corrupt(str(error).replace("header=True", "--header")) from error


def read_texts(files: Sequence[Path]) -> tuple[str, ...]:
    """Read unlabelled texts, one per line; empty lines are left out.

    Raises
    ------
    UsageError
        A file is no UTF-8 text, or there is no text in any of them.
    """
    found = []
    for path in files:
        try:
            lines = read_file(path, limit=_MAX_BYTES).decode("utf-8-sig").splitlines()
        except UnicodeDecodeError as error:
            raise UsageError(f"{path} is not UTF-8 text; convert it first") from error
        found += [line.strip() for line in lines if line.strip()]
    if not found:
        raise UsageError("the files hold no text; write one text per line")
    return tuple(found)
