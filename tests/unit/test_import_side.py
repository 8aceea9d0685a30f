"""Importing privml has no side effects, and what must work without torch does not load it."""

from __future__ import annotations

import json
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

import privml

CORE = (
    "privml",
    "privml._native",
    "privml._typing",
    "privml.audit",
    "privml.errors",
    "privml.fixedpoint",
    "privml.handshake",
    "privml.meter",
    "privml.params",
    "privml.party",
    "privml.rings",
    "privml.rng",
    "privml.rounds",
    "privml.session",
    "privml.storage.fs",
    "privml.transcript",
    "privml.transport.memory",
    "privml.transport.tls",
    "privml.wire",
)
LIGHT = (*CORE, "privml.cli", "privml.protocols.mpc", "privml.unlearning", "privml.valuation")

# Runs in a fresh interpreter: imports one module and reports what else that did.
PROBE = """
import importlib, json, logging, os, sys, threading
before = dict(os.environ), os.getcwd(), len(logging.getLogger().handlers)
importlib.import_module(sys.argv[1])
after = dict(os.environ), os.getcwd(), len(logging.getLogger().handlers)
print(json.dumps({
    "modules": sorted({name.partition(".")[0] for name in sys.modules}),
    "threads": threading.active_count(),
    "unchanged": before == after,
}))
"""


def existing(names: tuple[str, ...]) -> list[str]:
    """Keep the modules whose file is there, without importing anything."""
    root = Path(privml.__file__).parent.parent
    stems = [(name, root.joinpath(*name.split("."))) for name in names]
    return [n for n, s in stems if s.with_suffix(".py").is_file() or (s / "__init__.py").is_file()]


def probe(module: str) -> dict[str, object]:
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", PROBE, module],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    report: dict[str, object] = json.loads(done.stdout)
    return report


@pytest.mark.parametrize("module", existing(LIGHT))
def test_light_module_loads_alone_without_torch_or_side_effects(module: str) -> None:
    report = probe(module)
    loaded = report["modules"]
    assert isinstance(loaded, list)
    assert not {"torch", "sklearn", "scipy", "matplotlib", "transformers"} & set(loaded)
    assert not {"protocols", "unlearning", "valuation"} & set(loaded)
    assert report["threads"] == 1
    assert report["unchanged"]


def test_the_top_package_loads_no_third_party_module_and_knows_its_version() -> None:
    loaded = probe("privml")["modules"]
    assert isinstance(loaded, list)
    assert not {"numpy", "cryptography", "msgspec", "typer"} & set(loaded)
    assert privml.__version__.count(".") == 2


def test_the_probe_notices_a_heavy_import() -> None:
    loaded = probe("numpy")["modules"]
    assert isinstance(loaded, list)
    assert "numpy" in loaded


def test_the_areas_are_reached_through_the_links() -> None:
    for area in ("protocols", "unlearning", "valuation"):
        spec = find_spec(f"privml.{area}")
        assert spec is not None
        assert spec.name == f"privml.{area}"
