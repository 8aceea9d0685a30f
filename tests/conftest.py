"""Rules that hold for every test: seeds from the test id, the native library, one import root."""

from __future__ import annotations

import hashlib
import os
import socket
import sys
import warnings
from contextlib import suppress
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

if "PYTEST_XDIST_WORKER" in os.environ:  # workers share the cores: no thread pools on top
    for _variable in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
        os.environ.setdefault(_variable, "1")

import hypothesis
import numpy as np
import pytest

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from types import ModuleType

ROOT = Path(__file__).resolve().parents[1]
NOT_SOURCES = frozenset({"__pycache__", "_skbuild", "build", "dist", "site"})
MAX_TEXT_BYTES = 1_000_000
BARE_AREAS = ("protocols", "unlearning", "valuation")
LEAK_KEY = "privml_bare_areas"
_LEAKS: pytest.StashKey[set[str]] = pytest.StashKey()

hypothesis.settings.register_profile(
    "fast",
    max_examples=60,
    deadline=None,
    suppress_health_check=[hypothesis.HealthCheck.too_slow],
)
hypothesis.settings.register_profile(
    "nightly",
    max_examples=2_000,
    deadline=None,
    suppress_health_check=[hypothesis.HealthCheck.too_slow],
)
hypothesis.settings.load_profile("fast")  # `--hypothesis-profile=nightly` replaces it


def derive_seed(base: int, label: str) -> int:
    """Return the 64-bit seed of one test, so that it runs the same alone and in the suite."""
    digest = hashlib.sha256(f"{base}|{label}".encode()).digest()
    return int.from_bytes(digest[:8], "little")


def bare_areas() -> list[str]:
    """Return the area folders that were imported under their bare name in this process."""
    return sorted(name for name in sys.modules if name.partition(".")[0] in BARE_AREAS)


def native_problem() -> str | None:
    """Return why the suite must not run on this build, or None."""
    if os.environ.get("PRIVML_KERNELS") == "reference":
        return None
    if find_spec("privml") is None:
        return "privml is not importable: run `make setup`, then .venv/bin/pytest"
    from privml import _native

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # said below, as an error
        if _native.load() is not None:
            return None
    return (
        f"the native library is missing ({_native.backend().reason}): run `make clean setup`, "
        "or set PRIVML_KERNELS=reference to test the slow twins on purpose"
    )


def pytest_sessionstart(session: pytest.Session) -> None:
    """Refuse to run on the twins by accident: a broken build is never green."""
    if hasattr(session.config, "workerinput"):
        return
    problem = native_problem()
    if problem is not None:
        raise pytest.UsageError(problem)


def pytest_configure(config: pytest.Config) -> None:
    """Count leaks of the whole run; under xdist the controller adds up its workers."""
    config.stash[_LEAKS] = set()


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any, error: object) -> None:
    """Collect what a finished xdist worker reported."""
    del error
    node.config.stash[_LEAKS].update(getattr(node, "workeroutput", {}).get(LEAK_KEY, []))


@pytest.hookimpl(trylast=True)
def pytest_sessionfinish(session: pytest.Session) -> None:
    """Fail the run if an area was imported twice, under its bare name and under privml."""
    config = session.config
    config.stash[_LEAKS].update(bare_areas())
    if hasattr(config, "workeroutput"):
        config.workeroutput[LEAK_KEY] = sorted(config.stash[_LEAKS])
    elif config.stash[_LEAKS]:
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


def pytest_terminal_summary(
    terminalreporter: pytest.TerminalReporter, config: pytest.Config
) -> None:
    """Say why the run failed when every test passed."""
    leaks = config.stash[_LEAKS]
    if leaks:
        terminalreporter.section("imported under a bare name", red=True)
        terminalreporter.line(f"use privml.<area> instead of: {', '.join(sorted(leaks))}")


@pytest.fixture
def seed(request: pytest.FixtureRequest) -> int:
    """Return this test's own seed, derived from the printed base seed and the test id."""
    base = request.config.getoption("randomly_seed", default=0)
    return derive_seed(base if isinstance(base, int) else 0, request.node.nodeid)


@pytest.fixture
def rng(seed: int) -> np.random.Generator:
    """Return a numpy generator on this test's own seed."""
    return np.random.default_rng(seed)


@pytest.fixture
def load(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[str], ModuleType]]:
    """Import modules of examples/audits as a script there would, and forget them afterwards."""
    examples = ROOT / "examples"
    monkeypatch.syspath_prepend(str(examples / "audits"))
    before = set(sys.modules)
    yield import_module
    for name in set(sys.modules) - before:
        if str(getattr(sys.modules[name], "__file__", "")).startswith(str(examples)):
            sys.modules.pop(name)


def _is_local(address: object) -> bool:
    """Return whether a socket address stays on this machine."""
    if not isinstance(address, tuple):
        return True  # unix sockets
    host = str(address[0])
    return host in {"localhost", "::1"} or host.startswith("127.")


@pytest.fixture(autouse=True, scope="session")
def _loopback_only() -> Iterator[None]:
    """Let no test talk to another machine."""
    connect = socket.socket.connect

    def guarded(self: socket.socket, address: Any) -> None:
        if not _is_local(address):
            raise AssertionError(f"a test tried to reach {address[0]}; only loopback is allowed")
        connect(self, address)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(socket.socket, "connect", guarded)
        yield


def _source_folder(path: Path) -> bool:
    hidden = path.name.startswith(".") and path.name != ".ci"
    outputs = path.name in NOT_SOURCES or path.name.endswith(".egg-info")
    return not (hidden or outputs or path.is_symlink())


@pytest.fixture(scope="session")
def repository() -> dict[str, str]:
    """Return every text file of the repository, path to text; links are not followed."""
    found = {}
    for folder, names, files in os.walk(ROOT):
        names[:] = sorted(name for name in names if _source_folder(Path(folder, name)))
        for name in sorted(files):
            path = Path(folder, name)
            if path.is_symlink() or path.stat().st_size > MAX_TEXT_BYTES:
                continue
            with suppress(UnicodeDecodeError):
                found[path.relative_to(ROOT).as_posix()] = path.read_text(encoding="utf-8")
    return found
