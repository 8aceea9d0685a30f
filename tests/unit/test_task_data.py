"""Headers and classes of task data: nothing is dropped silently, errors name line, class, fix."""

from __future__ import annotations

from pathlib import Path

import pytest

from privml.errors import Corrupt, ParameterError
from privml.protocols.cipherprune import TaskData

CLASSES = ("neg", "pos")


def read(path: Path, text: str, **options: object) -> TaskData:
    path.write_text(text, encoding="utf-8")
    return TaskData.from_tsv(path, **options)  # type: ignore[arg-type]


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "t.tsv"


@pytest.mark.parametrize(
    "line",
    ["text\tlabel", "sentence\tlabel", "Sentence\tClass", " TEXT \t class", "text\tlabel\r"],
)
def test_a_line_that_names_the_columns_is_a_header(file: Path, line: str) -> None:
    data = read(file, f"{line}\nfine\tpos\n", classes=CLASSES)
    assert data.texts == ("fine",)


def test_a_mark_of_the_byte_order_is_no_part_of_the_first_line(file: Path) -> None:
    assert read(file, "\ufefftext\tlabel\na\t1\n").texts == ("a",)
    assert read(file, "\ufeffa\t1\n").texts == ("a",)


@pytest.mark.parametrize("line", ["a film\tPositive", "review\tlabel", "text\tscore", "a\tlabel"])
def test_a_first_line_with_an_unknown_class_is_an_error(file: Path, line: str) -> None:
    name = line.rpartition("\t")[2]
    with pytest.raises(Corrupt) as error:
        read(file, f"{line}\nfine\tpos\n", classes=CLASSES)
    said = str(error.value)
    assert "t.tsv, line 1: " in said
    assert f"the class {name!r} is unknown" in said
    assert "or one of neg, pos" in said
    assert "header=True" in said
    assert read(file, f"{line}\nfine\tpos\n", classes=CLASSES, header=True).texts == ("fine",)


def test_a_class_called_label_is_a_class(file: Path) -> None:
    data = read(file, "text\tlabel\na\tother\n", classes=("label", "other"))
    assert data.labels.tolist() == [0, 1]


def test_headers_can_be_said_to_be_there_or_not(file: Path) -> None:
    assert read(file, "a\t0\nb\t1\n", header=True).texts == ("b",)
    assert read(file, "a\t0\nb\t1\n", header=False).texts == ("a", "b")
    with pytest.raises(Corrupt, match="line 1: the class 'label'"):
        read(file, "text\tlabel\na\t1\n", header=False)
    with pytest.raises(ParameterError, match="header = 'yes'"):
        read(file, "a\t0\n", header="yes")
    with pytest.raises(ParameterError, match="no rows"):
        read(file, "a\t0\n", header=True)


def test_later_lines_are_named_without_advice_on_headers(file: Path) -> None:
    with pytest.raises(Corrupt, match="line 3: the class 'maybe'") as error:
        read(file, "text\tlabel\na\tpos\nb\tmaybe\n", classes=CLASSES)
    assert "header" not in str(error.value)
    with pytest.raises(Corrupt, match="line 11: the class"):
        read(file, "a\t0\n" * 10 + "b\tx\n")
    with pytest.raises(Corrupt, match="line 2: there is no tab"):
        read(file, "a\t0\nno tab here\n")
    with pytest.raises(Corrupt, match="give the names of the classes") as error:
        read(file, f"a\t{'x' * 500}\n")
    assert len(str(error.value)) < 300
