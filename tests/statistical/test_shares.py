"""Shares that primitives give out are uniform: 2^20 words each, every byte lane and every bit.

Left out are exp and exp_low: their shares are multiples of public constants, so they are masked
again before anything of them is opened, which the view tests hold them to.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from privml.testing.cases import PAIRS, fresh_seeds, play
from privml.testing.views import uniform

WORDS, CHUNK = 1 << 20, 1 << 17
UNEVEN = {"exp", "exp0", "exp_low", "reveal"}
ALPHA = 1e-8


def words_of(out: Any) -> Any:
    """Output words without padding planes (chunks are multiples of 64 elements)."""
    return np.asarray(out).reshape(-1)


@pytest.mark.parametrize("name", sorted(set(PAIRS) - UNEVEN))
def test_output_shares_are_uniform(name: str) -> None:
    planes = name.startswith(("compare", "and"))
    secret = PAIRS[name].of(8 * CHUNK if planes else CHUNK)[1]
    wanted = WORDS // 32 if planes else WORDS  # of packed words, which hold 64 bits each
    collected: list[list[Any]] = [[], []]
    have = 0
    while have < wanted:
        outputs = play(secret, fresh_seeds()).outputs
        for rank in (0, 1):
            collected[rank].append(words_of(outputs[rank]))
        have += collected[0][-1].size
    for rank in (0, 1):
        flat = np.concatenate(collected[rank])[:wanted]
        assert uniform(flat, alpha=ALPHA) == []


@pytest.mark.parametrize("name", sorted(UNEVEN - {"reveal"}))
def test_uneven_shares_look_the_same_for_two_secrets(name: str) -> None:
    """Bits of these shares may be constant, but then for every secret."""
    first, second = (play(c, fresh_seeds()).outputs for c in PAIRS[name].of(CHUNK))
    for rank in (0, 1):
        for a, b in zip(np.atleast_2d(first[rank]), np.atleast_2d(second[rank]), strict=True):
            for bit in range(64):
                ones = [int(((w >> np.uint64(bit)) & np.uint64(1)).sum()) for w in (a, b)]
                assert abs(ones[0] - ones[1]) < 8 * (CHUNK / 2) ** 0.5
