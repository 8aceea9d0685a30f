"""An interrupt at any line of a change: the model is the one before or the one after, whole."""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Callable
from functools import cache
from pathlib import Path
from types import FrameType
from typing import Any

import numpy as np
import pytest
from sklearn.base import clone
from sklearn.datasets import load_digits

from privml.errors import StorageError
from privml.unlearning import DynForestClassifier
from privml.unlearning.forest._core import available
from privml.unlearning.forest.model import ForestModel
from privml.unlearning.forest.twin_core import TwinCore

# Python itself ignores an interrupt that reaches it inside a finaliser, and says so.
pytestmark = pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")

FOLDER = Path("unlearning", "forest").as_posix()
N = 60


@cache
def data() -> tuple[np.ndarray, np.ndarray]:
    X, y = load_digits(return_X_y=True)
    return X[: N + 4], y[: N + 4]


def interrupted_at(line: int, operation: Callable[..., Any], *arguments: Any) -> bool:
    """Run an operation with an interrupt before the given line of ours; return whether it came."""
    count = 0

    def tracer(frame: FrameType, event: str, argument: object) -> Any:
        nonlocal count
        del argument
        if FOLDER not in frame.f_code.co_filename:
            return None
        if event == "line":
            count += 1
            if count == line:
                raise KeyboardInterrupt
        return tracer

    before = sys.gettrace()
    sys.settrace(tracer)
    try:
        operation(*arguments)
    except KeyboardInterrupt:
        return True
    finally:
        sys.settrace(before)
    return False


def some_ids(model: Any) -> None:
    model.unlearn([3, 4, 9])


def a_class(model: Any) -> None:
    model.unlearn(np.flatnonzero(data()[1][:N] == 9))


def known_classes(model: Any) -> None:
    X, y = data()
    model.learn(X[N:], y[N:], ids=range(N, N + 4))


def new_classes(model: Any) -> None:
    model.learn(data()[0][N:], [10, 11, 12, 1], ids=range(N, N + 4))


def new_key(model: Any) -> None:
    model.rekey()


@pytest.mark.parametrize("change", [some_ids, a_class, known_classes, new_classes])
def test_an_interrupted_change_is_done_or_not(change: Callable[[Any], None]) -> None:
    X, y = data()
    model = DynForestClassifier(4, max_depth=6, random_state=0).fit(X[:N], y[:N])
    after = clone(model).fit(X[:N], y[:N])
    change(after)
    digests = {N: model.state_digest(), after.n_live_: after.state_digest()}
    line, states = 0, set()
    while True:
        line += 1
        model = clone(model).fit(X[:N], y[:N])
        model.state_digest()  # remembered, so that a forgotten note would show
        came = interrupted_at(line, change, model)
        rows = len(model.ids_)
        states.add(rows)
        assert model.n_live_ == rows
        assert model.version_ == 1 + (rows != N)
        assert model.state_digest() == digests[rows]
        if rows != N:
            assert model.classes_.tolist() == after.classes_.tolist()
        assert model.predict_proba(X).sum(axis=1) == pytest.approx(1.0)
        assert model.audit("structure").findings == ()
        if not came:
            break
    assert states == set(digests)
    assert line > 20


def test_an_interrupted_new_key_is_the_old_or_the_new_one() -> None:
    X, y = data()
    line = 0
    while True:
        line += 1
        model = DynForestClassifier(4, max_depth=4, random_state=0).fit(X[:N], y[:N])
        came = interrupted_at(line, model.rekey)
        model.unlearn([5])
        assert not model.contains([5]).any()
        assert model.audit("retrain").ok
        if not came:
            break


def test_an_interrupted_fit_leaves_the_old_model() -> None:
    X, y = data()
    model = DynForestClassifier(4, max_depth=4, random_state=0).fit(X[:N], y[:N])
    old, new = model.state_digest(), clone(model).fit(X[:N, :9], y[:N]).state_digest()
    line, seen = 0, set()
    while new not in seen:
        line += 1
        model = clone(model).fit(X[:N], y[:N])
        interrupted_at(line, model.fit, X[:N, :9], y[:N])
        seen.add(model.state_digest())
        columns = model.n_features_in_
        assert model.predict(X[:3, :columns]).shape == (3,)
    assert seen == {old, new}


def test_an_interrupted_save_leaves_the_old_file_or_the_new_one(tmp_path: Path) -> None:
    X, y = data()
    path = tmp_path / "m"
    model = DynForestClassifier(4, max_depth=4, random_state=0).fit(X[:N], y[:N])
    model.save(path)
    old = path.read_bytes()
    model.unlearn([1])
    model.save(path)
    new, line, came = path.read_bytes(), 0, True
    while came:
        line += 1
        path.write_bytes(old)
        came = interrupted_at(line, model.save, path)
        assert path.read_bytes() in (old, new)
    assert path.read_bytes() == new


def test_a_signal_during_deletions_loses_nothing() -> None:
    """The real thing: interrupts by the system's timer while one row after another goes."""
    if threading.current_thread() is not threading.main_thread():
        pytest.skip("signals reach the main thread alone")
    X, y = data()
    model = DynForestClassifier(10, random_state=0).fit(X, y)

    def interrupt(number: int, frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGALRM, interrupt)
    came, left = 0, set(range(N))
    try:
        while left:
            try:
                signal.setitimer(signal.ITIMER_REAL, 0.0004)
                for i in sorted(left):
                    model.unlearn([i])
                    left.discard(i)
                signal.setitimer(signal.ITIMER_REAL, 0)
            except KeyboardInterrupt:
                came += 1
                left = {i for i in left if model.contains([i])[0]}
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    assert came > 0
    assert model.n_live_ == 4
    fresh = clone(model).fit(X[N:], y[N:], ids=range(N, N + 4))
    assert model.state_digest() == fresh.state_digest()


def test_a_deletion_that_waits_for_a_new_key_is_not_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    X, y = data()
    model = DynForestClassifier(10, random_state=0).fit(X, y)
    real = ForestModel.rekeyed
    writer: list[threading.Thread] = []

    def slow(self: ForestModel, *, threads: int) -> ForestModel:
        with self.frozen():
            writer.append(threading.Thread(target=model.unlearn, args=([7],)))
            writer[0].start()
            fresh = real(self, threads=threads)
        writer[0].join(10)  # had it gone to the old model, it would be lost by now
        return fresh

    monkeypatch.setattr(ForestModel, "rekeyed", slow)
    model.rekey()
    writer[0].join()
    assert not model.contains([7]).any()
    assert model.n_live_ == N + 3
    assert model.audit("retrain").ok


def child_status(work: Callable[[], bool], *, seconds: int = 20) -> int | str:
    """Fork; return what ``work`` said in the child, 0 for true, or what killed it."""
    sys.stdout.flush()
    pid = os.fork()
    if pid == 0:
        signal.alarm(seconds)
        try:
            os._exit(0 if work() else 1)
        except BaseException:  # noqa: BLE001 - nothing may leave the child
            os._exit(3)
    status = os.waitpid(pid, 0)[1]
    return f"signal {os.WTERMSIG(status)}" if os.WIFSIGNALED(status) else os.WEXITSTATUS(status)


@pytest.mark.parametrize("twin", [False, True])
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_fork_while_the_forest_is_in_use(twin: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    if twin:
        monkeypatch.setattr("privml.unlearning.forest.model.open_core", TwinCore)
    elif not available():
        pytest.skip("the native library is missing")
    X, y = data()
    model = DynForestClassifier(3 if twin else 20, max_depth=5, random_state=0).fit(X, y)
    whole = model.predict_proba(X)
    stop = threading.Event()
    problems: list[BaseException] = []

    def busy(work: Callable[[], Any]) -> None:
        try:
            while not stop.is_set():
                work()
        except BaseException as error:  # noqa: BLE001 - told by the main thread
            problems.append(error)

    def come_and_go() -> None:
        model.unlearn([5])
        model.learn(X[[5]], y[[5]], ids=[5])

    def in_child() -> bool:
        if not model.contains([5])[0]:
            model.learn(X[[5]], y[[5]], ids=[5])
        same = (model.predict_proba(X) == whole).all()
        model.unlearn([6])
        return bool(same) and model.audit("retrain").ok

    work = (come_and_go, lambda: model.predict_proba(X), lambda: model.state_digest())
    threads = [threading.Thread(target=busy, args=(w,)) for w in work]
    for thread in threads:
        thread.start()
    try:
        assert [child_status(in_child) for _ in range(3 if twin else 25)].count(0) in (3, 25)
    finally:
        stop.set()
        for thread in threads:
            thread.join()
    assert problems == []
    assert (model.predict_proba(X) == whole).all()


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_fork_inside_a_block_that_keeps_writers_out() -> None:
    X, y = data()
    model = DynForestClassifier(4, random_state=0).fit(X, y)
    with model._fitted().frozen():
        assert child_status(lambda: model.unlearn([1]).rows_after == N + 3) == 0
    assert model.n_live_ == N + 4


def test_a_file_beyond_the_space_left_is_an_error_and_the_old_one_stays(tmp_path: Path) -> None:
    resource = pytest.importorskip("resource")
    X, y = data()
    path = tmp_path / "m"
    model = DynForestClassifier(4, random_state=0).fit(X[:20], y[:20])
    model.save(path)
    old = path.read_bytes()
    model.learn(X[20:], y[20:])

    def full() -> bool:
        resource.setrlimit(resource.RLIMIT_FSIZE, (len(old) + 10, len(old) + 10))
        with pytest.raises(StorageError):
            model.save(path)
        return path.read_bytes() == old and [p.name for p in tmp_path.iterdir()] == ["m"]

    assert child_status(full) == 0
    assert path.read_bytes() == old
