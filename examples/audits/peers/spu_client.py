"""The SPU peer as seen from an audit: a worker process that runs a workload on each call.

The worker stays up, so an audit can take its runs and the peer's in turn.
"""

from __future__ import annotations

import json
import os
import subprocess
import tempfile
from pathlib import Path
from types import TracebackType

from peers.environments import PeerUnavailable

WORKER = Path(__file__).with_name("spu_layer.py")
OURS_ONLY = ("OMP_", "MKL_", "OPENBLAS_NUM", "PYTHONPATH", "PRIVML_")


class SpuPeer:
    """A running worker; context manager.

    Parameters
    ----------
    python
        Interpreter of the peer's environment.
    settings
        ``"tuned"`` as SPU's transformer examples set it up, or ``"plain"``.
    limit_s
        The worker ends itself after so long.

    Raises
    ------
    PeerUnavailable
        The worker does not start.
    """

    def __init__(self, python: Path, *, settings: str = "tuned", limit_s: float = 900.0) -> None:
        self._log = tempfile.TemporaryFile(  # noqa: SIM115 - open as long as the worker runs
            mode="w+", encoding="utf-8", errors="replace"
        )
        # Thread limits meant for our side must not slow the peer.
        clean = {k: v for k, v in os.environ.items() if not k.startswith(OURS_ONLY)}
        command = [str(python), str(WORKER), "--serve", "--settings", settings]
        self._process = subprocess.Popen(
            [*command, "--limit-s", str(limit_s)],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self._log, text=True, env=clean,
        )  # fmt: skip
        self.facts = self._answer()

    def prepare(self, case: str) -> dict[str, object]:
        """Compile `case`, share its inputs, run it once; return bytes, messages and error.

        Raises
        ------
        PeerUnavailable
            The worker ended.
        """
        return self._ask("prepare", case)

    def run(self, case: str) -> float:
        """Run a prepared case once and return its wall seconds.

        Raises
        ------
        PeerUnavailable
            The worker ended.
        """
        return float(str(self._ask("run", case)["seconds"]))

    def _ask(self, verb: str, case: str) -> dict[str, object]:
        stdin = self._process.stdin
        try:
            if stdin is not None:
                stdin.write(json.dumps({"do": verb, "case": case}) + "\n")
                stdin.flush()
        except BrokenPipeError:
            pass  # the missing answer says why
        return self._answer()

    def _answer(self) -> dict[str, object]:
        stdout = self._process.stdout
        line = stdout.readline() if stdout is not None else ""
        if not line:
            self._end()
            self._log.seek(0)
            last = self._log.read().strip().splitlines()[-1:]
            self._log.close()
            raise PeerUnavailable(f"the SPU worker ended: {' '.join(last) or 'no message'}"[:400])
        return dict(json.loads(line))

    def close(self) -> None:
        """End the worker; again is fine."""
        if not self._log.closed:
            self._end()
            self._log.close()

    def _end(self) -> None:
        try:  # the end of its input ends the worker
            self._process.communicate(timeout=20)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.communicate()

    def __enter__(self) -> SpuPeer:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()
