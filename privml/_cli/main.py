"""Start-up, exit codes and one-line errors of the command line; the verbs are loaded late."""

from __future__ import annotations

import signal
import sys
import threading
import traceback
from collections.abc import Sequence
from types import FrameType

from privml._cli import output
from privml.errors import PrivmlError

EXIT_BUG = 70
EXIT_INTERRUPTED = 130


class Terminated(BaseException):
    """SIGTERM arrived: unwind, clean up and end."""


def main(arguments: Sequence[str] | None = None) -> None:
    """Run one verb and exit; see ``privml --help``."""
    sys.exit(run(sys.argv[1:] if arguments is None else arguments))


def run(arguments: Sequence[str]) -> int:
    """Run one verb and return its exit code.

    Returns
    -------
    int
        0 success, 2 usage or refused, 3 parameters, 4 protocol aborted, 5 verification failed,
        70 a bug, 130 interrupted.
    """
    words = list(arguments) or ["--help"]
    mode = output.MODE
    mode.json, mode.quiet, mode.debug = (f"--{x}" in words for x in ("json", "quiet", "debug"))
    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGTERM, _terminate)
    try:
        return _dispatch(words)
    except BaseException as error:  # noqa: BLE001 - explained below
        if mode.debug and not isinstance(error, SystemExit):
            traceback.print_exc()
        return _explain(error)


def _dispatch(words: list[str]) -> int:
    from privml._cli.app import app

    code = app(words, prog_name="privml", standalone_mode=False)
    if code == EXIT_INTERRUPTED:  # how the option parser passes Ctrl-C on
        raise KeyboardInterrupt
    return code if isinstance(code, int) else 0


def _terminate(number: int, frame: FrameType | None) -> None:
    raise Terminated


def _explain(error: BaseException) -> int:
    """Turn whatever ended a verb into one line and an exit code."""
    if isinstance(error, KeyboardInterrupt | Terminated) or _is_abort(error):
        return output.report_failure(
            code="interrupted", message="stopped before the end; nothing was left running",
            exit_code=EXIT_INTERRUPTED,
        )  # fmt: skip
    if isinstance(error, SystemExit):
        return error.code if isinstance(error.code, int) else 1
    if isinstance(error, output.Failure):
        return output.report_failure(
            code=error.code, message=error.message, exit_code=error.exit_code
        )
    if isinstance(error, PrivmlError):
        return output.report_failure(code=error.code, message=str(error), exit_code=error.exit_code)
    usage = _usage_message(error)
    if usage:
        return output.report_failure(code="usage", message=usage, exit_code=2)
    return output.report_failure(
        code="bug", exit_code=EXIT_BUG,
        message=f"internal error, please report it with the output of --debug: "
        f"{type(error).__name__}: {error}",
    )  # fmt: skip


def _is_abort(error: BaseException) -> bool:
    from typer import Abort

    return isinstance(error, Abort)


def _usage_message(error: BaseException) -> str:
    """Return the one-line message of a usage error of the option parser, or an empty text."""
    from privml._cli.app import usage_message

    return usage_message(error)
