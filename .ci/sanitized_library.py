"""Pytest plugin: take the native library that ``PRIVML_SANITIZED`` names, and no other."""

import os
from collections.abc import Iterator
from pathlib import Path

from privml import _native


def _only() -> Iterator[Path]:
    yield Path(os.environ["PRIVML_SANITIZED"])


_native._candidates = _only

_loaded = _native.load()
if _loaded is None or _loaded._name != os.environ["PRIVML_SANITIZED"]:
    raise SystemExit("the sanitized library could not be loaded")
