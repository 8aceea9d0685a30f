"""The act of the demo: it finds wrong labels and the records worth most, and says how sure."""

from __future__ import annotations

import json

import pytest

from privml._cli.acts import ACTS
from privml._cli.output import Output
from privml._cli.value_act import find_wrong_labels


def test_the_act_finds_what_was_flipped(capsys: pytest.CaptureFixture[str]) -> None:
    with Output() as out:
        found = find_wrong_labels(out)
    text = capsys.readouterr().out
    assert found["recall"] >= 0.8
    assert found["recall"] == found["found"] / found["flipped"]
    assert found["by_chance"] == 0.25
    assert found["accuracy_without"] >= found["accuracy_before"]
    assert abs(found["efficiency_residual"]) < 1e-12
    assert len(found["top"]) == found["top_m"] == 10
    assert found["top_flipped"] <= 1
    assert 0 < found["eps"] < 0.1
    assert all(one["ci"][0] < one["value"] < one["ci"][1] for one in found["top"] + found["least"])
    assert found["least"][0]["id"] in text
    assert "WRONG" in text
    assert "P(in the top)" in text
    json.dumps(found, allow_nan=False)


def test_the_act_is_part_of_the_demo() -> None:
    assert "valuation" in [act.name for act in ACTS]
