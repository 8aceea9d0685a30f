"""Thread CPU time of single operations on a forest, in nanoseconds, natively and through Python."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
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
    def of(ns: Sequence[int], *, warm_up: int = WARM_UP) -> Latency:
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
    """Return what reading the clock adds to every operation, ns; it is not subtracted."""
    clock = time.thread_time_ns
    reads = [clock() for _ in range(2001)]
    return float(np.median(np.diff(reads)))


def each(work: Callable[[Any], object], items: Iterable[Any]) -> list[int]:
    """Return the thread CPU ns of ``work(item)`` for every item."""
    clock, taken = time.thread_time_ns, []
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
    """The forest's C functions with arguments prepared, so that a call adds about a microsecond.

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
        self._handle = core._handle
        self._X, self._y = np.ascontiguousarray(X, dtype=np.float32), y.astype(np.int64)
        self._at, self._step = address(self._X), self._X.strides[0]
        self._classes = core.stats()["classes"]
        self._out = np.zeros(max(self._classes, 1))
        self._change = np.zeros(16, dtype=np.int64)
        self._to, self._changes = address(self._out), address(self._change)

    def query(self, rows: Sequence[int]) -> list[int]:
        """Return the ns of a prediction for each row of `X`, one at a time."""
        call, handle, to, classes = (
            _core._function("predict"),
            self._handle,
            self._to,
            self._classes,
        )
        at, step = self._at, self._step
        return each(lambda i: _ok(call(handle, 1, at + i * step, to, classes, 1)), rows)

    def delete(self, ids: NDArray[np.intp]) -> list[int]:
        """Return the ns of deleting each id, one at a time."""
        call, handle, changes = _core._function("unlearn"), self._handle, self._changes
        records = _records(ids)
        places = range(address(records), address(records) + records.nbytes, 24)
        return each(lambda at: _ok(call(handle, 1, at, changes)), places)

    def add(self, rows: Sequence[int], ids: NDArray[np.intp]) -> list[int]:
        """Return the ns of learning rows of `X` under the ids, one at a time."""
        call, handle, changes = _core._function("learn"), self._handle, self._changes
        records, y = _records(ids), address(self._y)
        first, at, step = address(records), self._at, self._step
        items = [(at + r * step, y + 8 * r, first + 24 * i) for i, r in enumerate(rows)]
        return each(lambda item: _ok(call(handle, 1, *item, changes)), items)

    def delete_batch(self, ids: NDArray[np.intp]) -> int:
        """Return the ns of deleting all ids in one call."""
        call, records = _core._function("unlearn"), _records(ids)
        arguments = self._handle, len(ids), address(records), self._changes
        return each(lambda given: _ok(call(*given)), [arguments])[0]


def _records(ids: NDArray[np.intp]) -> NDArray[np.uint64]:
    records = default_ids(len(ids))
    records[:, 1] = ids
    return records


def _ok(code: int) -> None:
    if code:
        raise RuntimeError(f"the native forest answered code {code} while it was measured")
