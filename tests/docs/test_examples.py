"""The three example scripts work together as the quickstart says, and it shows them verbatim."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from privml.backbones.loader import load_encoder
from privml.backbones.saving import save_encoder
from privml.protocols import mpc
from privml.protocols.cipherprune import PruneSpec, Thresholds
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
    rows = [f"{word} {'a ' * (k % 5 + 16)}\t{word}" for k in range(20) for word in ("bad", "good")]
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


def test_a_pruned_model_is_served_with_its_thresholds(tmp_path: Path) -> None:
    tiny = load_encoder(write_checkpoint(tmp_path / "tiny", layers=3, classes=("bad", "good")))
    save_encoder(tiny, tmp_path / "pruned")
    secret = Thresholds((0.007, 0.008), (0.008, 0.009), heads=2).bound_to(tiny)
    secret.save(tmp_path / "thresholds")
    plan = mpc.PrivateModel(tiny, mpc.Spec(prune=PruneSpec(secret))).plan(n=24)
    plan.save(tmp_path / "plan.json")
    pins = {
        name: mpc.Identity.generate(str(tmp_path / "keys"), name).fingerprint
        for name in ("server", "client")
    }
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "XDG_STATE_HOME": str(tmp_path)}
    options = {"cwd": tmp_path, "env": environment, "text": True}
    server = subprocess.Popen(
        [sys.executable, str(SCRIPTS / "prune_server.py"), pins["client"], "0"],
        stdout=subprocess.PIPE, **options,
    )  # fmt: skip
    try:
        assert server.stdout is not None
        peer = f"127.0.0.1:{server.stdout.readline().split()[-1]}"
        script = str(SCRIPTS / "prune_client.py")
        asked = [sys.executable, "-c", WITHOUT_TORCH, script, "a longer text", pins["server"], peer]
        done = subprocess.run(asked, capture_output=True, check=False, timeout=120, **options)
        assert done.returncode == 0, done.stderr
        answer, opened, cost, priced = done.stdout.splitlines()
        assert answer in ("bad", "good")
        assert opened.startswith("opened: 16 tokens, then [")
        assert f"flights={cost.split()[1]}," in priced
        assert server.wait(60) == 0
    finally:
        server.kill()
        server.communicate()


def test_the_decoder_runs() -> None:
    done = subprocess.run(
        [sys.executable, str(SCRIPTS / "decoder.py"), "2", "64", "12"],
        capture_output=True, check=False, timeout=120, text=True,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    error, likeness, whole, pruned = (line.split(": ")[1] for line in done.stdout.splitlines())
    assert float(error) < 0.1
    assert float(likeness) > 0.5
    assert "flights" in whole
    assert whole != pruned


@pytest.mark.nightly
def test_the_break_even_table_is_what_the_plans_say() -> None:
    done = subprocess.run(
        [sys.executable, str(SCRIPTS / "break_even.py")],
        capture_output=True, check=False, timeout=1200, text=True,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert break_even() == done.stdout, "copy what examples/private_inference/break_even.py prints"


def test_the_break_even_table_says_what_the_text_below_it_says() -> None:
    rows = [re.findall(r"([0-9.]+) (?:flights|MB)", line) for line in break_even().splitlines()[2:]]
    lengths = [int(line.split()[1]) for line in break_even().splitlines()[2:]]
    assert lengths == [8, 16, 32, 48, 64, 96, 128, 192, 256, 384, 512]
    for n, row in zip(lengths, rows, strict=True):
        whole, some, half = ((int(row[k]), float(row[k + 1])) for k in (0, 2, 4))
        assert whole[1] > some[1] > half[1]
        assert 12 <= some[0] - whole[0] <= 25
        assert half[0] - whole[0] <= 12
        assert n < 128 or some[1] < whole[1] / 2


def break_even() -> str:
    """Return the table of the guide to pruning."""
    page = (ROOT / "docs" / "cipherprune.md").read_text(encoding="utf-8")
    return page.split("<!-- break even: begin -->\n")[1].split("<!-- break even: end -->")[0]


@pytest.mark.parametrize("name", ["prune.py", "prune_server.py", "prune_client.py", "decoder.py"])
def test_the_guide_to_pruning_shows_the_scripts(name: str) -> None:
    page = (ROOT / "docs" / "cipherprune.md").read_text(encoding="utf-8")
    code = (SCRIPTS / name).read_text(encoding="utf-8")
    assert f"```python\n{code}```" in page


@pytest.mark.parametrize("name", ["owner.py", "server.py", "client.py"])
def test_the_quickstart_shows_the_scripts(name: str) -> None:
    page = (ROOT / "docs" / "quickstart.md").read_text(encoding="utf-8")
    code = (SCRIPTS / name).read_text(encoding="utf-8")
    assert f"```python\n{code}```" in page
