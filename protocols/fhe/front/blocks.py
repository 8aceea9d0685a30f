"""Block DCT, exact change of the block size, and scaling in the DCT domain.

A *coefficient plane* is a two-dimensional array in which each axis lies in blocks: index
``n * block + k`` is frequency ``k`` of block ``n``. A plane of samples is the case of block 1.
All transforms are orthonormal DCT-II and separable, so each axis is changed alone: the map from
block ``n`` to block ``m`` is one orthogonal matrix of order ``max(n, m)``.
"""

from __future__ import annotations

import functools
from typing import Final, TypeAlias

import numpy as np
from numpy.typing import NDArray

from privml.errors import ParameterError

Plane: TypeAlias = NDArray[np.float64]
Block: TypeAlias = tuple[int, int]

SIZES: Final = (1, 2, 4, 8)
"""Block sizes between which planes can be changed."""


@functools.cache
def dct_matrix(size: int) -> Plane:
    """Return the orthonormal DCT-II of one block.

    Returns
    -------
    float64, shape (size, size)
        Row ``i`` is frequency ``i``: T[0, j] = 1/sqrt(b), T[i, j] = sqrt(2/b) cos((2j+1) i pi/2b).
        Read-only.
    """
    if size < 1:
        raise ParameterError(f"a block has at least 1 sample, not {size}")
    frequency, sample = np.arange(size)[:, None], np.arange(size)[None, :]
    matrix: Plane = np.cos((2 * sample + 1) * frequency * np.pi / (2 * size)) * np.sqrt(2 / size)
    matrix[0] = 1 / np.sqrt(size)
    matrix.flags.writeable = False
    return matrix


def change_block(plane: Plane, old: Block, new: Block) -> Plane:
    """Return the coefficients of the same samples for another block size; exact and orthogonal.

    Parameters
    ----------
    plane
        float64, shape (rows, columns), in blocks of ``old``.
    old, new
        Block sizes (rows, columns); on each axis one must divide the other, and the larger one
        the length of the axis.

    Returns
    -------
    float64, C-contiguous, the same shape.

    Raises
    ------
    ParameterError
        The sizes do not divide each other or the plane.
    """
    rows, columns = plane.shape
    changed = np.ascontiguousarray(plane)
    if old[1] != new[1]:
        across = _change_matrix(columns, old[1], new[1])
        changed = (changed.reshape(-1, len(across)) @ across.T).reshape(rows, columns)
    if old[0] != new[0]:
        down = _change_matrix(rows, old[0], new[0])
        changed = (down @ changed.reshape(-1, len(down), columns)).reshape(rows, columns)
    return changed


def block_dct(samples: Plane, block: int) -> Plane:
    """Return the coefficient plane of samples; the last blocks repeat the edge.

    Parameters
    ----------
    samples
        float64, shape (rows, columns), at least one of each.
    block
        Size of a block.
    """
    rows, columns = samples.shape
    if min(rows, columns) < 1:
        raise ParameterError(f"there is nothing to transform in a plane of shape {samples.shape}")
    whole = np.pad(samples, ((0, -rows % block), (0, -columns % block)), mode="edge")
    return change_block(whole, (1, 1), (block, block))


def inverse_block_dct(plane: Plane, block: Block) -> Plane:
    """Return the samples of a coefficient plane, padding of the last blocks included."""
    return change_block(plane, block, (1, 1))


def scale_down(plane: Plane, block: Block, keep: Block) -> Plane:
    """Shrink by keep/block on each axis: the ``keep`` lowest frequencies, rescaled.

    The mean brightness is kept exactly; detail is what a smaller DCT can hold. The result is a
    plane in blocks of ``keep``.

    Parameters
    ----------
    plane
        float64, shape (rows, columns), in blocks of ``block``.
    block, keep
        Block sizes (rows, columns), 1 <= keep <= block.
    """
    rows, columns = plane.shape
    if any(not 1 <= k <= b for k, b in zip(keep, block, strict=True)):
        raise ParameterError(f"cannot keep {keep} of {block} frequencies: give 1 to all of them")
    if rows % block[0] or columns % block[1]:
        raise ParameterError(f"a plane of {rows}x{columns} has no whole blocks of {block}")
    cells = plane.reshape(rows // block[0], block[0], columns // block[1], block[1])
    low = cells[:, : keep[0], :, : keep[1]]
    factor = np.sqrt(keep[0] * keep[1] / (block[0] * block[1]))
    shape = (rows // block[0] * keep[0], columns // block[1] * keep[1])
    return np.ascontiguousarray(low.reshape(shape) * factor)


def as_cells(plane: Plane, block: Block) -> Plane:
    """Return a coefficient plane as (frequency row, frequency column, grid row, grid column).

    Returns
    -------
    float64, shape (block rows, block columns, grid rows, grid columns), C-contiguous.
    """
    rows, columns = plane.shape
    cells = plane.reshape(rows // block[0], block[0], columns // block[1], block[1])
    return np.ascontiguousarray(cells.transpose(1, 3, 0, 2))


def from_cells(cells: Plane) -> Plane:
    """Return the coefficient plane of cells; the inverse of :func:`as_cells`."""
    block_rows, block_columns, rows, columns = cells.shape
    return np.ascontiguousarray(cells.transpose(2, 0, 3, 1)).reshape(
        rows * block_rows, columns * block_columns
    )


def convertible(old: int, new: int) -> bool:
    """Return whether one of two block sizes divides the other."""
    return old % new == 0 or new % old == 0


@functools.cache
def _split_matrix(size: int, part: int) -> Plane:
    """Return the orthogonal matrix from one block of ``size`` to its blocks of ``part``."""
    inner = np.kron(np.eye(size // part), dct_matrix(part))
    matrix = inner @ dct_matrix(size).T
    matrix.flags.writeable = False
    return matrix


def _change_matrix(length: int, old: int, new: int) -> Plane:
    """Return the map from blocks of ``old`` to blocks of ``new`` within the larger of the two."""
    if not convertible(old, new):
        raise ParameterError(f"blocks of {old} and {new} do not divide each other")
    if length % max(old, new):
        raise ParameterError(f"an axis of {length} has no whole blocks of {max(old, new)}")
    # the map is orthogonal, so merging is the transpose of splitting
    return _split_matrix(old, new) if old > new else _split_matrix(new, old).T
