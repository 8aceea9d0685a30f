"""The example of digits under CKKS runs as a script; the long form reaches its accuracy."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from privml.protocols.he import PolynomialClassifier, tenseal_backend

ROOT = Path(__file__).resolve().parents[2]
SCRIPT = ROOT / "examples" / "polynomial_digits.py"


def report(folder: Path, *words: str) -> dict[str, Any]:
    done = subprocess.run(
        [sys.executable, str(SCRIPT), "--out", str(folder), *words],
        capture_output=True, text=True, check=False, timeout=240, cwd=folder.parent,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "128-bit security" in done.stdout
    found: dict[str, Any] = json.loads(done.stdout[done.stdout.index("\n{") :])
    return found


def test_the_example_trains_plans_and_runs(tmp_path: Path) -> None:
    found = report(tmp_path / "net", "--epochs", "3", "--hidden", "32", "--channels", "y16")
    assert found["clear"]["accuracy"] > 0.5
    assert found["simulate"]["accuracy"] == pytest.approx(found["clear"]["accuracy"], abs=0.005)
    assert "not encrypted" in found["simulate"]["note"]
    if tenseal_backend.missing() is None:
        assert found["execute"]["accuracy"] == found["clear"]["accuracy"]
        assert found["execute"]["note"] == "encrypted"
    else:
        assert "not installed" in found["execute"]
    loaded = PolynomialClassifier.load(tmp_path / "net")
    assert loaded.network.front
    assert loaded.plan().network == found["plan"]["network"]


@pytest.mark.nightly
@pytest.mark.skipif(tenseal_backend.missing() is not None, reason="tenseal is not installed")
def test_encrypted_digits_reach_their_accuracy(tmp_path: Path) -> None:
    found = report(tmp_path / "net")
    assert found["execute"]["accuracy"] >= 0.97
    assert found["one_image"]["core_s"] <= 1.0
    assert found["execute"]["core_s_per_image"] <= 0.05
