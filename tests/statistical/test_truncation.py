"""Masked truncation between two parties on millions of elements: no failure, no bias."""

from __future__ import annotations

import numpy as np
import pytest

from privml.protocols.mpc.arithmetic.truncate import Truncate
from privml.rng import ScienceSeed
from privml.testing.cases import EDGE, Case, fresh_seeds, joined, play
from privml.testing.checks import rounding_problems

CHUNK = 1 << 20
Z_LIMIT = 5.0


def totals(f: int, low: int, high: int, elements: int) -> tuple[int, float]:
    """Failures and standardised mean error of truncating values drawn from [low, high]."""
    random = ScienceSeed(1).child("truncation", f, low).generator()
    failures, error, variance = 0, 0.0, 0.0
    for _ in range(-(-elements // CHUNK)):
        x = random.integers(low, high, CHUNK, np.int64, endpoint=True)
        case = Case(Truncate((CHUNK,), f), (x.view(np.uint64),))
        (y,) = joined(case, play(case, fresh_seeds()).outputs)
        up = y.view(np.int64) - (x >> np.int64(f))
        rest = (x & np.int64((1 << f) - 1)) / 2.0**f
        failures += int(((up != 0) & ((up != 1) | (rest == 0))).sum())
        error += float((up - rest).sum())
        variance += float((rest * (1 - rest)).sum())
    return failures, error / max(variance, 1.0) ** 0.5


PLACES = {
    "upper edge": (EDGE - (1 << 50), EDGE),
    "lower edge": (-EDGE, -EDGE + (1 << 50)),
    "everywhere": (-EDGE, EDGE),
    "around zero": (-(1 << 16), 1 << 16),
}


@pytest.mark.parametrize("place", PLACES)
def test_ten_million_elements(place: str) -> None:
    low, high = PLACES[place]
    failures, z = totals(16 if place != "everywhere" else 44, low, high, 10_000_000)
    assert failures == 0
    assert abs(z) < Z_LIMIT


@pytest.mark.nightly
@pytest.mark.parametrize("f", [12, 16, 28, 44])
def test_hundred_million_elements(f: int) -> None:
    for low, high in PLACES.values():
        failures, z = totals(f, low, high, 25_000_000)
        assert failures == 0
        assert abs(z) < Z_LIMIT


@pytest.mark.parametrize(("value", "f"), [(3, 2), (-1, 44), (EDGE, 16), (-EDGE, 16), (1, 60)])
def test_rounding_frequency_of_one_value(value: int, f: int) -> None:
    """The upper value has probability (x mod 2^f) / 2^f for each single x."""
    x = np.full(CHUNK, value, np.int64).view(np.uint64)
    case = Case(Truncate((CHUNK,), f), (x,))
    (y,) = joined(case, play(case, fresh_seeds()).outputs)
    assert rounding_problems(x, y, f) == []


def test_the_judge_sees_a_bias_and_a_failure() -> None:
    x = np.arange(1, 1 << 12, dtype=np.uint64)
    assert any("mean" in line for line in rounding_problems(x, x >> np.uint64(4), 4))
    assert any(
        "wrong" in line for line in rounding_problems(x, (x >> np.uint64(4)) + np.uint64(2), 4)
    )
