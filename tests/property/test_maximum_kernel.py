"""The native selection of a maximum against its twin."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from privml.protocols.mpc.boolean.compare import packed
from privml.protocols.mpc.nonlinear.maximum import Maximum


@given(n=st.integers(0, 140), seed=st.integers(0, 2**32))
def test_kernel_equals_its_twin(n: int, seed: int) -> None:
    rng = np.random.default_rng(seed)

    def words(*shape: int) -> np.ndarray:
        return rng.integers(0, 2**64 - 1, shape, np.uint64, endpoint=True)

    prim = Maximum(n, 3)
    first, c, z = words(n), words(4, n), words(6, packed(n))
    corr = {"hit": words(3, n, 8), "hit_r": words(3, n, 8)}
    got = prim.chosen(first, c, z, corr)
    np.testing.assert_array_equal(got, prim.ref_chosen(first, c, z, corr))
