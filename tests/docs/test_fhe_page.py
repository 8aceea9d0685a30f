"""docs/fhe.md: its example runs on JPEG files, encrypted where concrete-python is installed."""

from __future__ import annotations

import re
import runpy
from pathlib import Path

import numpy as np
import pytest

from privml.protocols.fhe import toolkit
from privml.testing.jpegs import encode, picture

PAGE = Path(__file__).resolve().parents[2] / "docs" / "fhe.md"


def example() -> str:
    (code,) = re.findall(r"```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.S)
    return str(code)


@pytest.mark.filterwarnings("ignore::privml.protocols.fhe.toolkit.LicenceNotice")
def test_the_ten_lines(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("jpeglib", reason="reading coefficients needs jpeglib (extra: jpeg)")
    (tmp_path / "photos").mkdir()
    for number in range(6):
        image = np.ascontiguousarray(picture((40, 36), number))
        (tmp_path / "photos" / f"{number}.jpg").write_bytes(encode(image))
    monkeypatch.chdir(tmp_path)
    code = example()
    if toolkit.missing() is not None:
        code = code.replace("model.compile(plan).run(files[:2], mode=\"execute\")",
                            "model.run(files[:2], mode=\"simulate\")")  # fmt: skip
        assert "execute" not in code
    (tmp_path / "ten_lines.py").write_text(code, encoding="utf-8")
    runpy.run_path(str(tmp_path / "ten_lines.py"))
    said = capsys.readouterr().out
    assert "core-seconds" in said
    assert "Zama" in said


def test_the_page_warns_of_licence_and_trust() -> None:
    text = " ".join(PAGE.read_text(encoding="utf-8").split())
    for words in ("no patent licence", "semi-honest", "IND-CPA-D", "share_results: forbidden",
                  "space-to-depth", "heuristic"):  # fmt: skip
        assert words in text


def test_the_example_is_ten_lines() -> None:
    lines = [line for line in example().splitlines() if line.strip()]
    assert len(lines) <= 10
    assert all(";" not in line and len(line) <= 100 for line in lines)
