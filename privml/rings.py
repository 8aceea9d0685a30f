"""Words of the rings Z_2^64 and Z_2^32 and their matrix product.

A ring word is an unsigned integer; sums and products wrap. Because wrapping addition is
associative, every blocking, thread count and instruction set gives identical bits. The native
kernel runs in time that depends on shapes only, never on values.
"""

from __future__ import annotations

from typing import Any, Final, TypeAlias

import numpy as np
from numpy.typing import NDArray

from privml import _native
from privml.errors import ParameterError

Words: TypeAlias = NDArray[np.uint64]
Words32: TypeAlias = NDArray[np.uint32]

_EXACT_K: Final = {64: 2048, 32: 1 << 22}
"""Longest contraction that stays below 2^53 in float64: limbs of 22 bits, of 16 bits."""


def ring_matmul(a: NDArray[Any], b: NDArray[Any], *, threads: int = 1) -> NDArray[Any]:
    """Multiply matrices over Z_2^64 or Z_2^32.

    Parameters
    ----------
    a
        Left operand, (m, k) or (batch, m, k), uint64 or uint32, any strides.
    b
        Right operand, (k, n) or (batch, k, n), same dtype and number of axes, any strides.
    threads
        Number of threads, at least 1; does not change the result.

    Returns
    -------
    ndarray
        (m, n) or (batch, m, n), same dtype, C-contiguous, a new array.

    Raises
    ------
    ParameterError
        Dtypes, shapes or ``threads`` do not fit.

    Notes
    -----
    Without the native library :func:`limb_matmul` runs, with identical results.
    """
    _validate(a, b)
    if threads < 1:
        raise ParameterError(f"threads is {threads}; give at least 1")
    library = _native.load()
    if library is None:
        return limb_matmul(a, b)
    batch = a.shape[0] if a.ndim == 3 else 1
    (m, k), n, size = a.shape[-2:], b.shape[-1], a.itemsize
    out = np.empty((*a.shape[:-1], n), dtype=a.dtype)
    kernel = library.privml_gemm_u64 if size == 8 else library.privml_gemm_u32
    code = kernel(
        _native.isa_level(), batch, m, k, n,
        _native.address(a), *_strides(a), _native.address(b), *_strides(b),
        _native.address(out), m * n, n, threads,
    )  # fmt: skip
    _native.check(code, "ring_matmul")
    return out


def ref_matmul(a: NDArray[Any], b: NDArray[Any]) -> NDArray[Any]:
    """Multiply over the ring one contraction index at a time; slow, defines the meaning.

    Parameters and errors as :func:`ring_matmul`.
    """
    _validate(a, b)
    out = np.zeros((*a.shape[:-1], b.shape[-1]), dtype=a.dtype)
    for k in range(a.shape[-1]):
        out += a[..., :, k, None] * b[..., None, k, :]
    return out


def limb_matmul(a: NDArray[Any], b: NDArray[Any]) -> NDArray[Any]:
    """Multiply over the ring through exact float64 products of signed limbs.

    Z_2^64 words split into limbs of 22, 21 and 21 bits at offsets 0, 22 and 43; the pairs with
    an offset below 64 take six float64 products. |limb product| <= 2^42, so 2048 terms stay
    within 2^53 and are exact; longer contractions are cut into blocks. Z_2^32 words take three
    products of 16-bit limbs. Parameters and errors as :func:`ring_matmul`.
    """
    _validate(a, b)
    bits = 8 * a.itemsize
    step = _EXACT_K[bits]
    out = np.zeros((*a.shape[:-1], b.shape[-1]), dtype=a.dtype)
    for start in range(0, a.shape[-1], step):
        block = slice(start, start + step)
        out += _limb_block(a[..., block], b[..., block, :], bits)
    return out


def to_signed(words: NDArray[Any]) -> NDArray[Any]:
    """View ring words as two's complement integers of the same width (no copy).

    Parameters
    ----------
    words
        uint64 or uint32, any shape.

    Returns
    -------
    ndarray
        int64 or int32 view of the same memory.

    Raises
    ------
    ParameterError
        The dtype is not uint64 or uint32.
    """
    if words.dtype == np.uint64:
        return words.view(np.int64)
    if words.dtype == np.uint32:
        return words.view(np.int32)
    raise ParameterError(f"ring words are uint64 or uint32, not {words.dtype}")


def _limb_block(a: NDArray[Any], b: NDArray[Any], bits: int) -> NDArray[Any]:
    """Product of one block short enough to be exact in float64."""
    widths = (22, 21, 21) if bits == 64 else (16, 16)
    left, right = _limbs(a, widths), _limbs(b, widths)
    out = np.zeros((*a.shape[:-1], b.shape[-1]), dtype=a.dtype)
    for i, x in enumerate(left):
        for j, y in enumerate(right):
            offset = sum(widths[:i]) + sum(widths[:j])
            if offset < bits:
                term = np.matmul(x, y).astype(np.int64).astype(out.dtype)
                out += term << out.dtype.type(offset)
    return out


def _limbs(words: NDArray[Any], widths: tuple[int, ...]) -> list[NDArray[np.float64]]:
    """Split words into signed limbs, lowest first; their weighted sum is the word mod 2^l."""
    rest = to_signed(np.ascontiguousarray(words))
    limbs = []
    for width in widths:
        shift = 8 * rest.itemsize - width
        limb = (rest << shift) >> shift
        limbs.append(limb.astype(np.float64))
        rest = (rest - limb) >> width
    return limbs


def _strides(x: NDArray[Any]) -> tuple[int, int, int]:
    """Batch, row and column stride in elements."""
    batch, row, col = x.strides if x.ndim == 3 else (0, *x.strides)
    return batch // x.itemsize, row // x.itemsize, col // x.itemsize


def _validate(a: NDArray[Any], b: NDArray[Any]) -> None:
    if a.dtype != b.dtype or a.dtype not in (np.dtype(np.uint64), np.dtype(np.uint32)):
        raise ParameterError(
            f"ring_matmul takes two uint64 or two uint32 arrays, got {a.dtype} and {b.dtype}"
        )
    if a.ndim != b.ndim or a.ndim not in (2, 3):
        raise ParameterError(
            f"ring_matmul takes two 2-D or two 3-D arrays, got {a.ndim}-D, {b.ndim}-D"
        )
    if a.shape[-1] != b.shape[-2] or a.shape[:-2] != b.shape[:-2]:
        raise ParameterError(f"shapes {a.shape} and {b.shape} do not multiply")
    if any(s % x.itemsize for x in (a, b) for s in x.strides) or not (
        a.flags.aligned and b.flags.aligned
    ):
        raise ParameterError("ring_matmul needs aligned arrays; copy the operand first")
