"""The pruning audit's own checks: counts, choices and sums must be right, and failures be seen."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from privml.backbones import load_encoder
from privml.errors import ParameterError
from privml.protocols.cipherprune.thresholds import Thresholds
from privml.report import Point, efficient, pareto_png
from privml.testing.checkpoints import write_checkpoint


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two pruned classifiers, as the example writes them, and labelled sentences."""
    root = tmp_path_factory.mktemp("budgets")
    for name, cut in (("large", 0.01), ("small", 0.02)):
        model = write_checkpoint(root / name / "model", layers=3, classes=("bad", "good"))
        found = Thresholds((cut, cut), (2 * cut, 2 * cut), heads=2).bound_to(load_encoder(model))
        found.save(root / name / "thresholds.json")
    rows = [f"{'ab cd ' * (1 + i % 7)}\t{i % 2}" for i in range(20)]
    (root / "dev.tsv").write_text("\n".join(["sentence\tlabel", *rows]), encoding="utf-8")
    return root


@pytest.fixture
def data(load, folder):
    artefact = load("cipherprune_artefact")
    return artefact.read_sentences(
        artefact.Artefact.at(folder / "large").pruned, folder / "dev.tsv"
    )


def test_swaps_and_comparators_are_those_of_the_algorithms(load) -> None:
    step = load("cipherprune_step")
    assert step.bubble_swaps(128, 55) == 6643
    assert step.bubble_swaps(4, 4) == 0
    assert step.bubble_swaps(4, 1) == 3 + 2 + 1
    assert step.bitonic(128) == (1792, 28)
    assert step.bitonic(2) == (1, 1)


@pytest.mark.parametrize("mode", ["count", "count_reduced", "bucket_reduced", "schedule_reduced"])
def test_a_small_step_keeps_the_right_rows_at_the_declared_cost(load, mode) -> None:
    step = load("cipherprune_step")
    sizes = step.Sizes(tokens=9, kept=5, high=3, width=6)
    megabytes, flights = step.step_bars("t", step.specs(sizes)[mode], sizes, judged=True)
    assert 0 < megabytes.value < 0.01
    assert flights.value == (8 if "bucket" in mode else 5)
    assert flights.holds is ("bucket" not in mode)


def test_rows_in_the_wrong_order_are_an_error(load, monkeypatch) -> None:
    step = load("cipherprune_step")
    sizes = step.Sizes(tokens=9, kept=5, high=3, width=6)
    move = step.move

    def turned(e, *args):
        rows, ctx = move(e, *args)
        return replace(rows, x=e.map(rows.x, lambda w: w[::-1], rows.x.shape)), ctx

    monkeypatch.setattr(step, "move", turned)
    with pytest.raises(ValueError, match="in another order"):
        step.step(step.specs(sizes)["count"], sizes)


def test_the_schedule_is_the_published_one(load) -> None:
    shapes = load("cipherprune_shapes")
    exact, long = shapes.paper_schedule(), shapes.paper_schedule(factor=4)
    assert [kept for kept, _ in exact.schedule] == list(shapes.PAPER)
    assert [kept for kept, _ in long.schedule][:3] == [220, 216, 208]
    assert all(kept == high for kept, high in long.schedule)
    reduced = shapes.paper_schedule(high=0.5)
    assert reduced.reduce
    assert reduced.schedule[0] == (55, 28)
    assert reduced.schedule[-1] == (1, 1)
    assert len(exact.schedule) == shapes.BERT_BASE.layers - 1


def test_bars_that_are_left_out_keep_their_targets(load) -> None:
    shapes = load("cipherprune_shapes")
    variants = [*shapes.bert_variants(), *shapes.gpt2_variants(128), *shapes.gpt2_variants(512)]
    expected = {
        "gpt2.n512.schedule.speedup": ">= 10.6 x", "gpt2.n512.schedule_scaled.speedup": "",
        "gpt2.n128.reduced.speedup": ">= 6.1 x", "gpt2.n128.schedule.GB": "",
        "bert.schedule.speedup": ">= 6.1 x", "bert.reduced.online_s": "<= 8 s",
        "bert.padding_dropped_first.GB": "<= 1 GB", "bert.unpruned.online_s": "",
    }  # fmt: skip
    bars = shapes._left_out(variants, list(expected), "no room")
    assert {bar.name: bar.target for bar in bars} == expected


def test_a_pruned_decoder_is_measured_against_the_unpruned_one(load, monkeypatch) -> None:
    shapes, frame = load("cipherprune_shapes"), load("frame")
    tiny = replace(shapes.GPT2, layers=3, hidden=24, heads=2, ffn=48, vocab=16, positions=16)
    monkeypatch.setattr(shapes, "GPT2", tiny)
    monkeypatch.setattr(shapes, "GPT2_LIMITS", {16: 6.1})
    monkeypatch.setattr(shapes, "PAPER", (8, 2))
    monkeypatch.setattr(frame.Options, "repeats", lambda *_: 1)
    report = frame.Report()
    shapes.gpt2_section(report, frame.Options())
    assert report.broken == []
    bars = {bar.name: bar for bar in report.bars}
    speedup = bars["gpt2.n16.schedule.speedup"]
    assert speedup.target == ">= 6.1 x"
    assert "dealer" in speedup.against
    assert bars["gpt2.n16.schedule.GB"].value < bars["gpt2.n16.unpruned.GB"].value
    assert bars["gpt2.n16.schedule.GB"].detail["counts"] == [[8, 8], [2, 2]]
    assert bars["gpt2.n16.reduced.GB"].detail["counts"] == [[8, 4], [2, 1]]
    assert "dealer" in bars["gpt2.n16.failure_probability"].reason


def test_undeclared_cost_and_missing_room_are_noticed(load) -> None:
    runs, product = load("cipherprune_runs"), load("product")
    model = product.Model(hidden=24, heads=2, ffn=48, vocab=16, positions=16)
    private = runs.mpc.PrivateModel(load("product_party").encoder_of(model))
    plan = private.plan(n=8)
    cost = plan.cost
    run = product.Measured(1.0, 0.0, 0.0, cost.flights, cost.sent[1], cost.sent[0], {}, np.ones(1))
    runs.require_declared(plan, run)
    with pytest.raises(ValueError, match="declares"):
        runs.require_declared(plan, replace(run, sent=run.sent + 8))
    runs.require_room([plan], turns=1)
    runs._available_memory = lambda: 1e6
    with pytest.raises(runs.NoRoom, match="memory"):
        runs.require_room([plan], turns=1)


def test_sentences_are_chosen_at_length_quantiles(data) -> None:
    lengths = data.lengths
    chosen = lengths[data.spread(4)]
    assert (np.diff(chosen) >= 0).all()
    assert lengths.min() <= chosen[0] < np.median(lengths) <= chosen[-1] <= lengths.max()
    assert len(set(data.spread(20).tolist())) == len(data)
    assert data.spread(100).size == len(data)
    assert data.padded(0).length == data.n == 48
    assert data.batch(0).length == lengths[0]


def test_simulation_in_processes_is_the_simulation_here(load, folder, data) -> None:
    worker, artefact = load("cipherprune_worker"), load("cipherprune_artefact")
    sst2 = load("cipherprune_sst2")
    found = artefact.Artefact.at(folder / "large")
    few = data.take(np.arange(5))
    told: list[str] = []
    apart = worker.simulate_all(found.pruned, found.prune, few.ids, n=few.n, progress=told.append)
    spec = worker.secret_spec(worker.mpc.Spec(prune=found.prune), found.pruned)
    private = worker.mpc.PrivateModel(load("product_party").encoder_of(found.pruned), spec)
    plan = private.plan(n=few.n)
    for row, other in enumerate(apart):
        mine = worker.simulated(private, plan, few.batch(row), worker.fresh_seeds())
        assert mine.counts == other.counts
        assert np.abs(mine.output - other.output).max() < 0.01  # other masks, other rounding
    assert told
    counted = sst2.histogram(apart)
    assert {sum(layer.values()) for kind in counted.values() for layer in kind.values()} == {5}
    assert 0 <= sst2.right(apart, few) <= 1


def test_execution_equals_simulation_under_the_keys_of_the_run(load, folder, data) -> None:
    sst2, runs = load("cipherprune_sst2"), load("cipherprune_runs")
    found = load("cipherprune_artefact").Artefact.at(folder / "large")
    variant = runs.Variant("pruned", found.pruned, data.n, "pruned", found.prune)
    with runs.running([variant], turns=2) as products:
        for row in data.spread(3):
            mine, shadow = sst2.one_execution(products["pruned"], data, int(row))
            assert mine.counts == shadow.counts
            assert np.array_equal(mine.output, shadow.output)


def test_missing_inputs_are_reasons_not_verdicts(load) -> None:
    frame = load("frame")
    report = frame.Report()
    for module, section in (
        ("cipherprune_sst2", "accuracy_section"), ("cipherprune_speed", "speed_section"),
        ("cipherprune_pareto", "pareto_section"),
    ):  # fmt: skip
        getattr(load(module), section)(report, frame.Options(quick=True))
    assert report.exit_status == 0
    assert all(bar.holds is None and "--data" in bar.reason for bar in report.bars)
    targets = {bar.name: bar.target for bar in report.bars}
    assert targets["sst2.accuracy_loss_points"] == "<= 0.5 points"
    assert targets["sst2.speedup_padded"] == ">= 5 x"


def test_a_folder_without_thresholds_is_named(load, tmp_path) -> None:
    artefact, pareto = load("cipherprune_artefact"), load("cipherprune_pareto")
    with pytest.raises(FileNotFoundError, match=r"config\.json"):
        artefact.Artefact.at(tmp_path)
    write_checkpoint(tmp_path / "model")
    with pytest.raises(FileNotFoundError, match=r"thresholds\.json"):
        artefact.Artefact.at(tmp_path)
    assert pareto.artefacts_in(tmp_path) == []


def test_artefacts_say_what_they_hold(load, folder) -> None:
    artefact, pareto = load("cipherprune_artefact"), load("cipherprune_pareto")
    assert [a.name for a in pareto.artefacts_in(folder)] == ["large", "small"]
    found = artefact.Artefact.at(folder / "large")
    assert found.prune.reduce
    assert found.before is None
    assert found.unpruned.thresholds == ""


def measured(product, seconds: float, nbytes: int):
    return product.Measured(seconds, 0.0, 0.0, 1, nbytes, 0, {}, np.ones(1), ((2, 1),))


def test_speedups_are_ratios_of_sums_over_sentences(load, data) -> None:
    speed, product = load("cipherprune_speed"), load("product")
    cost = {"pruned": (1.0, 10), "padded": (6.0, 70), "unpadded": (1.2, 30), "count": (1.0, 9),
            "exact": (1.0, 11)}  # fmt: skip
    found = {
        row: {k: [measured(product, s * f, b)] * 3 for k, (s, b) in cost.items()}
        for row, f in ((0, 1.0), (1, 3.0))
    }
    bars = {bar.name: bar for bar in speed.speed_bars(found, data)}
    assert bars["sst2.speedup_padded"].value == pytest.approx(6.0)
    assert bars["sst2.bytes_padded"].value == pytest.approx(7.0)
    assert bars["sst2.speedup_padded"].holds is True
    assert bars["sst2.speedup_unpadded"].holds is False
    assert bars["sst2.pruned.online_s"].value == pytest.approx(2.0)
    rows = bars["sst2.speedup_padded"].detail["by_sentence"]
    assert [row["tokens"] for row in rows] == sorted(len(data.ids[r]) for r in (0, 1))
    assert rows[0]["speedup"] == pytest.approx(6.0)


def test_only_points_that_nothing_beats_are_efficient() -> None:
    a, b = Point("a", 0.9, 1.0, 10.0), Point("b", 0.9, 2.0, 10.0)
    c, d = Point("c", 0.8, 0.5, 5.0), Point("d", 0.9, 1.0, 10.0)
    assert efficient([a, b, c, d]) == (a, c, d)
    with pytest.raises(ParameterError, match="nothing to draw"):
        pareto_png([], title="")


def test_plot_and_numbers_are_written_together(load, tmp_path, data) -> None:
    pytest.importorskip("matplotlib")
    pareto = load("cipherprune_pareto")
    points = [Point("30 %", 0.92, 0.5, 60.0), Point("no pruning", 0.93, 3.0, 300.0, True)]
    groups = pareto.groups_of(data, int(np.sort(data.lengths)[0]), 2)
    plots = [pareto.Plot(group, points) for group in groups]
    assert pareto.write(tmp_path, plots, data) == [tuple(points)] * 2
    document = json.loads((tmp_path / "pareto.json").read_text("utf-8"))
    assert [plot["plot"] for plot in document["plots"]] == ["pareto.png", "pareto_long.png"]
    for plot in document["plots"]:
        assert (tmp_path / plot["plot"]).read_bytes().startswith(b"\x89PNG")
        assert [p["label"] for p in plot["points"]] == ["30 %", "no pruning"]
        assert "dealer" in plot["title"]


def test_sentences_are_grouped_by_whether_they_are_pruned(load, data) -> None:
    pareto = load("cipherprune_pareto")
    shortest = int(np.sort(data.lengths)[0])
    every, longer = pareto.groups_of(data, shortest, 2)
    assert every.rows.tolist() == list(range(len(data)))
    assert (data.lengths[longer.rows] > shortest).all()
    assert set(longer.measured.tolist()) <= set(longer.rows.tolist())
    assert len(pareto.groups_of(data, 0, 2)) == len(pareto.groups_of(data, 10**6, 2)) == 1


def test_points_are_means_over_their_sentences(load) -> None:
    pareto, product = load("cipherprune_pareto"), load("product")
    found = {
        row: {name: [measured(product, s * (row + 1), b)] * 3
              for name, s, b in (("0.5", 1.0, 10**6), ("padded", 4.0, 9 * 10**6))}
        for row in (0, 1, 2)
    }  # fmt: skip
    points = pareto.points_of(found, np.array([0, 2]), {"padded": 0.9, "0.5": 0.8}, n=64)
    assert [p.label for p in points] == ["no pruning, 64 positions", "0.5"]
    assert [p.reference for p in points] == [True, False]
    assert [p.seconds for p in points] == pytest.approx([8.0, 2.0])
    assert [p.megabytes for p in points] == pytest.approx([9.0, 1.0])


def test_inputs_are_named_by_path(load, tmp_path) -> None:
    frame, audit = load("frame"), load("cipherprune")
    flags = ["--sst2", str(tmp_path), "--quick"]
    options = frame.parse("An audit.", flags, paths=audit.PATHS)
    assert options.paths == {"sst2": tmp_path}
    with pytest.raises(SystemExit):
        frame.parse("An audit.", ["--data", str(tmp_path / "none")], paths=audit.PATHS)
