"""The three example scripts work together as the quickstart says, and it shows them verbatim."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from privml.protocols import mpc
from privml.testing.checkpoints import write_checkpoint

ROOT = Path(__file__).resolve().parents[2]
SCRIPTS = ROOT / "examples" / "private_inference"
WITHOUT_TORCH = """
import runpy, sys
path, *sys.argv[1:] = sys.argv[1:]
runpy.run_path(path, run_name="__main__")
sys.exit("torch was loaded" if "torch" in sys.modules else 0)
"""


def test_owner_server_and_client(tmp_path: Path) -> None:
    tiny = str(write_checkpoint(tmp_path / "tiny"))
    pins = {
        name: mpc.Identity.generate(str(tmp_path / "keys"), name).fingerprint
        for name in ("server", "client")
    }
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "XDG_STATE_HOME": str(tmp_path)}
    options = {"cwd": tmp_path, "env": environment, "text": True}

    def finished(*words: str) -> str:
        done = subprocess.run(
            [sys.executable, *words], capture_output=True, check=False, timeout=60, **options
        )
        assert done.returncode == 0, done.stderr
        return str(done.stdout)

    said = finished(str(SCRIPTS / "owner.py"), tiny)
    assert "semi-honest" in said
    server = subprocess.Popen(
        [sys.executable, str(SCRIPTS / "server.py"), pins["client"], tiny, "0"],
        stdout=subprocess.PIPE, **options,
    )  # fmt: skip
    try:
        assert server.stdout is not None
        peer = f"127.0.0.1:{server.stdout.readline().split()[-1]}"
        script = str(SCRIPTS / "client.py")
        said = finished("-c", WITHOUT_TORCH, script, pins["server"], peer)
        assert said.startswith("(1, 32) {'flights': ")
        assert server.wait(20) == 0
    finally:
        server.kill()
        server.communicate()


def test_pruning_ones_own_model(tmp_path: Path) -> None:
    tiny = write_checkpoint(tmp_path / "tiny", layers=2, classes=("bad", "good"))
    rows = [f"{word} {'a' * (k % 6)}\t{word}" for k in range(20) for word in ("bad", "good")]
    (tmp_path / "rows.tsv").write_text("\n".join(rows) + "\n")
    done = subprocess.run(
        [sys.executable, str(SCRIPTS / "prune.py"), str(tiny), "rows.tsv", "24"],
        capture_output=True, check=False, timeout=120, cwd=tmp_path, text=True,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "server: bucket of the length" in done.stdout
    plan = mpc.Plan.load(tmp_path / "plan.json")
    assert str(plan.claim).endswith("reveal=bucket")
    assert {"pruned", "thresholds.json", "thresholds.safetensors"} <= {
        path.name for path in tmp_path.iterdir()
    }


def test_the_guide_to_pruning_shows_the_script() -> None:
    page = (ROOT / "docs" / "cipherprune.md").read_text(encoding="utf-8")
    code = (SCRIPTS / "prune.py").read_text(encoding="utf-8")
    assert f"```python\n{code}```" in page


@pytest.mark.parametrize("name", ["owner.py", "server.py", "client.py"])
def test_the_quickstart_shows_the_scripts(name: str) -> None:
    page = (ROOT / "docs" / "quickstart.md").read_text(encoding="utf-8")
    code = (SCRIPTS / name).read_text(encoding="utf-8")
    assert f"```python\n{code}```" in page
