"""Verbs of ``privml fhe`` that need no concrete-python: plans, clear scores, and clear refusals."""

from __future__ import annotations

import json
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from privml._cli import output
from privml._cli.fhe import fhe
from privml._cli.output import UsageError
from privml.backbones.cnn import small_cnn
from privml.backbones.cnn_saving import save_model
from privml.backbones.quant_model import QuantModel
from privml.errors import (
    LicenceNotAcknowledged,
    MalformedMessage,
    ParameterError,
    PrivmlError,
    SecurityError,
    StorageError,
    UntrustedArtifact,
)
from privml.protocols.fhe.binding import describe, described
from privml.protocols.fhe.bundle import write_bundles
from privml.protocols.fhe.frequency import Frequency
from privml.testing.fhe_parts import fake_part
from privml.testing.jpegs import encode
from privml.testing.tiny_graphs import vector_graph
from privml.transport.identity import Identity


@pytest.fixture(autouse=True)
def _json_mode(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(output, "MODE", output.Mode(json=True))


def run(*words: object) -> None:
    fhe([str(word) for word in words], prog_name="fhe", standalone_mode=False)


def document(capsys: pytest.CaptureFixture[str]) -> dict[str, Any]:
    found = json.loads(capsys.readouterr().out)
    assert isinstance(found, dict)
    return found


@pytest.fixture
def graph_file(tmp_path: Path) -> Path:
    path = tmp_path / "graph.safetensors"
    path.write_bytes(vector_graph(3, 2).to_bytes())
    return path


@pytest.fixture
def image(tmp_path: Path) -> Path:
    path = tmp_path / "x.npy"
    np.save(path, np.array([1, 3, 0]))
    return path


@pytest.fixture
def operator(tmp_path: Path) -> Identity:
    return Identity.generate(tmp_path / "certs", "operator")


@pytest.fixture
def bundles(tmp_path: Path, operator: Identity) -> Path:
    write_bundles(tmp_path / "bundles", fake_part(), identity=operator)
    return tmp_path / "bundles"


def test_plan_of_a_graph(graph_file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run("plan", graph_file, "--json")
    plan = document(capsys)["plan"]
    assert plan["tables"] == 3
    assert plan["share_results"] == "forbidden"
    assert "Zama" in plan["licence"]


def test_plan_beside_its_controls(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    images = np.random.default_rng(1).integers(0, 256, (8, 16, 16), np.uint8)
    front = Frequency(block=4, channels="y3", source="array").fit(images)
    net = small_cnn(front.shape, (4, 4), classes=3)
    model = QuantModel(net, front=describe(front, names=["a", "b", "c"]))
    model.calibrate(front.batch(images))
    save_model(model, tmp_path / "model")
    run("plan", tmp_path / "model", "--controls", "--json")
    found = document(capsys)
    tables = {name: row["tables"] for name, row in found["controls"].items()}
    assert tables["dct"] == tables["mean-pool"] == tables["space-to-depth"] < tables["pixel"]
    assert described(model.front)[1] == ("a", "b", "c")
    np.save(tmp_path / "pixels.npy", images[0])
    run("predict", tmp_path / "model", tmp_path / "pixels.npy", "--json")
    assert document(capsys)["results"][0]["label"] in ("a", "b", "c")


def test_clear_scores_of_integers(
    graph_file: Path, image: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run("predict", graph_file, image, image, "--labels", "a,b,c", "--json")
    found = document(capsys)
    assert [r["scores"] for r in found["results"]] == [[1, 3, 0]] * 2
    assert found["results"][0]["label"] == "b"
    assert found["local"] is True
    assert found["mode"] == "clear"


def test_a_bundle_is_shown_after_all_checks(
    bundles: Path, operator: Identity, capsys: pytest.CaptureFixture[str]
) -> None:
    for kind in ("server", "client"):
        run("show", bundles / kind, "--signer", operator.fingerprint, "--json")
        found = document(capsys)
        assert found["kind"] == kind
        assert found["program"] == fake_part().manifest.id
    (bundles / "client" / "manifest.json").write_bytes(b"{}")
    with pytest.raises(UntrustedArtifact, match="not the file that was signed"):
        run("show", bundles / "client", "--signer", operator.fingerprint)


@pytest.mark.parametrize(
    ("words", "error", "message"),
    [
        (["plan", "nothing"], StorageError, "No such file"),
        (["plan", "image"], MalformedMessage, "graph"),
        (["predict", "graph", "graph"], UsageError, "no front end"),
        (["predict", "graph", "empty"], UsageError, "holds no"),
        (["predict", "graph", "image", "--mode", "execute"], LicenceNotAcknowledged, "Zama"),
        (["predict", "graph", "image", "--labels", "a,,b"], UsageError, "label"),
        (["compile", "graph", "--out", "new"], UsageError, "--identity"),
        (["compile", "graph", "--out", "empty", "--identity", "id"], UsageError, "exists"),
        (["compile", "graph", "--out", "new", "--identity", "id"], LicenceNotAcknowledged, "Zama"),
        (["show", "client"], UsageError, "--signer"),
        (["show", "client", "--signer", "abc"], ParameterError, "SHA-256"),
        (["keygen", "--bundle", "client", "--out", "new"], UsageError, "--save-secret-key"),
        (["keygen", "--bundle", "client", "--out", "empty", "--save-secret-key"], UsageError,
         "never overwritten"),
        (["encrypt", "image", "--bundle", "client", "--keys", "x", "--out", "empty"], UsageError,
         "exists"),
        (["serve", "--bundle", "server"], UsageError, "--identity"),
        (["serve", "--bundle", "server", "--identity", "id"], UsageError, "--pin"),
        (["serve", "--bundle", "server", "--identity", "id", "--pin", "0" * 64],
         LicenceNotAcknowledged, "Zama"),
        (["serve", "--bundle", "server", "--stdin"], UsageError, "--keys"),
        (["query", "image", "--peer", "host:1", "--pin", "0" * 64], UsageError, "--identity"),
        (["query", "image", "--peer", "host", "--pin", "0" * 64, "--identity", "id"],
         ParameterError, "host:port"),
        (["query", "image", "--peer", "h:1", "--pin", "0" * 64, "--identity", "id", "--job", "j"],
         UsageError, "--keys"),
        (["train", "--data", "nothing", "--out", "new"], UsageError, "no folder"),
        (["train", "--data", "empty", "--out", "new"], UsageError, "sub-folder"),
        (["train", "--data", "empty", "--out", "new", "--widths", "a"], UsageError, "numbers"),
        (["calibrate", "--out", "new"], LicenceNotAcknowledged, "Zama"),
        (["plan", "graph", "--calibration", "empty"], UsageError, "calibrate"),
        (["plan", "graph", "--controls"], UsageError, "model folder"),
    ],
)  # fmt: skip
def test_refusals_say_what_to_do_and_leave_nothing(
    words: list[str], error: type[PrivmlError], message: str, tmp_path: Path, graph_file: Path,
    image: Path, bundles: Path,
) -> None:  # fmt: skip
    (tmp_path / "empty").mkdir()
    places = {
        "graph": graph_file, "image": image, "empty": tmp_path / "empty",
        "new": tmp_path / "new", "nothing": tmp_path / "nothing", "id": tmp_path / "certs/operator",
        "client": bundles / "client", "server": bundles / "server", "j": tmp_path / "j",
    }  # fmt: skip
    with pytest.raises(error, match=message):
        run(*(places.get(word, word) for word in words))
    assert not (tmp_path / "new").exists()
    assert not list((tmp_path / "empty").iterdir())


def test_a_server_with_a_secret_key_in_its_folder_does_not_start(
    bundles: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr("privml.protocols.fhe.toolkit.missing", lambda: None)
    bits = np.random.default_rng(3).integers(0, 2, 600).astype("<u8").tobytes()
    (bundles / "server" / "notes").write_bytes(bits)
    with pytest.raises(SecurityError, match="secret key"):
        run("serve", "--bundle", bundles / "server", "--identity", tmp_path / "certs" / "operator",
            "--pin", "0" * 64, "--accept-licence")  # fmt: skip


@pytest.mark.skipif(find_spec("jpeglib") is None, reason="jpeglib is not installed")
def test_a_network_is_trained_from_folders_of_files(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for label, level in (("dark", 40), ("light", 200)):
        (tmp_path / "data" / label).mkdir(parents=True)
        for i in range(12):
            pixels = np.full((16, 16), level + i, np.uint8)
            (tmp_path / "data" / label / f"{i}.jpg").write_bytes(encode(pixels))
    words = ["--data", tmp_path / "data", "--block", 4, "--channels", "y3", "--widths", "4,4",
             "--epochs", 4, "--tuning-epochs", 2, "--batch", 8, "--json"]  # fmt: skip
    run("train", *words, "--out", tmp_path / "out")
    report = document(capsys)["report"]
    assert (report["classes"], report["held"], report["images"]) == (2, 2, 22)
    assert sorted(p.name for p in (tmp_path / "out").iterdir()) == ["model", "report.json"]
    run("predict", tmp_path / "out" / "model", tmp_path / "data" / "dark", "--json")
    found = document(capsys)
    assert len(found["results"]) == 12
    assert {r["label"] for r in found["results"]} <= {"dark", "light"}
    with pytest.raises(UsageError, match="holds a model already"):
        run("train", *words, "--out", tmp_path / "out")
