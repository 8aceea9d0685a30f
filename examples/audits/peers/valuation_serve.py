"""What the workers of the valuation peers share: requests in, answers out, one JSON a line.

Runs in a peer's environment; needs numpy only. Whatever a peer prints goes to stderr.
"""

from __future__ import annotations

import json
import sys
import time
import traceback
from collections.abc import Callable, Mapping
from contextlib import redirect_stdout
from typing import Any, TextIO

import numpy as np

Handler = Callable[[Mapping[str, Any]], Mapping[str, Any]]


def serve(handlers: Mapping[str, Handler], facts: Mapping[str, Any]) -> None:
    """Answer requests ``{"do": name, ...}`` until stdin ends; the first line tells `facts`."""
    out = sys.stdout
    with redirect_stdout(sys.stderr):
        _tell(out, facts)
        for line in sys.stdin:
            asked = json.loads(line)
            try:
                answer = handlers[asked["do"]](asked)
            except Exception as error:  # noqa: BLE001 - told to the audit, which decides
                traceback.print_exc()
                answer = {"failed": f"{type(error).__name__}: {error}"}
            _tell(out, answer)


def timed(work: Callable[[], Any]) -> tuple[Any, dict[str, float]]:
    """Return what `work` returns, and its CPU and wall seconds."""
    wall, cpu = time.perf_counter(), time.process_time()
    found = work()
    return found, {"cpu_s": time.process_time() - cpu, "wall_s": time.perf_counter() - wall}


def rows(asked: Mapping[str, Any]) -> dict[str, np.ndarray]:
    """Return the arrays X, y, X_val, y_val of the request's file."""
    with np.load(asked["rows"]) as file:
        return {name: file[name] for name in ("X", "y", "X_val", "y_val")}


def _tell(out: TextIO, answer: Mapping[str, Any]) -> None:
    out.write(json.dumps(answer, default=_plain) + "\n")
    out.flush()


def _plain(value: object) -> object:
    return value.tolist() if isinstance(value, np.ndarray | np.generic) else str(value)
