"""The documents keep their word: links lead somewhere, examples name what exists, doctests pass."""

from __future__ import annotations

import ast
import doctest
import importlib
import os
import re
import runpy
import textwrap
from pathlib import Path

import pytest

import privml

ROOT = Path(__file__).resolve().parents[2]
PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")])
TARGETS = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.M))


def name(page: Path) -> str:
    return page.relative_to(ROOT).as_posix()


def python_blocks(page: Path) -> list[str]:
    text = page.read_text(encoding="utf-8")
    return [textwrap.dedent(b) for b in re.findall(r"```python\n(.*?)```", text, re.S)]


def missing_names(code: str) -> list[str]:
    """Return what the code takes from privml and does not get there."""
    tree = ast.parse(code)
    missing, modules = [], {}
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("privml"):
            for alias in node.names:
                found = resolve(str(node.module), alias.name)
                modules[alias.asname or alias.name] = found
                if found is None:
                    missing.append(f"{node.module}.{alias.name}")
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
            owner = modules.get(node.value.id)
            if owner is not None and not hasattr(owner, node.attr):
                missing.append(f"{node.value.id}.{node.attr}")
    return missing


def resolve(module: str, member: str) -> object | None:
    try:
        return getattr(importlib.import_module(module), member, None) or importlib.import_module(
            f"{module}.{member}"
        )
    except ImportError:
        return None


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_links_lead_to_files(page: Path) -> None:
    links = re.findall(r"\]\(([^)#\s]+)(?:#[^)]*)?\)", page.read_text(encoding="utf-8"))
    local = [link for link in links if "://" not in link]
    assert [link for link in local if not (page.parent / link).exists()] == []


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_python_examples_name_what_exists(page: Path) -> None:
    assert [m for block in python_blocks(page) for m in missing_names(block)] == []


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_make_targets_exist(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    used = set(re.findall(r"(?:`|\$ )make ([a-z-]+)", text))
    assert used <= TARGETS


def test_a_missing_name_is_noticed() -> None:
    code = "from privml import errors, nowhere\nerrors.Corrupt\nerrors.Nothing\n"
    assert missing_names(code) == ["privml.nowhere", "errors.Nothing"]


def modules() -> dict[str, str]:
    """Return every module and its text, found through the links and without importing it."""
    top = Path(privml.__file__).parent
    found = {}
    for folder, _, files in os.walk(top, followlinks=True):
        for file in files:
            if file.endswith(".py"):
                path = Path(folder, file)
                parts = path.relative_to(top.parent).with_suffix("").parts
                key = ".".join(part for part in parts if part != "__init__")
                found[key] = path.read_text(encoding="utf-8")
    return found


@pytest.mark.parametrize("module", sorted(m for m, text in modules().items() if ">>> " in text))
def test_doctests(module: str) -> None:
    result = doctest.testmod(importlib.import_module(module))
    assert result.attempted > 0
    assert result.failed == 0


def test_module_walk_follows_the_links() -> None:
    assert {"privml.protocols.mpc", "privml.errors", "privml.valuation"} <= modules().keys()


def test_the_table_of_errors_is_complete() -> None:
    page = runpy.run_path(str(ROOT / ".ci" / "errors_page.py"))["page"]()
    assert page == (ROOT / "docs" / "errors.md").read_text(encoding="utf-8"), (
        "run: python .ci/errors_page.py > docs/errors.md"
    )
    assert page.count("\n| `") > 25
