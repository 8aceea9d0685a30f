"""A peer's process that answers one JSON line for each line it is sent, and stays up meanwhile."""

from __future__ import annotations

import json
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import Any, Self

_END_S = 20


class WorkerEnded(Exception):
    """The worker ended without an answer; the text is the last line of its log."""


class LineWorker:
    """A running worker; context manager.

    Parameters
    ----------
    command, environment
        What to run, and with which variables.
    """

    def __init__(self, command: Sequence[str], environment: Mapping[str, str]) -> None:
        self._log = tempfile.TemporaryFile(  # noqa: SIM115 - open as long as the worker runs
            mode="w+", encoding="utf-8", errors="replace"
        )
        self._process = subprocess.Popen(
            list(command), stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self._log,
            text=True, env=dict(environment),
        )  # fmt: skip

    def send(self, request: Mapping[str, object]) -> dict[str, Any]:
        """Send one request and return its answer.

        Raises
        ------
        WorkerEnded
            There is none.
        """
        if self._log.closed:
            raise WorkerEnded("it ended before")
        stdin = self._process.stdin
        try:
            if stdin is not None:
                stdin.write(json.dumps(request) + "\n")
                stdin.flush()
        except BrokenPipeError:
            pass  # the missing answer says why
        return self.answer()

    def answer(self) -> dict[str, Any]:
        """Wait for the next answer; errors as :meth:`send`."""
        stdout = self._process.stdout
        for line in stdout or ():
            if line.startswith("{"):  # some peers print notes when they are imported
                return dict(json.loads(line))
        self._end()
        self._log.seek(0)
        last = self._log.read().strip().splitlines()[-1:]
        self._log.close()
        raise WorkerEnded(" ".join(last) or "no message")

    def close(self) -> None:
        """End the worker; again is fine."""
        if not self._log.closed:
            self._end()
            self._log.close()

    def _end(self) -> None:
        try:  # the end of its input ends the worker
            self._process.communicate(timeout=_END_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.communicate()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()
