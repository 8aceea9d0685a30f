"""Units of work over processes or threads, BLAS pinned to one thread in each.

joblib, through scikit-learn's wrapper, carries the work; ``backend="dask"`` sends it to the
connected Dask cluster, by its own client. Workers receive objects by the serialisation of either,
which is only for machines of one owner. With one job nothing is started.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from functools import cache, partial
from importlib import import_module
from typing import Any, Final, Self, TypeVar

from sklearn.utils.parallel import Parallel, delayed
from threadpoolctl import threadpool_info, threadpool_limits

from privml.valuation.checks import is_whole
from privml.valuation.errors import SettingError

BACKENDS: Final = ("loky", "threading", "multiprocessing", "dask")
Item = TypeVar("Item")
Result = TypeVar("Result")


@contextmanager
def pinned() -> Iterator[None]:
    """Hold BLAS and OpenMP at one thread: sums are then the same, and workers share no core."""
    with threadpool_limits(limits=1):
        yield


def blas_threads() -> int:
    """Return the largest number of threads of any loaded BLAS or OpenMP library, at least 1."""
    return max([int(pool["num_threads"]) for pool in threadpool_info()], default=1)


class Workers:
    """Runs a function over items, in order; as a context it pins this process meanwhile.

    Parameters
    ----------
    n_jobs
        Processes or threads, at least 1; -1 for all cores.
    backend
        ``"loky"`` (processes), ``"threading"``, ``"multiprocessing"`` or ``"dask"``.

    Raises
    ------
    SettingError
        The number or the backend is unknown.
    """

    def __init__(self, n_jobs: int, *, backend: str = "loky") -> None:
        if not is_whole(n_jobs) or n_jobs < -1 or n_jobs == 0:
            raise SettingError(f"n_jobs={n_jobs!r}: give 1 or more, or -1 for all cores")
        if backend not in BACKENDS:
            raise SettingError(f"backend={backend!r} is unknown; use one of {BACKENDS}")
        self.n_jobs, self.backend = n_jobs, backend
        self._pinned = ExitStack()
        self._depth = 0

    def __enter__(self) -> Self:
        if self._depth == 0:
            self._pinned.enter_context(pinned())
        self._depth += 1
        return self

    def __exit__(self, *_: object) -> None:
        self._depth -= 1
        if self._depth == 0:
            self._pinned.close()

    def map(self, function: Callable[[Item], Result], items: Sequence[Item]) -> list[Result]:
        """Return ``function`` of each item, in the order of the items."""
        if self.n_jobs == 1 or len(items) <= 1:
            with self:
                return [function(item) for item in items]
        call = _pinned_call if self.backend == "threading" else _pinned_process_call
        if self.backend == "dask":
            return _on_cluster(function, items)
        pool = Parallel(n_jobs=self.n_jobs, backend=self.backend)
        with self if self.backend == "threading" else nullcontext():
            found: list[Any] = pool(delayed(call)(function, item) for item in items)
        return found


def _on_cluster(function: Callable[[Item], Result], items: Sequence[Item]) -> list[Result]:
    """Return the answers of the connected Dask cluster; how many run at once is up to it."""
    try:
        client: Any = import_module("distributed").default_client()
    except (ImportError, ValueError) as error:
        raise SettingError(
            "backend='dask' needs dask[distributed], extra 'scale', and a connected "
            f"distributed.Client: {error}"
        ) from error
    # not pure: equal arguments need not be looked for, and are not hashed
    futures = client.map(partial(_pinned_process_call, function), items, pure=False)
    try:
        return list(client.gather(futures))
    except BaseException:
        client.cancel(futures)
        raise


def _pinned_call(function: Callable[[Item], Result], item: Item) -> Result:
    # Some libraries count per thread, some per process; the caller restores the latter when all
    # threads are done: one that restored its own would let go of the others' limit.
    threadpool_limits(limits=1)
    return function(item)


def _pinned_process_call(function: Callable[[Item], Result], item: Item) -> Result:
    _pin_process()
    return function(item)


@cache
def _pin_process() -> None:
    """Pin a worker process for good; finding the libraries takes milliseconds."""
    threadpool_limits(limits=1)
