"""The forest audit's own checks: it must notice unequal trees, and say what it did not measure."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import numpy as np
import pytest

from privml.unlearning.forest._core import available

native = pytest.mark.skipif(not available(), reason="the native library holds no forest")


@pytest.fixture
def tiny(load):
    """Two classes in a table small enough for the twin core as well."""
    data = load("forest_data")
    table = data.load("breast_cancer")
    return data.Table("tiny", table.X[:90, :6], table.y[:90])


@pytest.fixture
def small(load):
    return load("forest_settings").Settings(6, 3, 5, 4, 4)


def test_rows_per_tree_are_as_asked_whatever_the_binary_quotient(load, tiny) -> None:
    settings = load("forest_settings")
    for trees, per_row in ((15, 1), (150, 15), (100, 7), (100, 55), (100, 100)):
        asked = settings.Settings(trees, per_row, 1, 1)
        model = settings.estimator(tiny, asked, random_state=1).fit(tiny.X[:10], tiny.y[:10])
        assert model.affected([0]).per_id.shape[1] == per_row


def test_categories_become_indicators_and_missing_is_one(load) -> None:
    data = load("forest_data")
    X = np.array([[0, 5], [1, 6], [np.nan, 7], [1, 8]], dtype=np.float32)
    spread = data.one_hot(data.Table("t", X, np.zeros(4, dtype=np.int64), (0,)))
    assert spread.X[:, :3].tolist() == [[0, 1, 0], [0, 0, 1], [1, 0, 0], [0, 0, 1]]
    assert spread.X[:, 3].tolist() == [5, 6, 7, 8]
    assert data._codes(["b", "?", "a", "b", ""]).tolist()[:1] == [1.0]
    assert np.isnan(data._codes(["b", "?", "a"])).tolist() == [False, True, False]


@pytest.mark.parametrize(("n", "train"), [(9864 + 2466, 9864), (70_000, 56_000), (32_561, 26_048)])
def test_splits_have_the_sizes_of_the_reference_measurements(load, n, train) -> None:
    data = load("forest_data")
    first, second = data.split(n, data.SEED)
    assert len(first) == train
    assert sorted([*first, *second]) == list(range(n))


def test_missing_tables_are_a_reason_not_a_verdict(load, monkeypatch) -> None:
    data, equality, frame = load("forest_data"), load("forest_equality"), load("frame")
    accuracy = load("forest_accuracy")

    def gone(name):
        raise data.DataMissing(f"no tabular/{name}; put its folder into PRIVML_DATA")

    monkeypatch.setattr(data, "load", gone)
    report = frame.Report()
    equality.equality_section(report, frame.Options(quick=True))
    accuracy.accuracy_section(report, frame.Options(quick=True))
    assert len(report.bars) == 2 * len(data.NAMES) + 2 * len(accuracy.QUICK)
    assert all(bar.holds is None and "PRIVML_DATA" in bar.reason for bar in report.bars)
    assert report.exit_status == 0


def test_every_history_of_a_sound_forest_is_equal(load, tiny, small) -> None:
    equality = load("forest_equality")
    outcomes, noticed = equality.compare(tiny, small)
    assert noticed
    assert {o.manner for o in outcomes} == set(equality.MANNERS)
    assert all(o.equal == o.trees == 6 and o.digests and o.answers for o in outcomes)


def test_a_row_that_stays_is_noticed(load, tiny, small, monkeypatch) -> None:
    equality = load("forest_equality")
    whole = equality._fit
    calls = []

    def careless(model, table, rows):
        calls.append(rows)
        return whole(model, table, rows if len(calls) % 4 else rows[1:])

    monkeypatch.setattr(equality, "_fit", careless)
    outcomes, _ = equality.compare(tiny, small)
    assert not all(o.digests for o in outcomes)
    assert sum(o.equal for o in outcomes) < sum(o.trees for o in outcomes)


def test_trees_are_told_apart_one_by_one(load, tiny, small) -> None:
    trees, settings = load("forest_trees"), load("forest_settings")
    model = settings.estimator(tiny, small, random_state=3).fit(tiny.X, tiny.y)
    body = bytes(model._model.canonical())
    parts = list(trees.trees(body))
    assert len(parts) == small.trees
    assert body.endswith(b"".join(parts))
    changed = bytearray(body)
    changed[-1] ^= 1  # the last leaf's last row
    assert trees.equal_trees(body, changed) == (small.trees - 1, small.trees)
    with pytest.raises(ValueError, match="follow the last tree"):
        list(trees.trees(body + b"\0"))


def test_folds_test_every_row_of_a_small_table_once(load) -> None:
    accuracy = load("forest_accuracy")
    pairs = accuracy.folds(103, 7)
    assert sorted(np.concatenate([test for _, test in pairs])) == list(range(103))
    assert all(not set(train) & set(test) for train, test in pairs)
    assert len(accuracy.folds(5000, 7)) == 1


def test_accuracy_far_below_the_peer_does_not_hold(load, tiny, small) -> None:
    accuracy = load("forest_accuracy")
    wrong = accuracy.metrics(np.array([[0.9, 0.1], [0.2, 0.8]]), np.array([1, 0]), regression=False)
    assert wrong == {"accuracy": 0.0, "auc": 0.0}
    stump = load("forest_settings").Settings(5, 1, 1, 1)
    named = load("forest_data").Table("breast_cancer", tiny.X, tiny.y)
    bars = accuracy._bars(["accuracy.x", "accuracy.y"], named, stump, {"max_depth": 9}, seeds=2)
    assert [bar.holds for bar in bars] == [False, False]
    assert all(len(bar.detail["points_by_seed"]) == 2 for bar in bars)
    assert "max_depth" in bars[1].against


def test_warm_up_does_not_count(load) -> None:
    clock = load("forest_clock")
    latency = clock.Latency.of([9000] * 50 + [1000] * 450)
    assert (latency.mean_us, len(latency.ns)) == (1.0, 450)
    assert len(clock.Latency.of([1, 2, 3, 4, 5]).ns) == 4


@pytest.fixture
def case(load, tiny, small, monkeypatch):
    """A speed case on the tiny table under the name of a reference measurement."""
    data, speed = load("forest_data"), load("forest_speed")
    monkeypatch.setattr(data, "load", lambda name: tiny)
    monkeypatch.setitem(speed.SPEED, "cardio", small)
    return speed.Case("cardio", 12)


FAKE = """#!{python}
import json, struct, sys
mode, train, test, delete, *numbers = sys.argv[1:]
def rows(path):
    data = open(path, "rb").read()
    n, p = struct.unpack_from("<II", data)
    assert len(data) == 8 + 4 * n * p + n
    return n
count, = struct.unpack_from("<I", open(delete, "rb").read())
n = rows(train) and rows(test)
assert list(map(int, numbers)) == [6, 3, 5, 4, 4, 3], numbers
print(json.dumps(dict(train_ns=10**9, rss_bytes=10**9, query_ns=[10**6] * n,
      build="by hand", delete_ns=[10**6] * count,
      scores=[(i % 7) / 7 for i in range(n)] * (mode == "delete"))))
"""


def binary(folder: Path, text: str) -> Path:
    path = folder / "dynfrs"
    path.write_text(text.replace("{python}", sys.executable), encoding="utf-8")
    path.chmod(0o755)
    return path


@native
def test_a_named_binary_is_run_and_judged(load, case, tmp_path) -> None:
    dynfrs, bars, speed = load("forest_dynfrs"), load("forest_bars"), load("forest_speed")
    files = dynfrs.write_files(case, tmp_path)
    theirs = dynfrs.measure(binary(tmp_path, FAKE), case, files)
    assert theirs.value["delete_us"] == theirs.value["query_after_us"] == 1000.0
    assert theirs.detail["build"] == "by hand"
    ours = speed.measure(case, 1)
    ours.value["memory_mb"] = 1.0
    judged = {bar.name: bar for bar in bars._compared("cardio", [ours], [theirs])}
    assert judged["dynfrs.cardio.memory"].value == pytest.approx(1e-3)
    assert judged["dynfrs.cardio.delete"].holds is True
    slow = speed.Figures(ours.value | {"delete_us": 500.0})
    judged = {bar.name: bar for bar in bars._compared("cardio", [slow], [theirs])}
    assert judged["dynfrs.cardio.delete"].holds is False
    assert judged["dynfrs.cardio.accuracy"].holds is None
    assert "5 runs" in judged["dynfrs.cardio.accuracy"].reason
    judged = {bar.name: bar for bar in bars._compared("cardio", [ours] * 5, [theirs] * 5)}
    assert judged["dynfrs.cardio.accuracy"].holds is False


@native
def test_every_mode_delivers_its_bar(load, case) -> None:
    bars, speed = load("forest_bars"), load("forest_speed")
    ours = speed.measure(case, 1)
    ours.value["memory_mb"] = 1.0
    ours.detail["memory"] = {"pairs": 90, "parts_bytes": {"rows": 5, "total": 5}}
    made = {bar.name: bar for bar in bars._own_bars("cardio", [ours])}
    assert set(made) == {n for n in bars.bar_names("cardio") if n.startswith("speed.")}
    assert all(bar.value >= 0 for n, bar in made.items() if "python_overhead" not in n)
    assert made["speed.cardio.stream_1_1_18.query_p99"].detail["operations"] == 18 * 12 - 43
    slow = speed.Figures(ours.value | {"python_overhead": 6.0}, ours.detail)
    made = {bar.name: bar for bar in bars._own_bars("cardio", [slow])}
    assert made["speed.cardio.python_overhead"].holds is False


@native
def test_a_stream_does_what_it_says(load, case) -> None:
    modes, clock = load("forest_modes"), load("forest_clock")
    model, _ = case.fitted(1)
    calls = clock.NativeCalls(model, case.test.X, model._model.labels.encode(case.test.y)[1])
    asked = np.zeros((12, 2), dtype=np.int64)
    kinds = modes.stream(calls, doomed=case.doomed, first_id=1000, asked=asked)
    assert {kind: len(latency.ns) for kind, latency in kinds.items()} == {
        "add": 10, "delete": 10, "query": 20,
    }  # fmt: skip
    assert not model.contains(case.doomed).any()
    assert model.contains(range(1000, 1012)).all()


@native
def test_forgetting_compares_with_a_forest_without_the_rows(load, case, monkeypatch) -> None:
    forgetting = load("forest_forgetting")
    bars = {bar.name: bar for bar in forgetting.measure(case, 2)}
    assert set(bars) == set(forgetting.bar_names("cardio"))
    assert bars["forgetting.cardio.answers_equal"].holds is True
    after, retrained = (f"forgetting.cardio.auc_{s}" for s in ("after", "retrained"))
    assert bars[after].value == bars[retrained].value
    whole = forgetting.stages
    monkeypatch.setattr(forgetting, "stages", lambda *a: (s := whole(*a)) | {"after": s["before"]})
    bars = {bar.name: bar for bar in forgetting.measure(case, 2)}
    assert bars["forgetting.cardio.answers_equal"].holds is False


@native
def test_readers_ask_while_rows_go(load, case) -> None:
    readers = load("forest_readers")
    bars = {bar.name: bar for bar in readers.measure(case, 1, seconds=0.3)}
    assert list(bars) == readers.NAMES
    assert bars["readers.idle.throughput"].detail["deletions"] == [0]
    assert bars["readers.deleting.throughput"].detail["deletions"][0] > 0
    assert all(bar.value > 0 for bar in bars.values())


@pytest.mark.parametrize(
    "text", ["#!{python}\nprint('hello')\n", "#!{python}\nraise SystemExit(3)\n"]
)
def test_a_binary_that_does_something_else_is_an_error(load, case, tmp_path, text) -> None:
    dynfrs = load("forest_dynfrs")
    files = dynfrs.write_files(case, tmp_path)
    with pytest.raises(dynfrs.DynfrsFailed, match="dynfrs delete"):
        dynfrs.measure(binary(tmp_path, text), case, files)


def test_without_a_binary_the_reference_stands_without_a_verdict(load) -> None:
    bars, dynfrs, speed = load("forest_bars"), load("forest_dynfrs"), load("forest_speed")
    for name, reference in dynfrs.REFERENCE.items():
        ours = speed.Figures({key: value / 2 for key, value in reference.items()})
        shown = bars._compared(name, [ours], None)
        assert {bar.holds for bar in shown} == {None}
        assert all("another machine" in bar.against and "--dynfrs" in bar.reason for bar in shown)
        assert all(bar.value == pytest.approx(0.5) for bar in shown[:-1])


def test_the_binary_must_exist(load, tmp_path, capsys) -> None:
    frame = load("frame")
    there = binary(tmp_path, FAKE)
    named = frame.parse("x", ["--dynfrs", str(there)], programs={"dynfrs": "help"})
    assert named.programs == {"dynfrs": there}
    assert frame.parse("x", [], programs={"dynfrs": "help"}).programs == {}
    with pytest.raises(SystemExit):
        frame.parse("x", ["--dynfrs", str(tmp_path / "no")], programs={"dynfrs": "help"})
    assert "there is no file" in capsys.readouterr().err


def test_absent_peers_say_why(load, case, monkeypatch, tmp_path) -> None:
    peers, frame, speed = load("forest_peers"), load("frame"), load("forest_speed")
    monkeypatch.setattr(peers, "RETRAINED", ("lightgbm", "extra_trees"))
    monkeypatch.setattr(peers.importlib.util, "find_spec", lambda name: None)
    ours = speed.Figures({"delete_us": 50.0, "accuracy": 0.9, "auc": 0.9})
    report = frame.Report()
    options = frame.Options(quick=True, peer_dir=tmp_path)
    peers.peers_section(report, options, {"cardio": ours})
    bars = {bar.name: bar for bar in report.bars}
    dare = bars["dare.delete_geometric_mean"]
    assert (dare.holds, dare.value) == (None, pytest.approx(50.9e3 / 50))
    assert "--peers" in dare.reason
    assert "another machine" in dare.against
    assert bars["retrain.cardio.lightgbm"].value is None
    assert "--peers" in bars["retrain.cardio.lightgbm"].reason
    assert bars["retrain.cardio.extra_trees"].value > 0
    assert report.exit_status == 0


@native
def test_scale_delivers_its_bars_and_json_can_hold_them(load, monkeypatch) -> None:
    scale, frame = load("forest_scale"), load("frame")
    monkeypatch.setattr(scale, "TEST", 300)
    report = frame.Report()
    scale.scale(report, 1500, operations=20)
    assert [bar.name for bar in report.bars if bar.name not in scale.NAMES] == []
    assert {bar.name for bar in report.bars} == set(scale.NAMES)
    assert json.dumps([bar.as_dict() for bar in report.bars], allow_nan=False)
