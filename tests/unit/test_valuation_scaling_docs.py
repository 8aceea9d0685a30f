"""The page on choosing, weighing and collecting rows runs from top to bottom."""

from __future__ import annotations

import re
import runpy
from pathlib import Path

import pytest

PAGE = Path(__file__).resolve().parents[2] / "docs" / "valuation-select.md"


def test_the_page_runs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    blocks = re.findall(r"```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.S)
    script = tmp_path / "page.py"
    script.write_text("\n".join(blocks), encoding="utf-8")
    names = runpy.run_path(str(script))
    assert names["plan"].cost <= 2_000
    assert names["cheapest"].score >= 8
    assert names["report"].advice in capsys.readouterr().out
