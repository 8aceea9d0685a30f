"""Exponential tables: all 2^20 arguments against exact values, and the declared error bounds."""

from __future__ import annotations

from collections.abc import Callable
from decimal import Decimal, localcontext
from typing import Any

import numpy as np
import pytest

from privml.protocols.mpc.nonlinear.tables import exp_fall, exp_late, exp_rise

SIZE = 1 << 20
PRECISION = 128  # fractional bits of the exact values


def powers(step: Decimal, count: int) -> list[int]:
    """exp(step * i) for i below ``count`` as integers at scale 2^128, each computed by itself."""
    with localcontext() as ctx:
        ctx.prec = 60
        return [int((step * i).exp() * (1 << PRECISION)) for i in range(count)]


@pytest.fixture(scope="module")
def rising() -> Any:
    """exp(t / 2^16) for all 20-bit t, Python integers at scale 2^128, relative error < 2^-120."""
    coarse, fine = powers(Decimal(1) / 64, 1024), powers(Decimal(1) / 65536, 1024)
    return [(a * b) >> PRECISION for a in coarse for b in fine]


@pytest.fixture(scope="module")
def falling() -> Any:
    """exp(-t / 2^16) likewise."""
    coarse, fine = powers(Decimal(-1) / 64, 1024), powers(Decimal(-1) / 65536, 1024)
    return [(a * b) >> PRECISION for a in coarse for b in fine]


def errors(table: Callable[[Any], Any], exact: list[int], scale: int) -> tuple[Any, Any]:
    """Absolute error in units of 2^-scale, and relative error, for all arguments."""
    got = table(np.arange(SIZE, dtype=np.uint64)).tolist()
    shift = PRECISION - scale
    gaps = [(g << shift) - e for g, e in zip(got, exact, strict=True)]
    absolute = np.array([g / (1 << shift) for g in gaps])
    relative = np.array([g / e for g, e in zip(gaps, exact, strict=True)])
    return absolute, relative


def test_rise(rising: list[int]) -> None:
    """The last shift rounds down by one unit of 2^18 at most, the finer parts hardly count."""
    absolute, relative = errors(exp_rise, rising, 18)
    assert np.abs(relative).max() < 2.0**-18
    sized = np.array(rising, np.float64) / 2.0 ** (PRECISION - 18)
    assert (np.abs(absolute) < 1.1 + 2.0**-24.9 * sized).all()


def test_late(falling: list[int]) -> None:
    """exp(t / 2^16 - 16) is exp(-(2^20 - t) / 2^16)."""
    with localcontext() as ctx:
        ctx.prec = 60
        first = int(Decimal(-16).exp() * (1 << PRECISION))
    absolute, _ = errors(exp_late, [first, *reversed(falling[1:])], 18)
    assert np.abs(absolute).max() < 2.0**0.1


def test_fall(falling: list[int]) -> None:
    absolute, _ = errors(exp_fall, falling, 42)
    sized = np.array(falling, np.float64) / 2.0 ** (PRECISION - 42)
    assert (np.abs(absolute) < 2.0 + 2.0**-24.9 * sized).all()
    assert np.abs(absolute).max() < 2.0**17  # of 2^42, where the value itself is near 1


def test_tables_are_monotone() -> None:
    t = np.arange(SIZE, dtype=np.uint64)
    for table, sign in ((exp_rise, 1), (exp_late, 1), (exp_fall, -1)):
        steps = np.diff(table(t).view(np.int64)) * sign
        assert steps.min() >= -1  # the joints of the two parts may round by one unit


def test_known_words() -> None:
    """Both hosts must have these words: they multiply shares."""
    t = np.array([0, 1, 1023, 1024, 65536, 524288, SIZE - 1], np.uint64)
    assert exp_rise(t).tolist() == [
        262144, 262148, 266268, 266272, 712581, 781440250, 2329405055990,
    ]  # fmt: skip
    assert exp_late(t).tolist() == [0, 0, 0, 0, 0, 87, 262140]
    assert exp_fall(t).tolist() == [
        4398046511104, 4397979402240, 4329927081984, 4329861119966, 1617950892751, 1475380240,
        494943,
    ]  # fmt: skip


def test_products_of_both_tables_stay_near_one_exponential() -> None:
    """What exp makes of every digit of c and a few of r: within 2^-16.9 of the truth."""
    field = np.uint64(SIZE - 1)
    c = np.arange(SIZE, dtype=np.uint64)
    for r in (0, 1, 1023, 70_000, 524_287, 524_288, 900_001, SIZE - 1):
        x = (c - np.uint64(r)) & field  # x / 2^16 - 16, below 0
        late = exp_late(c) * exp_fall(np.full_like(c, r))
        early = exp_rise(c) * exp_fall(np.full_like(c, r))
        product = np.where(c < r, early, late) / 2.0**60
        want = np.exp(x / 65536.0 - 16.0)
        assert np.abs(product - want)[x != 0].max() < 2.0**-16.9
