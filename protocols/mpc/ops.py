"""Bit kernels of the two-party engine: packing, one-hot chunks, chunk comparison.

Bit vectors are packed little-endian into uint64 words: bit ``i`` of word ``w`` is element
``64*w + i``; counts are padded to a multiple of 64 with zero bits. A 64-bit word has 16 chunks of
4 bits, lowest first; chunk 15 keeps only bits 60..62, because comparison looks at the low 63.
Each kernel has a numpy twin ``ref_*`` that defines its meaning. Time depends on sizes only.
"""

from __future__ import annotations

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
        (n,) uint8 or bool, C-contiguous; the lowest bit of each element counts.

    Returns
    -------
    ndarray
        (ceil(n / 64),) uint64, padding bits zero.

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
    out = np.empty(padded(bits.size) // 64, dtype=np.uint64)
    code = library.privml_pack_bits(
        _native.isa_level(), _native.address(bits), bits.size, _native.address(out)
    )
    _native.check(code, "pack_bits")
    return out


def ref_pack_bits(bits: NDArray[Any]) -> Words:
    """Twin of :func:`pack_bits`."""
    whole = np.zeros(padded(bits.size), dtype=np.uint8)
    whole[: bits.size] = bits & 1
    return np.packbits(whole, bitorder="little").view("<u8").astype(np.uint64, copy=False)


def unpack_bits(words: Words, n: int) -> Words:
    """Unpack the first ``n`` bits into one word each.

    Parameters
    ----------
    words
        (ceil(n / 64),) uint64, C-contiguous.
    n
        Number of bits.

    Returns
    -------
    ndarray
        (n,) uint64 of 0 and 1.

    Raises
    ------
    ParameterError
        Dtype, shape or layout do not fit.
    """
    _require("words", words, np.uint64, (_words(n),))
    library = _native.load()
    if library is None:
        return ref_unpack_bits(words, n)
    out = np.empty(n, dtype=np.uint64)
    code = library.privml_unpack_bits(
        _native.isa_level(), _native.address(words), n, _native.address(out)
    )
    _native.check(code, "unpack_bits")
    return out


def ref_unpack_bits(words: Words, n: int) -> Words:
    """Twin of :func:`unpack_bits`."""
    index = np.arange(n, dtype=np.uint64)
    bits: Words = (words[index >> np.uint64(6)] >> (index & np.uint64(63))) & np.uint64(1)
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
    _require("r", r, np.uint64)
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
        (n,) uint64, C-contiguous, public.
    w
        (16, npad) uint16, C-contiguous, npad = n rounded up to 64.

    Returns
    -------
    lt, eq : ndarray
        (16, npad / 64) uint64 each. Bit i of row j: XOR of the bits of ``w[j, i]`` above
        position ``chunk_j(c_i)``; the bit at that position. Bits of padding elements are zero.

    Raises
    ------
    ParameterError
        Dtype, shape or layout do not fit.
    """
    _require("c", c, np.uint64)
    _require("w", w, np.uint16, (CHUNKS, padded(c.size)))
    library = _native.load()
    if library is None:
        return ref_chunk_compare(c, w)
    lt = np.empty((CHUNKS, padded(c.size) // 64), dtype=np.uint64)
    eq = np.empty_like(lt)
    code = library.privml_chunk_compare(
        _native.isa_level(), _native.address(c), c.size, _native.address(w),
        _native.address(lt), _native.address(eq),
    )  # fmt: skip
    _native.check(code, "chunk_compare")
    return lt, eq


def ref_chunk_compare(c: Words, w: NDArray[np.uint16]) -> tuple[Words, Words]:
    """Twin of :func:`chunk_compare`."""
    chunk = _chunks(c)
    used = w[:, : c.size]
    above = used & (np.uint16(0xFFFE) << chunk)
    for shift in (8, 4, 2, 1):
        above = above ^ (above >> np.uint16(shift))
    lt = np.stack([ref_pack_bits(row.astype(np.uint8)) for row in above & np.uint16(1)])
    eq = np.stack([ref_pack_bits(row.astype(np.uint8)) for row in (used >> chunk) & np.uint16(1)])
    return lt, eq


def _chunks(r: Words) -> NDArray[np.uint16]:
    """Return (16, n) uint16: the 4-bit chunks of each word, the top one cut to 3 bits."""
    shifts = np.arange(0, 64, 4, dtype=np.uint64)[:, None]
    chunk = (r[None, :] >> shifts) & np.uint64(15)
    chunk[CHUNKS - 1] &= _TOP
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
    if (x.ndim != 1) if shape is None else (x.shape != shape):
        wanted = "one axis" if shape is None else f"shape {shape}"
        raise ParameterError(f"{name} must have {wanted}, got shape {x.shape}")
    if not x.flags.c_contiguous or not x.flags.aligned:
        raise ParameterError(f"{name} must be C-contiguous; copy it first")
