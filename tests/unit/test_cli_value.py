"""``privml value``: a run and its folder, verification, comparison, report, deletion."""

from __future__ import annotations

import csv
import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from privml._cli import output
from privml._cli.app import app
from privml._cli.main import run
from privml._cli.value import value
from privml._cli.value_folder import Folder
from privml.backbones.digests import canonical_json
from privml.valuation.report import outcome_digest, run_record
from privml.valuation.result import ValuationResult

if not any(group.typer_instance is value for group in app.registered_groups):
    app.add_typer(value)

SPEC = """[data]
train = "train.csv"
validation = "held.csv"
report = "test.csv"
target = "label"
id = "id"
source = "site"

[stop]
evaluations = "60n"

[topm]
m = 5
sign = "smallest"
budget = "12n"
switch = "evaluations:4n"

[run]
round = 4

[oob]
bags = 30
"""


def write_rows(path: Path, count: int, *, seed: int, flip: Sequence[int] = ()) -> None:
    generator = np.random.default_rng(seed)
    x = generator.normal(size=(count, 3))
    truth = x[:, 0] + 0.5 * x[:, 1] > 0
    truth[list(flip)] ^= True
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(["id", "site", "a", "b", "c", "label"])
        for k in range(count):
            label = "yes" if truth[k] else "no"
            writer.writerow([f"=row{k}", f"s{k % 3}", *x[k].tolist(), label])


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("value")
    write_rows(folder / "train.csv", 40, seed=1, flip=range(6))
    write_rows(folder / "held.csv", 50, seed=2)
    write_rows(folder / "test.csv", 50, seed=3)
    (folder / "spec.toml").write_text(SPEC, encoding="utf-8")
    for kind in ("run", "topm", "knn", "oob"):
        assert run(["value", kind, str(folder / "spec.toml"), "--out", str(folder / kind)]) == 0
    return folder


def call(capsys: pytest.CaptureFixture[str], *words: object) -> tuple[int, str, str]:
    capsys.readouterr()
    try:
        code = run(["value", *map(str, words)])
    finally:
        output.MODE.json = output.MODE.quiet = output.MODE.debug = False
    streams = capsys.readouterr()
    return code, streams.out, streams.err


def document(capsys: pytest.CaptureFixture[str], *words: object) -> dict[str, object]:
    code, out, err = call(capsys, *words, "--json")
    assert code == 0, err
    found: dict[str, object] = json.loads(out)
    return found


def test_a_run_leaves_result_exports_and_record(home: Path) -> None:
    result = ValuationResult.load(home / "run")
    assert result.status == "budget"
    assert abs(result.efficiency_residual) < 1e-12
    with (home / "run" / "values.csv").open(encoding="utf-8", newline="") as file:
        lines = list(csv.DictReader(file))
    assert [line["id"] for line in lines] == [f"'=row{k}" for k in range(40)]
    assert [float(line["value"]) for line in lines] == result.values.tolist()
    tree = json.loads((home / "run" / "values.json").read_bytes())
    assert tree["values"] == result.values.tolist()
    assert tree["ids"][0] == "=row0"
    data = (home / "run" / "record.json").read_bytes()
    record = json.loads(data)
    assert canonical_json(record) == data
    assert record["result_digest"] == outcome_digest(result)
    assert {one["role"] for one in record["inputs"]} == {"train", "validation", "report"}
    assert b"row0" not in data


def test_wrong_labels_have_least_value(home: Path) -> None:
    for kind in ("run", "knn"):
        result = ValuationResult.load(home / kind)
        assert len(set(range(6)) & set(result.bottom(10).tolist())) >= 5
    top = ValuationResult.load(home / "topm")
    assert top.members is not None
    assert len(set(top.members.tolist()) & set(range(6))) >= 3


@pytest.mark.parametrize("kind", ["run", "topm", "knn", "oob"])
def test_verify_finds_a_changed_value(
    home: Path, kind: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert document(capsys, "verify", home / kind)["ok"] is True
    copy = tmp_path / kind
    copy.mkdir()
    for file in (home / kind).iterdir():
        (copy / file.name).write_bytes(file.read_bytes())
    result = ValuationResult.load(copy)
    values = result.values.copy()
    values[3] += 0.01
    replace(result, values=values).save(copy)
    code, _, err = call(capsys, "verify", copy)
    assert code == 5
    assert "not_verified" in err
    # a record that fits the forged values does not help
    job = Folder(copy).job()
    forged = run_record(
        ValuationResult.load(copy), kind=job.kind, spec=dict(job.tree),
        inputs=[dict(one) for one in job.inputs],
    )  # fmt: skip
    (copy / "record.json").write_bytes(forged)
    code, _, err = call(capsys, "verify", copy)
    assert code == 5


def test_verify_recomputes_all_on_demand(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for kind in ("run", "topm"):
        found = document(capsys, "verify", home / kind, "--all")
        names = [check["name"] for check in found["checks"]]  # type: ignore[index, attr-defined]
        assert "whole run" in names


def test_changed_data_are_refused(
    home: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("train", "held", "test"):
        (tmp_path / f"{name}.csv").write_bytes((home / f"{name}.csv").read_bytes())
    (tmp_path / "spec.toml").write_text(SPEC, encoding="utf-8")
    assert call(capsys, "knn", tmp_path / "spec.toml", "--out", tmp_path / "k")[0] == 0
    write_rows(tmp_path / "held.csv", 50, seed=9)
    for verb in ("verify", "resume", "report"):
        code, _, err = call(capsys, verb, tmp_path / "k")
        assert code != 0
        assert "held.csv" in err


def test_a_folder_in_use_is_refused(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, _, err = call(capsys, "run", home / "spec.toml", "--out", home / "run")
    assert code == 2
    assert "resume" in err
    code, _, err = call(capsys, "run", home / "spec.toml")
    assert code == 2
    assert "--out" in err
    code, _, err = call(capsys, "verify", home)
    assert code == 2
    assert "no run" in err


def test_a_finished_run_resumes_to_itself(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for kind in ("run", "topm"):
        before = (home / kind / "record.json").read_bytes()
        document(capsys, "resume", home / kind)
        assert (home / kind / "record.json").read_bytes() == before


@pytest.mark.parametrize("kind", ["run", "topm", "knn", "oob"])
def test_plans(home: Path, kind: str, capsys: pytest.CaptureFixture[str]) -> None:
    found = document(capsys, kind, home / "spec.toml", "--plan")
    assert found["players"] == 40
    assert float(str(found["memory_mb"])) > 10
    if kind in {"run", "topm"}:
        spent = ValuationResult.load(home / kind).evaluations
        assert spent <= int(str(found["evaluations"])) <= 40 * 60
        assert float(str(found["seconds"])) > 0
    assert call(capsys, "plan", home / "spec.toml", "--verb", kind)[0] == 0


def test_compare(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = document(capsys, "compare", home / "run", home / "knn", home / "run")
    pairs = found["pairs"]
    assert isinstance(pairs, list)
    assert len(pairs) == 3
    assert pairs[0]["spearman"] > 0.5
    assert pairs[1]["largest_z"] == 0.0
    assert call(capsys, "compare", home / "run")[0] == 2


def test_report_and_prices(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("matplotlib")
    found = document(capsys, "report", home / "run", "--budget", 900, "--floor", 10)
    page = (home / "run" / "report.html").read_text(encoding="utf-8")
    prices = found["pricing"]
    assert isinstance(prices, dict)
    paid = [one["price"] for one in prices["players"]]
    assert sum(paid) == pytest.approx(900)
    assert min(paid) >= 10
    assert "not incentive compatible" in prices["warning"]
    assert "not incentive compatible" in page
    assert page.count("<img") == 5
    assert call(capsys, "report", home / "topm", "--other", home / "run")[0] == 0


@pytest.mark.parametrize("kind", ["run", "topm", "knn", "oob"])
def test_after_delete(
    home: Path, kind: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["after-delete", home / kind, "--id", "=row0", "--id", "=row1"]
    found = document(capsys, *words, "--out", tmp_path / "after")
    assert found["players_left"] == 38
    after = ValuationResult.load(tmp_path / "after")
    assert "=row0" not in after.ids
    assert b'=row1"' not in (tmp_path / "after" / "result.json").read_bytes()
    assert call(capsys, "after-delete", home / kind, "--id", "nobody")[0] == 2


def test_values_after_a_deletion_are_those_of_a_table_without_it(
    home: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    document(capsys, "after-delete", home / "knn", "--id", "=row2", "--out", tmp_path / "after")
    text = (home / "train.csv").read_text(encoding="utf-8").splitlines(keepends=True)
    (tmp_path / "train.csv").write_text(
        "".join(line for line in text if not line.startswith("=row2,")), encoding="utf-8"
    )
    for name in ("held", "test"):
        (tmp_path / f"{name}.csv").write_bytes((home / f"{name}.csv").read_bytes())
    (tmp_path / "spec.toml").write_text(SPEC, encoding="utf-8")
    assert call(capsys, "knn", tmp_path / "spec.toml", "--out", tmp_path / "fresh")[0] == 0
    after, fresh = (ValuationResult.load(tmp_path / name) for name in ("after", "fresh"))
    assert after.digest() == fresh.digest()


def test_keys_of_another_model_are_refused(
    home: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for more, words in (
        ('[utility]\nmodel = "knn"\nalpha = 2.0\n', "alpha is for ridge"),
        ('[values]\nmethod = "beta"\ncap = 5\n', "cap is for shapley"),
        ("[values]\nstrata = 3\n", "stratified"),
    ):
        path = home / "other.toml"
        path.write_text(SPEC + more, encoding="utf-8")
        code, _, err = call(capsys, "run", path, "--out", tmp_path / "x", "--plan")
        assert code == 3
        assert words in err


@pytest.mark.parametrize(
    "more",
    [
        '[utility]\nmodel = "logistic"\n',
        '[utility]\nmodel = "knn"\nk = 3\n[values]\nmethod = "banzhaf"\n',
        '[utility]\nmodel = "naive-bayes"\n[values]\nmethod = "beta"\na = 4\nb = 1\n',
        '[utility]\nmodel = "centroid"\n[values]\nsampler = "stratified"\n',
        '[utility]\nmodel = "ridge"\nmetric = "margin"\n[values]\nmethod = "loo"\n',
        '[values]\ncap = 8\nsampler = "permutation"\n',
        '[values]\nsampler = "tmc"\ntolerance = 0.02\n',
    ],
)
def test_every_model_and_method_runs_and_verifies(
    home: Path, tmp_path: Path, more: str, capsys: pytest.CaptureFixture[str]
) -> None:
    path = home / f"{tmp_path.name}.toml"
    path.write_text(SPEC + more, encoding="utf-8")
    assert document(capsys, "run", path, "--out", tmp_path / "x")["ok"] is True
    assert document(capsys, "verify", tmp_path / "x")["ok"] is True


def test_coreset_weights_and_scaling(
    home: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    found = document(
        capsys, "coreset", home / "spec.toml", "--size", 8, "--out", tmp_path / "core.csv"
    )
    assert len(set(found["ids"])) == 8  # type: ignore[call-overload]
    lines = (tmp_path / "core.csv").read_text(encoding="utf-8").splitlines()
    assert lines[1].startswith("'=row")
    weighed = document(capsys, "weights", home / "spec.toml", "--out", tmp_path / "w.csv")
    lines = (tmp_path / "w.csv").read_text(encoding="utf-8").splitlines()[1:]
    found_weights = [float(line.split(",")[1]) for line in lines]
    assert sum(found_weights[:6]) < sum(found_weights[6:12]) / 2
    assert weighed["rows"] == 40
    table = tmp_path / "law.csv"
    table.write_text("x,s\n1,1.3\n2,3.325\n4,4.475\n8,6.2\n16,8\n32,8.6\n", encoding="utf-8")
    law = document(capsys, "scaling", table, "--x", "x", "--score", "s", "--max", 9,
                   "--predict", 128)  # fmt: skip
    assert law["a"] == pytest.approx(1.17983, abs=1e-5)
    assert law["b"] == pytest.approx(-0.84401, abs=1e-5)
    assert "twice" in str(law["warnings"])
    low, high = law["intervals"]["128.0"]  # type: ignore[index]
    assert low < law["predictions"]["128.0"] < high < 9  # type: ignore[index]
    words = ("scaling", table, "--x", "x", "--score", "s", "--max")
    code, _, err = call(capsys, *words, 8.6)
    assert code == 2
    assert "--method nls" in err
    assert call(capsys, *words, 8.6, "--method", "nls")[0] == 0
    table.write_text("x,s\n1,1.3\n2,3.325\n4,4.475\n", encoding="utf-8")
    assert document(capsys, *words, 9, "--predict", 8)["intervals"] == {"8.0": None}


def test_bags_need_no_validation_rows(
    home: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "train.csv").write_bytes((home / "train.csv").read_bytes())
    path = tmp_path / "spec.toml"
    path.write_text(
        '[data]\ntrain = "train.csv"\ntarget = "label"\nid = "id"\nsource = "site"\n'
        "[oob]\nbags = 30\n", encoding="utf-8",
    )  # fmt: skip
    assert call(capsys, "run", path, "--plan")[0] == 3
    assert document(capsys, "oob", path, "--plan")["ok"] is True
    out = tmp_path / "bags"
    code, shown, _ = call(capsys, "oob", path, "--out", out)
    assert code == 0
    assert "rows outside each bag" in shown
    bags, same = ValuationResult.load(out), ValuationResult.load(home / "oob")
    assert np.array_equal(bags.values, same.values, equal_nan=True)
    for words in (("verify", out), ("report", out), ("after-delete", out, "--id", "=row3")):
        assert document(capsys, *words)["ok"] is True


def test_answers_say_what_is_left_out_and_what_a_deletion_changes(
    home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code, shown, _ = call(capsys, "after-delete", home / "topm", "--id", "=row0")
    assert code == 0
    assert " of 5 players are in it as before" in shown
    code, _, err = call(capsys, "compare", home / "run", home / "nothing")
    assert code == 2
    assert "holds no result" in err


def test_a_plan_names_the_cheaper_exact_values(
    home: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text = SPEC.replace('source = "site"', 'group = "site"')
    for name in ("train", "held", "test"):
        (tmp_path / f"{name}.csv").write_bytes((home / f"{name}.csv").read_bytes())
    (tmp_path / "spec.toml").write_text(text, encoding="utf-8")
    assert "7 evaluations with [values]" in call(capsys, "run", tmp_path / "spec.toml", "--plan")[1]
    assert "exact" not in call(capsys, "run", home / "spec.toml", "--plan")[1]
    assert "posterior" in call(capsys, "topm", home / "spec.toml", "--plan")[1]
