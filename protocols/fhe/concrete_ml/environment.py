"""The environment of concrete-ml: where it lies, whether it is whole, and building it on request.

concrete-ml 1.9.0 pins old versions of torch, numpy and scikit-learn that privml cannot share, so
they live in a virtual environment of their own, built by one command::

    privml fhe install-concrete-ml

It lies in the user's cache folder, under a name that holds the digest of the locked versions; it
is built beside its place and moved there whole. Its record holds a digest of what was installed,
which is compared at every use.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import msgspec

from privml.backbones.digests import canonical_json, sha256
from privml.errors import Corrupt, Full, StorageError, UnsupportedError
from privml.protocols.fhe.concrete_ml.stand_ins import LIBRARIES, stand_in
from privml.storage import fs
from privml.storage.files import read_file
from privml.storage.publish import atomic_write

VERSION: Final = "1.9.0"
"""The release of concrete-ml."""

PYTHON: Final = (3, 11)
"""The locked versions are for this Python."""

VARIABLE: Final = "PRIVML_CONCRETE_ML"
"""Environment variable: a folder that ``install`` built, elsewhere than in the cache."""

COMMAND: Final = "privml fhe install-concrete-ml"

NEEDED_BYTES: Final = 5 << 30
"""Space that must be free; the environment takes 3 GB, and its packages pass through a cache."""

Say = Callable[[str], None]

_FOLDER: Final = Path(__file__).parent
_LOCKED: Final = _FOLDER / "locked.txt"
_RECORD: Final = "privml.json"
_BUILDING: Final = ".building-"
_INSTALL_S: Final = 3600.0
_LIMIT: Final = 1 << 24
_KEPT: Final = ("PATH", "HOME", "LANG", "LC_ALL", "SYSTEMROOT", "TMPDIR")
_PIP: Final = ("PIP_", "REQUESTS_", "SSL_", "HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY", "XDG_")


class Record(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What an environment says of itself.

    Attributes
    ----------
    locked
        SHA-256 of the locked versions it was built from.
    installed
        SHA-256 over the lists of files and their digests that pip left for each package.
    stand_ins
        Whether CUDA libraries were replaced by stand-ins.
    """

    locked: str
    installed: str
    stand_ins: bool


@dataclass(frozen=True)
class Environment:
    """An environment that is whole."""

    folder: Path
    record: Record

    @property
    def python(self) -> Path:
        """Its interpreter."""
        return self.folder / "bin" / "python"


def place() -> Path:
    """Return the folder where the environment of these locked versions belongs."""
    chosen = os.environ.get(VARIABLE, "")
    if chosen:
        return Path(chosen)
    base = Path(os.environ.get("XDG_CACHE_HOME", ""))
    cache = (base if base.is_absolute() else Path.home() / ".cache") / "privml"
    return cache / "environments" / f"concrete-ml-{VERSION}-{locked_digest()[:12]}"


def locked_digest() -> str:
    """Return the SHA-256 of the locked versions."""
    return sha256(read_file(_LOCKED, limit=_LIMIT))


def missing() -> str | None:
    """Return why models cannot be run under concrete-ml, or None. Starts nothing."""
    try:
        find()
    except (UnsupportedError, StorageError) as error:
        return str(error)
    return None


def find() -> Environment:
    """Return the environment.

    Raises
    ------
    UnsupportedError
        It was not built yet, or from other locked versions.
    Corrupt
        It is damaged.
    """
    folder = place()
    if not (folder / _RECORD).is_file():
        raise UnsupportedError(
            "scikit-learn models under encryption need the concrete-ml environment, which is not "
            f"there yet; build it with `{COMMAND}` (3 GB on disk, some minutes)"
        )
    try:
        record = msgspec.json.decode(read_file(folder / _RECORD, limit=_LIMIT), type=Record)
    except msgspec.DecodeError as error:
        raise Corrupt(f"{folder} has a damaged record; {_again(folder)}") from error
    if record.locked != locked_digest():
        raise UnsupportedError(
            f"{folder} was built from other versions than this privml needs; {_again(folder)}"
        )
    if record.installed != _installed_digest(folder):
        raise Corrupt(f"{folder} was changed after it was built; {_again(folder)}")
    return Environment(folder, record)


def install(*, python: Path | None = None, say: Say = lambda text: None) -> Environment:
    """Build the environment unless it is there; return it.

    Parameters
    ----------
    python
        A Python 3.11 to build it on; by default this one, or ``python3.11`` on the path.
    say
        Receives lines about the progress.

    Raises
    ------
    UnsupportedError
        There is no such Python, or a package could not be installed.
    Full
        There is too little space.
    Locked
        Another process is building it.

    Notes
    -----
    Cost: about 1.5 GB of downloads, 3 GB on disk and a few minutes. Needs a package registry, with
    pip's own configuration; everything after it needs no network.
    """
    target = place()
    fs.ensure_dir(target.parent)
    with fs.File.open(target.parent / ".install.lock", create=True) as lock:
        lock.lock()
        try:
            return find()
        except UnsupportedError:
            pass
        if fs.exists(target):
            if os.environ.get(VARIABLE) or (target / _RECORD).exists():
                raise StorageError(f"{target} is in the way; {_again(target)}")
            fs.remove_tree(target)  # what was left of a removal
        _sweep(target.parent)
        if fs.free_bytes(target.parent) < NEEDED_BYTES:
            raise Full(f"{target.parent} needs {NEEDED_BYTES / 1e9:.0f} GB of free space")
        return _build(target, python or _find_python(), say)


def remove() -> bool:
    """Remove the environment; return whether there was one."""
    target = place()
    if not fs.exists(target / _RECORD):
        return False
    fs.unlink(target / _RECORD)  # from here on it counts as absent
    fs.remove_tree(target)
    return True


def _build(target: Path, python: Path, say: Say) -> Environment:
    building = target.with_name(f"{_BUILDING}{os.urandom(8).hex()}")
    try:
        say(f"building concrete-ml {VERSION} in {target}")
        _run([str(python), "-m", "venv", str(building)])
        inner = str(building / "bin" / "python")
        say("installing packages (about 1.5 GB to download)")
        _run(
            [inner, "-m", "pip", "install", "--quiet", "--no-deps", "--only-binary", ":all:",
             "--no-input", "--disable-pip-version-check", "-r", str(_LOCKED)]
        )  # fmt: skip
        stand_ins = _stand_in(building)
        record = Record(locked_digest(), _installed_digest(building), stand_ins)
        _check(Environment(building, record), say)
        atomic_write(building / _RECORD, canonical_json(msgspec.to_builtins(record)))
        fs.rename(building, target)
        fs.sync_dir(target.parent)
    except BaseException:
        fs.remove_tree(building)
        raise
    say("the environment is ready")
    return Environment(target, record)


def _check(environment: Environment, say: Say) -> None:
    """Start a worker in it, so that an environment that does not work is never published."""
    from privml.protocols.fhe.concrete_ml.process import Role, Worker

    say("starting it once")
    with Worker(Role.BUILDER, environment=environment) as worker:
        found = worker.versions.get("concrete-ml")
    if found != VERSION:
        raise UnsupportedError(f"the environment holds concrete-ml {found}, not {VERSION}")


def _stand_in(folder: Path) -> bool:
    """Put stand-ins beside a CUDA build of torch, for the libraries that were left out."""
    for home in (folder / "lib").glob("python*/site-packages/torch/lib"):
        if (home / "libtorch_cuda.so").exists():
            for name, functions in LIBRARIES.items():
                atomic_write(home / name, stand_in(name, functions))
            return True
    return False


def _installed_digest(folder: Path) -> str:
    total = hashlib.sha256()
    lists = sorted((folder / "lib").glob("python*/site-packages/*.dist-info/RECORD"))
    for path in lists:
        total.update(hashlib.sha256(path.parent.name.encode()).digest())
        total.update(hashlib.sha256(read_file(path, limit=_LIMIT)).digest())
    return total.hexdigest()


def _find_python() -> Path:
    if sys.version_info[:2] == PYTHON:
        return Path(sys.executable)
    found = shutil.which(f"python{PYTHON[0]}.{PYTHON[1]}")
    if found is None:
        raise UnsupportedError(
            f"concrete-ml {VERSION} needs Python {PYTHON[0]}.{PYTHON[1]}, which is not on the "
            f"path; install it, or name it: `{COMMAND} --python PATH`"
        )
    return Path(found)


def _run(words: list[str]) -> None:
    kept = {
        name: value
        for name, value in os.environ.items()
        if name in _KEPT or name.upper().startswith(_PIP)
    }
    try:
        done = subprocess.run(
            words, env=kept, stdin=subprocess.DEVNULL, capture_output=True, timeout=_INSTALL_S
        )
    except subprocess.TimeoutExpired as error:
        raise UnsupportedError(
            f"`{' '.join(words[1:4])}` took more than {_INSTALL_S:.0f} s; try again"
        ) from error
    if done.returncode != 0:
        said = done.stderr.decode("utf-8", "replace").strip().splitlines()
        wrong = [line for line in said if "warning" not in line.lower()]
        raise UnsupportedError(
            f"`{' '.join(words[1:4])}` failed: {' '.join(wrong[-3:])[:600]}; check that a package "
            "registry can be reached, then try again"
        )


def _sweep(parent: Path) -> None:
    """Remove what a killed build left; the caller holds the lock."""
    for leftover in parent.glob(f"{_BUILDING}*"):
        fs.remove_tree(leftover)


def _again(folder: Path) -> str:
    return f"remove {folder} and build it again with `{COMMAND}`"
