"""Costs measured on one machine with one library version, and the file that keeps them.

Measured are tables as they stand in networks: behind a convolution, with rounding. Widths that were
not measured take the reference cost, times how much slower this machine is on those that were.

The file is canonical JSON and is read strictly: unknown fields, numbers out of range or a wrong
order are refused, since it may have been edited or cut.
"""

from __future__ import annotations

import math
import os
import platform
import statistics
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final

import msgspec

from privml.backbones.digests import canonical_json, sha256
from privml.errors import Corrupt, ParameterError
from privml.protocols.fhe.costs import (
    MAX_COST_BITS,
    Range,
    circuit_factor,
    reference_table_ms,
)
from privml.storage.files import read_file
from privml.storage.publish import atomic_write

FORMAT: Final = 1
MAX_FILE_BYTES: Final = 1 << 20
_MAX_MS: Final = 1e6
_LOW, _HIGH = 0.85, 1.2  # circuits differ that much from the measured one
_CPUINFO: Final = Path("/proc/cpuinfo")
_MEMINFO: Final = Path("/proc/meminfo")
_CGROUP: Final = Path("/sys/fs/cgroup")


@dataclass(frozen=True)
class MachineKey:
    """What a calibration holds for: processor, cores, library and its version."""

    processor: str
    cores: int
    library: str
    version: str

    def __post_init__(self) -> None:
        if not 1 <= self.cores <= 1 << 20:
            raise ParameterError(f"a machine has 1 to 2^20 cores, not {self.cores}")

    @classmethod
    def here(cls, *, library: str = "concrete-python", version: str) -> MachineKey:
        """Return the key of this machine."""
        return cls(processor(), usable_cores(), library, version)

    def file_name(self) -> str:
        """Return the name of the file that keeps the calibration."""
        return f"fhe-{sha256(canonical_json(asdict(self)))[:16]}.json"


@dataclass(frozen=True)
class Point:
    """One measured table cost c(t, p).

    Attributes
    ----------
    bits
        Bits of the table, 1 to 8.
    p_error
        Failure probability per table, 0 < p < 1.
    ms
        CPU milliseconds (user and system) per table: median of the runs.
    ms_low, ms_high
        Fastest and slowest run.
    keys_bytes, keys_loaded_bytes
        Evaluation keys, serialised and in memory; 0 where not measured.
    model_ms
        What :mod:`privml.protocols.fhe.work` says of the same run; 0 where not known.
    """

    bits: int
    p_error: float
    ms: float
    ms_low: float
    ms_high: float
    keys_bytes: int = 0
    keys_loaded_bytes: int = 0
    model_ms: float = 0.0

    def __post_init__(self) -> None:
        times = 0 < self.ms_low <= self.ms <= self.ms_high <= _MAX_MS
        keys = 0 <= self.keys_bytes < 1 << 50 and 0 <= self.keys_loaded_bytes < 1 << 50
        times = times and 0 <= self.model_ms <= _MAX_MS
        if not (1 <= self.bits <= MAX_COST_BITS and 0 < self.p_error < 1 and times and keys):
            raise ParameterError(
                f"{self!r} is no measurement; see its documentation for the ranges"
            )


class _File(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    format: int
    machine: MachineKey
    points: tuple[Point, ...]


@dataclass(frozen=True)
class Calibration:
    """Measured costs of one machine; points are unique and ordered by (bits, p_error)."""

    machine: MachineKey
    points: tuple[Point, ...]

    def __post_init__(self) -> None:
        points = tuple(sorted(self.points, key=lambda point: (point.bits, point.p_error)))
        if len({(point.bits, point.p_error) for point in points}) != len(points):
            raise ParameterError("a calibration has one point per number of bits and p_error")
        object.__setattr__(self, "points", points)

    def table_ms(self, bits: int, p_error: float) -> Range | None:
        """Return CPU milliseconds of a table inside a circuit, or None where none is known.

        The point of these bits nearest in ``log p_error`` is scaled by the reference costs; without
        one, the reference cost is scaled by the points there are.
        """
        wanted = reference_table_ms(bits, p_error)
        mine = [point for point in self.points if point.bits == bits]
        if not mine:
            return None if wanted is None else circuit_factor(bits) * (wanted * self.slowness)
        near = min(mine, key=lambda point: abs(math.log(point.p_error) - _log(p_error)))
        factor = 1.0
        if near.p_error != p_error:
            there = reference_table_ms(bits, near.p_error)
            if wanted is None or there is None:
                return None
            factor = wanted / there
        low, high = min(near.ms_low, near.ms * _LOW), max(near.ms_high, near.ms * _HIGH)
        return Range(low, near.ms, high) * factor

    @property
    def slowness(self) -> float:
        """Time of a table here over that on the reference machine; 1 where nothing is known."""
        ratios = [ratio for point in self.points if (ratio := _ratio(point)) is not None]
        return statistics.median(ratios) if ratios else 1.0

    @property
    def speed(self) -> float | None:
        """Measured time over that of the model of :mod:`privml.protocols.fhe.work`, or None."""
        known = [point for point in self.points if point.model_ms > 0]
        return statistics.median(p.ms / p.model_ms for p in known) if known else None

    def keys_mb(self, bits: int) -> tuple[float, float] | None:
        """Return evaluation keys in MB, compressed and loaded, or None where not measured."""
        for point in self.points:
            if point.bits == bits and point.keys_bytes and point.keys_loaded_bytes:
                return point.keys_bytes / 1e6, point.keys_loaded_bytes / 1e6
        return None

    def to_json(self) -> bytes:
        """Return the canonical JSON of the file."""
        return canonical_json(
            {
                "format": FORMAT,
                "machine": asdict(self.machine),
                "points": [asdict(point) for point in self.points],
            }
        )

    @classmethod
    def from_json(cls, data: bytes) -> Calibration:
        """Read the content of a file.

        Raises
        ------
        Corrupt
            It is not what :meth:`to_json` writes.
        """
        try:
            file = msgspec.json.decode(data, type=_File, strict=True)
            result = cls(file.machine, file.points)
            same = msgspec.json.decode(data) == msgspec.json.decode(result.to_json())
        except (msgspec.DecodeError, ParameterError, RecursionError, ValueError) as error:
            raise Corrupt(f"the calibration is not valid: {error}; calibrate again") from error
        if file.format != FORMAT:
            raise Corrupt(f"the calibration has format {file.format}; calibrate again")
        if not same:
            raise Corrupt("the calibration has unknown fields or a wrong order; calibrate again")
        return result

    def save(self, directory: Path) -> Path:
        """Write the file of this machine into ``directory``, durably; return its path.

        Raises
        ------
        StorageError
            It could not be written.
        """
        path = directory / self.machine.file_name()
        atomic_write(path, self.to_json())
        return path


def load_calibration(directory: Path, machine: MachineKey) -> Calibration | None:
    """Return the calibration of ``machine`` kept in ``directory``, or None if there is none.

    Raises
    ------
    Corrupt
        The file is damaged or belongs to another machine.
    """
    path = directory / machine.file_name()
    if not path.exists():
        return None
    found = Calibration.from_json(read_file(path, limit=MAX_FILE_BYTES))
    if found.machine != machine:
        raise Corrupt(f"{path} was measured on another machine; calibrate again")
    return found


def processor() -> str:
    """Return the processor's name."""
    if _CPUINFO.is_file():
        for line in _CPUINFO.read_text(encoding="utf-8", errors="replace").splitlines():
            key, _, value = line.partition(":")
            if key.strip() == "model name":
                return value.strip()
    return platform.machine()


def usable_cores() -> int:
    """Return the cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def available_memory() -> int:
    """Return the bytes that a new process could take, by the system and by the group's limit."""
    free = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    if _MEMINFO.is_file():
        for line in _MEMINFO.read_text(encoding="ascii", errors="replace").splitlines():
            key, _, value = line.partition(":")
            if key == "MemAvailable":
                free = 1024 * int(value.split()[0])
    limit, used = (_number(_CGROUP / name) for name in ("memory.max", "memory.current"))
    return free if limit is None or used is None else max(min(free, limit - used), 0)


def _number(path: Path) -> int | None:
    if not path.is_file():
        return None
    text = path.read_text(encoding="ascii", errors="replace").strip()
    return int(text) if text.isdecimal() else None


def _ratio(point: Point) -> float | None:
    """Return how much slower this machine is than the reference, by one point."""
    known = reference_table_ms(point.bits, point.p_error)
    return None if known is None else point.ms / (known * circuit_factor(point.bits).expected)


def _log(p_error: float) -> float:
    return math.log(max(p_error, 2.0**-60))
