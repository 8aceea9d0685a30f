"""Runs of ``privml value`` that are stopped or killed go on to the result of one that was not."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from privml._cli.app import app
from privml._cli.main import run
from privml._cli.value import value
from privml._cli.value_watch import Limits, Trace
from privml.valuation.result import ValuationResult
from privml.valuation.stopping import Progress

if not any(group.typer_instance is value for group in app.registered_groups):
    app.add_typer(value)
ROOT = Path(__file__).resolve().parents[2]
BOOT = """
import sys
from privml._cli.app import app
from privml._cli.value import value
if not any(group.typer_instance is value for group in app.registered_groups):
    app.add_typer(value)
from privml._cli.main import run
sys.exit(run(["value", *sys.argv[1:]]))
"""
SPEC = """[data]
train = "train.csv"
validation_share = 0.4
target = "y"

[stop]
units = {units}

[run]
round = 8
checkpoint_s = 0.05

[topm]
m = 4
budget = "{budget}n"
eps = 0.0
"""


def start(folder: Path, *words: object) -> subprocess.Popen[str]:
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    return subprocess.Popen(
        [sys.executable, "-c", BOOT, *map(str, words)], cwd=folder, env=environment, text=True,
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, preexec_fn=_heed_interrupts,
    )  # fmt: skip


def _heed_interrupts() -> None:
    """Undo what a background job inherits: an ignored SIGINT."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


def here(*words: object) -> int:
    """Run a verb in this process."""
    return run(["value", *map(str, words)])


def finish(child: subprocess.Popen[str]) -> tuple[int, str, str]:
    out, err = child.communicate(timeout=200)
    return child.returncode, out, err


def until_there(path: Path, child: subprocess.Popen[str]) -> None:
    ends = time.monotonic() + 120
    while not path.exists():
        assert time.monotonic() < ends, finish(child)
        assert child.poll() is None, finish(child)
        time.sleep(0.01)


@pytest.fixture(params=["run", "topm"])
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def spec(tmp_path: Path) -> Path:
    lines = [f"{(k * 37 % 100) / 50 - 1},{(k * 61 % 97) / 48 - 1},{'ab'[(k * 37 % 100) > 50]}"
             for k in range(100)]  # fmt: skip
    (tmp_path / "train.csv").write_text("u,v,y\n" + "\n".join(lines) + "\n")
    path = tmp_path / "spec.toml"
    path.write_text(SPEC.format(units=6_000, budget=60))
    return path


def test_killed_stopped_and_resumed_as_if_nothing_had_happened(
    tmp_path: Path, spec: Path, kind: str
) -> None:
    assert here(kind, spec, "--out", tmp_path / "whole") == 0
    child = start(tmp_path, kind, spec, "--out", "cut")
    until_there(tmp_path / "cut" / "checkpoint.safetensors", child)
    child.kill()
    assert finish(child)[0] == -signal.SIGKILL
    kept = tmp_path / "cut" / "checkpoint.safetensors"
    before = kept.stat().st_mtime_ns
    stopped = start(tmp_path, "resume", "cut")
    while stopped.poll() is None and kept.exists() and kept.stat().st_mtime_ns == before:
        time.sleep(0.01)
    stopped.send_signal(signal.SIGTERM)  # does nothing if it has ended already
    code, _, err = finish(stopped)
    assert code in {130, 0}, err
    assert here("resume", tmp_path / "cut") == 0
    assert (tmp_path / "cut" / "record.json").read_bytes() == (
        tmp_path / "whole" / "record.json"
    ).read_bytes()
    assert here("verify", tmp_path / "cut") == 0


def test_an_interrupt_leaves_a_valid_partial_result(tmp_path: Path, spec: Path, kind: str) -> None:
    spec.write_text(SPEC.format(units=100_000_000, budget=100_000))
    child = start(tmp_path, kind, spec, "--out", "cut", "--json")
    until_there(tmp_path / "cut" / "checkpoint.safetensors", child)
    child.send_signal(signal.SIGINT if kind == "run" else signal.SIGTERM)
    code, out, err = finish(child)
    assert code == 130, err
    assert '"status": "interrupted"' in out
    assert "resume" in err
    result = ValuationResult.load(tmp_path / "cut")
    assert result.status == "interrupted"
    assert {path.name for path in (tmp_path / "cut").iterdir()} >= {"values.csv", "record.json"}
    assert here("verify", tmp_path / "cut") == 0


def test_one_process_at_a_time(
    tmp_path: Path, spec: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    spec.write_text(SPEC.format(units=100_000_000, budget=10))
    child = start(tmp_path, "run", spec, "--out", "cut")
    until_there(tmp_path / "cut" / "checkpoint.safetensors", child)
    code = here("resume", tmp_path / "cut")
    child.kill()
    finish(child)
    assert code != 0
    assert "storage.locked" in capsys.readouterr().err


def progress(units: int, *, error: float = 0.1) -> Progress:
    import numpy as np

    return Progress(units, units * 10, units * 50, 1.0, np.full(3, units, float), np.full(3, error))


def test_what_the_trace_keeps_depends_on_the_number_of_rounds_only() -> None:
    whole, cut = Trace(), Trace()
    for number in range(1, 400):
        whole.add(number, progress(number))
        cut.add(number, progress(number))
        if number == 250:  # as if rounds after the last checkpoint were repeated
            for again in range(240, 251):
                cut.add(again, progress(again))
    assert whole.rounds == cut.rounds
    assert len(whole.rounds) <= 64
    assert any(b == a + 1 for a, b in zip(whole.rounds, whole.rounds[1:], strict=False))


def test_a_trace_of_another_run_is_not_taken(tmp_path: Path) -> None:
    trace = Trace()
    trace.add(1, progress(1))
    trace.save(tmp_path / "t", "a" * 64)
    assert Trace.load(tmp_path / "t", "a" * 64).units == [1]
    assert Trace.load(tmp_path / "t", "b" * 64).units == []
    (tmp_path / "t").write_bytes(b"junk")
    assert Trace.load(tmp_path / "t", "a" * 64).units == []


def test_the_share_done_is_that_of_the_nearest_limit() -> None:
    now = progress(10)
    assert Limits().share(now) == 0.0
    assert Limits(evaluations=200, units=40).share(now) == 0.5
    assert Limits(stderr=0.05).share(now) == pytest.approx(0.25)
    assert Limits(seconds=0.5).share(now) == 1.0
