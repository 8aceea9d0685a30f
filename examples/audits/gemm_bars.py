"""Ring product: speed against torch int64 on one core, correctness against Python integers."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from frame import Options, Report, at_least, at_most
from numpy.typing import NDArray
from privml.rings import ring_matmul
from privml.rng import ScienceSeed
from timing import paired, stopwatch

SHAPE = (128, 768, 3072)
ODD = (
    (1, 1, 1), (1, 2049, 1), (3, 5, 7), (17, 31, 33), (2, 2047, 5), (5, 2048, 3), (64, 1, 65),
    (7, 3072, 2), (1, 384, 129), (127, 16, 1),
)  # fmt: skip
EXTREMES = (0, 1, (1 << 63) - 1, 1 << 63, (1 << 64) - 1)
SAMPLES = 512  # elements checked of a product that is too large to check whole
Words = NDArray[Any]


def gemm_section(report: Report, options: Options) -> None:
    """Add ``gemm.*``."""
    names = ("gemm.u64_vs_torch_int64", "gemm.wrong_elements")
    with report.section("ring product", *names):
        draw = ScienceSeed(2).child("audit", "gemm").generator()
        m, k, n = SHAPE
        a, b = _words(draw, (m, k)), _words(draw, (k, n))
        ta, tb = torch.from_numpy(a.view(np.int64)), torch.from_numpy(b.view(np.int64))
        before = torch.get_num_threads()
        torch.set_num_threads(1)
        try:
            both = paired(
                stopwatch(lambda: ring_matmul(a, b)),
                stopwatch(lambda: torch.matmul(ta, tb)),
                repeats=options.repeats(5, 2),
            )
        finally:
            torch.set_num_threads(before)
        rate = m * k * n / both.ours.median / 1e9
        report.add(at_least(
            names[0], both.ratio, 10, unit="x",
            against=f"torch {torch.__version__} int64 matmul, one core each, {m}x{k}x{n}",
            detail={**both.as_dict(), "gmac_per_s": rate},
        ))  # fmt: skip
        wrong, checked = wrong_elements(draw)
        report.add(at_most(
            names[1], wrong, 0,
            against=f"Python integers: random, extreme and odd shapes, {checked} elements",
        ))  # fmt: skip


def wrong_elements(draw: np.random.Generator) -> tuple[int, int]:
    """Count elements that differ from Python integers, and all elements checked."""
    wrong = checked = 0
    for dtype in (np.uint64, np.uint32):
        for shape in (*ODD, SHAPE):
            m, k, n = shape
            a, b = _words(draw, (m, k), dtype), _words(draw, (k, n), dtype)
            for left, right in ((a, b), _extreme(draw, shape, dtype)):
                bad, count = _compare(draw, left, right)
                wrong, checked = wrong + bad, checked + count
    return wrong, checked


def _words(draw: np.random.Generator, shape: tuple[int, ...], dtype: Any = np.uint64) -> Words:
    return draw.integers(0, np.iinfo(dtype).max, size=shape, dtype=dtype, endpoint=True)


def _extreme(
    draw: np.random.Generator, shape: tuple[int, int, int], dtype: Any
) -> tuple[Words, Words]:
    values = np.array([v & int(np.iinfo(dtype).max) for v in EXTREMES], dtype)
    m, k, n = shape
    return draw.choice(values, (m, k)), draw.choice(values, (k, n))


def _compare(draw: np.random.Generator, a: Words, b: Words) -> tuple[int, int]:
    got = ring_matmul(a, b)
    modulus = 1 << (8 * a.itemsize)
    (m, _), n = a.shape, b.shape[1]
    cells = [(i, j) for i in range(m) for j in range(n)]
    if len(cells) > SAMPLES:
        rows, columns = draw.integers(m, size=SAMPLES), draw.integers(n, size=SAMPLES)
        cells = list(zip(rows.tolist(), columns.tolist(), strict=True))
    wrong = 0
    for i, j in cells:
        pairs = zip(a[i].tolist(), b[:, j].tolist(), strict=True)
        wrong += int(got[i, j]) != sum(x * y for x, y in pairs) % modulus
    return wrong, len(cells)
