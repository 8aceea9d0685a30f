"""The act of the demo: it forgets, shows equality with retraining, and writes one document."""

from __future__ import annotations

import json

import pytest

from privml._cli.acts import ACTS
from privml._cli.forest_act import forget_a_patient
from privml._cli.output import Output


def test_the_act_forgets_and_compares(capsys: pytest.CaptureFixture[str]) -> None:
    with Output() as out:
        found = forget_a_patient(out)
    text = capsys.readouterr().out
    assert found["equal"]
    assert found["more_equal"]
    assert found["answers_equal"]
    assert found["after"] == found["retrained"]
    assert found["before"] != found["after"]
    assert 0 < found["forget_s"] < found["train_s"] + 1
    assert found["certificate"]["rows_after"] == found["rows"] - 1
    assert found["patient"] in text
    assert found["patient"] not in json.dumps(found["certificate"])
    assert text.count(found["state_digest"]) == 2
    assert "equal, bit for bit" in text
    json.dumps(found)


def test_the_act_is_part_of_the_demo() -> None:
    assert "forgetting" in [act.name for act in ACTS]
