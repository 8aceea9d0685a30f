"""Kept calibrations: one file per machine and library version, read back only where they fit."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from privml.errors import Corrupt, ParameterError
from privml.protocols.fhe.calibration import (
    Calibration,
    MachineKey,
    Point,
    available_memory,
    load_calibration,
)
from privml.protocols.fhe.costs import Range

KEY = MachineKey("processor", 2, "concrete-python", "2.11.0")
POINTS = tuple(Point(bits, 0.01, 20.0 + bits, 20.0, 30.0 + bits) for bits in (7, 3, 5))


def test_a_saved_calibration_comes_back(tmp_path: Path) -> None:
    made = Calibration(KEY, POINTS)
    assert [point.bits for point in made.points] == [3, 5, 7]
    assert load_calibration(tmp_path, KEY) is None
    path = made.save(tmp_path)
    assert load_calibration(tmp_path, KEY) == made
    assert path.parent == tmp_path
    assert path.read_bytes() == made.to_json()
    made.save(tmp_path)  # measured again


@pytest.mark.parametrize(
    "other",
    [
        replace(KEY, cores=3),
        replace(KEY, version="2.12.0"),
        replace(KEY, processor="other"),
        replace(KEY, library="else"),
    ],
)
def test_other_machines_and_versions_have_other_files(tmp_path: Path, other: MachineKey) -> None:
    path = Calibration(KEY, POINTS).save(tmp_path)
    assert load_calibration(tmp_path, other) is None
    (tmp_path / other.file_name()).write_bytes(path.read_bytes())
    with pytest.raises(Corrupt, match="another machine"):
        load_calibration(tmp_path, other)


def test_a_damaged_file_is_refused(tmp_path: Path) -> None:
    path = Calibration(KEY, POINTS).save(tmp_path)
    path.write_bytes(path.read_bytes()[:-3])
    with pytest.raises(Corrupt, match="calibrate again"):
        load_calibration(tmp_path, KEY)
    path.write_bytes(b" " * (2 << 20))
    with pytest.raises(Corrupt, match="more than"):
        load_calibration(tmp_path, KEY)


def test_the_nearest_probability_is_scaled() -> None:
    points = (Point(6, 0.01, 54.0, 54.0, 54.0), Point(6, 2.0**-40, 1000.0, 900.0, 1100.0))
    made = Calibration(KEY, points)
    assert made.table_ms(6, 0.01) == Range(0.85 * 54.0, 54.0, 1.2 * 54.0)
    other = made.table_ms(6, 0.05)
    assert other is not None
    assert other.expected == pytest.approx(54 * 24.5 / 27)
    assert made.table_ms(6, 2.0**-40) == Range(850.0, 1000.0, 1200.0)
    assert Calibration(KEY, (Point(6, 0.01, 50.0, 20.0, 90.0),)).table_ms(6, 0.01) == Range(
        20, 50, 90
    )
    assert Calibration(KEY, (Point(8, 0.01, 200, 200, 200),)).table_ms(8, 2.0**-40) is None


def test_other_widths_are_scaled_by_what_was_measured() -> None:
    made = Calibration(KEY, (Point(6, 0.01, 68.04, 68.0, 68.1, model_ms=22.68),))
    assert made.slowness == pytest.approx(2.0)
    assert made.speed == pytest.approx(3.0)
    five = made.table_ms(5, 0.01)
    assert five is not None
    assert five.expected == pytest.approx(2.0 * 22.6 * 0.97)
    assert made.table_ms(8, 2.0**-40) is None
    empty = Calibration(KEY, ())
    assert (empty.slowness, empty.speed) == (1.0, None)


def test_points_are_unique() -> None:
    with pytest.raises(ParameterError, match="one point"):
        Calibration(KEY, (*POINTS, POINTS[0]))
    with pytest.raises(ParameterError, match="no measurement"):
        Point(6, 0.01, 10.0, 11.0, 12.0)


def test_this_machine_has_a_key_and_memory() -> None:
    key = MachineKey.here(version="2.11.0")
    assert key.cores >= 1
    assert key.processor
    assert key.file_name() == MachineKey.here(version="2.11.0").file_name()
    assert available_memory() > 0
