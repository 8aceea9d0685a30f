"""``privml learn-thresholds``: files it writes, going on after a stop, refusals on one line."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from privml._cli import output
from privml._cli.main import run
from privml.backbones.loader import load_encoder
from privml.protocols.cipherprune import PruneSpec, Thresholds
from privml.protocols.cipherprune.learning import loop
from privml.testing.checkpoints import write_checkpoint

SHORT = ("--epochs", 1, "--tuning-epochs", 1, "--first-epochs", 1, "--budget", 0.6,
         "--shortest", 0)  # fmt: skip


@pytest.fixture(scope="module")
def bare(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_checkpoint(tmp_path_factory.mktemp("models") / "bare", layers=2)


@pytest.fixture
def data(tmp_path: Path) -> Path:
    rows = [f"{word} {'a' * (k % 5 + 1)}\t{name}" for k in range(30)
            for word, name in (("good", "pos"), ("bad", "neg"))]  # fmt: skip
    path = tmp_path / "rows.tsv"
    path.write_text("sentence\tlabel\n" + "\n".join(rows) + "\n")
    return path


def call(capsys: pytest.CaptureFixture[str], *arguments: object) -> tuple[int, str, str]:
    try:
        code = run(["learn-thresholds", *(str(a) for a in arguments)])
    finally:
        output.MODE.json = output.MODE.quiet = output.MODE.debug = False
    streams = capsys.readouterr()
    return code, streams.out, streams.err


def test_from_labelled_texts_to_a_pruned_model(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, bare: Path, data: Path
) -> None:
    folder = tmp_path / "out"
    asked = ("--data", data, "--model", bare, "--labels", "neg,pos", "--out", folder, *SHORT)
    code, out, err = call(capsys, *asked, "--json")
    assert code == 0, err
    found = json.loads(out)
    thresholds = Thresholds.load(found["files"]["thresholds"])
    model = load_encoder(found["files"]["model"])
    assert model.config.labels == ("neg", "pos")
    thresholds.require(model)
    assert PruneSpec(thresholds).reveal == "bucket"
    assert "1 step(s) of the optimiser" in err  # a tiny file hardly moves the weights
    report = json.loads((folder / "report.json").read_text())
    assert report == found["report"]
    assert report["options"]["budget"] == 0.6
    assert sorted(p.name for p in folder.iterdir()) == [
        "fine-tuned", "model", "report.json", "thresholds.json", "thresholds.safetensors",
    ]  # fmt: skip
    code, _, err = call(capsys, *asked)
    assert code == 2
    assert "--force" in err
    # a model that has a classifier needs no labels
    code, out, err = call(
        capsys, "--data", data, "--model", folder / "model", "--out", tmp_path / "again", *SHORT
    )
    assert code == 0, err
    assert "accuracy" in out
    assert str(tmp_path / "again" / "thresholds.json") in out


def test_a_stopped_run_goes_on_if_asked(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, bare: Path, data: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    folder = tmp_path / "out"
    asked = ("--data", data, "--model", bare, "--labels", "neg,pos", "--out", folder, *SHORT)
    step = loop.Loop._step

    def stop(self: loop.Loop, which: object, at: int, total: int) -> None:
        if self.stage == "hard masks":
            raise KeyboardInterrupt
        step(self, which, at, total)

    with monkeypatch.context() as patch:
        patch.setattr(loop.Loop, "_step", stop)
        code, _, err = call(capsys, *asked)
    assert code == 130, err
    assert (folder / "checkpoint").is_dir()
    code, _, err = call(capsys, *asked)
    assert code == 2
    assert "--resume" in err
    code, _, err = call(capsys, *asked, "--resume")
    assert code == 0, err
    assert not (folder / "checkpoint").exists()


def test_resume_never_takes_a_model_that_was_tuned_on_something_else(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, bare: Path, data: Path
) -> None:
    asked = ("--data", data, "--model", bare, "--out", tmp_path / "out", *SHORT)
    code, _, err = call(capsys, *asked, "--labels", "neg,pos")
    assert code == 0, err
    code, out, err = call(capsys, *asked, "--labels", "pos,neg", "--resume", "--force")
    assert (code, out) == (2, "")
    assert "was fine-tuned from another model, other rows, labels or options" in err
    code, _, err = call(capsys, *asked, "--labels", "neg,pos", "--resume", "--force")
    assert code == 0, err
    (tmp_path / "out" / "fine-tuned" / "made-from.json").unlink()  # unknown: tuned again
    code, _, err = call(capsys, *asked, "--labels", "pos,neg", "--resume", "--force")
    assert code == 0, err
    assert load_encoder(tmp_path / "out" / "model").config.labels == ("pos", "neg")


def test_short_texts_are_refused_before_a_classifier_is_trained(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, bare: Path, data: Path
) -> None:
    code, _, err = call(
        capsys, "--data", data, "--model", bare, "--labels", "neg,pos", "--out", tmp_path / "out",
        *SHORT[:-1], 100,
    )  # fmt: skip
    assert code == 2
    assert "more than 100 tokens, so there is nothing to prune; lower --shortest" in err
    assert not (tmp_path / "out").exists()


def test_a_classifier_takes_no_labels(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, data: Path
) -> None:
    has = write_checkpoint(tmp_path / "has", layers=2, classes=("neg", "pos"))
    code, _, err = call(
        capsys, "--data", data, "--model", has, "--labels", "neg,pos", "--out", tmp_path / "out"
    )
    assert code == 2
    assert "already; leave --labels out" in err


@pytest.mark.parametrize(
    ("options", "code", "words"),
    [
        ((), 2, "Missing option"),
        (("--data", "d", "--out", "o", "--budget", "2"), 2, "--budget"),
        (("--data", "d", "--out", "o", "--labels", "a,,b"), 2, "a label is empty"),
        (("--data", "d", "--out", "o", "--labels", "a,A"), 2, "two labels"),
        (("--data", "d", "--out", "o", "--model", "BARE"), 2, "has no classifier"),
        (("--data", "none.tsv", "--out", "o", "--model", "BARE", "--labels", "a,b"), 3, "none.tsv"),
    ],
)
def test_mistakes_are_one_line(
    capsys: pytest.CaptureFixture[str], bare: Path, options: tuple[str, ...], code: int, words: str
) -> None:
    found, out, err = call(capsys, *(str(bare) if o == "BARE" else o for o in options))
    assert (found, out) == (code, ""), err
    assert len(err.strip().splitlines()) == 1, err
    assert words in err
