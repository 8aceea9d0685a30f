"""Bit kernels of the two-party engine: packing, one-hot chunks, chunk comparison.

Bit vectors are packed little-endian into uint64 words: bit ``i`` of word ``w`` is element
``64*w + i``; counts are padded to a multiple of 64 with zero bits. A 64-bit word has 16 chunks of
4 bits, lowest first; chunk 15 keeps only bits 60..62, because comparison looks at the low 63.
Leading axes count rows, each packed by itself. Each kernel has a numpy twin ``ref_*`` that defines
its meaning. Time depends on sizes only.
"""

from __future__ import annotations

from math import prod
from typing import Any, Final

import numpy as np
from numpy.typing import DTypeLike, NDArray

from privml import _native
from privml.errors import ParameterError
from privml.rings import Words

CHUNKS: Final = 16
_TOP: Final = np.uint64(7)


def padded(n: int) -> int:
    """Return ``n`` rounded up to a multiple of 64."""
    return -(-n // 64) * 64


def pack_bits(bits: NDArray[Any]) -> Words:
    """Pack bits into words.

    Parameters
    ----------
    bits
        (..., n) uint8 or bool, C-contiguous; the lowest bit of each element counts.

    Returns
    -------
    ndarray
        (..., ceil(n / 64)) uint64, padding bits zero.

    Raises
    ------
    ParameterError
        Dtype, shape or layout do not fit.
    """
    if bits.dtype == np.bool_:
        bits = bits.view(np.uint8)
    _require("bits", bits, np.uint8)
    library = _native.load()
    if library is None:
        return ref_pack_bits(bits)
    *rows, n = bits.shape
    out = np.empty((*rows, padded(n) // 64), dtype=np.uint64)
    code = library.privml_pack_bits(
        _native.isa_level(), _native.address(bits), prod(rows), n, _native.address(out)
    )
    _native.check(code, "pack_bits")
    return out


def ref_pack_bits(bits: NDArray[Any]) -> Words:
    """Twin of :func:`pack_bits`."""
    *rows, n = bits.shape
    whole = np.zeros((*rows, padded(n)), dtype=np.uint8)
    whole[..., :n] = bits & 1
    packed = np.packbits(whole, axis=-1, bitorder="little")
    return packed.view("<u8").astype(np.uint64, copy=False)


def top_bits(x: NDArray[Any]) -> Words:
    """Pack the most significant bit of each ring word.

    Parameters
    ----------
    x
        (..., n) of an unsigned type, C-contiguous.

    Returns
    -------
    ndarray
        (..., ceil(n / 64)) uint64, padding bits zero.

    Raises
    ------
    ParameterError
        Shape or layout do not fit.
    """
    _require("x", x, x.dtype)
    library = _native.load()
    if library is None or x.dtype != np.uint64:
        return ref_top_bits(x)
    *rows, n = x.shape
    out = np.empty((*rows, padded(n) // 64), dtype=np.uint64)
    code = library.privml_top_bits(
        _native.isa_level(), _native.address(x), prod(rows), n, _native.address(out)
    )
    _native.check(code, "top_bits")
    return out


def ref_top_bits(x: NDArray[Any]) -> Words:
    """Twin of :func:`top_bits`, for words of any width."""
    return pack_bits((x >> x.dtype.type(8 * x.itemsize - 1)).astype(np.uint8))


def unpack_bits(words: Words, n: int) -> Words:
    """Unpack the first ``n`` bits of each row into one word each.

    Parameters
    ----------
    words
        (..., ceil(n / 64)) uint64, C-contiguous.
    n
        Number of bits of a row.

    Returns
    -------
    ndarray
        (..., n) uint64 of 0 and 1.

    Raises
    ------
    ParameterError
        Dtype, shape or layout do not fit.
    """
    _require("words", words, np.uint64, (*words.shape[:-1], _words(n)))
    library = _native.load()
    if library is None:
        return ref_unpack_bits(words, n)
    rows = words.shape[:-1]
    out = np.empty((*rows, n), dtype=np.uint64)
    code = library.privml_unpack_bits(
        _native.isa_level(), _native.address(words), prod(rows), n, _native.address(out)
    )
    _native.check(code, "unpack_bits")
    return out


def ref_unpack_bits(words: Words, n: int) -> Words:
    """Twin of :func:`unpack_bits`."""
    index = np.arange(n, dtype=np.uint64)
    bits: Words = (words[..., index >> np.uint64(6)] >> (index & np.uint64(63))) & np.uint64(1)
    return bits


def chunk_onehot(r: Words) -> NDArray[np.uint16]:
    """Return the one-hot form of every 4-bit chunk.

    Parameters
    ----------
    r
        (n,) uint64, C-contiguous.

    Returns
    -------
    ndarray
        (16, npad) uint16, npad = n rounded up to 64. Entry (j, i) is ``1 << chunk_j(r_i)``;
        padding elements count as r = 0. Chunk 15 has 3 bits.

    Raises
    ------
    ParameterError
        Dtype, shape or layout do not fit.
    """
    _require("r", r, np.uint64, (r.size,))
    library = _native.load()
    if library is None:
        return ref_chunk_onehot(r)
    out = np.empty((CHUNKS, padded(r.size)), dtype=np.uint16)
    code = library.privml_chunk_onehot(
        _native.isa_level(), _native.address(r), r.size, _native.address(out)
    )
    _native.check(code, "chunk_onehot")
    return out


def ref_chunk_onehot(r: Words) -> NDArray[np.uint16]:
    """Twin of :func:`chunk_onehot`."""
    whole = np.zeros(padded(r.size), dtype=np.uint64)
    whole[: r.size] = r
    return np.uint16(1) << _chunks(whole)


def chunk_compare(c: Words, w: NDArray[np.uint16]) -> tuple[Words, Words]:
    """Look up public chunks in shared one-hot rows.

    For XOR shares w of ``chunk_onehot(r)`` the results are XOR shares of ``c_j < r_j`` and
    ``c_j == r_j``.

    Parameters
    ----------
    c
        (n,) or (count, n) uint64, C-contiguous, public.
    w
        (chunks, npad) uint16 for all rows, or (count, chunks, npad) for one row each,
        C-contiguous; npad = n rounded up to 64, and 1 to 16 chunks from the lowest.

    Returns
    -------
    lt, eq : ndarray
        (..., chunks, npad / 64) uint64 each. Bit i of row j: XOR of the bits of ``w[j, i]`` above
        position ``chunk_j(c_i)``; the bit at that position. Bits of padding elements are zero.

    Raises
    ------
    ParameterError
        Dtype, shape or layout do not fit.
    """
    _require("c", c, np.uint64)
    *rows, n = c.shape
    chunks = w.shape[-2] if w.ndim >= 2 else 0
    own = tuple(rows) if w.ndim == 3 else ()
    _require("w", w, np.uint16, (*own, min(max(chunks, 1), CHUNKS), padded(n)))
    library = _native.load()
    if library is None:
        return ref_chunk_compare(c, w)
    lt = np.empty((*rows, chunks, padded(n) // 64), dtype=np.uint64)
    eq = np.empty_like(lt)
    code = library.privml_chunk_compare(
        _native.isa_level(), _native.address(c), prod(rows), n, chunks, _native.address(w),
        chunks * padded(n) if own else 0, _native.address(lt), _native.address(eq),
    )  # fmt: skip
    _native.check(code, "chunk_compare")
    return lt, eq


def ref_chunk_compare(c: Words, w: NDArray[np.uint16]) -> tuple[Words, Words]:
    """Twin of :func:`chunk_compare`."""
    chunk = _chunks(c)[..., : w.shape[-2], :]
    used = w[..., : c.shape[-1]]
    above = used & (np.uint16(0xFFFE) << chunk)
    for shift in (8, 4, 2, 1):
        above = above ^ (above >> np.uint16(shift))
    return ref_pack_bits(above.astype(np.uint8)), ref_pack_bits((used >> chunk).astype(np.uint8))


def _chunks(r: Words) -> NDArray[np.uint16]:
    """Return (..., 16, n) uint16: the 4-bit chunks of each word, the top one cut to 3 bits."""
    shifts = np.arange(0, 64, 4, dtype=np.uint64)[:, None]
    chunk = (r[..., None, :] >> shifts) & np.uint64(15)
    chunk[..., CHUNKS - 1, :] &= _TOP
    return chunk.astype(np.uint16)


def _words(n: int) -> int:
    if n < 0:
        raise ParameterError(f"the number of bits is {n}; give at least 0")
    return padded(n) // 64


def _require(
    name: str, x: NDArray[Any], dtype: DTypeLike, shape: tuple[int, ...] | None = None
) -> None:
    if x.dtype != np.dtype(dtype):
        raise ParameterError(f"{name} must be {np.dtype(dtype)}, got {x.dtype}")
    if not x.ndim if shape is None else x.shape != shape:
        wanted = "at least one axis" if shape is None else f"shape {shape}"
        raise ParameterError(f"{name} must have {wanted}, got shape {x.shape}")
    if not x.flags.c_contiguous or not x.flags.aligned:
        raise ParameterError(f"{name} must be C-contiguous; copy it first")
