"""The native part of GELU against its twin, on every instruction set."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from privml import _native
from privml.protocols.mpc.nonlinear.gelu import QUARTICS, Gelu
from privml.rings import Words

HAS = _native.features()
LEVELS = [level for level in range(3) if level == 0 or HAS & (1 << (level - 1))]


@pytest.mark.parametrize("isa", LEVELS, ids=[_native.ISAS[level] for level in LEVELS])
@given(
    n=st.integers(1, 40), rank=st.integers(0, 1), variant=st.sampled_from(sorted(QUARTICS)),
    seed=st.integers(0, 2**32),
)  # fmt: skip
def test_kernel_equals_its_twin(isa: int, n: int, rank: int, variant: str, seed: int) -> None:
    rng = np.random.default_rng(seed)

    def words(*shape: int) -> Words:
        drawn = rng.integers(0, 2**64 - 1, shape, np.uint64, endpoint=True)
        drawn[rng.random(shape) < 0.1] = 0
        return drawn

    rows = {"r": (), "r2": (), "r3": (), "r4": (), "g": (5,), "h": (5,), "k": (4,)}
    corr = {name: words(*lead, n) for name, lead in rows.items()}
    c, z, gelu = words(n), words(3, n) & np.uint64(1), Gelu((n,), variant)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(_native, "isa_level", lambda: isa)
        got = gelu.terms(c, z, corr, rank)
    for new, want in zip(got, gelu.ref_terms(c, z, corr, rank), strict=True):
        np.testing.assert_array_equal(new, want)
