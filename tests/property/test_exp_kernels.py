"""The native parts of both exponentials against their twins, on every instruction set."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from privml import _native
from privml.protocols.cipherprune.exp_low import MAX_SHIFT as MAX_LOW
from privml.protocols.cipherprune.exp_low import ExpLow
from privml.protocols.mpc.boolean.compare import packed
from privml.protocols.mpc.nonlinear.exp import MAX_SHIFT, Exp
from privml.rings import Words

HAS = _native.features()
LEVELS = [level for level in range(3) if level == 0 or HAS & (1 << (level - 1))]
EXPS = [Exp((1,), s) for s in range(0, MAX_SHIFT + 1, 4)]
LOWS = [ExpLow((1,), s) for s in range(1, MAX_LOW + 1, 4)]


def words(rng: np.random.Generator, *shape: int) -> Words:
    drawn = rng.integers(0, 2**64 - 1, shape, np.uint64, endpoint=True)
    drawn[rng.random(shape) < 0.1] = 0
    drawn[rng.random(shape) < 0.1] = 2**64 - 1
    return drawn


@pytest.mark.parametrize("isa", LEVELS, ids=[_native.ISAS[level] for level in LEVELS])
@given(n=st.integers(1, 140), which=st.sampled_from(EXPS + LOWS), seed=st.integers(0, 2**32))
def test_kernels_equal_their_twins(isa: int, n: int, which: Exp | ExpLow, seed: int) -> None:
    rng = np.random.default_rng(seed)
    prim = type(which)((n,), which.shift)
    names = ("e", "be", "we", "wbe") if isinstance(prim, Exp) else ("be", "wbe", "se", "wse")
    corr = {name: words(rng, n) for name in names}
    c, zw, zb = words(rng, n), words(rng, packed(n)), words(rng, packed(n))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(_native, "isa_level", lambda: isa)
        got = prim.terms(c, zw, zb, corr)
    np.testing.assert_array_equal(got, prim.ref_terms(c, zw, zb, corr))
