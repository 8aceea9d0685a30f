"""The frame that all audit scripts share: bars, report, command line, timing, peers."""

from __future__ import annotations

import json
import os
import stat
import sys
from pathlib import Path
from types import ModuleType

import pytest


@pytest.fixture
def frame(load) -> ModuleType:
    return load("frame")


def run_json(frame, capsys, audit, *flags: str) -> tuple[int, dict]:
    status = frame.run("An audit.", audit, ["--json", *flags])
    return status, json.loads(capsys.readouterr().out)


@pytest.mark.parametrize(
    ("value", "least", "most"),
    [(9.999, False, True), (10.0, True, True), (10.001, True, False), (float("nan"), False, False)],
)
def test_bars_hold_exactly_from_their_limit_on(frame, value, least, most) -> None:
    assert frame.at_least("a", value, 10, against="b").holds is least
    assert frame.at_most("a", value, 10, against="b").holds is most


def test_targets_are_written_out(frame) -> None:
    bar = frame.at_most("a", 1.0, 6, against="budget", unit="s", aim=3, detail={"runs": 5})
    assert (bar.target, bar.unit, bar.detail) == ("<= 6 s (aim 3)", "s", {"runs": 5})
    assert frame.at_least("a", 1.0, 0.9995, against="clear").target == ">= 0.9995"
    number = frame.reported("flights", 642, against="plan")
    assert (number.value, number.target, number.holds) == (642, "", None)


def test_json_is_one_document_with_bars_and_environment(frame, capsys) -> None:
    def audit(report, options) -> None:
        print("a library prints something")
        with report.section("numbers", "good", "bad", "peer"):
            report.add(frame.at_least("good", 12.0, 10, against="torch int64", unit="x"))
            report.add(frame.at_least("bad", 2.0, 10, against="torch int64", unit="x"))
            report.add(frame.absent("peer", ">= 6 x", against="SPU", reason="not set up"))

    status, document = run_json(frame, capsys, audit, "--threads", "2")
    assert status == 0
    assert set(document) == {"bars", "environment"}
    good, bad, peer = document["bars"]
    assert (good["value"], good["holds"]) == (12.0, True)
    assert (bad["value"], bad["holds"]) == (2.0, False)
    assert (peer["value"], peer["holds"], peer["reason"]) == (None, None, "not set up")
    machine = document["environment"]
    assert machine["threads"] == 2
    assert machine["cores"] >= 1
    assert machine["cpu_model"]
    assert machine["versions"]["numpy"]
    assert len(machine["load_average"]) == len(machine["load_average_at_start"]) == 3
    assert machine["date"].endswith("+00:00")


def test_a_broken_section_fails_its_bars_and_the_script(frame, capsys) -> None:
    def audit(report, options) -> None:
        with report.section("first", "one", "two"):
            report.add(frame.reported("one", 1.0, against=""))
            raise RuntimeError("kernel died")
        with report.section("second", "three"):
            report.add(frame.reported("three", 3.0, against=""))

    status, document = run_json(frame, capsys, audit)
    assert status == 1
    one, two, three = document["bars"]
    assert (one["value"], three["value"]) == (1.0, 3.0)
    assert (two["name"], two["value"], two["holds"]) == ("two", None, False)
    assert "RuntimeError: kernel died" in two["reason"]


def test_a_forgotten_bar_is_reported_as_failing(frame, capsys) -> None:
    def audit(report, options) -> None:
        with report.section("first", "one"):
            report.progress("measuring nothing")

    status, document = run_json(frame, capsys, audit)
    assert status == 1
    assert document["bars"][0]["holds"] is False


def test_values_that_are_not_finite_stay_valid_json(frame, capsys) -> None:
    def audit(report, options) -> None:
        report.add(frame.at_least("a", float("inf"), 1, against="", reason="odd."))
        report.add(frame.at_least("b", float("nan"), 1, against=""))

    _, document = run_json(frame, capsys, audit)
    assert [bar["value"] for bar in document["bars"]] == [None, None]
    assert document["bars"][0]["reason"] == "odd. value is inf"
    assert document["bars"][1]["holds"] is False


def test_a_name_can_be_used_once(frame) -> None:
    report = frame.Report()
    assert not report.has("a")
    report.add(frame.reported("a", 1.0, against=""))
    assert report.has("a")
    with pytest.raises(ValueError, match="twice"):
        report.add(frame.reported("a", 2.0, against=""))


def test_table_shows_failing_bars_and_reasons(frame, capsys, monkeypatch) -> None:
    monkeypatch.setenv("COLUMNS", "160")

    def audit(report, options) -> None:
        report.add(frame.at_most("slow", 7.0, 6, against="budget", unit="s"))
        report.add(frame.absent("peer", ">= 6 x", against="SPU", reason="[not] set up"))

    assert frame.run("An audit.", audit, []) == 0
    captured = capsys.readouterr()
    for text in ("slow", "7 s", "<= 6 s", "NO", "peer: [not] set up", "2 bars, 1 do not hold"):
        assert text in captured.out
    assert "cpu_model" in captured.out


def test_flags(frame, tmp_path) -> None:
    options = frame.parse("An audit.", ["--quick", "--peers", "--peer-dir", str(tmp_path)])
    assert (options.quick, options.peers, options.json) == (True, True, False)
    assert options.peer_dir == tmp_path
    assert options.repeats(9, 2) == 2
    assert frame.parse("An audit.", []).repeats(9, 2) == 9
    with pytest.raises(SystemExit):
        frame.parse("An audit.", ["--threads", "0"])


def test_timing_warms_up_and_takes_the_median(load) -> None:
    timing = load("timing")
    seconds = iter([100.0, 3.0, 1.0, 2.0])
    taken = timing.timed(lambda: next(seconds), repeats=3, warmup=1)
    assert taken.samples == (3.0, 1.0, 2.0)
    assert (taken.median, taken.minimum, taken.maximum) == (2.0, 1.0, 3.0)
    assert taken.as_dict() == {"median_s": 2.0, "min_s": 1.0, "max_s": 3.0, "runs": 3}
    assert timing.stopwatch(lambda: sum(range(1000)))() > 0
    with pytest.raises(ValueError, match="repeats"):
        timing.timed(lambda: 1.0, repeats=0)


def test_pairs_are_interleaved_and_ratios_taken_pair_by_pair(load) -> None:
    timing = load("timing")
    order: list[str] = []
    load_factor = iter([1.0, 1.0, 10.0, 10.0, 1.0, 1.0])  # the machine is busy during pair two

    def subject(name: str, cost: float):
        def sample() -> float:
            order.append(name)
            return cost * next(load_factor)

        return sample

    both = timing.paired(subject("a", 2.0), subject("b", 6.0), repeats=3, warmup=0)
    assert order == ["a", "b", "b", "a", "a", "b"]
    assert both.ratios == pytest.approx((3.0, 3.0, 3.0))
    assert both.ratio == pytest.approx(3.0)
    assert both.ours.samples == (2.0, 20.0, 2.0)
    with pytest.raises(ValueError, match="repeats"):
        timing.paired(lambda: 1.0, lambda: 1.0, repeats=0)


def test_default_peer_folder_follows_the_cache_variable(load, monkeypatch, tmp_path) -> None:
    environments = load("peers.environments")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert environments.default_root() == tmp_path / "privml" / "peers"
    monkeypatch.setenv("XDG_CACHE_HOME", "")
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    assert environments.default_root() == tmp_path / "home" / ".cache" / "privml" / "peers"


def test_a_missing_peer_is_not_created_unasked(load, tmp_path) -> None:
    environments = load("peers.environments")
    with pytest.raises(environments.PeerUnavailable, match="--peers"):
        environments.obtain(environments.SPU, tmp_path, create=False, progress=print)
    assert list(tmp_path.iterdir()) == []


def peer(environments, **changes):
    running = f"{sys.version_info.major}.{sys.version_info.minor}"
    fields = {"name": "made-up", "requirements": (), "pythons": (running,), "module": "json"}
    return environments.Peer(**(fields | changes))


@pytest.fixture
def python_without_pip(load, monkeypatch, tmp_path) -> list[list[str]]:
    """Replace running interpreters by a record of the commands; `venv` makes the interpreter."""
    environments = load("peers.environments")
    commands: list[list[str]] = []

    def call(command: list[str], failure: str) -> None:
        commands.append(command)
        if "venv" in command:
            python = Path(command[-1]) / "bin" / "python"
            python.parent.mkdir(parents=True, exist_ok=True)
            python.touch()

    monkeypatch.setattr(environments, "_call", call)
    return commands


def test_an_environment_is_made_once_per_requirements(load, tmp_path, python_without_pip) -> None:
    environments = load("peers.environments")
    first = peer(environments, requirements=("a==1", "b==2"))
    said: list[str] = []
    python = environments.obtain(first, tmp_path, create=True, progress=said.append)
    assert python == tmp_path / "made-up" / "bin" / "python"
    assert python_without_pip[1][-2:] == ["a==1", "b==2"]
    assert any("installing a==1 b==2" in line for line in said)
    count = len(python_without_pip)
    assert environments.obtain(first, tmp_path, create=False, progress=said.append) == python
    assert len(python_without_pip) == count
    newer = peer(environments, requirements=("a==2",))
    with pytest.raises(environments.PeerUnavailable):
        environments.obtain(newer, tmp_path, create=False, progress=said.append)
    environments.obtain(newer, tmp_path, create=True, progress=said.append)
    assert len(python_without_pip) == 2 * count


def test_a_half_made_environment_does_not_count(load, tmp_path) -> None:
    environments = load("peers.environments")
    (tmp_path / "made-up" / "bin").mkdir(parents=True)
    (tmp_path / "made-up" / "bin" / "python").touch()
    with pytest.raises(environments.PeerUnavailable):
        environments.obtain(peer(environments), tmp_path, create=False, progress=print)


def test_no_fitting_interpreter_is_a_reason(load, tmp_path) -> None:
    environments = load("peers.environments")
    wanted = peer(environments, pythons=("2.5",))
    with pytest.raises(environments.PeerUnavailable, match=r"needs Python 2\.5"):
        environments.obtain(wanted, tmp_path, create=True, progress=print)


def test_a_failing_step_gives_its_last_line_as_reason(load, tmp_path) -> None:
    environments = load("peers.environments")
    program = "import sys; print('first'); sys.exit('no such package')"
    with pytest.raises(environments.PeerUnavailable, match="x failed: no such package"):
        environments._call([sys.executable, "-c", program], "x failed")


def worker(path: Path, program: str) -> Path:
    """Write an executable that stands where a peer's interpreter would."""
    path.write_text(f"#!{sys.executable}\n{program}", encoding="utf-8")
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return path


def test_peer_worker_is_asked_line_by_line(load, tmp_path, monkeypatch) -> None:
    client = load("peers.spu_client")
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    program = """
import json, os, sys
print(json.dumps({"threads": os.environ.get("OMP_NUM_THREADS")}), flush=True)
for line in sys.stdin:
    asked = json.loads(line)
    if asked["do"] == "quit":
        break
    print(json.dumps({"seconds": 0.5, "case": asked["case"]}), flush=True)
"""
    with client.SpuPeer(worker(tmp_path / "python", program)) as spu:
        assert spu.facts == {"threads": None}
        assert spu.prepare("gelu")["case"] == "gelu"
        assert spu.run("gelu") == 0.5


def test_peer_worker_that_dies_gives_its_last_words(load, tmp_path) -> None:
    client = load("peers.spu_client")
    environments = load("peers.environments")
    dying = worker(tmp_path / "python", "import sys; sys.exit('wrong processor')")
    with pytest.raises(environments.PeerUnavailable, match="wrong processor"):
        client.SpuPeer(dying)


def test_machine_describes_itself_without_privml_kernels(load) -> None:
    machine = load("machine")
    assert machine.versions(("numpy", "no-such-package"))["no-such-package"] is None
    assert machine.usable_cores() <= (os.cpu_count() or 1)
    assert isinstance(machine.kernels(), str)
