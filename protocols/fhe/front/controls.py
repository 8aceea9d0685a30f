"""The chosen coefficients of a cell grid, and controls that isolate what they bring.

Every control sees the same samples (luma, and chroma at half size) as ``dct``.
"""

from __future__ import annotations

from collections.abc import Iterable
from enum import StrEnum
from typing import Final

import numpy as np

from privml.protocols.fhe.front.blocks import Plane, change_block, from_cells
from privml.protocols.fhe.front.cells import Cells, Geometry
from privml.protocols.fhe.front.channels import ChannelSet
from privml.protocols.fhe.front.components import to_rgb
from privml.protocols.fhe.front.resize import whole
from privml.rng import ScienceSeed


class Control(StrEnum):
    """What the input channels are made of."""

    DCT = "dct"
    """The chosen coefficients of each cell."""
    PIXEL = "pixel"
    """Red, green, blue (grey without chroma) of every pixel: isolates the size of the grid."""
    PIXEL_YCC = "pixel-ycc"
    """Luma, Cb, Cr of every pixel."""
    MEAN_POOL = "mean-pool"
    """The mean of each plane over a cell: isolates detail beyond the mean."""
    SPACE_TO_DEPTH = "space-to-depth"
    """All samples of a cell as channels: isolates the frequency basis."""
    RANDOM_BASIS = "random-basis"
    """As many random orthonormal combinations of a cell's samples as chosen coefficients."""


#: Controls without which a result of ``dct`` says nothing about frequency.
MANDATORY: Final = (Control.PIXEL, Control.MEAN_POOL, Control.SPACE_TO_DEPTH)


def missing_controls(rows: Iterable[str]) -> tuple[str, ...]:
    """Return the mandatory controls that a table of results lacks, given the names of its rows.

    Examples
    --------
    >>> missing_controls(["dct", "pixel"])
    ('mean-pool', 'space-to-depth')
    >>> missing_controls(["pixel"])
    ()
    """
    named = set(rows)
    if Control.DCT not in named:
        return ()
    return tuple(control.value for control in MANDATORY if control not in named)


def channel_count(control: Control, geometry: Geometry, channels: ChannelSet) -> int:
    """Return the number of input channels."""
    colour = bool(channels.cb or channels.cr)
    if control in (Control.DCT, Control.RANDOM_BASIS):
        return len(channels)
    if control is Control.SPACE_TO_DEPTH:
        return geometry.block**2 + 2 * colour * geometry.chroma_block**2
    return 3 if colour else 1


def grid_shape(control: Control, geometry: Geometry) -> tuple[int, int]:
    """Return rows and columns of the input."""
    full = control in (Control.PIXEL, Control.PIXEL_YCC)
    return geometry.shape if full else geometry.grid


def make_channels(
    cells: Cells, control: Control, channels: ChannelSet, *, seed: ScienceSeed
) -> Plane:
    """Return the input channels before normalisation.

    Parameters
    ----------
    cells
        The image.
    control
        What to make.
    channels
        The chosen coefficients. Without chroma among them, no control gets chroma either.
    seed
        Chooses the basis of ``random-basis``; not used by the others.

    Returns
    -------
    float64, shape (channels, rows, columns), C-contiguous.
    """
    colour = bool(channels.cb or channels.cr)
    planes = (cells.luma, *cells.chroma) if colour else (cells.luma,)
    if control is Control.DCT:
        chosen = (channels.luma, channels.cb, channels.cr)
        return _stack([p[u, v] for p, c in zip(planes, chosen, strict=False) for u, v in c])
    if control is Control.MEAN_POOL:
        return _stack([p[0, 0] / len(p) for p in planes])
    if control is Control.SPACE_TO_DEPTH:
        return _stack([sample for plane in planes for sample in _samples_of_cells(plane)])
    if control is Control.RANDOM_BASIS:
        return _random(planes, channels, seed)
    return _pixels(planes, rgb=control is Control.PIXEL)


def _stack(parts: list[Plane]) -> Plane:
    return np.ascontiguousarray(np.stack(parts))


def _plane_of_samples(cells: Plane) -> Plane:
    return change_block(from_cells(cells), (cells.shape[0], cells.shape[1]), (1, 1))


def _samples_of_cells(cells: Plane) -> list[Plane]:
    """Return the samples of each cell, row-major, as planes of the grid."""
    side = cells.shape[0]
    plane = _plane_of_samples(cells)
    return [plane[i::side, j::side] for i in range(side) for j in range(side)]


def _random(planes: tuple[Plane, ...], channels: ChannelSet, seed: ScienceSeed) -> Plane:
    parts = []
    for (name, chosen), cells in zip(channels.planes(), planes, strict=False):
        size = cells.shape[0] ** 2
        normal = seed.child("random-basis", name, size).generator().standard_normal((size, size))
        basis, upper = np.linalg.qr(normal)
        basis = basis * np.where(np.diag(upper) < 0, -1.0, 1.0)  # one sign, whatever the library
        flat = basis[:, : len(chosen)].T @ cells.reshape(size, -1)
        parts.append(flat.reshape(len(chosen), *cells.shape[2:]))
    return np.ascontiguousarray(np.concatenate(parts))


def _pixels(planes: tuple[Plane, ...], *, rgb: bool) -> Plane:
    luma, *chroma = (_plane_of_samples(plane) for plane in planes)
    full = [luma, *(whole(plane, (luma.shape[0], luma.shape[1])) for plane in chroma)]
    return np.ascontiguousarray(to_rgb(*full)) if rgb and chroma else _stack(full)
