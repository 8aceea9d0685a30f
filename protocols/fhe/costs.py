"""What one table costs: reference figures, and how they scale.

Reference machine: 2 shared cores of an x86-64 server with AVX2, concrete-python 2.10, CPU
milliseconds per table in batches of 32. Whole circuits cost more or less per table than isolated
ones; the factors below are what digits networks took. :class:`~.calibration.Calibration` replaces
the figures by those of this machine.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import pairwise
from typing import Final

MAX_COST_BITS: Final = 8
"""Widest table with a known cost."""

_COLUMNS: Final = (0.05, 0.01, 2.0**-40)
_TABLE_MS: Final[dict[int, tuple[float, ...]]] = {
    1: (15.4, 12.6, 14.9),
    2: (15.4, 12.6, 14.9),
    3: (15.0, 14.4, 14.8),
    4: (16.7, 16.1, 21.6),
    5: (20.0, 22.6, 49.9),
    6: (24.5, 27.0, 115.0),
    7: (53.0, 111.0, 289.0),
    8: (131.0, 260.0),  # at 2^-40 the library finds no parameters
}
_ROUNDING_MS: Final = (12.0, 15.0, 27.0)
"""One dropped bit of exact rounding at p_error 0.01: in circuits, expected, isolated."""

_NARROW: Final = (1.0, 1.3, 2.05)
_WIDE: Final = (1.0, 1.3, 1.8)
_FACTORS: Final = {5: (0.9, 0.97, 1.3), 6: (1.0, 1.26, 1.7), 7: _WIDE, 8: _WIDE}
_KEYS_MB: Final = {6: 1.0, 7: 3.4, 8: 8.6}
_COMPRESSED_MB: Final = (54.0, 60.0, 65.0)
_LOADED_MB: Final = (214.0, 350.0, 490.0)
_POLYNOMIAL: Final = {7: 4096, 8: 8192}


@dataclass(frozen=True)
class Range:
    """A prediction: lowest, expected and highest value."""

    low: float
    expected: float
    high: float

    def __add__(self, other: Range) -> Range:
        return Range(self.low + other.low, self.expected + other.expected, self.high + other.high)

    def __mul__(self, factor: float) -> Range:
        return Range(self.low * factor, self.expected * factor, self.high * factor)

    def __contains__(self, value: object) -> bool:
        return isinstance(value, int | float) and self.low <= value <= self.high


NOTHING: Final = Range(0.0, 0.0, 0.0)


def reference_table_ms(bits: int, p_error: float) -> float | None:
    """Return CPU milliseconds of one isolated table, or None where none is known.

    Between the measured probabilities the cost is linear in ``log2(p_error)``; beyond them it is
    that of the nearest.
    """
    row = _TABLE_MS.get(bits)
    if row is None:
        return None
    known = [(math.log2(p), ms) for p, ms in zip(_COLUMNS, row, strict=False)]
    return interpolate(known, math.log2(max(p_error, _COLUMNS[-1])))


def interpolate(known: list[tuple[float, float]], x: float) -> float | None:
    """Return the value at ``x`` of points with falling abscissas; None below the last of a row.

    A row that ends early (no parameters at small probabilities) has no value beyond its end.
    """
    if x >= known[0][0]:
        return known[0][1]
    for (x1, y1), (x2, y2) in pairwise(known):
        if x >= x2:
            return y2 + (y1 - y2) * (x - x2) / (x1 - x2)
    return None


def circuit_factor(bits: int) -> Range:
    """Return what a table costs inside a circuit, in isolated tables."""
    return Range(*_FACTORS.get(bits, _NARROW))


def rounding_ms(p_error: float) -> Range:
    """Return CPU milliseconds of one bit that exact rounding drops."""
    six = reference_table_ms(6, p_error) or 0.0
    return Range(*_ROUNDING_MS) * (six / _TABLE_MS[6][1])


def reference_keys_mb(bits: int) -> tuple[Range, Range]:
    """Return evaluation keys in MB, compressed and loaded, of circuits with such tables.

    Measured on circuits of at most 6 bits; above, scaled like the keys of isolated tables.
    """
    factor = _KEYS_MB[min(max(bits, 6), MAX_COST_BITS)]
    return Range(*_COMPRESSED_MB) * factor, Range(*_LOADED_MB) * factor


def ciphertext_bytes(bits: int) -> int:
    """Return bytes of one encrypted value beside tables of ``bits`` bits, not compressed."""
    return 8 * (_POLYNOMIAL.get(bits, 2048) + 1)


def query_bytes(values: int) -> int:
    """Return bytes of a compressed query: body and seed of each value, and a small frame."""
    return 24 * values + 256
