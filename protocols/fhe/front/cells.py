"""From the components of an image to cells of a fixed grid.

Three routes, chosen by sizes alone. *exact*: the image has the wanted size, give or take an
incomplete last cell, and its 8x8 blocks are re-blocked. *scaled*: it is 8/k times larger and is
shrunk in the DCT domain. *decoded*: any other size is decoded, resampled and transformed.

Luma cells of b x b pixels and half-size chroma cells of b/2 x b/2 cover the same pixels, so 4:2:0
chroma needs no interpolation; axes on which a file has full chroma are halved in the DCT domain.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeAlias

import numpy as np

from privml.errors import internal
from privml.protocols.fhe.front import resize
from privml.protocols.fhe.front.blocks import (
    Block,
    Plane,
    as_cells,
    change_block,
    convertible,
    scale_down,
)
from privml.protocols.fhe.front.components import Component, Image

Route: TypeAlias = Literal["exact", "scaled", "decoded"]
Chroma: TypeAlias = Literal["aligned", "bilinear"]

_FULL = 8


@dataclass(frozen=True)
class Geometry:
    """What every image is brought to.

    Attributes
    ----------
    shape
        Rows and columns in pixels, multiples of the cell (of two cells if chroma is bilinear).
    block
        Side of a luma cell: 2, 4 or 8.
    chroma
        ``"aligned"``: cells of half the side, nothing interpolated. ``"bilinear"``: cells of the
        full side on the half-size plane, each coefficient interpolated to the luma grid.
    margin
        When resampling, the shorter side becomes ``margin`` times the wanted one before the
        centre is cut out.
    """

    shape: tuple[int, int]
    block: int
    chroma: Chroma = "aligned"
    margin: float = 1.0

    @property
    def cell(self) -> int:
        """Side in pixels of the smallest part that is whole in luma and chroma."""
        return self.block if self.chroma == "aligned" else 2 * self.block

    @property
    def chroma_block(self) -> int:
        """Side of a chroma cell in samples of half-size chroma."""
        return self.block // 2 if self.chroma == "aligned" else self.block

    @property
    def grid(self) -> tuple[int, int]:
        """Rows and columns of cells."""
        return self.shape[0] // self.block, self.shape[1] // self.block


@dataclass(frozen=True, eq=False)
class Cells:
    """Coefficients of all cells of one image, before selection and normalisation.

    Attributes
    ----------
    luma
        float64, shape (b, b, grid rows, grid columns): vertical frequency first.
    chroma
        Two of float64, shape (c, c, grid rows, grid columns), c = b/2 if aligned, else b; all zero
        for a grey image. Cb first.
    route
        How they were obtained.
    """

    luma: Plane
    chroma: tuple[Plane, Plane]
    route: Route


def to_cells(image: Image, geometry: Geometry) -> Cells:
    """Bring an image to the cells of ``geometry``. Cost: linear in the pixels of the image."""
    route, kept = _route(image, geometry)
    half = (geometry.shape[0] // 2, geometry.shape[1] // 2)
    luma = _cells(image.components[0], image, geometry, geometry.shape, geometry.block, kept)
    if image.grey:
        side = geometry.chroma_block
        empty = np.zeros((side, side, *geometry.grid))
        return Cells(luma, (empty, empty.copy()), route)
    chroma = [
        _to_grid(_cells(c, image, geometry, half, geometry.chroma_block, kept), geometry.grid)
        for c in image.components[1:]
    ]
    return Cells(luma, (chroma[0], chroma[1]), route)


def _route(image: Image, geometry: Geometry) -> tuple[Route, int]:
    """Return the route and how many of 8 luma frequencies stay on each axis (0: decoded)."""
    shape, cell = image.shape, geometry.cell
    if geometry.margin != 1.0:
        return "decoded", 0
    if tuple(n // cell * cell for n in shape) == geometry.shape:
        return "exact", _FULL
    sides = list(zip(shape, geometry.shape, strict=True))
    for kept in range(_FULL - 1, 0, -1):
        smaller = all(n % 16 == 0 and n * kept == _FULL * target for n, target in sides)
        if smaller and _whole(image, geometry, kept):
            return "scaled", kept
    return "decoded", 0


def _whole(image: Image, geometry: Geometry, kept: int) -> bool:
    """Return whether what stays of each block of 8 is whole and makes whole cells."""
    blocks = (geometry.block, geometry.chroma_block, geometry.chroma_block)
    return all(
        (rest := twice // 2) * 2 == twice and convertible(rest, block)
        for component, block in zip(image.components, blocks, strict=False)
        for twice in _kept_twice(component, image, kept)
    )


def _kept_twice(component: Component, image: Image, kept: int) -> Block:
    """Return twice the frequencies that stay on each axis: full chroma is halved as well."""
    if component is image.components[0]:
        return 2 * kept, 2 * kept
    rows, columns = component.halved
    return kept * rows, kept * columns


def _cells(
    component: Component, image: Image, geometry: Geometry, shape: Block, block: int, kept: int
) -> Plane:
    """Return the cells of one component whose samples are brought to ``shape``."""
    cell = (block, block)
    if kept == 0:
        plane = _resampled(component, image, geometry, shape)
        return as_cells(change_block(plane, (1, 1), cell), cell)
    twice = _kept_twice(component, image, kept)
    rest = (twice[0] // 2, twice[1] // 2)
    plane = scale_down(component.plane, (_FULL, _FULL), rest)
    larger = [max(r, block) for r in rest]
    rows, columns = (-(-n // m) * m for n, m in zip(shape, larger, strict=True))
    internal(plane.shape[0] >= rows and plane.shape[1] >= columns, "the image lacks blocks")
    plane = change_block(np.ascontiguousarray(plane[:rows, :columns]), rest, cell)
    return as_cells(np.ascontiguousarray(plane[: shape[0], : shape[1]]), cell)


def _resampled(component: Component, image: Image, geometry: Geometry, shape: Block) -> Plane:
    """Return samples of ``shape``, from the centre of the image."""
    scale = max(t * geometry.margin / n for n, t in zip(image.shape, geometry.shape, strict=True))
    windows = [
        resize.centred(n, t, scale).shrunk(h)
        for n, t, h in zip(image.shape, geometry.shape, component.halved, strict=True)
    ]
    return resize.resize(component.samples(), shape, (windows[0], windows[1]))


def _to_grid(cells: Plane, grid: Block) -> Plane:
    """Interpolate each coefficient plane to the grid; aligned cells are there already."""
    return resize.whole(cells, grid)
