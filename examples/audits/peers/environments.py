"""Virtual environments of the peers: found if there, created on request.

A peer has its own interpreter and packages, so that nothing of it reaches the environment of
privml. An environment counts only if its marker, written last, names the same requirements; a
half-made one is emptied and made again. Packages come from the registry that pip is set up for, by
name and version.
"""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

Progress = Callable[[str], None]
INSTALL_LIMIT_S = 900


class PeerUnavailable(Exception):
    """The peer cannot be used here; the text is the reason shown in the report."""


@dataclass(frozen=True)
class Peer:
    """What one peer needs.

    Attributes
    ----------
    name
        Folder of its environment.
    requirements
        Packages by name and version.
    pythons
        Interpreter versions its wheels exist for, best first.
    module
        Module that must import in the finished environment.
    """

    name: str
    requirements: tuple[str, ...]
    pythons: tuple[str, ...]
    module: str


SPU = Peer(
    "spu-0.9.5",
    ("spu==0.9.5", "jax==0.4.34", "jaxlib==0.4.34", "numpy==1.26.4"),
    ("3.11", "3.10"),
    "spu",
)
DARE = Peer("dare-rf-1.1.4", ("dare-rf==1.1.4", "numpy==1.23.5"), ("3.10",), "dare")
LIGHTGBM = Peer(
    "lightgbm-4.7.0",
    ("lightgbm==4.7.0", "numpy==2.2.6", "scipy==1.15.3"),
    ("3.11", "3.12", "3.13", "3.10"),
    "lightgbm",
)


def default_root() -> Path:
    """Return the folder for peers' environments in the user's cache."""
    cache = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    return Path(cache) / "privml" / "peers"


def obtain(peer: Peer, root: Path, *, create: bool, progress: Progress) -> Path:
    """Return the interpreter of `peer`'s environment under `root`.

    Parameters
    ----------
    peer
        What to run.
    root
        Folder that holds one environment per peer.
    create
        Make the environment if it is missing.
    progress
        Receives one line before each slow step.

    Raises
    ------
    PeerUnavailable
        The environment is missing and `create` is off, or it cannot be made here.
    """
    folder = root / peer.name
    if _ready(folder, peer):
        return _interpreter(folder)
    if not create:
        raise PeerUnavailable(f"{peer.name} is not set up; --peers creates its environment")
    root.mkdir(parents=True, exist_ok=True)
    with _locked(root / f"{peer.name}.lock"):
        if not _ready(folder, peer):
            _make(folder, peer, progress)
    return _interpreter(folder)


def _make(folder: Path, peer: Peer, progress: Progress) -> None:
    base = base_interpreter(peer.pythons)
    progress(f"creating the environment of {peer.name} in {folder}")
    _call([base, "-m", "venv", "--clear", str(folder)], f"{peer.name}: no virtual environment")
    python = str(_interpreter(folder))
    progress(f"installing {' '.join(peer.requirements)}")
    pip = [python, "-m", "pip", "install", "--quiet", "--no-input", "--disable-pip-version-check"]
    _call([*pip, *peer.requirements], f"{peer.name} cannot be installed")
    _call([python, "-c", f"import {peer.module}"], f"{peer.name} does not import")
    _marker(folder).write_text(json.dumps(peer.requirements), encoding="utf-8")


def base_interpreter(versions: tuple[str, ...]) -> str:
    """Return an interpreter of one of `versions`: the running one's if it fits, else from PATH.

    Raises
    ------
    PeerUnavailable
        There is none.
    """
    running = f"{sys.version_info.major}.{sys.version_info.minor}"
    for version in versions:
        candidates = [shutil.which(f"python{version}")]
        if version == running:
            candidates.insert(0, sys.executable)
        for candidate in candidates:
            if candidate and _speaks(candidate, version):
                return candidate
    raise PeerUnavailable(f"needs Python {' or '.join(versions)}, which is not installed")


def _speaks(python: str, version: str) -> bool:
    program = "import sys, venv, ensurepip; print('%d.%d' % sys.version_info[:2])"
    asked = subprocess.run([python, "-c", program], capture_output=True, text=True, check=False)
    return asked.returncode == 0 and asked.stdout.strip() == version


def _call(command: list[str], failure: str) -> None:
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, check=False, timeout=INSTALL_LIMIT_S
        )
    except subprocess.TimeoutExpired as error:
        raise PeerUnavailable(f"{failure} within {INSTALL_LIMIT_S} s") from error
    if done.returncode != 0:
        last = (done.stderr.strip() or done.stdout.strip()).splitlines()[-1:]
        raise PeerUnavailable(f"{failure}: {' '.join(last)[:300]}")


def _interpreter(folder: Path) -> Path:
    return folder / "bin" / "python"


def _marker(folder: Path) -> Path:
    return folder / "privml-peer.json"


def _ready(folder: Path, peer: Peer) -> bool:
    try:
        made_for = json.loads(_marker(folder).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return False
    return made_for == list(peer.requirements) and _interpreter(folder).exists()


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    with path.open("w", encoding="utf-8") as handle:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield
