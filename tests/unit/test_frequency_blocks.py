"""Block DCT, re-blocking, scaling and resampling, against scipy and by their properties."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.fft
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from privml.errors import ParameterError
from privml.protocols.fhe.front import blocks
from privml.protocols.fhe.front.resize import Window, centred, resize, whole

REALS = st.floats(-2048, 2048, width=32)


def planes(rows: int = 16, columns: int = 24) -> st.SearchStrategy[np.ndarray]:
    return hnp.arrays(np.float64, (rows, columns), elements=REALS)


@pytest.mark.parametrize("size", [1, 2, 3, 4, 8, 16])
def test_the_matrix_is_orthonormal_and_scipys(size: int) -> None:
    matrix = blocks.dct_matrix(size)
    assert np.allclose(matrix @ matrix.T, np.eye(size), atol=1e-14)
    assert np.allclose(matrix, scipy.fft.dct(np.eye(size), norm="ortho", axis=0), atol=1e-14)
    assert not matrix.flags.writeable


@pytest.mark.parametrize("block", [1, 2, 4, 8])
def test_block_dct_is_scipys_and_keeps_energy(block: int, rng: np.random.Generator) -> None:
    samples = rng.normal(0, 50, (24, 16))
    plane = blocks.block_dct(samples, block)
    cells = blocks.as_cells(plane, (block, block))
    for row in range(24 // block):
        for column in range(16 // block):
            part = samples[row * block :, column * block :][:block, :block]
            assert np.allclose(cells[:, :, row, column], scipy.fft.dctn(part, norm="ortho"))
    assert np.isclose(np.square(plane).sum(), np.square(samples).sum())
    assert np.allclose(blocks.inverse_block_dct(plane, (block, block)), samples, atol=1e-9)


@given(planes())
def test_reblocking_8_4_2_1_round_trips(plane: np.ndarray) -> None:
    current = plane
    for old, new in ((8, 4), (4, 2), (2, 1)):
        current = blocks.change_block(current, (old, old), (new, new))
    assert np.allclose(current, blocks.inverse_block_dct(plane, (8, 8)), atol=1e-9, rtol=0)
    for old, new in ((1, 2), (2, 4), (4, 8)):
        current = blocks.change_block(current, (old, old), (new, new))
    assert np.allclose(current, plane, atol=1e-9, rtol=0)
    assert current.flags.c_contiguous


@given(planes(), st.sampled_from([1, 2, 4, 8]), st.sampled_from([1, 2, 4, 8]))
def test_axes_change_alone_and_as_the_formula_says(plane: np.ndarray, r: int, c: int) -> None:
    changed = blocks.change_block(plane, (8, 8), (r, c))
    samples = blocks.inverse_block_dct(plane, (8, 8))
    left = np.kron(np.eye(16 // r), blocks.dct_matrix(r))
    right = np.kron(np.eye(24 // c), blocks.dct_matrix(c))
    assert np.allclose(changed, left @ samples @ right.T, atol=1e-9, rtol=0)


@given(planes(), st.integers(1, 8), st.integers(1, 8))
def test_scaling_keeps_the_mean_of_every_block(plane: np.ndarray, r: int, c: int) -> None:
    small = blocks.scale_down(plane, (8, 8), (r, c))
    assert small.shape == (2 * r, 3 * c)
    means = small[::r, ::c] / np.sqrt(r * c)
    assert np.allclose(means, plane[::8, ::8] / 8, atol=1e-9)


def test_scaling_a_smooth_image_is_close_to_averaging() -> None:
    rows, columns = np.mgrid[:32, :48]
    samples = 50 * np.sin(rows / 12) + 30 * np.cos(columns / 15)
    small = blocks.scale_down(blocks.block_dct(samples, 8), (8, 8), (4, 4))
    averaged = samples.reshape(16, 2, 24, 2).mean(axis=(1, 3))
    assert np.abs(blocks.inverse_block_dct(small, (4, 4)) - averaged).max() < 1.0


def test_the_edge_is_repeated_and_fortran_order_makes_no_difference(
    rng: np.random.Generator,
) -> None:
    samples = rng.normal(size=(5, 7))
    padded = np.pad(samples, ((0, 3), (0, 1)), mode="edge")
    assert np.array_equal(blocks.block_dct(samples, 8), blocks.block_dct(padded, 8))
    turned = np.asfortranarray(padded)
    assert np.array_equal(blocks.block_dct(turned, 8), blocks.block_dct(padded, 8))
    cells = blocks.as_cells(padded, (2, 4))
    assert cells.shape == (2, 4, 4, 2)
    assert np.array_equal(blocks.from_cells(cells), padded)


@pytest.mark.parametrize(
    ("old", "new", "shape"), [((8, 8), (3, 8), (24, 24)), ((8, 8), (4, 4), (8, 12))]
)
def test_blocks_that_do_not_fit_are_refused(
    old: blocks.Block, new: blocks.Block, shape: tuple[int, int]
) -> None:
    with pytest.raises(ParameterError):
        blocks.change_block(np.zeros(shape), old, new)


def test_scaling_refuses_other_sizes() -> None:
    with pytest.raises(ParameterError):
        blocks.scale_down(np.zeros((8, 8)), (8, 8), (0, 4))
    with pytest.raises(ParameterError):
        blocks.scale_down(np.zeros((8, 12)), (8, 8), (4, 4))
    with pytest.raises(ParameterError):
        blocks.block_dct(np.zeros((0, 8)), 8)
    with pytest.raises(ParameterError):
        blocks.dct_matrix(0)


@given(st.integers(1, 40), st.integers(1, 40), st.integers(1, 30), st.integers(1, 30))
def test_resampling_keeps_constants_and_the_range(r: int, c: int, rows: int, columns: int) -> None:
    assert np.allclose(whole(np.full((r, c), 7.5), (rows, columns)), 7.5)
    ramp = np.add.outer(np.arange(r, dtype=float), 3.0 * np.arange(c))
    result = whole(ramp, (rows, columns))
    assert result.shape == (rows, columns)
    assert ramp.min() - 1e-9 <= result.min() <= result.max() <= ramp.max() + 1e-9


def test_resampling_by_hand() -> None:
    plane = np.array([[0.0, 4.0]])
    assert np.allclose(whole(plane, (1, 4)), [[0, 1, 3, 4]])
    assert np.allclose(whole(np.array([[0.0, 2.0, 4.0, 6.0]]), (1, 2)), [[10 / 7, 32 / 7]])
    assert np.array_equal(whole(plane, (1, 2)), plane)
    assert centred(100, 50, 1.0) == Window(25.0, 50.0)
    middle = resize(np.arange(100.0)[:, None], (50, 1), (Window(25, 50), Window(0, 1)))
    assert np.allclose(middle[:, 0], np.arange(25, 75))


def test_long_and_stacked_planes_are_resampled_alike(rng: np.random.Generator) -> None:
    window = Window(7.25, 2900.5)
    tall = rng.normal(size=(2, 3000, 3))
    slow = resize(tall, (100, 3), (window, Window(0, 3)))
    for stacked, plane in zip(slow, tall, strict=True):
        parts = [resize(plane[:, c : c + 1], (100, 1), (window, Window(0, 1))) for c in range(3)]
        assert np.allclose(stacked, np.concatenate(parts, axis=1))
    flat = np.add.outer(np.arange(3000.0), np.zeros(2))
    inner = resize(flat, (50, 2), (Window(100, 1000), Window(0, 2)))
    assert np.allclose(inner[:, 0], 100 + 20 * (np.arange(50) + 0.5) - 0.5)
    assert slow.flags.c_contiguous
