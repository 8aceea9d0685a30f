"""What a verb tells people and machines: text or one JSON document, progress, one-line errors.

Results go to stdout, everything else to stderr. In a child process of another verb, progress and
notes are JSON lines on stderr instead, see :mod:`privml._cli.child`.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any

from privml.errors import PrivmlError

if TYPE_CHECKING:
    from rich.console import Console, RenderableType
    from rich.progress import Progress

#: Width of text that does not go to a terminal.
PLAIN_WIDTH = 110
_STEP = 0.02
_STAGES = {
    "setup": "set-up from the server",
    "prepare": "expanding correlations",
    "online": "computing on shares",
}


@dataclass
class Mode:
    """How this process reports; set once from the command line."""

    json: bool = False
    quiet: bool = False
    debug: bool = False
    events: bool = False


MODE = Mode()


class Failure(Exception):
    """An error of another process of ours, to be reported as our own.

    Attributes
    ----------
    code, message, exit_code
        As in :class:`privml.errors.PrivmlError`.
    """

    def __init__(self, code: str, message: str, exit_code: int) -> None:
        super().__init__(message)
        self.code, self.message, self.exit_code = code, message, exit_code


class UsageError(PrivmlError):
    """The command line asks for something that cannot be; nothing was started."""

    code = "usage"
    remedy = "correct the command line; `privml VERB --help` shows it"
    exit_code = 2


def event(kind: str, /, **values: object) -> None:
    """Write one JSON line to stderr for the parent process."""
    sys.stderr.write(json.dumps({"event": kind, **values}) + "\n")
    sys.stderr.flush()


@dataclass
class Output:
    """Where one verb writes; use as a context manager so that a progress bar is taken down."""

    mode: Mode = field(default_factory=lambda: MODE)
    _last: tuple[str, float] = ("", 0.0)
    _bar: Progress | None = None

    @cached_property
    def stdout(self) -> Console:
        """Console for results."""
        return _console(stderr=False)

    @cached_property
    def stderr(self) -> Console:
        """Console for notes and progress."""
        return _console(stderr=True)

    def show(self, *renderables: RenderableType) -> None:
        """Print results for people; nothing with ``--json``."""
        if not self.mode.json:
            self._clear()
            for item in renderables:
                self._print(item)

    def _print(self, item: RenderableType) -> None:
        if self.stdout.is_terminal:
            self.stdout.print(item)
            return
        with self.stdout.capture() as captured:
            self.stdout.print(item)
        sys.stdout.writelines(f"{line.rstrip()}\n" for line in captured.get().splitlines())
        sys.stdout.flush()

    def detail(self, *renderables: RenderableType) -> None:
        """Print what ``--quiet`` leaves out, as results."""
        if not self.mode.quiet:
            self.show(*renderables)

    def note(self, text: str, **values: object) -> None:
        """Say one line about what happens, on stderr; ``values`` are for a parent process."""
        if self.mode.events:
            event("note", text=text, **values)
        elif not self.mode.quiet:
            self._clear()
            self.stderr.print(text, markup=False, highlight=False, soft_wrap=True)

    def document(self, value: Mapping[str, Any]) -> None:
        """Print the JSON document of the verb; nothing without ``--json``."""
        if self.mode.json:
            write_json(value)

    def progress(self, stage: str, fraction: float) -> None:
        """Show how far a stage is, 0 to 1; a stage that stays at 0 only shows that it works."""
        last_stage, last = self._last
        if stage == last_stage and abs(fraction - last) < _STEP and fraction < 1.0:
            return
        self._last = (stage, fraction)
        if self.mode.events:
            event("progress", stage=stage, fraction=round(fraction, 3))
        elif self.stderr.is_terminal and not self.mode.quiet:
            self._advance(stage, fraction)

    def _advance(self, stage: str, fraction: float) -> None:
        from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

        if self._bar is None:
            columns = TextColumn("{task.description:<36}"), BarColumn(), TimeRemainingColumn()
            self._bar = Progress(*columns, console=self.stderr, transient=True)
            self._bar.start()
        if not self._bar.tasks or self._bar.tasks[-1].fields["stage"] != stage:
            for task in self._bar.task_ids:
                self._bar.remove_task(task)
            self._bar.add_task(_words(stage), total=None, stage=stage)
        total = 1.0 if fraction > 0.0 else None
        self._bar.update(self._bar.task_ids[-1], completed=fraction, total=total)

    def _clear(self) -> None:
        bar, self._bar = self._bar, None
        if bar is not None:
            bar.stop()

    def __enter__(self) -> Output:
        return self

    def __exit__(self, *error: object) -> None:
        self._clear()


def write_json(value: Mapping[str, Any]) -> None:
    """Write one JSON document to stdout."""
    sys.stdout.write(json.dumps(value, indent=None if MODE.events else 2, ensure_ascii=False))
    sys.stdout.write("\n")
    sys.stdout.flush()


def report_failure(*, code: str, message: str, exit_code: int) -> int:
    """Report an error on one line (and as the document with ``--json``); return the exit code."""
    line = " ".join(message.split())
    if MODE.events:
        event("error", code=code, message=line, exit_code=exit_code)
    else:
        sys.stderr.write(f"privml: {line} [{code}]\n")
    if MODE.json:
        write_json({"ok": False, "error": {"code": code, "message": line, "exit_code": exit_code}})
    return exit_code


def _words(stage: str) -> str:
    """Return a stage of the engine in words for people; ``client: online`` keeps who does it."""
    who, colon, name = stage.rpartition(": ")
    return who + colon + _STAGES.get(name, name)


def _console(*, stderr: bool) -> Console:
    from rich.console import Console

    stream = sys.stderr if stderr else sys.stdout
    width = None if stream.isatty() else PLAIN_WIDTH
    return Console(stderr=stderr, width=width, highlight=False, soft_wrap=False)
