"""Integer rules that quantised training, lowering and every executor share; no torch.

Rounding is always half up, ``floor(x + 1/2)``. An accumulator loses its ``n`` lowest bits as
``((z + 2^(n-1)) >> n) << n``. A residual is added as ``k*z + r*h`` with small integers.
"""

from __future__ import annotations

from typing import Final

import numpy as np
from numpy.typing import NDArray

TOLERANCE: Final = 1.0 / 16.0
"""Relative error of a residual factor that is accepted; what ``r >= 8`` guarantees."""
MAX_MULTIPLE: Final = 16
"""Largest integer ``k`` by which the weights of a channel are multiplied."""


def bits_of(low: int, high: int) -> int:
    """Return the bits of an integer type that holds ``[low, high]``; signed if ``low < 0``."""
    if low < 0:
        return 1 + max((-low - 1).bit_length(), max(high, 0).bit_length())
    return max(1, high.bit_length())


def round_low_bits(value: int, drop: int) -> int:
    """Return ``value`` rounded half up to a multiple of ``2^drop``."""
    return value if drop == 0 else ((value + (1 << (drop - 1))) >> drop) << drop


def drop_bits(low: int, high: int, *, keep: int | None) -> int:
    """Return how many low bits to drop so that what is left fits ``keep`` bits.

    ``bits - keep``, or more where an end would round past ``keep`` bits: rounding up at the top
    never needs one more bit. What is left is signed exactly if the accumulator is.

    Parameters
    ----------
    low, high
        Range of the accumulator.
    keep
        Bits of the table's index; all if not given.
    """
    if keep is None:
        return 0
    drop = max(bits_of(low, high) - keep, 0)
    while drop and _index_bits(low, high, drop) > keep:
        drop += 1
    return drop


def _index_bits(low: int, high: int, drop: int) -> int:
    first, last = round_low_bits(low, drop) >> drop, round_low_bits(high, drop) >> drop
    return bits_of(min(first, -1) if low < 0 else first, last)


def fill_factors(
    low: NDArray[np.int64], high: NDArray[np.int64], *, keep: int
) -> NDArray[np.int64]:
    """Return (C,) integers by which channels can be multiplied while no more bits are dropped.

    All channels lose the same low bits before a table. One whose range is a fraction of the widest
    loses less of its value after multiplication.

    Parameters
    ----------
    low, high
        (C,) ranges of the channels.
    keep
        Bits that the table sees.
    """
    least, most = int(low.min()), int(high.max())
    bits, drop = bits_of(least, most), drop_bits(least, most, keep=keep)
    signed, half = least < 0, (1 << drop) >> 1
    index = 1 << (min(keep, bits) - signed)
    top = min((index << drop) - 1 - half, (1 << (bits - signed)) - 1)
    bottom = min((index << drop) + half, 1 << (bits - 1)) if signed else 0
    room = np.full(len(low), MAX_MULTIPLE, np.int64)
    np.minimum(room, top // np.maximum(high, 1), out=room, where=high > 0)
    np.minimum(room, bottom // np.maximum(-low, 1), out=room, where=low < 0)
    return np.maximum(room, 1)


def conv_bounds(weight: NDArray[np.int64], low: int, high: int) -> NDArray[np.int64]:
    """Return (2, O): least and largest accumulator of each channel over inputs in a range.

    Zero padding is covered when the range holds 0.
    """
    flat = weight.reshape(len(weight), -1)
    up, down = np.maximum(flat, 0).sum(1), np.minimum(flat, 0).sum(1)
    low, high = min(low, 0), max(high, 0)
    return np.stack([up * low + down * high, up * high + down * low])


def fuse_factors(
    skip_scale: NDArray[np.float64], gain: NDArray[np.float64]
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return integers ``k`` and ``r`` with ``r / k`` close to ``skip_scale / gain``.

    ``gain*z + skip_scale*h`` is then ``(gain/k) * (k*z + r*h)`` up to
    ``gain/k * |r - k*skip_scale/gain| * |h|``. ``k`` is the least integer for which the relative
    error is at most :data:`TOLERANCE`, which ``k = 1`` meets whenever ``r >= 8``; if none up to
    :data:`MAX_MULTIPLE` meets it, the one with the least error.

    Parameters
    ----------
    skip_scale
        (C,) positive: value of one unit of the skip tensor.
    gain
        (C,) positive: value of one unit of the accumulator.

    Returns
    -------
    tuple
        ``k`` and ``r``, each (C,) int64, at least 1.
    """
    ratio = skip_scale / gain
    multiples = np.arange(1, MAX_MULTIPLE + 1, dtype=np.float64)[:, None]
    factor = np.maximum(np.floor(multiples * ratio + 0.5), 1.0)
    error = np.abs(factor - multiples * ratio) / (multiples * ratio)
    good = error <= TOLERANCE
    which = np.where(good.any(0), good.argmax(0), error.argmin(0))
    chosen = np.take_along_axis(factor, which[None], axis=0)[0]
    return which.astype(np.int64) + 1, chosen.astype(np.int64)
