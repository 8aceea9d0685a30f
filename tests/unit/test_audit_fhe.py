"""The audit of encrypted images: it refuses tables without controls, and says what is not there."""

from __future__ import annotations

import json
from types import SimpleNamespace

import numpy as np
import pytest


@pytest.fixture
def brief(load):
    """A training that takes no time."""
    return load("fhe_digits").BRIEF


@pytest.fixture(scope="module")
def kept() -> dict[str, object]:
    """What is trained once for all tests of this file."""
    return {}


@pytest.fixture
def networks(load, brief, kept):
    if not kept:
        said: list[str] = []
        found = load("fhe_controls").trained(
            (0,), widths=(2, 2, 4), progress=said.append, training=brief
        )
        assert len(said) == len(found)
        kept.update(found)
    return kept


def executed(ratio: float) -> object:
    plan = SimpleNamespace(tables=528)
    return SimpleNamespace(median=ratio, plan=plan, detail=lambda: {"core_s": [ratio]})


def test_a_fold_keeps_its_parts_apart_and_each_row_is_tested_once(load) -> None:
    digits = load("fhe_digits")
    parts = digits.digits()
    sizes = {name: len(rows.labels) for name, rows in parts.items()}
    assert sizes == {"train": 1100, "valid": 247, "both": 1347, "test": 450}
    whole = np.concatenate([parts[name].images for name in ("train", "valid")])
    assert (whole == parts["both"].images).all()
    tests = [digits.digits(fold)["test"] for fold in range(digits.FOLDS)]
    assert sum(len(rows.labels) for rows in tests) == 1797
    seen = {rows.tobytes() for rows in np.concatenate([t.images for t in tests])}
    everything = {
        rows.tobytes() for rows in np.concatenate([parts["both"].images, tests[0].images])
    }
    assert seen == everything
    own = {rows.tobytes() for rows in parts["test"].images}
    shared = own & {rows.tobytes() for rows in parts["both"].images}
    assert len(shared) <= 2  # digits drawn alike
    assert np.bincount(parts["test"].labels).min() > 25


def test_a_table_with_dct_needs_its_controls(load, networks) -> None:
    controls = load("fhe_controls")
    assert set(controls.table(networks, {})) == set(controls.FRONTS)
    lacking = {name: ones for name, ones in networks.items() if name != "space-to-depth"}
    with pytest.raises(ValueError, match="space-to-depth missing"):
        controls.table(lacking, {})
    json.dumps(controls.table(networks, {}))


def test_rows_have_equal_shape_but_for_the_pixels(load, networks) -> None:
    rows = load("fhe_controls").table(networks, {})
    tables = {name: row["tables"] for name, row in rows.items()}
    assert tables["dct"] == tables["mean-pool"] == tables["space-to-depth"]
    assert tables["pixel"] > 2 * tables["dct"]
    assert rows["dct"]["shape"] == rows["space-to-depth"]["shape"] == [4, 4, 4]
    assert rows["dct-3-of-4"]["shape"] == rows["random-basis"]["shape"] == [3, 4, 4]


def test_bars_judge_cost_and_accuracy_apart(load, networks) -> None:
    controls = load("fhe_controls")
    run = {"pixel": executed(19.0), "mean-pool": executed(10.5), "dct": executed(10.0)}
    bars = {bar.name: bar for bar in controls.bars(networks, run)}
    assert set(bars) == set(controls.BARS)
    assert bars["fhe.digits.dct_speedup"].holds
    assert bars["fhe.digits.mean_pool_cost"].value == pytest.approx(0.05)
    slower = {**run, "pixel": executed(18.0)}
    bars = {bar.name: bar for bar in controls.bars(networks, slower)}
    assert bars["fhe.digits.dct_speedup"].holds is False
    bars = {bar.name: bar for bar in controls.bars(networks, {}, reason="nothing runs here")}
    speedup = bars["fhe.digits.dct_speedup"]
    assert speedup.holds is None
    assert speedup.reason == "nothing runs here"
    assert set(speedup.detail["tables"]) == {"pixel", "dct"}
    bars = {bar.name: bar for bar in controls.bars(networks, {"dct": executed(1.0)})}
    assert "--quick" in bars["fhe.digits.dct_speedup"].reason
    assert bars["fhe.digits.mean_pool_cost"].value == 0  # equal tables


def test_requantised_residuals_take_four_tables_an_element(load, brief) -> None:
    digits, requantised = load("fhe_digits"), load("fhe_requantised")
    front = digits.digits()["both"].front(2, "y4")
    one = digits.train(front, digits.residual(), seed=0, training=brief)
    graph, images = one.classifier.graph, list(one.rows.images[:60])
    whole = one.classifier.prepare(images)
    split = requantised.requantised(graph, whole)
    fused, apart = sum(graph.tables().values()), sum(split.tables().values())
    joined = sum(
        2 * graph.edges()[n.name].size for n in graph.nodes if type(n).__name__ == "AddScaled"
    )
    assert apart == fused + joined
    from privml.protocols.fhe.reference import run
    from privml.protocols.fhe.reliability import classes

    same = classes(graph, run(graph, whole)) == classes(split, run(split, whole))
    assert same.mean() > 0.3  # nothing is trained; chance is 0.1
    plan = requantised.exact_plan(split)
    assert plan.pbs > plan.tables


def test_cost_falls_with_the_block(load) -> None:
    price = load("fhe_sizes").price
    tables = {name: price(name, 32).tables for name in ("pixel", "dct, block 2", "dct, block 4")}
    assert tables["pixel"] > 2 * tables["dct, block 2"] > 2 * tables["dct, block 4"]
    assert 190_000 < tables["dct, block 2"] < 200_000  # the paper's ResNet-20 on 16 x 16 cells


def test_without_a_run_cifar_bars_say_why(load, tmp_path) -> None:
    cifar, frame = load("fhe_cifar"), load("frame")
    report = frame.Report()
    cifar.cifar_section(report, frame.Options())
    assert {bar.name for bar in report.bars} == set(cifar.TARGETS)
    assert all(bar.holds is None and "--cifar" in bar.reason for bar in report.bars)
    assert report.exit_status == 0


def test_cifar_bars_read_the_figures_of_a_run(load, tmp_path, monkeypatch) -> None:
    cifar, frame = load("fhe_cifar"), load("frame")
    monkeypatch.setattr(cifar, "price", lambda name, size: SimpleNamespace(
        core_s=SimpleNamespace(expected=1.0), tables=1))  # fmt: skip
    row = {"class": 3, "clear": 3, "truth": 4, "core_s": 7300.0, "seconds": 4000.0}
    script = cifar.script()
    script.note(tmp_path, "train", {"finished": True, "hours_on_2_cores": 2.5})
    script.note(tmp_path, "test", {"accuracy": 0.89, "images": 1000})
    script.note(tmp_path, "execute", {"rows": [row] * 3})
    report = frame.Report()
    cifar.cifar_section(report, frame.Options(paths={"cifar": tmp_path}))
    holds = {bar.name: bar.holds for bar in report.bars}
    assert holds["fhe.cifar.training_h"]
    assert holds["fhe.cifar.simulated"]
    assert holds["fhe.cifar.executed_images"]
    assert holds["fhe.cifar.executed_core_s"] is False
    assert holds["fhe.cifar.executed_min"] is False
    script.note(tmp_path, "train", {"finished": False, "core_s": 10})
    report = frame.Report()
    cifar.cifar_section(report, frame.Options(paths={"cifar": tmp_path}))
    assert report.bars[0].holds is None


def test_missing_tenseal_is_a_reason(load, monkeypatch) -> None:
    ckks, frame = load("fhe_ckks"), load("frame")
    monkeypatch.setattr(ckks.tenseal_backend, "missing", lambda: "tenseal is not installed")
    report = frame.Report()
    ckks.ckks_section(report, frame.Options())
    assert len(report.bars) == 3
    assert all(bar.value is None and "tenseal" in bar.reason for bar in report.bars)


def test_the_size_under_ckks_is_chosen_without_test_rows(load, monkeypatch) -> None:
    ckks, digits = load("fhe_ckks"), load("fhe_digits")
    asked = []

    def drawn(channels, hidden, seed, *, part, epochs):
        asked.append((seed, part))
        return channels, hidden

    def right(one, rows, mode):
        assert rows is digits.digits(1)["valid"]
        return {("y28", 64): 0.97, ("y36", 64): 0.98, ("y36", 128): 0.98}[one]

    monkeypatch.setattr(ckks, "polynomial", drawn)
    monkeypatch.setattr(ckks, "_right", right)
    best, scores = ckks.choose(1)
    assert best == ("y36", 64)
    assert scores["y36, 128"] == 98
    assert set(asked) == {(1, "train")}


def test_without_concrete_plans_and_the_paper_row_say_why(load, brief, monkeypatch) -> None:
    paper, plan, frame = load("fhe_paper"), load("fhe_plan"), load("frame")
    from privml.protocols.fhe import toolkit

    monkeypatch.setattr(toolkit, "missing", lambda: "concrete-python is not installed")
    report = frame.Report()
    plan.plan_section(report, frame.Options())
    assert all(bar.holds is None and "concrete" in bar.reason for bar in report.bars)
    monkeypatch.setattr(paper, "TRAINING", brief)
    monkeypatch.setattr(paper, "SEEDS", (0,))
    report = frame.Report()
    paper.paper_section(report, frame.Options())
    assert {bar.name for bar in report.bars} == {paper.PLANNED, *paper.BARS}
    assert all("concrete" in bar.reason for bar in report.bars if bar.name != paper.PLANNED)
    assert report.exit_status == 0


def test_peers_builds_the_environment_of_concrete_ml(load, monkeypatch) -> None:
    paper, frame = load("fhe_paper"), load("frame")
    built = []
    monkeypatch.setattr(
        paper.environment, "missing", lambda: None if built else "not there yet; build it"
    )
    monkeypatch.setattr(paper.environment, "install", lambda say: built.append(say))
    pair = {"median_core_s": 2.0}, {"median_core_s": 8.0, "clear": 0.98, "simulated": None}
    monkeypatch.setattr(paper, "_pair", lambda *_: pair)
    monkeypatch.setattr(paper, "_simulated", lambda one: 0.97)
    ours = [SimpleNamespace(accuracy=0.974)] * 3
    bars = paper._compared(frame.Report(), frame.Options(peers=True), ours)
    assert built
    assert [bar.holds for bar in bars] == [True, False]  # 4 times as fast, 0.6 points behind
    assert bars[0].value == 4


def test_a_stopped_comparison_goes_on_behind_the_seeds_it_kept(
    load, networks, tmp_path, monkeypatch
) -> None:
    paper, frame = load("fhe_paper"), load("frame")
    runs = []
    run = SimpleNamespace(median=2.0, detail=lambda: {"tables": 9})
    monkeypatch.setattr(paper, "execute", lambda ones, **_: dict.fromkeys(ones, run))
    monkeypatch.setattr(paper, "_theirs", lambda seed: runs.append(seed) or {"core_s": [7.0, 9.0]})
    options = frame.Options(paths={"kept": tmp_path})
    one, other = networks["dct"][0], networks["pixel"][0]
    first = paper._pair(frame.Report(), options, 0, one)
    assert paper._pair(frame.Report(), options, 0, one) == first
    assert first == ({"median_core_s": 2.0, "tables": 9}, {"core_s": [7, 9], "median_core_s": 8})
    assert runs == [0]
    paper._pair(frame.Report(), options, 0, other)  # another network
    paper._pair(frame.Report(), frame.Options(), 0, one)  # nothing is kept
    assert runs == [0, 0, 0]


def test_disagreement_is_paired_over_the_rows_of_all_folds(load, networks) -> None:
    curves = load("fhe_curves")
    one = networks["dct"][0]
    found = curves._paired([one, one], 1e-2, range(2))
    alone = curves._paired([one], 1e-2, range(2))
    assert found["images"] == 2 * alone["images"] == 900
    assert found["rate"] == pytest.approx(alone["rate"])
    assert 0 <= found["low"] <= found["rate"] <= found["high"] < alone["high"]


def test_curves_are_kept_as_json_and_plots(load, tmp_path) -> None:
    pytest.importorskip("matplotlib", reason="plots need matplotlib (extra: report)")
    curves, frame = load("fhe_curves"), load("frame")
    from privml.report import Series

    series = [Series("dct", np.array([1.0, 2.0]), np.array([90.0, 95.0]))]
    curves.draw(frame.Options(paths={"plots": tmp_path}), "bits", series, "bits", "accuracy, %")
    kept = json.loads((tmp_path / "fhe-bits.json").read_text("utf-8"))
    assert kept["curves"][0]["y"] == [90.0, 95.0]
    assert (tmp_path / "fhe-bits.png").read_bytes().startswith(b"\x89PNG")


def test_resnet20_bars_read_the_figures_of_an_execution(load, tmp_path, monkeypatch) -> None:
    resnet20 = load("fhe_resnet20")
    path = tmp_path / "figures.json"
    assert all("--resnet20" in bar.reason for bar in resnet20._executed(None))
    for found, word in (
        ({"widths": [8, 8, 12], "core_s": 20.0}, "smaller"), ({"widths": [48, 56, 64]}, "execution")
    ):  # fmt: skip
        path.write_text(json.dumps(found), encoding="utf-8")
        assert all(bar.holds is None and word in bar.reason for bar in resnet20._executed(path))
    path.write_text(json.dumps({"widths": [48, 56, 64], "core_s": 7100.0}), encoding="utf-8")
    assert [bar.holds for bar in resnet20._executed(path)] == [True, True]
    path.write_text(json.dumps({"widths": [48, 56, 64], "core_s": 7201.0}), encoding="utf-8")
    assert [bar.holds for bar in resnet20._executed(path)] == [False, False]


def test_resnet20_has_the_shape_of_the_paper(load) -> None:
    resnet20 = load("fhe_resnet20")
    small, images = resnet20.drawn(small=True)
    assert small.graph.input.shape == (6, 4, 4)
    assert images[0].shape == (8, 8, 3)
    assert len(small.graph.tables()) == 19  # a stem and three stages of three blocks


def test_sections_can_be_chosen(load, capsys) -> None:
    inference = load("fhe_inference")
    assert inference.main(["--json", "--quick", "--only", "cifar,plan"]) == 0
    found = json.loads(capsys.readouterr().out)
    names = [bar["name"] for bar in found["bars"]]
    assert any(name.startswith("fhe.cifar.") for name in names)
    assert all(name.startswith(("fhe.cifar.", "fhe.plan.")) for name in names)
    assert set(found["bars"][0]) >= {"name", "value", "target", "holds", "against"}
    assert set(found) == {"bars", "environment"}
    with pytest.raises(SystemExit):
        inference.main(["--only", "digit"])
    assert "there is no digit" in capsys.readouterr().err
