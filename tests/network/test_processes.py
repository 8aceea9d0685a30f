"""Verbs as processes: right answers, refusals, kills and interrupts that leave nothing behind."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from privml._cli.private import PRIVATE_PREFIX, hold_private, sweep_private
from privml.testing.checkpoints import write_checkpoint

ROOT = Path(__file__).resolve().parents[2]
ENVIRONMENT = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
LONG = " ".join(["word"] * 20)


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(write_checkpoint(tmp_path_factory.mktemp("models") / "tiny"))


@pytest.fixture(scope="module")
def plan_file(tmp_path_factory: pytest.TempPathFactory, tiny: str) -> Path:
    path = tmp_path_factory.mktemp("plan") / "plan.json"
    done = privml("plan", "--model", tiny, "--n", "24", "--rows", "3", "--out", path)
    assert done.returncode == 0, done.stderr
    return path


def privml(*arguments: object, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run the command line in a process of its own."""
    return subprocess.run(
        [sys.executable, "-m", "privml.cli", *map(str, arguments)],
        capture_output=True, text=True, timeout=120, check=False,
        env={**ENVIRONMENT, **environment},
    )  # fmt: skip


def start(*arguments: object, **environment: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "privml.cli", *map(str, arguments)],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True,
        env={**ENVIRONMENT, **environment}, preexec_fn=_heed_interrupts,
    )  # fmt: skip


def _heed_interrupts() -> None:
    """Undo what a background job inherits: an ignored SIGINT."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


def one_line(code: int, err: str, *, expect: int, words: str) -> None:
    assert code == expect, err
    assert len(err.strip().splitlines()) == 1, err
    assert words in err
    assert "Traceback" not in err


def children_of(pid: int) -> list[int]:
    """Return the children of a process, by the process table."""
    found = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = stat.read_text().rpartition(")")[2].split()
        except OSError:
            continue
        if int(fields[1]) == pid and fields[0] != "Z":
            found.append(int(stat.parent.name))
    return found


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def command_of(pid: int) -> list[str]:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().decode().split("\0")
    except OSError:
        return []


class Local:
    """A running ``serve`` with one pool, on plaintext loopback or over TLS."""

    def __init__(
        self, folder: Path, plan_file: Path, tiny: str, *, runs: int = 4,
        options: tuple[str, ...] = (),
    ) -> None:  # fmt: skip
        self.folder, self.plan = folder, plan_file
        done = privml("deal", "--plan", plan_file, "--runs", runs, "--server", folder / "s.pool",
                      "--client", folder / "c.pool", "--quiet")  # fmt: skip
        assert done.returncode == 0, done.stderr
        made = [json.loads(privml("cert", folder / name, "--json").stdout) for name in ("s", "c")]
        self.pins = [m["fingerprint"] for m in made]
        self.process = start("serve", "--plan", plan_file, "--model", tiny, "--pool",
                             folder / "s.pool", "--identity", folder / "s", "--pin", self.pins[1],
                             "--port", 0, "--used", folder / "used", "--json",
                             *options)  # fmt: skip
        for line in self.process.stderr or ():
            if "listening" in line:
                self.port = int(line.split(" port ")[1].split()[0])
                return
        raise AssertionError("the server ended")

    def query(self, **changes: object) -> list[object]:
        values = {"plan": self.plan, "pool": self.folder / "c.pool",
                  "peer": f"127.0.0.1:{self.port}", "identity": self.folder / "c",
                  "pin": self.pins[0], "used": self.folder / "used",
                  "cache": self.folder / "cache", **changes}  # fmt: skip
        return ["query", *(w for k, v in values.items() for w in (f"--{k}", v))]

    def stop(self) -> tuple[dict[str, Any], str]:
        self.process.terminate()
        out, err = self.process.communicate(timeout=20)
        assert self.process.returncode == 0, err
        return json.loads(out), err


@pytest.fixture
def local(tmp_path: Path, plan_file: Path, tiny: str) -> Iterator[Local]:
    server = Local(tmp_path, plan_file, tiny)
    yield server
    server.process.kill()
    server.process.communicate()


def test_serve_and_query_two_processes(local: Local) -> None:
    """Right answers without torch; refusals spend nothing and leave the server up."""
    bad = privml(*local.query(pin=local.pins[1]), "--text", "x", "--labels", "a,b", "--json",
                 "--quiet")  # fmt: skip
    one_line(bad.returncode, bad.stderr, expect=3, words="not pinned")
    assert json.loads(bad.stdout)["error"]["code"] == "security.untrusted"

    words = [str(w) for w in local.query()]
    words += ["--text", "hello there", "--text", "and", "--text", "more", "--labels", "abc,xyz"]
    code = (
        "import sys; from privml._cli.main import run\n"
        f"code = run({[*words, '--json']!r})\n"
        "sys.exit('torch was loaded' if 'torch' in sys.modules else code)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=False, env=ENVIRONMENT
    )
    assert done.returncode == 0, done.stderr
    document = json.loads(done.stdout)
    assert [r["text"] for r in document["results"]] == ["hello there", "and", "more"]
    assert document["bill"]["runs"] == 2  # five rows, three a run
    assert set(document["results"][0]["scores"]) == {"abc", "xyz"}

    assert document["pool"] == {"runs": 4, "remaining": 2}
    assert document["bill"]["setup_mb_per_pool"] > 0 < document["bill"]["setup_mb_per_model"]
    assert all(r["margin"] >= 0 for r in document["results"])

    # The public part is here now, so this needs no server.
    long = privml(*local.query(peer="127.0.0.1:1"), "--text", LONG, "--labels", "a,b", "--quiet")
    one_line(long.returncode, long.stderr, expect=3, words="the limit is 24")
    summary, err = local.stop()
    assert summary["served"] == 2
    assert summary["ended"] == "stopped by a signal"
    assert "hello" not in err


def test_query_says_when_nobody_is_there_or_the_pool_is_spent(local: Local) -> None:
    for texts in (["x"] * 7, ["x"]):  # three runs of three rows, then one
        words = [w for text in texts for w in ("--text", text)]
        fine = privml(*local.query(), *words, "--labels", "a,b", "--quiet")
        assert fine.returncode == 0, fine.stderr
    out, err = local.process.communicate(timeout=20)
    assert local.process.returncode == 0
    assert json.loads(out)["ended"] == "pool exhausted"
    assert "deal a new pool" in err
    spent = privml(*local.query(), "--text", "x", "--labels", "a,b", "--quiet")
    one_line(spent.returncode, spent.stderr, expect=3, words="spent; deal a new pool")
    fresh = local.folder / "fresh"
    privml("deal", "--plan", local.plan, "--server", f"{fresh}.s", "--client", f"{fresh}.c")
    down = privml(*local.query(pool=f"{fresh}.c", connect=0.5), "--text", "x", "--labels", "a,b",
                  "--quiet")  # fmt: skip
    one_line(down.returncode, down.stderr, expect=4, words="is `privml serve` running there")
    assert down.stdout == ""


def test_a_run_that_fails_is_named_and_so_is_what_it_cost(
    tmp_path: Path, plan_file: Path, tiny: str
) -> None:
    local = Local(tmp_path, plan_file, tiny, options=("--runs", "1"))
    try:
        words = [w for text in ("x", "y", "z") for w in ("--text", text)]
        done = privml(*local.query(connect=0.5), *words, "--labels", "a,b")
        assert done.returncode == 4
        assert done.stdout == ""
        first, last = done.stderr.strip().splitlines()
        assert first == "2 labels and 3 texts: 5 rows = 2 runs; the pool has 4 left"
        assert "run 2 of 2 failed, 1 run before it finished: " in last
        assert "no answer is given, 1 run of the pool is spent and 3 left" in last
        assert local.process.wait(20) == 0
    finally:
        local.process.kill()
        local.process.communicate()


def test_infer_end_to_end(tmp_path: Path, tiny: str) -> None:
    done = privml("infer", "--text", "hello there", "--text", LONG, "--labels", "abc,xyz",
                  "--model", tiny, "--truncate", "--json", TMPDIR=str(tmp_path))  # fmt: skip
    assert done.returncode == 0, done.stderr
    document = json.loads(done.stdout)
    assert document["agreement"] == 1.0
    assert document["max_score_difference"] < 0.01
    assert document["plan"]["flights"] == document["bill"]["client"]["flights"]
    assert document["bill"]["server"]["runs"] == document["bill"]["client"]["runs"] == 1
    assert document["transport"] == "mutual TLS 1.3"
    for key in ("claim", "failure_probability", "leakage", "seconds", "results"):
        assert document[key] or document[key] == 0.0
    assert list(tmp_path.iterdir()) == []
    assert "hello" not in done.stderr


def test_infer_for_people(tmp_path: Path, tiny: str) -> None:
    done = privml("infer", "--text", "hello [red] there", "--labels", "abc,xyz", "--model", tiny,
                  "--embedding", "private", TMPDIR=str(tmp_path))  # fmt: skip
    assert done.returncode == 0, done.stderr
    for words in ("hello [red] there", "private answer", "clear answer", "agree", "on line",
                  "off line", "claim", "failure", "embedding=private"):  # fmt: skip
        assert words in done.stdout
    assert "\x1b" not in done.stdout
    assert all(line == line.rstrip() for line in done.stdout.splitlines())
    assert list(tmp_path.iterdir()) == []


def _until(found: Callable[[], Any], *, timeout_s: float = 60.0) -> Any:
    end = time.monotonic() + timeout_s
    while time.monotonic() < end:
        value = found()
        if value:
            return value
        time.sleep(0.01)
    raise AssertionError("it did not happen in time")


def _child(parent: int, verb: str) -> int | None:
    found = [pid for pid in children_of(parent) if verb in command_of(pid)]
    return found[0] if found else None


@pytest.mark.parametrize("verb", ["deal", "serve", "query"])
def test_a_child_that_is_killed_ends_everything(tmp_path: Path, tiny: str, verb: str) -> None:
    process = start("infer", "--text", "x", "--labels", "abc,xyz", "--model", tiny,
                    TMPDIR=str(tmp_path))  # fmt: skip
    try:
        victim = _until(lambda: _child(process.pid, verb))
        os.kill(victim, signal.SIGKILL)
        _, err = process.communicate(timeout=30)
        assert process.returncode == 4, err
        last = err.strip().splitlines()[-1]
        assert "was killed by signal 9" in last
        assert "Traceback" not in err
    finally:
        process.kill()
        process.communicate()
    assert list(tmp_path.iterdir()) == []
    _until(lambda: not children_of(process.pid))


@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_an_interrupted_infer_leaves_nothing_behind(
    tmp_path: Path, tiny: str, how: signal.Signals
) -> None:
    process = start("infer", "--text", "x", "--labels", "abc,xyz", "--model", tiny,
                    TMPDIR=str(tmp_path))  # fmt: skip
    try:
        server = _until(lambda: _child(process.pid, "serve"))
        os.kill(process.pid, how)
        _, err = process.communicate(timeout=30)
    finally:
        process.kill()
        process.communicate()
    _until(lambda: not alive(server), timeout_s=15.0)
    if how is not signal.SIGKILL:
        one_line(process.returncode, err, expect=130, words="stopped before the end")
    assert list(tmp_path.iterdir()) == []  # after a SIGKILL the children removed it


def test_the_next_start_sweeps_what_a_killed_one_left(tmp_path: Path) -> None:
    left, used, foreign = (tmp_path / f"{PRIVATE_PREFIX}{k}" for k in ("a", "b", "c"))
    for folder in (left, used):
        folder.mkdir()
        (folder / "question.json").write_text("private")
    foreign.symlink_to(used)
    with hold_private(left):
        pass
    with hold_private(used):
        sweep_private(tmp_path)
        assert sorted(tmp_path.iterdir()) == [used, foreign]
    assert (used / "question.json").exists()
