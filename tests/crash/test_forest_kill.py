"""Real ``kill -9`` of a process that saves a forest: the old file or the new one, whole."""

from __future__ import annotations

import os
import signal
import time
from contextlib import suppress
from pathlib import Path
from typing import NoReturn

import numpy as np
import pytest

from privml.errors import StorageError
from privml.testing.crashfs import CrashFs, Fault, Loss
from privml.unlearning import DynForestClassifier

ROUNDS = 12
N = 300


def save_until_killed(model: DynForestClassifier, path: Path, ready: int) -> NoReturn:
    """Forget one row after the other and save each time; never returns."""
    try:
        os.write(ready, b"!")
        for i in range(N):
            model.unlearn([i])
            model.save(path)
    finally:
        os._exit(1)


def forest() -> DynForestClassifier:
    rng = np.random.default_rng(0)
    X = rng.normal(size=(N, 4)).astype(np.float32)
    return DynForestClassifier(10, max_depth=6, random_state=0).fit(X, X[:, 0] > 0)


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_killed_saver_leaves_a_whole_file(tmp_path: Path, rng: np.random.Generator) -> None:
    model, start, path = forest(), forest(), tmp_path / "model"
    model.save(path)
    digests = {N: model.state_digest()}
    left = set()
    for _ in range(ROUNDS):
        reader, writer = os.pipe()
        pid = os.fork()
        if pid == 0:
            save_until_killed(start, path, writer)
        assert os.read(reader, 1) == b"!"
        os.close(reader)
        os.close(writer)
        time.sleep(float(rng.uniform(0.0, 0.03)))
        os.kill(pid, signal.SIGKILL)
        assert os.WTERMSIG(os.waitpid(pid, 0)[1]) == signal.SIGKILL
        found = DynForestClassifier.load(path)
        rows = found.n_live_
        left.add(rows)
        while min(digests) > rows:
            model.unlearn([N - min(digests)])
            digests[model.n_live_] = model.state_digest()
        assert found.state_digest() == digests[rows]
        assert path.stat().st_mode & 0o777 == 0o600
    assert len(left) > 1
    model.save(path)  # sweeps what the dead left behind
    assert sorted(p.name for p in tmp_path.iterdir()) == ["model"]


STOPS = (Fault.STOP_BEFORE, Fault.STOP_AFTER, Fault.TORN, Fault.EIO, Fault.ENOSPC)


@pytest.mark.parametrize("loss", list(Loss))
@pytest.mark.parametrize("fault", STOPS)
def test_power_lost_at_any_step_of_a_save(fault: Fault, loss: Loss, tmp_path: Path) -> None:
    """Whatever step was the last, and whatever of it reached the disk: old or new, whole."""
    model, folder = forest(), tmp_path / "models"
    folder.mkdir()
    path = folder / "model"
    model.save(path)
    old = path.read_bytes()
    model.unlearn([3])
    model.save(path)
    new = path.read_bytes()
    counter = CrashFs(tmp_path, at=0)
    with counter.running():
        model.save(path)
    assert counter.count > 3
    seen = set()
    for at in range(1, counter.count + 1):
        scratch = tmp_path / f"scratch-{at}"
        scratch.mkdir()
        path.write_bytes(old)
        with (
            suppress(StorageError),
            CrashFs(scratch, at=at, fault=fault, loss=loss, salt=at).running(),
        ):
            model.save(path)
        seen.add(path.read_bytes())
        assert seen <= {old, new}
        model.save(path)
        assert path.read_bytes() == new
        assert [p.name for p in folder.iterdir()] == ["model"]
    assert old in seen
