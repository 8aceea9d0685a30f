"""The SPU peer as seen from an audit: a worker process that runs a workload on each call.

The worker stays up, so an audit can take its runs and the peer's in turn.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from peers.environments import PeerUnavailable
from peers.worker import LineWorker, WorkerEnded

WORKER = Path(__file__).with_name("spu_layer.py")
OURS_ONLY = ("OMP_", "MKL_", "OPENBLAS_NUM", "PYTHONPATH", "PRIVML_")


class SpuPeer(LineWorker):
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
        # Thread limits meant for our side must not slow the peer.
        clean = {k: v for k, v in os.environ.items() if not k.startswith(OURS_ONLY)}
        command = [str(python), str(WORKER), "--serve", "--settings", settings]
        super().__init__([*command, "--limit-s", str(limit_s)], clean)
        with _explained():
            self.facts = self.answer()

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
        with _explained():
            return self.send({"do": verb, "case": case})


@contextmanager
def _explained() -> Iterator[None]:
    try:
        yield
    except WorkerEnded as error:
        raise PeerUnavailable(f"the SPU worker ended: {error}"[:400]) from error
