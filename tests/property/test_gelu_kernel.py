"""The native parts of both GELUs against their twins, on every instruction set."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from privml import _native
from privml.protocols.cipherprune.gelu_low import GeluLow
from privml.protocols.mpc.boolean.compare import packed
from privml.protocols.mpc.nonlinear.gelu import QUARTICS, Gelu
from privml.rings import Words

HAS = _native.features()
LEVELS = [level for level in range(3) if level == 0 or HAS & (1 << (level - 1))]


def words(rng: np.random.Generator, *shape: int) -> Words:
    drawn = rng.integers(0, 2**64 - 1, shape, np.uint64, endpoint=True)
    drawn[rng.random(shape) < 0.1] = 0
    return drawn


@pytest.mark.parametrize("isa", LEVELS, ids=[_native.ISAS[level] for level in LEVELS])
@given(
    n=st.integers(1, 140), rank=st.integers(0, 1), variant=st.sampled_from(sorted(QUARTICS)),
    seed=st.integers(0, 2**32),
)  # fmt: skip
def test_kernel_equals_its_twin(isa: int, n: int, rank: int, variant: str, seed: int) -> None:
    rng = np.random.default_rng(seed)
    rows = {"r": (), "r2": (), "r3": (), "r4": (), "g": (5,), "h": (5,), "k": (4,)}
    corr = {name: words(rng, *lead, n) for name, lead in rows.items()}
    c, opened, gelu = words(rng, n), words(rng, 3, packed(n)), Gelu((n,), variant)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(_native, "isa_level", lambda: isa)
        got = gelu.terms(c, opened, corr, rank)
    for new, want in zip(got, gelu.ref_terms(c, opened, corr, rank), strict=True):
        np.testing.assert_array_equal(new, want)


@pytest.mark.parametrize("isa", LEVELS, ids=[_native.ISAS[level] for level in LEVELS])
@given(n=st.integers(1, 140), rank=st.integers(0, 1), seed=st.integers(0, 2**32))
def test_low_kernel_equals_its_twin(isa: int, n: int, rank: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    rows = {"r": (), "r2": (), "m": (3,), "h": (2,)}
    corr = {name: words(rng, *lead, n) for name, lead in rows.items()}
    c, opened, gelu = words(rng, n), words(rng, 2, packed(n)), GeluLow((n,))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(_native, "isa_level", lambda: isa)
        got = gelu.terms(c, opened, corr, rank)
    np.testing.assert_array_equal(got, gelu.ref_terms(c, opened, corr, rank))
