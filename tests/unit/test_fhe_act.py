"""The act of encrypted images: skipped cleanly without its packages, else two processes agree."""

from __future__ import annotations

import json

import pytest

from privml._cli import fhe_act
from privml._cli.output import Output
from privml.protocols.fhe import toolkit

absent = fhe_act.missing()


def test_without_a_package_the_act_says_how_to_install_it(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(
        toolkit, "missing", lambda: "concrete-python is not installed; install it somehow"
    )
    with Output() as out:
        found = fhe_act.classify_digits(out)
    said = capsys.readouterr().out
    assert found == {
        "skipped": True, "reason": "concrete-python is not installed", "install": fhe_act.INSTALL
    }  # fmt: skip
    assert fhe_act.INSTALL in said
    assert "make setup-fhe" in said


def test_jpeglib_and_scikit_learn_are_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(toolkit, "missing", lambda: None)
    monkeypatch.setattr(fhe_act, "find_spec", lambda name: None)
    assert fhe_act.missing() == "jpeglib is not installed"


@pytest.mark.nightly
@pytest.mark.skipif(absent is not None, reason=f"the act cannot be performed: {absent}")
def test_two_processes_agree_with_the_clear_run(capsys: pytest.CaptureFixture[str]) -> None:
    with Output() as out:
        found = fhe_act.classify_digits(out)
    said = capsys.readouterr().out
    answers = found["answers"]
    assert len(answers) == fhe_act.IMAGES
    assert found["mode"] == "execute"
    assert sum(a["encrypted"] == a["clear"] for a in answers) >= fhe_act.IMAGES - 1
    assert found["accuracy"] > 0.9
    assert "sharing them is forbidden" in said
    json.dumps(found)
