"""Ring product: speed against torch int64 on one core, correctness against Python integers."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from frame import Options, Report, at_least, at_most, reported
from numpy.typing import NDArray
from timing import Paired, paired, stopwatch

from privml.rings import ring_matmul
from privml.rng import ScienceSeed

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
    names = ("gemm.u64_vs_torch_int64", "gemm.u64_gmac_per_s", "gemm.wrong_elements")
    with report.section("ring product", *names):
        both = speed(options.repeats(11, 5))
        m, k, n = SHAPE
        against = f"torch {torch.__version__} int64 matmul, one core each, {m}x{k}x{n}"
        rates = [m * k * n / side.median / 1e9 for side in (both.ours, both.theirs)]
        wrong, checked = wrong_elements(ScienceSeed(2).child("audit", "exact"))
        report.add(
            at_least(names[0], both.ratio, 10, unit="x", against=against, detail=both.as_dict()),
            reported(names[1], rates[0], unit="GMAC/s", against=against,
                     detail={"torch_gmac_per_s": rates[1]}),
            at_most(names[2], wrong, 0,
                    against=f"Python integers: random, extreme, odd shapes, {checked} elements"),
        )  # fmt: skip


def speed(repeats: int) -> Paired:
    """Return runs of our product and of torch's on one core each, in turn."""
    m, k, n = SHAPE
    seed = ScienceSeed(2).child("audit", "speed")
    a, b = _words(seed.child(0), (m, k)), _words(seed.child(1), (k, n))
    ta, tb = torch.from_numpy(a.view(np.int64)), torch.from_numpy(b.view(np.int64))
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        return paired(
            stopwatch(lambda: ring_matmul(a, b)),
            stopwatch(lambda: torch.matmul(ta, tb)),
            repeats=repeats,
            warmup=2,
        )
    finally:
        torch.set_num_threads(before)


def wrong_elements(seed: ScienceSeed) -> tuple[int, int]:
    """Count elements that differ from Python integers, and all elements checked."""
    wrong = checked = 0
    for dtype in (np.uint64, np.uint32):
        for index, (m, k, n) in enumerate((*ODD, SHAPE)):
            own = seed.child(str(dtype), index)
            for draw in (_words, _extremes):
                a, b = draw(own.child("a"), (m, k), dtype), draw(own.child("b"), (k, n), dtype)
                bad, count = _compare(own.child("cells"), a, b)
                wrong, checked = wrong + bad, checked + count
    return wrong, checked


def _words(seed: ScienceSeed, shape: tuple[int, int], dtype: type = np.uint64) -> Words:
    top = np.iinfo(dtype).max
    return seed.generator().integers(0, top, size=shape, dtype=dtype, endpoint=True)


def _extremes(seed: ScienceSeed, shape: tuple[int, int], dtype: type) -> Words:
    values = np.array([v & int(np.iinfo(dtype).max) for v in EXTREMES], dtype)
    return seed.generator().choice(values, shape)


def _compare(seed: ScienceSeed, a: Words, b: Words) -> tuple[int, int]:
    got = ring_matmul(a, b)
    modulus = 1 << (8 * a.itemsize)
    (m, _), n = a.shape, b.shape[1]
    cells = [(i, j) for i in range(m) for j in range(n)]
    if len(cells) > SAMPLES:
        chosen = seed.generator().choice(len(cells), SAMPLES, replace=False)
        cells = [cells[i] for i in chosen.tolist()]
    wrong = 0
    for i, j in cells:
        pairs = zip(a[i].tolist(), b[:, j].tolist(), strict=True)
        wrong += int(got[i, j]) != sum(x * y for x, y in pairs) % modulus
    return wrong, len(cells)
