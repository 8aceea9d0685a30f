"""``privml evaluate``: accuracy, tokens and cost of three modes, partial results, refusals."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from privml._cli import output, ways
from privml._cli.main import run
from privml._cli.scoring import interval
from privml.backbones.batch import Encoded
from privml.backbones.loader import load_encoder
from privml.protocols.cipherprune import Thresholds
from privml.testing.checkpoints import write_checkpoint

CLASSES = ("bad", "good")
ROWS = 14


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(write_checkpoint(tmp_path_factory.mktemp("m") / "tiny", layers=2, classes=CLASSES))


@pytest.fixture(scope="module")
def secret(tmp_path_factory: pytest.TempPathFactory, tiny: str) -> Path:
    made = Thresholds((0.007,), (0.008,), heads=2).bound_to(load_encoder(tiny))
    return made.save(tmp_path_factory.mktemp("t") / "secret")


@pytest.fixture
def data(tmp_path: Path) -> Path:
    rows = [f"{'abc xy z '[: k % 9]}{'q' * (k % 5)} {name}\t{name}"
            for k in range(ROWS // 2) for name in CLASSES]  # fmt: skip
    path = tmp_path / "rows.tsv"
    path.write_text("text\tlabel\n" + "\n".join(rows) + "\n")
    return path


def call(capsys: pytest.CaptureFixture[str], *arguments: object) -> tuple[int, str, str]:
    try:
        code = run(["evaluate", *(str(a) for a in arguments)])
    finally:
        output.MODE.json = output.MODE.quiet = output.MODE.debug = False
    streams = capsys.readouterr()
    return code, streams.out, streams.err


def measured(capsys: pytest.CaptureFixture[str], *arguments: object) -> dict[str, Any]:
    code, out, err = call(capsys, *arguments, "--json")
    assert code == 0, err
    found: dict[str, Any] = json.loads(out)
    return found


def test_the_simulator_agrees_with_the_twin_on_tokens_and_answers(
    capsys: pytest.CaptureFixture[str], tiny: str, secret: Path, data: Path
) -> None:
    options = (data, "--model", tiny, "--thresholds", secret, "--reveal", "count", "--no-reduce")
    twin = measured(capsys, *options, "--mode", "clear")
    found = measured(capsys, *options)
    assert found["rows"] == found["rows_asked"] == found["rows_in_file"] == ROWS
    assert (found["mode"], found["partial"]) == ("simulate", False)
    for key in ("accuracy", "tokens", "per_text", "unpruned_clear"):
        assert found[key] == twin[key], key
    kept = [pair[0] for pair in found["tokens"]["kept"]]
    assert found["tokens"]["opened"] == found["tokens"]["text"] > kept[0] > 1
    assert found["per_text"]["flights"] <= found["plan"]["flights"]
    assert "reveal=count" in found["claim"]


def test_without_thresholds_the_whole_padded_text_is_priced(
    capsys: pytest.CaptureFixture[str], tiny: str, data: Path
) -> None:
    found = measured(capsys, data, "--model", tiny, "--limit", 3)
    assert found["rows"] == found["rows_asked"] == 3
    assert found["tokens"]["opened"] == found["plan"]["length"] == 16
    assert "kept" not in found["tokens"]
    assert found["per_text"]["flights"] == found["plan"]["flights"]
    assert found["unpruned_clear"]["same_answers"] == 1.0


def test_a_schedule_needs_no_thresholds(
    capsys: pytest.CaptureFixture[str], tiny: str, data: Path
) -> None:
    options = (data, "--model", tiny, "--schedule", "8/5", "--limit", 4)
    simulated, twin = (measured(capsys, *options, "--mode", m) for m in ("simulate", "clear"))
    assert simulated["tokens"] == twin["tokens"]
    assert simulated["tokens"]["kept"] == [[8, 5]]
    assert simulated["per_text"] == twin["per_text"]


def test_two_parties_measure_what_the_plan_says(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tiny: str, secret: Path,
    data: Path,
) -> None:  # fmt: skip
    monkeypatch.setattr(ways, "_DEAL_RUNS", 2)  # three texts take two deals
    options = (data, "--model", tiny, "--thresholds", secret, "--limit", 3)
    simulated = measured(capsys, *options)
    found = measured(capsys, *options, "--mode", "execute")
    assert found["tokens"] == simulated["tokens"]
    assert found["accuracy"] == simulated["accuracy"]
    assert found["per_text"].pop("online_s") > 0
    assert found["per_text"].pop("source") == "measured"
    simulated["per_text"].pop("source")
    assert found["per_text"] == pytest.approx(simulated["per_text"])


def test_people_see_one_table(
    capsys: pytest.CaptureFixture[str], tiny: str, secret: Path, data: Path
) -> None:
    options = (data, "--model", tiny, "--thresholds", secret, "--mode", "clear", "--n", 12)
    code, out, err = call(capsys, *options, "--limit", 6)
    said = " ".join(out.split())
    assert code == 0, err
    assert said.startswith("evaluated texts 6 rows of 14, at random; ")
    assert "cut at 12 tokens" in said
    assert "at most" in said
    assert "a text that keeps every token" in said
    assert "whatever it drops" in said
    code, out, _ = call(capsys, *options, "--limit", 6, "--quiet")
    assert 0 <= float(out) <= 1
    assert len(out.splitlines()) == 1


@pytest.mark.parametrize("mode", ["clear", "simulate", "execute"])
def test_an_interrupt_shows_what_was_measured(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tiny: str, secret: Path,
    data: Path, mode: str,
) -> None:  # fmt: skip
    whole = ways.Way.results

    def stopped(way: ways.Way, how: ways.Mode, batches: Sequence[Encoded]) -> Iterator[Any]:
        results = whole(way, how, batches)
        try:
            yield next(results)
            yield next(results)
            raise KeyboardInterrupt
        finally:
            results.close()

    monkeypatch.setattr(ways.Way, "results", stopped)
    options = (data, "--model", tiny, "--thresholds", secret, "--mode", mode, "--limit", 4)
    code, out, err = call(capsys, *options, *(["--json"] if mode == "simulate" else []))
    assert code == 130
    assert "this is a part, 2 texts of 4" in err
    if mode != "simulate":
        assert out.startswith("PARTIAL result")
        return
    found = json.loads(out)  # one document only
    assert (found["partial"], found["rows"], found["rows_asked"]) == (True, 2, 4)


def test_an_interrupt_before_the_first_text_has_no_result(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tiny: str, data: Path
) -> None:
    def stopped(way: ways.Way, how: ways.Mode, batches: Sequence[Encoded]) -> Iterator[Any]:
        raise KeyboardInterrupt
        yield

    monkeypatch.setattr(ways.Way, "results", stopped)
    code, out, err = call(capsys, data, "--model", tiny)
    assert (code, out) == (130, "")
    assert "interrupted" in err


@pytest.mark.parametrize(
    ("options", "code", "said"),
    [
        (("none.tsv", "--model", "TINY"), 3, "none.tsv"),
        (("DATA", "--model", "BARE"), 2, "has no classifier"),
        (("DATA", "--model", "TINY", "--reveal", "count"), 2, "--thresholds FILE, or a --schedule"),
        (("DATA", "--model", "TINY", "--n", "0"), 3, "n = 0 must lie in"),
        (("DATA", "--model", "TINY", "--n", "49"), 3, "n = 49 must lie in"),
        (("DATA", "--model", "TINY", "--limit", "0"), 2, "--limit"),
        (("DATA", "--model", "TINY", "--mode", "guess"), 2, "--mode"),
        (("DATA", "--model", "TINY", "--no-header"), 3, "line 1: the class 'label' is unknown"),
        (("DATA", "--model", "TINY", "--schedule", "4,2"), 3, "schedule has 2 entries"),
        ((), 2, "DATA"),
    ],
)
def test_mistakes_are_one_line(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, tiny: str, data: Path,
    options: tuple[str, ...], code: int, said: str,
) -> None:  # fmt: skip
    bare = write_checkpoint(tmp_path / "bare", layers=2) if "BARE" in options else None
    names = {"TINY": tiny, "DATA": str(data), "BARE": str(bare)}
    found, out, err = call(capsys, *(names.get(o, o) for o in options))
    assert (found, out) == (code, ""), err
    assert len(err.strip().splitlines()) == 1, err
    assert said in err


def test_thresholds_of_another_model_are_refused(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, secret: Path, data: Path
) -> None:
    other = write_checkpoint(tmp_path / "other", layers=2, classes=CLASSES, seed=1)
    code, _, err = call(capsys, data, "--model", other, "--thresholds", secret)
    assert code == 3
    assert "other weights" in err


def test_intervals_stay_inside_their_range() -> None:
    for right, total in ((0, 1), (1, 1), (0, 500), (500, 500), (250, 500)):
        low, high = interval(right, total)
        assert 0.0 <= low <= high <= 1.0
        assert low - 1e-12 <= right / total <= high + 1e-12
