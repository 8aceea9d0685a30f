"""Token pruning on the command line: plans, thresholds, whole runs and wrong combinations."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from privml._cli import output, prune_act
from privml._cli.main import run
from privml._cli.pruning import Local, even_schedule
from privml.backbones.loader import load_encoder
from privml.protocols.cipherprune import Thresholds
from privml.testing.checkpoints import write_checkpoint

CLASSES = ("bad", "good")
LAYERS = 3


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(
        write_checkpoint(tmp_path_factory.mktemp("m") / "tiny", layers=LAYERS, classes=CLASSES)
    )


@pytest.fixture(scope="module")
def secret(tmp_path_factory: pytest.TempPathFactory, tiny: str) -> Path:
    made = Thresholds((0.007, 0.008), (0.008, 0.009), heads=2).bound_to(load_encoder(tiny))
    return made.save(tmp_path_factory.mktemp("t") / "sst2")


def call(capsys: pytest.CaptureFixture[str], *arguments: object) -> tuple[int, str, str]:
    """Run the command line in this process; return the code and both streams."""
    try:
        code = run([str(a) for a in arguments])
    finally:
        output.MODE.json = output.MODE.quiet = output.MODE.debug = False
    streams = capsys.readouterr()
    return code, streams.out, streams.err


def planned(capsys: pytest.CaptureFixture[str], *arguments: object) -> dict[str, Any]:
    code, out, err = call(capsys, "plan", *arguments, "--json")
    assert code == 0, err
    found: dict[str, Any] = json.loads(out)["plan"]
    return found


def words(text: str) -> str:
    return " ".join(text.split())


def test_a_pruned_plan_says_that_its_price_is_the_largest(
    capsys: pytest.CaptureFixture[str], tiny: str, secret: Path
) -> None:
    code, out, _ = call(capsys, "plan", "--model", tiny, "--n", 24, "--prune", secret)
    said = words(out)
    assert code == 0
    assert "on line at most " in said
    assert "predicted at most loopback" in said
    assert "| reveal=bucket" in said
    assert "bucket of the length of the text" in said
    assert said.count("a text that keeps every token") == 2  # on line, off line
    assert "expected less, by what a text keeps: price one with --expect 24,18,14" in said
    code, out, _ = call(capsys, "plan", "--model", tiny, "--n", 24)
    assert "at most" not in out
    assert "expected" not in out
    assert "keeps every token" not in out
    assert "reveal=" not in out


def test_expected_tokens_give_a_smaller_price(
    capsys: pytest.CaptureFixture[str], tiny: str, secret: Path
) -> None:
    options = ("--model", tiny, "--n", 24, "--prune", secret)
    found = planned(capsys, *options, "--expect", "20,9/3,5/2")
    typical = found["expected"]
    assert (typical["length"], typical["kept"]) == (24, [[16, 4], [8, 2]])  # bucket ends
    assert found["price"] == "largest"
    assert typical["flights"] <= found["flights"]
    assert typical["online_mb_client_to_server"] < found["online_mb_client_to_server"]
    assert typical["predicted_s"]["lan"] < found["predicted_s"]["lan"]
    exact = planned(capsys, *options, "--reveal", "count", "--expect", "20,9/3,5/2")["expected"]
    assert (exact["length"], exact["kept"]) == (20, [[9, 3], [5, 2]])
    plain = planned(capsys, *options, "--no-reduce", "--expect", "9/3,5/2")["expected"]
    assert (plain["length"], plain["kept"]) == (24, [[16, 16], [8, 8]])
    _, out, _ = call(capsys, "plan", *options, "--expect", "20,9/3,5/2")
    assert "expected 24 tokens, after the layers 16, 8, of which exact 4, 2" in words(out)


def test_the_report_of_learning_is_found_beside_the_thresholds(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, tiny: str, secret: Path
) -> None:
    copy = Thresholds.load(secret).save(tmp_path / "mine")
    report = tmp_path / "report.json"
    layers = [{"tokens": {"mean": t}, "high": {"mean": h}} for t, h in ((19.2, 19.2), (6.1, 3.5),
                                                                         (1.0, 1.0))]  # fmt: skip
    report.write_text(json.dumps({"pruned": {"layers": layers, "accuracy": 0.9}}))
    options = ("--model", tiny, "--n", 24, "--prune", copy, "--reveal", "count")
    typical = planned(capsys, *options)["expected"]
    assert (typical["length"], typical["kept"]) == (20, [[7, 4], [1, 1]])
    for bad in ('{"pruned": {"layers": [{"tokens": {"mean": 1e999}, "high": {"mean": 1}}]}}',
                '{"pruned": 1}', "[" * 100_000, "\udce9"):  # fmt: skip
        report.write_bytes(bad.encode("utf-8", "surrogateescape"))
        code, _, err = call(capsys, "plan", *options)
        assert code == 3, err
        assert "report.json" in err


def test_a_schedule_is_exact_and_opens_nothing(
    capsys: pytest.CaptureFixture[str], tiny: str
) -> None:
    options = ("plan", "--model", tiny, "--n", 24, "--schedule", "12/6,8/4")
    code, out, _ = call(capsys, *options)
    said = words(out)
    assert code == 0
    assert "at most" not in said
    assert "reveal=schedule" in said
    assert "nothing of the text, its length or the result" in said
    assert "24 tokens, after the layers 12, 8, of which exact 6, 4, by the schedule" in said
    assert "every run costs what is said above" in said
    found = planned(capsys, *options[1:])
    assert found["expected"]["flights"] == found["flights"]
    assert found["price"] == "exact"


WRONG = [
    (("--schedule", "12"), 3, "the schedule has 1 entries"),
    (("--schedule", "8,12"), 3, "schedule[1]"),
    (("--schedule", "12,x"), 2, "--schedule '12,x' is no list"),
    (("--schedule", "0,0"), 2, "is no list"),
    (("--schedule", "12,8", "--reveal", "count"), 2, "does not go with --reveal count"),
    (("--schedule", "12,8", "--expect", "3,2"), 2, "leave --expect out"),
    (("--schedule", "12/6,8/4", "--no-reduce"), 3, "without reduction"),
    (("--reveal", "schedule"), 2, "--reveal schedule needs --schedule"),
    (("--reveal", "all"), 2, "all"),
    (("--grid", "8,4"), 3, "increasing token counts"),
    (("--grid", ",".join(str(k) for k in range(1, 70))), 3, "entries of grid"),
    (("--expect", "9,5,3,2"), 2, "gives tokens for 4 layers"),
    (("--expect", "999999,1"), 2, "is no list"),
    (("--reveal", "count", "--rows", "2"), 3, "one sentence a run"),
    (("--prune", "nowhere"), 2, "no thresholds at nowhere; name what `privml learn-thresholds`"),
]


@pytest.mark.parametrize(("options", "code", "said"), WRONG, ids=lambda v: str(v)[:40])
def test_wrong_options_are_one_line(
    capsys: pytest.CaptureFixture[str], tiny: str, options: tuple[str, ...], code: int, said: str
) -> None:
    got, out, err = call(capsys, "plan", "--model", tiny, "--n", 24, *options)
    assert (got, out) == (code, ""), err
    assert len(err.strip().splitlines()) == 1
    assert said in err
    assert "Traceback" not in err


def test_thresholds_of_another_model_are_refused(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, secret: Path
) -> None:
    other = write_checkpoint(tmp_path / "other", layers=LAYERS, classes=CLASSES, seed=1)
    code, _, err = call(capsys, "plan", "--model", other, "--n", 24, "--prune", secret)
    assert code == 3
    assert "thresholds" in err


def test_a_server_needs_thresholds_exactly_if_the_plan_prunes(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, tiny: str, secret: Path
) -> None:
    files = {}
    for name, options in (("pruned", ("--prune", secret)), ("whole", ()),
                          ("fixed", ("--schedule", "8,4"))):  # fmt: skip
        files[name] = tmp_path / f"{name}.json"
        assert call(capsys, "plan", "--model", tiny, "--n", 16, *options, "--out",
                    files[name])[0] == 0  # fmt: skip
    text = files["pruned"].read_text()
    assert not any(secret_value in text for secret_value in ("theta", "beta", "0.007", "0.008"))
    serve = ("serve", "--pool", tmp_path / "none", "--model", tiny, "--insecure-loopback", "--plan")
    code, _, err = call(capsys, *serve, files["pruned"])
    assert code == 2
    assert "--thresholds FILE" in err
    code, _, err = call(capsys, *serve, files["whole"], "--thresholds", secret)
    assert code == 2
    assert "leave --thresholds out" in err
    code, _, err = call(capsys, *serve, files["fixed"])
    assert code == 3  # as far as the missing pool
    assert "none" in err


@pytest.mark.parametrize("damage", ["cut", "swapped", "text"])
def test_damaged_thresholds_are_refused_before_anything_starts(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, tiny: str, secret: Path, damage: str
) -> None:
    copy = Thresholds.load(secret).save(tmp_path / "mine")
    tensors = copy.with_suffix(".safetensors")
    if damage == "cut":
        tensors.write_bytes(tensors.read_bytes()[:-1])
    elif damage == "swapped":
        Thresholds((0.0, 0.0), (0.0, 0.0), heads=2).save(tmp_path / "other")
        tensors.write_bytes((tmp_path / "other.safetensors").read_bytes())
    else:
        copy.write_text("{}")
    code, out, err = call(capsys, "plan", "--model", tiny, "--n", 24, "--prune", copy)
    assert (code, out) == (3, "")
    assert len(err.strip().splitlines()) == 1


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (("--keep", "0.5"), "belong to --cipherprune"),
        (("--reveal", "count"), "belong to --cipherprune"),
        (("--cipherprune", "--thresholds", "t", "--keep", "0.5"), "say what is kept"),
        (("--cipherprune", "--thresholds", "t", "--reveal", "schedule"), "say what is kept"),
        (("--cipherprune", "--keep", "0"), "keep = 0 must lie in"),
    ],
)
def test_infer_refuses_what_does_not_fit(
    capsys: pytest.CaptureFixture[str], options: tuple[str, ...], said: str
) -> None:
    code, out, err = call(capsys, "infer", "--text", "x", *options)
    assert code in (2, 3)
    assert out == ""
    assert said in err


def test_the_demo_of_pruning_is_no_forest(capsys: pytest.CaptureFixture[str]) -> None:
    code, _, err = call(capsys, "demo", "--cipherprune", "--only", "forest")
    assert code == 2
    assert "leave --only forest out" in err


def test_infer_prunes_one_text_a_run_and_says_what_was_opened(
    capsys: pytest.CaptureFixture[str], tiny: str, secret: Path
) -> None:
    texts = ("a long line of letters, so many", "short")
    asked = [w for text in texts for w in ("--text", text)]
    code, out, err = call(
        capsys, "infer", "--model", tiny, *asked, "--cipherprune", "--thresholds", secret, "--json"
    )
    assert code == 0, err
    found = json.loads(out)
    bill = found["bill"]["client"]
    assert bill["runs"] == 2
    assert found["bill"]["server"]["tokens"] == bill["tokens"]
    long, short = bill["tokens"]
    assert short["length"] == 8
    assert long["length"] == 32
    assert all(pair[1] <= pair[0] <= long["length"] for pair in long["kept"])
    assert long["kept"][-1][0] < 32
    assert "reveal=bucket" in found["claim"]
    assert found["bill"]["client"]["flights"] <= 2 * found["plan"]["flights"]
    assert len(found["results"]) == 2


def test_infer_without_thresholds_trains_nothing(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    plain = write_checkpoint(tmp_path / "plain", layers=2)
    code, out, err = call(
        capsys, "infer", "--model", plain, "--text", "some words", "--labels", "a,b",
        "--cipherprune", "--keep", "0.5",
    )  # fmt: skip
    said = words(out)
    assert code == 0, err
    assert "reveal=schedule" in said
    assert "opened 24 tokens, after the layers 16 (mean of 3 runs)" in said
    assert "with the unpruned model in the clear" in said


def test_an_even_schedule() -> None:
    assert even_schedule(96, 6, keep=0.75) == tuple((k, k) for k in (72, 54, 40, 30, 23))
    assert even_schedule(2, 4, keep=0.01) == ((1, 1),) * 3
    assert even_schedule(32, 4, keep=0.5, least=16) == ((16, 16),) * 3


def test_without_training_short_texts_and_labels_stay_whole(tiny: str, tmp_path: Path) -> None:
    plain = load_encoder(write_checkpoint(tmp_path / "plain", layers=LAYERS))
    assert Local(keep=0.1).spec(plain, 8).schedule == ((8, 8), (8, 8))
    assert Local(keep=0.5).spec(plain, 48).schedule == ((24, 24), (16, 16))


def test_thresholds_are_found_by_their_folder(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, tiny: str, secret: Path
) -> None:
    Thresholds.load(secret).save(tmp_path / "thresholds")
    options = ("--model", tiny, "--n", 24, "--prune")
    wanted = planned(capsys, *options, secret)["digest"]
    for path in (tmp_path, tmp_path / "thresholds", tmp_path / "thresholds.safetensors"):
        assert planned(capsys, *options, path)["digest"] == wanted


def test_the_act_compares_answers_time_and_bytes() -> None:
    def document(labels: str, seconds: float, sent: float) -> dict[str, Any]:
        bill = {"online_s": seconds, "online_sent_mb": sent, "online_received_mb": 0.0}
        return {"bill": {"client": bill}, "results": [{"label": label} for label in labels]}

    found = prune_act.compare(document("ab", 3.0, 10.0), document("aa", 1.0, 5.0))
    assert found == {
        "same_answers": 1, "texts": 2, "times_faster": 3.0, "times_fewer_bytes": 2.0
    }  # fmt: skip
