"""The valuation peers as an audit sees them: environments, and a worker that stays up.

Each peer lives in an environment of its own, since neither allows a current numpy.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from peers.environments import Peer, PeerUnavailable, Progress, obtain
from peers.worker import LineWorker, WorkerEnded

FOLDER = Path(__file__).parent
PYDVL = Peer(
    "pydvl-0.10.0",
    ("pyDVL==0.10.0", "numpy==1.26.4", "scikit-learn==1.5.2"),
    ("3.11", "3.12", "3.10"),
    "pydvl.valuation",
)
OPENDATAVAL = Peer(
    "opendataval-1.3.0",
    ("opendataval==1.3.0", "transformers==4.37.2"),
    ("3.11", "3.10", "3.9"),
    "opendataval.dataval",
)
SCRIPTS = {PYDVL.name: "pydvl_worker.py", OPENDATAVAL.name: "opendataval_worker.py"}
THREADS = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")


class PeerFailed(Exception):
    """The peer's worker could not carry out a request; the text says why."""


class Worker(LineWorker):
    """A running worker; context manager.

    Parameters
    ----------
    peer, root, create, progress
        As :func:`peers.environments.obtain` takes them.
    threads
        Threads of its linear algebra; None for the peer's default.

    Attributes
    ----------
    facts
        Versions and threads, as the worker tells them.

    Raises
    ------
    PeerUnavailable
        There is no environment, or the worker does not start.
    """

    def __init__(
        self, peer: Peer, root: Path, *, create: bool, progress: Progress, threads: int | None = 1
    ) -> None:
        python = obtain(peer, root, create=create, progress=progress)
        self._folder = tempfile.TemporaryDirectory()
        own = {k: v for k, v in os.environ.items() if k not in (*THREADS, "PYTHONPATH")}
        if threads is not None:
            own |= dict.fromkeys(THREADS, str(threads))
        super().__init__([str(python), str(FOLDER / SCRIPTS[peer.name])], own)
        try:
            self.facts = self.answer()
        except WorkerEnded as error:
            self.close()
            raise PeerUnavailable(f"{peer.name} does not start: {error}") from error

    def give(self, name: str, arrays: Mapping[str, Any]) -> str:
        """Write X, y, X_val and y_val to a file for the worker and return its path."""
        path = str(Path(self._folder.name) / f"{name}.npz")
        np.savez(path, **arrays)
        return path

    def ask(self, do: str, **asked: object) -> dict[str, Any]:
        """Carry out one request.

        Raises
        ------
        PeerFailed
            The worker told an error, or ended.
        """
        try:
            answer = self.send({"do": do, **asked})
        except WorkerEnded as error:
            raise PeerFailed(f"the worker ended: {error}"[:400]) from error
        if "failed" in answer:
            raise PeerFailed(str(answer["failed"])[:400])
        return answer

    def close(self) -> None:
        """End the worker and remove its files; again is fine."""
        super().close()
        self._folder.cleanup()
