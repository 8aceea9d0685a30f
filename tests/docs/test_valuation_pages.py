"""The pages on valuation: their Python runs, their specs are valid, their commands exist."""

from __future__ import annotations

import re
import runpy
from pathlib import Path

import pytest

from privml._cli.value import value
from privml._cli.value_spec import read_spec

ROOT = Path(__file__).resolve().parents[2]
PAGES = sorted((ROOT / "docs").glob("valuation*.md"))
OURS = [page for page in PAGES if page.name != "valuation-select.md"]


def blocks(page: Path, language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", page.read_text(encoding="utf-8"), re.S)


@pytest.mark.parametrize("page", OURS, ids=lambda page: page.name)
def test_snippets_run(page: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code = "\n".join(blocks(page, "python"))
    assert code
    script = tmp_path / "page.py"
    script.write_text(code, encoding="utf-8")
    runpy.run_path(str(script))
    assert "nan" not in capsys.readouterr().out


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_specs_are_valid(page: Path, tmp_path: Path) -> None:
    for text in blocks(page, "toml"):
        head = "" if "[data]" in text else '[data]\ntrain = "t"\ntarget = "y"\n'
        path = tmp_path / "spec.toml"
        path.write_text(head + text, encoding="utf-8")
        assert read_spec(path).sections


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_commands_exist(page: Path) -> None:
    known = {
        command.name or str(command.callback and command.callback.__name__)
        for command in value.registered_commands
    }
    used = re.findall(r"privml\s+value ([a-z-]+)", page.read_text(encoding="utf-8"))
    assert set(used) <= known
