"""A valuation that is killed again and again ends with the bits of an undisturbed one."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from privml.valuation.result import ValuationResult

ROUNDS = 40
SCRIPT = f"""
import sys, time
from pathlib import Path
from sklearn.datasets import load_breast_cancer
from privml.valuation.methods.shapley import Shapley
from privml.valuation.stopping import MaxUnits
from privml.valuation.utilities import RidgeUtility

folder, pause = Path(sys.argv[1]), float(sys.argv[2])
X, y = load_breast_cancer(return_X_y=True)
def listener(progress):
    (folder / "round").write_text(str(progress.units))
    time.sleep(pause)
method = Shapley(RidgeUtility(), stopping=MaxUnits({ROUNDS}), round_units=1,
                 checkpoint=folder / "run.ckpt", checkpoint_every_s=0.0, listener=listener)
method.fit(X[:40], y[:40], X[40:90], y[40:90]).result_.save(folder / "result")
"""


def start(folder: Path, pause: float) -> subprocess.Popen[bytes]:
    folder.mkdir(exist_ok=True)
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join(sys.path)}
    return subprocess.Popen(
        [sys.executable, "-c", SCRIPT, str(folder), str(pause)], env=environment
    )


def killed_after(folder: Path, units: int) -> bool:
    """Run until so many units are done, then kill; return whether it was still running."""
    process = start(folder, 0.02)
    mark = folder / "round"
    while process.poll() is None:
        text = mark.read_text() if mark.exists() else ""
        if text and int(text) >= units:
            process.send_signal(signal.SIGKILL)
            process.wait()
            return True
        time.sleep(0.002)
    return False


@pytest.mark.parametrize("kills", [2, pytest.param(12, marks=pytest.mark.nightly)])
def test_kill_and_resume(kills: int, tmp_path: Path) -> None:
    whole, cut = tmp_path / "whole", tmp_path / "cut"
    assert start(whole, 0.0).wait() == 0
    for kill in range(kills):
        assert killed_after(cut, (kill + 1) * ROUNDS // (kills + 1))
        assert not (cut / "result").exists()
    assert start(cut, 0.0).wait() == 0
    first, second = (ValuationResult.load(folder / "result") for folder in (whole, cut))
    assert first.digest() == second.digest()
    assert first.evaluations == 40 * 2 * ROUNDS + 1
