"""The command line: one clear line for every mistake, one JSON document, quick help."""

from __future__ import annotations

import dataclasses
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

import privml
from privml._cli import output
from privml._cli.main import run
from privml.backbones.loader import load_encoder
from privml.testing.checkpoints import write_checkpoint

ROOT = Path(__file__).resolve().parents[2]
ENVIRONMENT = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
LONG = " ".join(["word"] * 20)


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(write_checkpoint(tmp_path_factory.mktemp("models") / "tiny"))


@pytest.fixture(scope="module")
def plan_file(tmp_path_factory: pytest.TempPathFactory, tiny: str) -> Path:
    path = tmp_path_factory.mktemp("plan") / "plan.json"
    assert run(["plan", "--model", tiny, "--n", "24", "--rows", "3", "--out", str(path)]) == 0
    return path


def call(capsys: pytest.CaptureFixture[str], *arguments: object) -> tuple[int, str, str]:
    """Run the command line in this process; return the code and both streams."""
    try:
        code = run([str(a) for a in arguments])
    finally:
        output.MODE.json = output.MODE.quiet = output.MODE.debug = False
    streams = capsys.readouterr()
    return code, streams.out, streams.err


def one_line(code: int, err: str, *, expect: int, words: str) -> None:
    assert code == expect, err
    assert len(err.strip().splitlines()) == 1, err
    assert words in err
    assert "Traceback" not in err


INFER = ("infer", "--labels", "a,b")
QUERY = ("query", "--plan", "p", "--pool", "c", "--peer", "h:1", "--text", "x", "--labels", "a,b")
USAGE = [
    (("nonsense",), "No such command"),
    (("plan", "--n", "many"), "--n"),
    (("deal", "--plan", "p"), "Missing option"),
    (("deal", "--plan", "p", "--server", "s", "--client", "c", "--runs", "0"), "--runs"),
    (("infer", "--labels", "a,b"), "no text was given"),
    ((*INFER, "--text", " \n"), "text 1 is empty"),
    ((*INFER, "--text", "fine", "--text", ""), "text 2 is empty"),
    (("infer", "--text", "x", "--labels", "a,,b"), "a label is empty"),
    (("infer", "--text", "x", "--labels", "sports"), "at least two"),
    (("infer", "--text", "x", "--labels", "a,b,A"), "labels repeat: A, a"),
    (("infer", "--text", "x", "--labels", ",".join(f"l{k}" for k in range(65))), "too many"),
    ((*INFER, *["--text", "x"] * 257), "too many"),
    ((*INFER, "--text", "x", "--template", "no slot"), "{label}"),
    ((*INFER, "--text", "x", "--template", "{label} {x}"), "no other braces"),
    (("pool",), "Missing argument"),
    (QUERY, "--identity"),
    ((*QUERY, "--identity", "nowhere/client", "--pin", "0" * 64), "privml cert nowhere/client"),
    (("serve", "--plan", "p", "--pool", "s"), "--pin"),
    (("cert", "/"), "has no name"),
    (("cert", "nowhere/x", "--show"), "there is no identity"),
]


@pytest.mark.parametrize(("arguments", "words"), USAGE, ids=lambda v: str(v)[:40])
def test_usage_errors_are_one_line_and_code_2(
    capsys: pytest.CaptureFixture[str], arguments: tuple[str, ...], words: str
) -> None:
    code, out, err = call(capsys, *arguments)
    one_line(code, err, expect=2, words=words)
    assert out == ""


def test_an_error_is_also_the_json_document(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = call(capsys, "infer", "--labels", "a,b", "--json")
    document = json.loads(out)
    assert document["ok"] is False
    assert document["error"]["exit_code"] == code == 2
    assert document["error"]["message"] in err


def test_files_of_texts(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    empty, binary = tmp_path / "empty.txt", tmp_path / "binary.txt"
    empty.write_text("")
    binary.write_bytes(b"\xff\xfe")
    for path, words, expect in (
        (empty, "one text per line", 2), (binary, "UTF-8", 2), (tmp_path / "no", "cannot use", 3)
    ):  # fmt: skip
        code, _, err = call(capsys, *INFER, "--file", path)
        one_line(code, err, expect=expect, words=words)


def test_a_plan_that_is_damaged_is_refused(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, plan_file: Path
) -> None:
    bad = tmp_path / "plan.json"
    bad.write_bytes(plan_file.read_bytes()[:-2])
    for verb in (
        ("deal", "--plan", bad, "--server", tmp_path / "s", "--client", tmp_path / "c"),
        ("query", "--plan", bad, "--pool", "c", "--peer", "h:1", "--text", "x", "--labels", "a,b",
         "--insecure-loopback"),
        ("serve", "--plan", bad, "--pool", "s", "--insecure-loopback"),
    ):  # fmt: skip
        code, out, err = call(capsys, *verb)
        one_line(code, err, expect=3, words="cannot use the plan")
        assert out == ""
    assert list(tmp_path.iterdir()) == [bad]


def test_dealing_never_overwrites(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, plan_file: Path
) -> None:
    verb = ("deal", "--plan", plan_file, "--server", tmp_path / "s", "--client", tmp_path / "c")
    code, out, _ = call(capsys, *verb, "--runs", "2", "--json")
    assert code == 0
    assert json.loads(out)["dealt"]["runs"] == 2
    code, _, err = call(capsys, *verb)
    one_line(code, err, expect=2, words="exists already")


def test_dealing_says_how_much_and_pools_say_what_is_left(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, plan_file: Path
) -> None:
    pools = {"server": tmp_path / "s", "client": tmp_path / "c"}
    words = [w for name, path in pools.items() for w in (f"--{name}", path)]
    code, _, err = call(capsys, "deal", "--plan", plan_file, *words, "--runs", "3")
    assert code == 0
    assert err.startswith("3 runs: the client's pool takes 11.")
    for name, path in pools.items():
        before = path.read_bytes()
        code, out, _ = call(capsys, "pool", path, "--json")
        found = json.loads(out)
        assert (code, found["party"], found["runs"], found["remaining"]) == (0, name, 3, 3)
        code, out, _ = call(capsys, "pool", path)
        assert "3 of 3 runs" in out
        assert call(capsys, "pool", path, "--quiet")[1] == "3\n"
        assert path.read_bytes() == before
    code, _, err = call(capsys, "pool", plan_file)
    one_line(code, err, expect=3, words="cannot use the pool")


def test_another_plan_is_not_replaced_silently(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, tiny: str
) -> None:
    path = tmp_path / "plan.json"
    verb = ("plan", "--model", tiny, "--n", "24", "--out", path, "--rows")
    code, out, _ = call(capsys, *verb, "1", "--quiet")
    first = path.read_bytes()
    assert (code, len(out.strip())) == (0, 64)
    assert call(capsys, *verb, "1")[0] == 0  # the same plan again
    code, _, err = call(capsys, *verb, "2")
    one_line(code, err, expect=2, words="--force")
    assert path.read_bytes() == first
    assert call(capsys, *verb, "2", "--force")[0] == 0
    assert path.read_bytes() != first


def test_plan_warns_of_padding_and_of_too_little_memory(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tiny: str
) -> None:
    from privml._cli import plan

    loaded = load_encoder(tiny)
    short = dataclasses.replace(loaded.config, max_length=20)
    monkeypatch.setattr(loaded, "config", short)
    monkeypatch.setattr("privml.backbones.loader.load_encoder", lambda name: loaded)
    monkeypatch.setattr(plan, "memory_bytes", lambda: 200 * 10**6)
    code, _, err = call(capsys, "plan", "--model", tiny, "--n", "24")
    assert code == 0
    padding, server = err.strip().splitlines()
    assert "at most 20 tokens, so n = 24 only adds padding" in padding
    assert "the server needs about 25" in server
    assert "this machine has 200.0 MB" in server


def test_a_pool_that_is_too_short_is_refused_before_connecting(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, plan_file: Path
) -> None:
    call(capsys, "deal", "--plan", plan_file, "--server", tmp_path / "s", "--client",
         tmp_path / "c")  # fmt: skip
    verb = ("query", "--plan", plan_file, "--pool", tmp_path / "c", "--peer", "127.0.0.1:1",
            "--labels", "a,b", "--insecure-loopback", "--used", tmp_path / "used")  # fmt: skip
    code, _, err = call(capsys, *verb, "--text", "x", "--text", "y")
    one_line(code, err, expect=3, words="2 labels and 2 texts: 4 rows = 2 runs, but the pool")
    assert "has 1 of 1 left" in err


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    assert call(capsys, "--version") == (0, f"privml {privml.__version__}\n", "")


def test_plan_prints_bill_claim_and_leakage(capsys: pytest.CaptureFixture[str], tiny: str) -> None:
    code, out, _ = call(capsys, "plan", "--model", tiny, "--n", "16", "--rows", "2")
    assert code == 0
    for words in ("flights", "to the server", "dealer", "loopback", "lan", "wan", "memory",
                  "semi-honest", "learns", "digest"):  # fmt: skip
        assert words in out
    code, out, err = call(capsys, "plan", "--model", tiny, "--n", "9999")
    one_line(code, err, expect=3, words="n = 9999 must lie in [1, 48]")
    code, out, err = call(capsys, "plan", "--model", "nowhere")
    one_line(code, err, expect=3, words="neither a known model")


def test_certificates(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    name = tmp_path / "keys" / "server"
    code, out, _ = call(capsys, "cert", name, "--json")
    made = json.loads(out)
    assert code == 0
    assert len(made["fingerprint"]) == 64
    code, out, _ = call(capsys, "cert", name, "--show", "--json")
    assert json.loads(out)["fingerprint"] == made["fingerprint"]
    code, _, err = call(capsys, "cert", name)
    one_line(code, err, expect=3, words="exists already")
    name.with_suffix(".key").chmod(0o644)
    code, _, err = call(capsys, "cert", name, "--show")
    one_line(code, err, expect=3, words="can be read by other users")


def test_doctor(capsys: pytest.CaptureFixture[str], tiny: str) -> None:
    code, out, _ = call(capsys, "doctor", "--model", tiny, "--json")
    checks = {c["name"]: c for c in json.loads(out)["checks"]}
    assert code == 0
    assert {"python", "torch", "kernels", "machine", f"model {tiny}"} <= set(checks)
    code, out, _ = call(capsys, "doctor", "--model", "nowhere")
    assert code == 3
    assert "PROBLEM" in out
    assert "pass --model minilm-l6" in " ".join(out.split())


def test_texts_longer_than_the_model_are_refused_unless_cut(
    capsys: pytest.CaptureFixture[str], tiny: str
) -> None:
    code, out, err = call(capsys, *INFER, "--text", LONG, "--model", tiny)
    one_line(code, err, expect=3, words="text 1 has 82 tokens, the limit is 48")
    assert "--truncate" in err
    assert out == ""
    code, _, err = call(capsys, *INFER, "--text", "x", "--model", tiny, "--n", "49")
    one_line(code, err, expect=3, words="[1, 48]")


def test_help_loads_nothing_heavy() -> None:
    code = (
        "import sys; from privml._cli.main import run; run(['--help']); "
        "heavy = {'torch', 'numpy', 'msgspec', 'tokenizers', 'cryptography'} & set(sys.modules); "
        "sys.exit(f'loaded {heavy}' if heavy else 0)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=False, env=ENVIRONMENT
    )
    assert done.returncode == 0, done.stderr
    assert "infer" in done.stdout


def test_bugs_have_their_own_code(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    from privml._cli import doctor

    def broken(*rest: object, **more: object) -> int:
        raise ZeroDivisionError("in our code")

    monkeypatch.setattr(doctor, "run", broken)
    code, _, err = call(capsys, "doctor")
    one_line(code, err, expect=70, words="please report")
    code, _, err = call(capsys, "doctor", "--debug")
    assert code == 70
    assert "Traceback" in err
