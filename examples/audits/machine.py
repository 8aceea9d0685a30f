"""What an audit ran on: processor, versions, load, threads, date."""

from __future__ import annotations

import os
import platform
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path

PACKAGES = ("privml", "torch", "numpy", "cryptography", "safetensors", "tokenizers", "msgspec",
            "scikit-learn")  # fmt: skip
TUNING = ("OPENBLAS_CORETYPE", "OPENBLAS_L2_SIZE", "OMP_NUM_THREADS", "PRIVML_KERNELS")


def cpu_model() -> str:
    """Return the processor's name as the operating system gives it."""
    info = Path("/proc/cpuinfo")
    if info.is_file():
        for line in info.read_text(encoding="utf-8", errors="replace").splitlines():
            key, _, value = line.partition(":")
            if key.strip() == "model name":
                return value.strip()
    return platform.processor() or platform.machine()


def usable_cores() -> int:
    """Return the number of cores this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def versions(packages: tuple[str, ...] = PACKAGES) -> dict[str, str | None]:
    """Return the installed version of each package, ``None`` for one that is absent."""
    found: dict[str, str | None] = {}
    for package in packages:
        try:
            found[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            found[package] = None
    return found


def kernels() -> str:
    """Return which native kernels run, or why none do."""
    try:
        from privml import _native
    except ImportError as error:
        return f"none: {error}"
    backend = _native.backend()
    return f"{backend.name} {backend.isa} {backend.reason}".strip()


def environment(*, threads: int) -> dict[str, object]:
    """Return the description of machine and software that goes with every report.

    Parameters
    ----------
    threads
        Threads each party was given.
    """
    return {
        "cpu_model": cpu_model(),
        "cores": usable_cores(),
        "python": platform.python_version(),
        "platform": platform.platform(),
        "versions": versions(),
        "kernels": kernels(),
        "load_average": list(os.getloadavg()),
        "threads": threads,
        "tuning": {name: os.environ[name] for name in TUNING if name in os.environ},
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
    }
