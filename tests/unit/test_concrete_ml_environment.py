"""The concrete-ml environment: building it, damage, stand-ins, limits of a process, bundles."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

from privml._cli.fhe import fhe
from privml.errors import Corrupt, Full, Locked, StorageError, UnsupportedError, UntrustedArtifact
from privml.protocols.fhe.concrete_ml import EncryptedEstimator, bundles, environment, process
from privml.protocols.fhe.concrete_ml.__main__ import main
from privml.protocols.fhe.concrete_ml.bundles import Bundle
from privml.protocols.fhe.concrete_ml.environment import Record
from privml.protocols.fhe.concrete_ml.stand_ins import LIBRARIES, stand_in
from privml.storage import fs

LINUX = sys.platform == "linux" and os.uname().machine == "x86_64"


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.delenv(environment.VARIABLE, raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache"


def made(cache: Path) -> Path:
    """Put down a folder that looks like an environment."""
    folder = environment.place()
    info = folder / "lib" / "python3.11" / "site-packages" / "a-1.dist-info"
    info.mkdir(parents=True)
    (info / "RECORD").write_text("a.py,sha256=x,1\n")
    record = Record(
        environment.locked_digest(), environment._installed_digest(folder), stand_ins=False
    )
    (folder / "privml.json").write_bytes(msgspec.json.encode(record))
    return folder


def test_an_absent_environment_names_the_command(
    cache: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from sklearn.linear_model import Ridge

    reason = environment.missing()
    assert reason is not None
    assert "privml fhe install-concrete-ml" in reason
    with pytest.raises(UnsupportedError, match=r"privml fhe install-concrete-ml"):
        EncryptedEstimator(Ridge()).fit([[0.0], [1.0]], [0.0, 1.0])
    assert main(["status"]) == 3
    assert "install" in capsys.readouterr().out
    assert main(["remove"]) == 0
    with pytest.raises(UnsupportedError, match="privml fhe install-concrete-ml"):
        fhe(["install-concrete-ml", "--status"], prog_name="fhe", standalone_mode=False)
    fhe(["install-concrete-ml", "--remove"], prog_name="fhe", standalone_mode=False)
    assert not cache.exists()


def test_it_lies_in_the_cache_under_its_locked_versions(cache: Path) -> None:
    place = environment.place()
    assert place.is_relative_to(cache / "privml")
    assert place.name == f"concrete-ml-1.9.0-{environment.locked_digest()[:12]}"


def test_the_locked_versions_are_exact_and_need_no_cuda() -> None:
    text = (Path(environment.__file__).parent / "locked.txt").read_text()
    lines = [line for line in text.splitlines() if line and not line.startswith("#")]
    assert all("==" in line for line in lines)
    named = dict(line.split(" ;")[0].split("==") for line in lines)
    assert named["concrete-ml"] == environment.VERSION
    assert named["torch"] == "2.3.1"
    assert named["numpy"] == "1.26.4"
    assert named["scikit-learn"] == "1.5.0"
    assert named["skops"] == "0.5.0"
    heavy = ("cublas", "cudnn", "cufft", "curand", "cusolver", "cusparse", "nccl", "triton")
    assert not [name for name in named if any(part in name for part in heavy)]


def test_a_whole_environment_is_found_and_damage_is_not_overlooked(
    cache: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = made(cache)
    assert environment.find().folder == folder
    assert environment.install().folder == folder  # there is nothing to do
    assert main(["status"]) == 0
    (record,) = folder.glob("lib/*/site-packages/*/RECORD")
    record.write_text("a.py,sha256=y,1\n")
    with pytest.raises(Corrupt, match="changed after it was built"):
        environment.find()
    (folder / "privml.json").write_text("{")
    with pytest.raises(Corrupt, match="record"):
        environment.find()
    with pytest.raises(Corrupt):
        environment.install()
    assert environment.remove()
    assert not folder.exists()


def test_other_locked_versions_are_another_environment(cache: Path) -> None:
    folder = made(cache)
    (folder / "privml.json").write_bytes(msgspec.json.encode(Record("0" * 64, "", stand_ins=True)))
    with pytest.raises(UnsupportedError, match="other versions"):
        environment.find()


@pytest.mark.skipif(sys.version_info[:2] != environment.PYTHON, reason="needs Python 3.11")
def test_a_build_that_fails_leaves_nothing(
    cache: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The real build, with a pip that may not reach a registry."""
    for name in list(os.environ):
        if name.startswith("PIP_"):
            monkeypatch.delenv(name)
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    assert main(["install"]) == 3
    out, err = capsys.readouterr()
    assert "BSD-3-Clause-Clear" in out
    assert "registry" in err
    left = [path.name for path in environment.place().parent.iterdir()]
    assert left == [".install.lock"]


def test_a_killed_build_is_swept_and_too_little_space_is_said(
    cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    half = environment.place().parent / ".building-00"
    half.mkdir(parents=True)
    monkeypatch.setattr(fs, "free_bytes", lambda folder: 1 << 20)
    with pytest.raises(Full, match="5 GB"):
        environment.install()
    assert not half.exists()


def test_two_builds_at_once_are_refused(cache: Path) -> None:
    place = environment.place().parent
    place.mkdir(parents=True)
    with fs.File.open(place / ".install.lock", create=True) as lock:
        lock.lock()
        with pytest.raises(Locked):
            environment.install()


def test_a_chosen_folder_is_never_removed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(environment.VARIABLE, str(tmp_path / "mine"))
    (tmp_path / "mine").mkdir()
    with pytest.raises(StorageError, match="in the way"):
        environment.install()
    assert (tmp_path / "mine").exists()


@pytest.mark.skipif(not LINUX, reason="stand-ins are for x86-64 Linux")
@pytest.mark.parametrize("name", LIBRARIES)
def test_stand_ins_load_and_define_what_is_asked_for(name: str, tmp_path: Path) -> None:
    (tmp_path / name).write_bytes(stand_in(name, LIBRARIES[name]))
    code = (
        "import ctypes, os, sys\n"
        "library = ctypes.CDLL(sys.argv[1], mode=os.RTLD_NOW)\n"
        "find = ctypes.CDLL(None).dlvsym\n"
        "find.restype, find.argtypes = ctypes.c_void_p, [ctypes.c_void_p, ctypes.c_char_p] * 2\n"
        "find.argtypes = [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_char_p]\n"
        "for function in sys.argv[3:]:\n"
        "    assert find(library._handle, function.encode(), sys.argv[2].encode())\n"
        "assert not find(library._handle, b'other', sys.argv[2].encode())\n"
    )
    path = str(tmp_path / name)
    subprocess.run([sys.executable, "-c", code, path, name, *LIBRARIES[name]], check=True)


def confined(code: str, **limits: int) -> subprocess.CompletedProcess[bytes]:
    """Run code in a process that confined itself as a worker does."""
    values = {"memory_bytes": 1 << 32, "file_bytes": 1 << 20, **limits}
    start = (
        "import ctypes, socket, subprocess, sys\n"
        "from worker import confine\n"
        f"confine.limit(memory_bytes={values['memory_bytes']}, file_bytes={values['file_bytes']})\n"
        f"confine.allow_cpu({limits.get('cpu_s', 20)})\n"
        "offline = confine.cut_network()\n"
    )
    return subprocess.run(
        [sys.executable, "-s", "-P", "-c", start + code], capture_output=True, timeout=60,
        env={"PYTHONPATH": str(Path(process.__file__).parent), "PYTHONDONTWRITEBYTECODE": "1"},
    )  # fmt: skip


@pytest.mark.skipif(not LINUX, reason="the network is cut on Linux")
@pytest.mark.parametrize("family", ["AF_INET", "AF_INET6", "AF_UNIX"])
def test_a_worker_has_no_network(family: str) -> None:
    done = confined(
        "assert offline\n"
        "try:\n"
        f"    socket.socket(socket.{family})\n"
        "except PermissionError:\n"
        "    sys.exit(42)\n"
    )
    assert done.returncode == 42, done.stderr


@pytest.mark.skipif(not LINUX, reason="the network is cut on Linux")
def test_neither_have_its_children() -> None:
    child = "import socket; socket.socket()"
    done = confined(f"sys.exit(subprocess.run([sys.executable, '-c', {child!r}]).returncode)\n")
    assert done.returncode == 1
    assert b"PermissionError" in done.stderr


def test_a_worker_has_limits_of_its_own() -> None:
    memory = confined("bytearray(1 << 30)\n", memory_bytes=1 << 28)
    assert b"MemoryError" in memory.stderr
    assert confined("while True: pass\n", cpu_s=1).returncode == -24
    file = "import tempfile\nf = tempfile.TemporaryFile()\nf.write(bytes(1 << 21))\nf.flush()\n"
    assert confined(file).returncode != 0


def bundle() -> Bundle:
    names = (*bundles.CLIENT_FILES, *bundles.SERVER_FILES)
    files = {name: name.encode() for name in names}
    return Bundle.make(files, family="linear", p_error=0.01, versions={"concrete-ml": "1.9.0"})


def test_bundles_come_back_and_each_side_has_its_own_files(tmp_path: Path) -> None:
    one = bundle()
    one.save(tmp_path / "model")
    for side, names in (("client", bundles.CLIENT_FILES), ("server", bundles.SERVER_FILES)):
        found = bundles.load(tmp_path / "model" / side, names, digest=one.manifest.digest)
        assert found.manifest == one.manifest
        assert {*found.files} == {*names}
        assert {p.name for p in (tmp_path / "model" / side).iterdir()} == {*names, "manifest.json"}
    assert "patent" in one.manifest.licence
    with pytest.raises(StorageError):
        one.save(tmp_path / "model")  # nothing is replaced


def test_changed_bundles_are_refused(tmp_path: Path) -> None:
    one = bundle()
    one.save(tmp_path)
    server, names = tmp_path / "server", bundles.SERVER_FILES
    with pytest.raises(UntrustedArtifact, match="another program"):
        bundles.load(server, names, digest="0" * 64)
    (server / names[1]).write_bytes(b"other code")
    with pytest.raises(UntrustedArtifact, match="not the file"):
        bundles.load(server, names, digest=one.manifest.digest)
    (server / "secret.key").write_bytes(b"")
    with pytest.raises(Corrupt, match=r"secret\.key"):
        bundles.load(server, names, digest=one.manifest.digest)
    (server / "manifest.json").write_bytes(b"[]")
    with pytest.raises(Corrupt, match="manifest"):
        bundles.load(server, names, digest=None)
