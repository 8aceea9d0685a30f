"""Fixed point against Python fractions, and the failure budget."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from privml.errors import InsecureParameters, ParameterError
from privml.fixedpoint import BUDGET, FailureBudget, FixedPoint


@given(st.floats(-1e4, 1e4), st.integers(0, 40))
def test_encode_rounds_to_the_nearest_word(x: float, f: int) -> None:
    word = int(FixedPoint(64, f).encode([x]).view(np.int64)[0])
    assert abs(Fraction(word, 1 << f) - Fraction(x)) <= Fraction(1, 2 << f)


@given(st.integers(-(2**61), 2**61), st.integers(0, 60))
def test_decode_reads_signed_words(word: int, f: int) -> None:
    got = FixedPoint(64, f).decode(np.array([word % 2**64], np.uint64))
    assert got[0] == float(word) / 2.0**f


@pytest.mark.parametrize("x", [np.nan, np.inf, -np.inf, 2.0**46, -(2.0**46)])
def test_out_of_range_is_refused(x: float) -> None:
    with pytest.raises(ParameterError, match="fractional bits"):
        FixedPoint(64, 16).encode([0.0, x])


@pytest.mark.parametrize(("bits", "f"), [(16, 4), (64, 62), (32, 30), (64, -1)])
def test_bad_formats_are_refused(bits: int, f: int) -> None:
    with pytest.raises(ParameterError):
        FixedPoint(bits, f)


def test_narrow_words() -> None:
    assert FixedPoint(32, 14).encode([-1.0]).dtype == np.uint32


def test_local_truncation_breaks_the_budget_and_masked_does_not() -> None:
    lane = FixedPoint(64, 32)
    local = FailureBudget().spend(lane.local_failure(8.0), times=10**7)
    with pytest.raises(InsecureParameters, match="masked"):
        local.require()
    FailureBudget().spend(0.0, times=10**9).require()
    assert FailureBudget().spend(BUDGET).total <= BUDGET
