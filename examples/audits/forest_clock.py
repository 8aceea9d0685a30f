"""Thread CPU time of single operations on a forest, in nanoseconds, natively and through Python."""

from __future__ import annotations

import ctypes
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from forest_data import Rows
from numpy.typing import NDArray

from privml._native import address
from privml.unlearning.forest import _core
from privml.unlearning.forest.ids import default_ids

WARM_UP = 50


@dataclass(frozen=True)
class Latency:
    """Thread CPU time of one kind of operation.

    Attributes
    ----------
    ns
        One entry per operation, without the warm-up.
    """

    ns: NDArray[np.int64]

    @staticmethod
    def of(ns: Sequence[int] | NDArray[np.int64], *, warm_up: int = WARM_UP) -> Latency:
        """Return the latency without its first operations, at most a fifth of them."""
        return Latency(np.array(ns[min(warm_up, len(ns) // 5) :], dtype=np.int64))

    @property
    def mean_us(self) -> float:
        """Mean, us."""
        return float(self.ns.mean()) / 1e3

    def quantile_us(self, share: float) -> float:
        """Return a quantile, us."""
        return float(np.quantile(self.ns, share)) / 1e3

    def as_dict(self) -> dict[str, object]:
        """Return mean, quantiles, maximum and number, us."""
        return {
            "mean_us": round(self.mean_us, 3),
            "p50_us": round(self.quantile_us(0.5), 3),
            "p99_us": round(self.quantile_us(0.99), 3),
            "max_us": round(float(self.ns.max()) / 1e3, 3),
            "operations": len(self.ns),
        }


def clock_cost_ns() -> float:
    """Return what reading the clock from Python adds to an operation, ns; not subtracted."""
    clock = time.thread_time_ns
    reads = [clock() for _ in range(2001)]
    return float(np.median(np.diff(reads)))


def each(
    work: Callable[[Any], object],
    items: Iterable[Any],
    *,
    clock: Callable[[], int] = time.thread_time_ns,
) -> list[int]:
    """Return the ns, thread CPU time unless told otherwise, of ``work(item)`` for every item."""
    taken = []
    for item in items:
        start = clock()
        work(item)
        taken.append(clock() - start)
    return taken


def cpu_seconds(work: Callable[[], object]) -> float:
    """Return the CPU seconds of all threads of this process during one call."""
    start = time.process_time_ns()
    work()
    return (time.process_time_ns() - start) / 1e9


class NativeCalls:
    """The forest's native operations, timed in a native loop or called with prepared arguments.

    Parameters
    ----------
    model
        A fitted estimator on the native core.
    X
        (n, p) float32 rows to ask about or to add, in C order.
    y
        (n,) class codes of the rows to add.
    """

    def __init__(self, model: Any, X: NDArray[np.float32], y: NDArray[np.int64]) -> None:  # noqa: ANN401
        core = model._model.core
        if not isinstance(core, _core.ForestCore):
            raise RuntimeError("the native library holds no forest; install it to measure it")
        self._core, self._handle = core, core._handle
        self._X, self._y = np.ascontiguousarray(X, dtype=np.float32), y.astype(np.int64)
        self._out = np.zeros(max(core.stats()["classes"], 1))
        self._change = np.zeros(16, dtype=np.int64)

    def run(
        self, operations: Sequence[tuple[str, int, int]], ids: Sequence[int] | Rows = ()
    ) -> NDArray[np.int64]:
        """Return the ns of each operation, in a native loop; see ``ForestCore.run_program``."""
        records = _records(np.asarray(ids, dtype=np.int64))
        return self._core.run_program(operations, self._X, self._y, records)

    def query(self, rows: Sequence[int]) -> NDArray[np.int64]:
        """Return the ns of a prediction for each row of `X`, one at a time."""
        return self.run([("query", row, 0) for row in rows])

    def delete(self, ids: Rows) -> NDArray[np.int64]:
        """Return the ns of deleting each id, one at a time."""
        return self.run([("delete", 0, place) for place in range(len(ids))], ids)

    def query_wall(self, rows: Sequence[int]) -> list[int]:
        """Return the wall ns of a prediction for each row of `X`, called from Python."""
        call, at, step = _core._function("predict"), address(self._X), self._X.strides[0]
        fixed = address(self._out), len(self._out), 1
        return each(
            lambda i: _ok(call(self._handle, 1, at + i * step, *fixed)),
            rows,
            clock=time.perf_counter_ns,
        )

    def delete_batch(self, ids: Rows) -> int:
        """Return the ns of deleting all ids in one call."""
        call, records, changes = _core._function("unlearn"), _records(ids), address(self._change)
        given = self._handle, len(ids), address(records), changes
        return each(lambda arguments: _ok(call(*arguments)), [given])[0]

    def delete_eagerly(self, ids: Rows) -> list[int]:
        """Return the ns of deleting each id and at once making every decision put off by it."""
        call, changes, records = _core._function("unlearn"), address(self._change), _records(ids)
        resolve, done = _core._function("resolve"), ctypes.byref(ctypes.c_int32())

        def work(at: int) -> None:
            _ok(call(self._handle, 1, at, changes))
            _ok(resolve(self._handle, -1, 1, done))

        return each(work, range(address(records), address(records) + records.nbytes, 24))


def _records(ids: Rows) -> NDArray[np.uint64]:
    records = default_ids(len(ids))
    records[:, 1] = ids
    return records


def _ok(code: int) -> None:
    if code:
        raise RuntimeError(f"the native forest answered code {code} while it was measured")
