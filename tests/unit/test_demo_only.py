"""``privml demo --only``: one act without the other."""

from __future__ import annotations

import json

import pytest

from privml._cli.acts import ACTS
from privml._cli.demo import NAMES
from privml.cli import run


def test_every_act_has_a_short_name() -> None:
    assert set(NAMES.values()) == {act.name for act in ACTS}


def test_only_the_forest(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["demo", "--only", "forest", "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert list(document["acts"]) == ["forgetting"]
    assert run(["demo", "--only", "forest"]) == 0
    assert "privml infer" not in capsys.readouterr().out


def test_an_unknown_act_is_wrong_usage(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["demo", "--only", "opera"]) == 2
    assert "forest" in capsys.readouterr().err
