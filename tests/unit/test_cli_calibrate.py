"""``privml calibrate-thresholds``: files it writes, what plan makes of them, refusals."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from privml._cli import output
from privml._cli.main import run
from privml.backbones.loader import load_encoder
from privml.protocols.cipherprune import Thresholds, calibrate_thresholds
from privml.testing.checkpoints import write_checkpoint

TEXTS = tuple("pack my box with five dozen jugs of liquor"[:k] for k in range(8, 40, 4))


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_checkpoint(tmp_path_factory.mktemp("m") / "tiny", layers=3)


@pytest.fixture
def texts(tmp_path: Path) -> Path:
    path = tmp_path / "texts.txt"
    path.write_text("\ufeff" + "\n\n".join(TEXTS) + "\n", encoding="utf-8")
    return path


def call(capsys: pytest.CaptureFixture[str], *arguments: object) -> tuple[int, str, str]:
    try:
        code = run([str(a) for a in arguments])
    finally:
        output.MODE.json = output.MODE.quiet = output.MODE.debug = False
    streams = capsys.readouterr()
    return code, streams.out, streams.err


def test_thresholds_and_report_are_written_and_found_by_plan(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, tiny: Path, texts: Path
) -> None:
    folder = tmp_path / "new" / "made"
    asked = ("calibrate-thresholds", "--file", texts, "--model", tiny, "--keep", 0.6, "--high",
             0.25, "--shortest", 4, "--out", folder)  # fmt: skip
    code, out, err = call(capsys, *asked, "--json")
    assert code == 0, err
    found = json.loads(out)
    made = Thresholds.load(found["files"]["thresholds"])
    model = load_encoder(tiny)
    made.require(model)
    assert made == calibrate_thresholds(model, TEXTS, keep=0.6, high=0.25, shortest=4)
    assert sorted(p.name for p in folder.iterdir()) == [
        "report.json", "thresholds.json", "thresholds.safetensors",
    ]  # fmt: skip
    report = json.loads((folder / "report.json").read_text())
    assert report == found["report"]
    assert report["calibrated"] == {"texts": 8, "keep": 0.6, "high": 0.25, "shortest": 4}
    start, second, third = (layer["tokens"]["mean"] for layer in report["pruned"]["layers"])
    assert second / start == pytest.approx(0.6, abs=0.1)
    assert third / second == pytest.approx(0.6, abs=0.12)
    code, out, _ = call(
        capsys, "plan", "--model", tiny, "--n", 40, "--prune", folder / "thresholds"
    )
    assert code == 0
    assert "by the report of the thresholds" in " ".join(out.split())
    code, _, err = call(capsys, *asked)
    assert code == 2
    assert "--force" in err
    code, out, err = call(capsys, *asked, "--force")
    assert code == 0
    assert "tokens" in out
    assert out.splitlines()[-1] == str(folder / "thresholds.json")
    assert "8 texts say little" in err
    assert "privml evaluate" in err


@pytest.mark.parametrize(
    ("options", "code", "said"),
    [
        ((), 2, "Missing option"),
        (("--file", "none", "--out", "OUT"), 3, "none"),
        (("--file", "EMPTY", "--out", "OUT"), 2, "no text"),
        (("--file", "BYTES", "--out", "OUT"), 2, "not UTF-8"),
        (("--file", "TEXTS", "--out", "OUT", "--keep", "1.5"), 2, "--keep"),
        (("--file", "TEXTS", "--out", "OUT", "--model", "FLAT"), 3, "two layers or more"),
    ],
)
def test_mistakes_are_one_line_and_write_nothing(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, texts: Path, options: tuple[str, ...],
    code: int, said: str,
) -> None:  # fmt: skip
    (tmp_path / "EMPTY").write_text("\n \n")
    (tmp_path / "BYTES").write_bytes(b"\xff\xfe\n")
    names = {"TEXTS": texts, "OUT": tmp_path / "out"}
    names |= {name: tmp_path / name for name in ("EMPTY", "BYTES")}
    if "FLAT" in options:
        names["FLAT"] = write_checkpoint(tmp_path / "flat", layers=1)
    found, out, err = call(capsys, "calibrate-thresholds", *(names.get(o, o) for o in options))
    assert (found, out) == (code, ""), err
    assert len(err.strip().splitlines()) == 1, err
    assert said in err
    assert not (tmp_path / "out").exists()
