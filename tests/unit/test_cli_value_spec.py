"""Spec files and tables of ``privml value``: every mistake is named with line, key and remedy."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from privml._cli.value_data import load_table, read_sheet
from privml._cli.value_keys import SECTIONS
from privml._cli.value_spec import read_spec
from privml.errors import SchemaError

DATA = '[data]\ntrain = "t.csv"\nvalidation = "v.csv"\ntarget = "y"\n'
ROWS = "id,a,b,y\nr1,1,2,x\nr2,3,5,z\nr3,0,1,x\n"


def spec(folder: Path, text: str, **files: str) -> Path:
    for name, content in {"t": ROWS, "v": ROWS, **files}.items():
        (folder / f"{name}.csv").write_text(content, encoding="utf-8")
    path = folder / "spec.toml"
    path.write_text(text, encoding="utf-8")
    return path


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (DATA + "[run]\nsede = 1\n", ["line 6", "sede", "[run] takes seed, jobs"]),
        (DATA + "[runs]\n", ["line 5", "unknown section [runs]", "[data]"[1:-1]]),
        ("seed = 1\n" + DATA, ["line 1", "outside of a section"]),
        (DATA + "[run]\nseed = -1\n", ["line 6", "seed = -1", "at least 0"]),
        (DATA + "[run]\nseed = true\n", ["seed = true", "whole number"]),
        (DATA + "[run]\nseed = 1.5\n", ["seed = 1.5", "whole number"]),
        (DATA + '[stop]\nevaluations = "200"\n', ["evaluations", '"200n"']),
        (DATA + '[stop]\nevaluations = "0n"\n', ["evaluations", '"200n"']),
        (DATA + "[stop]\nstderr = 0\n", ["stderr = 0", "above 0"]),
        (DATA + "[stop]\nseconds = inf\n", ["seconds = inf", "above 0"]),
        (DATA + '[utility]\nmodel = "svm"\n', ["line 6", "'svm'", '"ridge", "logistic"']),
        (DATA + '[utility]\nempty = "zero"\n', ['"chance", "majority" or a number']),
        (DATA.replace('target = "y"', ""), ["target is missing"]),
        (DATA + "[data", ["no TOML"]),
        (DATA + "[report]\ncurves = 1\n", ["curves = 1", "true or false"]),
        (DATA + '[run]\n"seed" = "a"\n', ["line 6", "'a'"]),
    ],
)
def test_mistakes_are_named(tmp_path: Path, text: str, words: list[str]) -> None:
    with pytest.raises(SchemaError) as caught:
        read_spec(spec(tmp_path, text))
    message = str(caught.value)
    assert [word for word in words if word not in message] == []


def test_no_bytes_that_are_no_text(tmp_path: Path) -> None:
    path = tmp_path / "s.toml"
    path.write_bytes(b"\xff\xfe")
    with pytest.raises(SchemaError, match="UTF-8"):
        read_spec(path)


def test_defaults_and_given_keys(tmp_path: Path) -> None:
    found = read_spec(spec(tmp_path, DATA + "[topm]\nm = 3\nwidth = 2\n"))
    assert found["topm"]["m"] == 3
    assert found["topm"]["width"] == 2.0
    assert found["utility"]["model"] == "ridge"
    assert found.given["topm"] == ("m", "width")
    assert set(found.sections) == set(SECTIONS)


def test_a_table_is_scaled_on_the_training_rows(tmp_path: Path) -> None:
    table = load_table(read_spec(spec(tmp_path, DATA + 'id = "id"\n', v="id,a,b,y\nq,9,9,x\n")))
    np.testing.assert_allclose(table.problem.X.mean(axis=0), 0, atol=1e-12)
    np.testing.assert_allclose(table.problem.X.std(axis=0), 1)
    assert table.problem.ids == ("r1", "r2", "r3")
    assert table.problem.X_val[0, 0] > 5


@pytest.mark.parametrize(
    ("rows", "more", "words"),
    [
        (ROWS.replace("3,5", "3,red"), "", "t.csv, line 3: b holds 'red', not a number"),
        (ROWS.replace("3,5", "3,"), "", "t.csv, line 3: b is missing"),
        (ROWS.replace("3,5", "3,NaN"), "", "line 3: b is missing"),
        (ROWS.replace("5,z", "5,"), 'missing = "mean"\n', "line 3: y is missing"),
        (ROWS.replace("r2", "r1"), "", "r1' stood in line 2"),
        (ROWS.replace("3,5,z", "3,5"), "", "t.csv, line 3: 3 cells, 4 expected"),
        ("id,a,a,y\nr,1,2,x\n", "", "distinct column names"),
        ("id,a,b,y\n", "", "at least one row"),
        ("", "", "distinct column names"),
        (ROWS.replace("3,5", '3,"5'), "", "line"),
        (ROWS, 'group = "site"\n', "no column 'site'"),
        (ROWS, 'features = ["y"]\n', "target or id"),
    ],
)
def test_tables_that_do_not_fit(tmp_path: Path, rows: str, more: str, words: str) -> None:
    with pytest.raises(SchemaError) as caught:
        load_table(read_spec(spec(tmp_path, DATA + 'id = "id"\n' + more, t=rows)))
    assert words in str(caught.value)


def test_missing_cells_are_dropped_or_filled_when_asked(tmp_path: Path) -> None:
    rows = ROWS + "r4,,4,z\n"
    head = DATA + 'id = "id"\nscale = "none"\n'
    dropped = load_table(read_spec(spec(tmp_path, head + 'missing = "drop"\n', t=rows)))
    assert dropped.problem.ids == ("r1", "r2", "r3")
    filled = load_table(read_spec(spec(tmp_path, head + 'missing = "mean"\n', t=rows)))
    assert filled.problem.X[3].tolist() == [pytest.approx(4 / 3), 4.0]
    assert any("mean" in note for note in filled.notes)


def test_categories_are_one_column_each(tmp_path: Path) -> None:
    rows = "a,colour,y\n1,red,x\n2,blue,z\n"
    held = "a,colour,y\n1,green,x\n"
    head = DATA + 'categories = ["colour"]\nscale = "none"\n'
    table = load_table(read_spec(spec(tmp_path, head, t=rows, v=held)))
    assert table.features == ["a", "colour=blue", "colour=red"]
    assert table.problem.X.tolist() == [[1, 0, 1], [2, 1, 0]]
    assert table.problem.X_val.tolist() == [[1, 0, 0]]
    assert any("green" in note for note in table.notes)


def test_validation_rows_can_be_drawn(tmp_path: Path) -> None:
    rows = "a,y\n" + "".join(f"{k},{'xz'[k % 2]}\n" for k in range(20))
    head = DATA.replace('validation = "v.csv"', "validation_share = 0.25")
    one = load_table(read_spec(spec(tmp_path, head, t=rows)))
    two = load_table(read_spec(spec(tmp_path, head, t=rows)))
    other = load_table(read_spec(spec(tmp_path, head + "[run]\nseed = 4\n", t=rows)))
    assert (one.problem.n, len(one.problem.X_val)) == (15, 5)
    assert one.problem.digest() == two.problem.digest() != other.problem.digest()
    both = head + 'validation = "v.csv"\n'
    with pytest.raises(SchemaError, match="either"):
        load_table(read_spec(spec(tmp_path, both, t=rows)))


def test_groups_sources_and_players_left_out(tmp_path: Path) -> None:
    rows = "a,site,y\n1,s1,x\n2,s2,z\n3,s1,x\n7,s3,z\n"
    head = DATA + 'group = "site"\nsource = "site"\n'
    found = read_spec(spec(tmp_path, head, t=rows, v="a,y\n1,x\n2,z\n"))
    table = load_table(found)
    assert table.problem.ids == ("s1", "s2", "s3")
    assert table.labels == ["2 rows", "1 rows", "1 rows"]
    less = load_table(found, without=["s3"]).problem
    assert less.ids == ("s1", "s2")
    assert less.X.mean() == pytest.approx(0)  # the scaler has not seen s3


def test_a_spreadsheet_mark_at_the_start_is_no_part_of_a_name(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    path.write_bytes(b"\xef\xbb\xbfa,y\r\n1,x\r\n")
    assert list(read_sheet(path).columns) == ["a", "y"]
