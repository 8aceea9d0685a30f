"""``privml doctor``: what this machine has for the main job, and what it lacks."""

from __future__ import annotations

import os
import platform
import tempfile
import warnings
from dataclasses import asdict, dataclass
from importlib import metadata
from pathlib import Path

import privml
from privml._cli import machine
from privml._cli.output import Output
from privml._cli.tables import facts, megabytes
from privml.errors import ParameterError, PrivmlError

_PACKAGES = (
    "cryptography", "msgspec", "numpy", "rich", "safetensors", "tokenizers", "torch", "typer",
)  # fmt: skip
_NEED_FREE = 2 << 30
_MODEL_FIX = (
    "pass --model minilm-l6, or a directory with config.json, model.safetensors and tokenizer.json"
)


@dataclass(frozen=True)
class Check:
    """One finding: its name, whether it is fine, what was found, and what to do if not."""

    name: str
    ok: bool
    found: str
    fix: str = ""


def run(out: Output, *, model: str) -> int:
    """Print every finding; the exit code is 3 if one of them stops the main job."""
    checks = [_python(), *_packages(), _kernels(), _machine(), _room(), _state(), _model(model)]
    healthy = all(check.ok for check in checks)
    out.document({
        "ok": healthy, "version": privml.__version__, "checks": [asdict(c) for c in checks]
    })  # fmt: skip
    rows = [(c.name, c.found if c.ok else f"PROBLEM: {c.found}; {c.fix}") for c in checks]
    out.show(facts(f"privml {privml.__version__}", rows))
    out.note("all is well" if healthy else "something is missing, see PROBLEM above")
    return 0 if healthy else ParameterError.exit_code


def _python() -> Check:
    found = f"{platform.python_version()} on {platform.system()} {platform.machine()}"
    return Check("python", True, found)


def _packages() -> list[Check]:
    checks = []
    for name in _PACKAGES:
        try:
            checks.append(Check(name, True, metadata.version(name)))
        except metadata.PackageNotFoundError:
            checks.append(Check(name, False, "not installed", f"run: pip install {name}"))
    return checks


def _kernels() -> Check:
    from privml import _native

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            backend = _native.backend()
        except ParameterError as error:
            return Check("kernels", False, str(error), "unset the variable")
    names = ("AVX2", "AVX512", "AESNI", "VAES256", "VAES512")
    bits = (_native.AVX2, _native.AVX512, _native.AESNI, _native.VAES256, _native.VAES512)
    usable = [name for name, bit in zip(names, bits, strict=True) if _native.features() & bit]
    found = f"{backend.name}, {backend.isa} ({backend.reason})"
    if usable:
        found += f"; processor has {' '.join(usable)}"
    fine = backend.name == "native" or os.environ.get("PRIVML_KERNELS") == "reference"
    return Check("kernels", fine, found, "build the library with a C++20 compiler: pip install .")


def _machine() -> Check:
    cores = len(os.sched_getaffinity(0))
    total, free = machine.memory_bytes(), machine.unused_bytes()
    found = f"{cores} cores, {megabytes(total / 1e6)} memory, {megabytes(free / 1e6)} unused"
    return Check("machine", True, found)


def _room() -> Check:
    from privml.storage import fs

    folder = Path(tempfile.gettempdir())
    free = fs.free_bytes(folder)
    return Check("temporary files", free >= _NEED_FREE, f"{megabytes(free / 1e6)} free in {folder}",
                 "set TMPDIR to a directory with at least 2 GB")  # fmt: skip


def _state() -> Check:
    from privml.protocols.mpc.correlations.used import default_directory

    folder = default_directory()
    at = folder
    while not at.exists() and at.parent != at:
        at = at.parent
    return Check("log of used pools", os.access(at, os.W_OK), str(folder),
                 "make it writable, or pass --used DIR")  # fmt: skip


def _model(name: str) -> Check:
    from privml.backbones.loader import load_encoder

    label = f"model {name}"
    try:
        encoder = load_encoder(name)
    except PrivmlError as error:
        return Check(label, False, str(error), _MODEL_FIX)
    c = encoder.config
    found = f"{c.layers} layers, width {c.hidden}, texts up to {c.max_length} tokens; digests match"
    if encoder.tokenizer is None:
        return Check(label, False, "no tokenizer", "add tokenizer.json or vocab.txt")
    return Check(label, True, found)
