"""Coefficient sets, selection by importance, statistics."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from privml.errors import ParameterError
from privml.protocols.fhe.front.channels import PAPER, ChannelSet, channel_set, select
from privml.protocols.fhe.front.statistics import Statistics, measure


def rows(coefficients: tuple[tuple[int, int], ...]) -> list[int]:
    """Return how many coefficients each row has, for sets that start each row at column 0."""
    last = max(u for u, _ in coefficients)
    for u in range(last + 1):
        columns = sorted(v for w, v in coefficients if w == u)
        assert columns == list(range(len(columns)))
    return [sum(w == u for w, _ in coefficients) for u in range(last + 1)]


@pytest.mark.parametrize(
    ("name", "block", "chroma_block", "luma", "chroma"),
    [
        ("paper-6", 2, 1, [2, 2], [1]),
        ("paper-6", 4, 2, [2, 2], [1]),
        ("y4c1", 8, 4, [2, 2], [1]),
        ("paper-24", 4, 4, [4, 4, 2, 2], [3, 2, 1]),
        ("paper-48", 4, 4, [4] * 4, [4] * 4),
        ("paper-64", 8, 4, [7, 7, 6, 6, 6, 6, 6], [3, 3, 2, 2]),
        ("paper-192", 8, 8, [8] * 8, [8] * 8),
        ("full", 4, 2, [4] * 4, [2, 2]),
    ],
)
def test_the_papers_shapes(
    name: str, block: int, chroma_block: int, luma: list[int], chroma: list[int]
) -> None:
    chosen = channel_set(name, block=block, chroma_block=chroma_block)
    assert rows(chosen.luma) == luma
    assert chosen.cb == chosen.cr
    assert rows(chosen.cb) == chroma


def test_the_papers_24_of_8x8_by_index() -> None:
    chosen = channel_set("paper-24", block=8, chroma_block=4)
    assert rows(chosen.luma) == [6, 3, 3, 1, 1]
    assert [u * 8 + v for u, v in chosen.cb] == [0, 1, 3, 8, 24]


@pytest.mark.parametrize(("total", "block"), list(PAPER))
def test_the_papers_sets_have_their_size(total: int, block: int) -> None:
    chosen = channel_set(f"paper-{total}", block=block, chroma_block=block)
    assert len(chosen) == len(chosen.labels()) == total
    assert len(set(chosen.labels())) == total


@given(st.sampled_from([2, 4, 8]), st.integers(1, 64), st.integers(0, 16))
def test_counted_sets(block: int, luma: int, chroma: int) -> None:
    side = block // 2
    name = f"y{luma}c{chroma}"
    if luma > block * block or chroma > side * side:
        with pytest.raises(ParameterError, match="a cell has"):
            channel_set(name, block=block, chroma_block=side)
        return
    if (block, chroma) == (4, 6):
        return
    chosen = channel_set(name, block=block, chroma_block=side)
    assert (len(chosen.luma), len(chosen.cb), len(chosen.cr)) == (luma, chroma, chroma)
    assert (0, 0) in chosen.luma
    assert chosen.luma == tuple(sorted(chosen.luma))
    chosen.fit_in(block, side)


@pytest.mark.parametrize("name", ["", "y", "c1", "y0c1", "Y4", "y4 c1", "paper-7", "y4c1x", "y444"])
def test_unknown_names_are_refused(name: str) -> None:
    with pytest.raises(ParameterError):
        channel_set(name, block=4, chroma_block=2)


def test_bad_sets_are_refused() -> None:
    with pytest.raises(ParameterError, match=r"no luma.*cb names a coefficient twice.*negative"):
        ChannelSet((), ((0, 0), (0, 0)), ((-1, 0),))
    with pytest.raises(ParameterError, match="bilinear"):
        ChannelSet(((0, 0),), ((0, 2),)).fit_in(4, 2)
    with pytest.raises(ParameterError, match="not all among"):
        ChannelSet(((0, 0),)).keep([1])


def test_keep_takes_channels_by_position() -> None:
    full = channel_set("full", block=2, chroma_block=1)
    kept = full.keep([5, 0, 3])
    assert kept.labels() == ("luma[0,0]", "luma[1,1]", "cr[0,0]")


@given(st.lists(st.integers(-3, 3), min_size=1, max_size=20), st.data())
def test_selection_takes_the_highest_scores(scores: list[int], data: st.DataObject) -> None:
    keep = data.draw(st.integers(1, len(scores)))
    chosen = select(scores, keep)
    assert list(chosen) == sorted(set(chosen))
    assert len(chosen) == keep
    rest = [i for i in range(len(scores)) if i not in chosen]
    assert all((scores[i], -i) > (scores[j], -j) for i in chosen for j in rest)


@pytest.mark.parametrize(
    ("scores", "keep"), [([1.0, float("nan")], 1), ([[1.0]], 1), ([1.0], 0), ([1.0], 2), ([], 1)]
)
def test_bad_scores_are_refused(scores: list[float], keep: int) -> None:
    with pytest.raises(ParameterError):
        select(scores, keep)


def test_statistics_are_those_of_all_cells(rng: np.random.Generator) -> None:
    images = [rng.normal([[[3]], [[-40]]], [[[1]], [[9]]], (2, 4, 6)) + 1e4 for _ in range(7)]
    images.append(rng.normal(0, 1, (2, 2, 2)))
    found = measure(iter(images))
    flat = np.concatenate([image.reshape(2, -1) for image in images], axis=1)
    assert np.allclose(found.mean, flat.mean(axis=1), rtol=1e-12)
    assert np.allclose(found.std, flat.std(axis=1), rtol=1e-12)
    assert found.images == 8


def test_a_constant_channel_has_deviation_one() -> None:
    found = measure([np.full((1, 2, 2), 5.0)])
    assert found == Statistics((5.0,), (1.0,), 1)
    assert np.array_equal(found.normalise(np.full((1, 2, 2), 6.0)), np.ones((1, 2, 2)))


def test_normalised_values_are_contiguous_float32() -> None:
    found = Statistics((1.0, 2.0), (2.0, 4.0), 1)
    values = np.asfortranarray(np.arange(12.0).reshape(2, 2, 3))
    result = found.normalise(values)
    assert result.flags.c_contiguous
    assert result.dtype == np.float32
    assert np.allclose(result[1], (values[1] - 2) / 4)


@pytest.mark.parametrize(
    "fields",
    [
        ((), (), 1),
        ((0.0,), (), 1),
        ((0.0,), (0.0,), 1),
        ((0.0,), (float("nan"),), 1),
        ((float("inf"),), (1.0,), 1),
        ((0.0,), (1.0,), 0),
    ],
)
def test_bad_statistics_are_refused(fields: tuple[tuple[float, ...], ...]) -> None:
    with pytest.raises(ParameterError):
        Statistics(*fields)


def test_statistics_need_images_and_matching_channels() -> None:
    with pytest.raises(ParameterError):
        measure([])
    with pytest.raises(ParameterError):
        Statistics((0.0,), (1.0,), 1).normalise(np.zeros((2, 3, 3)))
