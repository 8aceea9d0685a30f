"""The kernel of a comparison level against its twin, on every instruction set."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from privml import _native
from privml.protocols.mpc.boolean.level import combine, masked, recipe, ref_combine, ref_masked
from privml.protocols.mpc.boolean.nodes import levels
from privml.rings import Words

HAS = _native.features()
LEVELS = [level for level in range(3) if level == 0 or HAS & (1 << (level - 1))]
ALL_ONES = 2**64 - 1


def operands(
    rng: np.random.Generator, chunks: int, level: int, count: int, words: int
) -> dict[str, Words]:
    """Random operands of one level; some planes are all zeros or all ones."""
    what = recipe(chunks, level)
    width = sum(node.m for node in what.nodes)

    def planes(number: int) -> Words:
        drawn = rng.integers(0, ALL_ONES, (count, number, words), np.uint64, endpoint=True)
        drawn[rng.random((count, number)) < 0.1] = 0
        drawn[rng.random((count, number)) < 0.1] = ALL_ONES
        return drawn

    opened = what.inputs.size
    return {
        "opened": planes(opened), "masks": planes(opened), "products": planes(what.products),
        "lt": planes(width), "eq": planes(width),
    }  # fmt: skip


@pytest.mark.parametrize("isa", LEVELS, ids=[_native.ISAS[level] for level in LEVELS])
@given(
    chunks=st.integers(2, 18), count=st.integers(1, 3), rank=st.integers(0, 1),
    words=st.one_of(st.integers(1, 20), st.sampled_from([511, 512, 513, 1030])),
    seed=st.integers(0, 2**32),
)  # fmt: skip
def test_kernel_equals_its_twin(
    isa: int, chunks: int, count: int, rank: int, words: int, seed: int
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(_native, "isa_level", lambda: isa)
        for level in range(len(levels(chunks))):
            what = recipe(chunks, level)
            x: dict[str, Any] = operands(np.random.default_rng(seed), chunks, level, count, words)
            got = combine(what, rank=rank, **x)
            for new, want in zip(got, ref_combine(what, rank=rank, **x), strict=True):
                np.testing.assert_array_equal(new, want)
            x = {name: x[name] for name in ("masks", "lt", "eq")}
            np.testing.assert_array_equal(masked(what, **x), ref_masked(what, **x))


@pytest.mark.parametrize("isa", LEVELS, ids=[_native.ISAS[level] for level in LEVELS])
@pytest.mark.parametrize("words", [1, 7, 8, 9, 513])
def test_nothing_is_written_outside_the_result(
    isa: int, words: int, rng: np.random.Generator
) -> None:
    library = _native.load()
    if library is None:
        pytest.skip("no native kernel")
    at, what, x = _native.address, recipe(16, 0), operands(rng, 16, 0, 2, words)
    frames = [np.full(2 * planes * words + 16, 77, np.uint64) for planes in (27, 4, 4)]
    to = [at(frame[8:]) for frame in frames]
    lt, eq, opened, masks = (at(x[k]) for k in ("lt", "eq", "opened", "masks"))
    sizes = (2, words, 16, 27)
    assert not library.privml_tree_masked(isa, at(what.inputs), *sizes, lt, eq, masks, to[0])
    assert not library.privml_tree_level(
        isa, at(what.program), *sizes, what.products, 4, 0, lt, eq, opened, masks,
        at(x["products"]), to[1], to[2],
    )  # fmt: skip
    for frame in frames:
        assert (frame[:8] == 77).all()
        assert (frame[-8:] == 77).all()
        assert not (frame[8:-8] == 77).all()


def test_slices_and_strides_are_taken_as_they_are(rng: np.random.Generator) -> None:
    """Planes may be views: a short tree looks at a few chunks of a wide comparison."""
    what, x = recipe(5, 0), operands(rng, 5, 0, 2, 3)
    wide = {k: np.repeat(x[k], 2, axis=1)[:, ::2] for k in ("lt", "eq")}
    got = combine(what, x["opened"], x["masks"], x["products"], rank=0, **wide)
    want = ref_combine(what, x["opened"], x["masks"], x["products"], rank=0, lt=x["lt"], eq=x["eq"])
    for new, old in zip(got, want, strict=True):
        np.testing.assert_array_equal(new, old)
    np.testing.assert_array_equal(
        masked(what, x["masks"], **wide), ref_masked(what, x["masks"], lt=x["lt"], eq=x["eq"])
    )
