"""Rounding before a table, and the integer tables themselves.

An accumulator of ``bits`` bits that a table of t bits looks up drops its n low bits:
``index = (acc + 2^(n-1)) >> n`` and ``r = index << n`` (arithmetic shift, so halves go up). n is
``bits - t``, or one more where an extreme accumulator would round past the t-bit range: the
overflow protection. All executors take n and the tables from here.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from privml.errors import ParameterError
from privml.protocols.fhe.nodes import VALUE_LIMIT, Ints, Table


def bit_width(low: int, high: int) -> int:
    """Return the bits of integers in [low, high]; two's complement with sign if ``low`` < 0.

    >>> bit_width(0, 15), bit_width(-8, 7), bit_width(-9, 3), bit_width(0, 0)
    (4, 4, 5, 1)
    """
    if low >= 0:
        return max(high.bit_length(), 1)
    return max((-low - 1).bit_length(), max(high, 0).bit_length()) + 1


def dropped_bits(low: int, high: int, round_to: int | None) -> int:
    """Return n, the low bits that rounding [low, high] to ``round_to`` bits drops.

    >>> dropped_bits(0, 200, 6), dropped_bits(0, 255, 6), dropped_bits(-40, 9, None)
    (2, 3, 0)
    """
    n = max(bit_width(low, high) - round_to, 0) if round_to is not None else 0
    while n and round_to is not None and index_bits(low, high, n) > round_to:
        n += 1
    return n


def index_range(low: int, high: int, dropped: int) -> tuple[int, int]:
    """Return the smallest and the largest table index of accumulators in [low, high]."""
    half = (1 << dropped) >> 1
    return (low + half) >> dropped, (high + half) >> dropped


def index_bits(low: int, high: int, dropped: int) -> int:
    """Return the bits of a table index; it is signed exactly if the accumulator is."""
    first, last = index_range(low, high, dropped)
    return bit_width(min(first, -1) if low < 0 else first, last)


def table_index(acc: Ints, dropped: int) -> Ints:
    """Return the table index of each accumulator; exact while |acc| < 2^62."""
    if not dropped:
        return acc
    return (acc + (1 << (dropped - 1))) >> dropped


@dataclass(frozen=True, eq=False)
class Lookup:
    """The integer tables of one node.

    Attributes
    ----------
    dropped
        Low bits n that rounding drops; 0 means no rounding.
    bits
        Bits of the index; the index is signed exactly if the accumulator is.
    first
        Index of the first entry: 0, or -2^(bits-1).
    values
        Shape (C, 2^bits), int64, read-only: ``values[c, i - first]`` for every index of ``bits``
        bits, whether an accumulator can reach it or not.
    reached
        Smallest and largest index that an accumulator can reach without fault.
    """

    dropped: int
    bits: int
    first: int
    values: Ints
    reached: tuple[int, int]


def table_size(table: Table, low: int, high: int) -> tuple[int, int]:
    """Return (dropped bits, index bits) of a table over accumulators in [low, high]."""
    n = dropped_bits(low, high, table.round_to)
    return n, index_bits(low, high, n)


def build_lookup(table: Table, low: int, high: int) -> Lookup:
    """Return the integer tables of a node over accumulators in [low, high].

    Deterministic: one float64 product, two sums and a floor per entry, each rounded by itself.
    Cost: C * 2^bits entries.
    """
    if low < -VALUE_LIMIT or high > VALUE_LIMIT:
        raise ParameterError(f"{table.name}: accumulators in [{low}, {high}] are too wide")
    dropped, bits = table_size(table, low, high)
    reached = index_range(low, high, dropped)
    first = -(1 << (bits - 1)) if low < 0 else 0
    index = np.arange(first, first + (1 << bits), dtype=np.int64)  # (2^bits,)
    rounded = (index << dropped).astype(np.float64)
    exact = table.gain[:, None] * rounded[None, :] + table.offset[:, None]  # (C, 2^bits)
    clipped = np.clip(np.floor(exact + 0.5), float(table.low), float(table.high))
    values = clipped.astype(np.int64)
    values.setflags(write=False)
    return Lookup(dropped=dropped, bits=bits, first=first, values=values, reached=reached)
