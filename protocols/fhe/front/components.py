"""An image as the DCT coefficients of its components, from a file or from pixels alike.

Luma and chroma are those of JFIF: full range, Y - 128, Cb - 128, Cr - 128, blocks of 8.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final, TypeAlias

import numpy as np
from numpy.typing import NDArray

from privml.errors import ParameterError
from privml.protocols.fhe.front.blocks import Block, Plane, block_dct, inverse_block_dct
from privml.protocols.fhe.front.resize import Window, resize

Pixels: TypeAlias = NDArray[np.uint8]

MAX_PIXELS: Final = 1 << 24
"""Largest image, in pixels."""

_BLOCK: Final = 8
_KR, _KB = 0.299, 0.114
_KG: Final = 1 - _KR - _KB


@dataclass(frozen=True, eq=False)
class Component:
    """One component of an image.

    Attributes
    ----------
    plane
        float64, coefficient plane in blocks of 8, whole blocks.
    shape
        Rows and columns of samples that belong to the image; the rest of the last blocks is
        padding.
    halved
        For each axis, 1 if there is a sample for each pixel, 2 if for every second one.
    """

    plane: Plane
    shape: tuple[int, int]
    halved: Block

    def samples(self) -> Plane:
        """Return the samples without padding: float64 of ``shape``, centred on zero."""
        plane = inverse_block_dct(self.plane, (_BLOCK, _BLOCK))
        return plane[: self.shape[0], : self.shape[1]]


@dataclass(frozen=True, eq=False)
class Image:
    """Components of one image: luma alone, or luma and two of chroma."""

    shape: tuple[int, int]
    components: tuple[Component, ...]

    @property
    def grey(self) -> bool:
        """Whether there is no chroma."""
        return len(self.components) == 1


def from_pixels(pixels: NDArray[Any]) -> Image:
    """Return the components of decoded pixels.

    Parameters
    ----------
    pixels
        RGB of shape (rows, columns, 3), in this order of colours, or grey of shape (rows,
        columns); uint8, or floating point within [0, 255]. Any memory layout.

    Raises
    ------
    ParameterError
        Another shape or dtype, values outside the range, or more than 2^24 pixels.
    """
    _check_pixels(pixels)
    values = np.ascontiguousarray(pixels, dtype=np.float64)
    shape = (int(values.shape[0]), int(values.shape[1]))
    if values.ndim == 2:
        return Image(shape, (_component(values - 128),))
    red, green, blue = values[..., 0], values[..., 1], values[..., 2]
    luma = _KR * red + _KG * green + _KB * blue
    chroma = ((blue - luma) / (2 * (1 - _KB)), (red - luma) / (2 * (1 - _KR)))
    return Image(shape, tuple(_component(plane) for plane in (luma - 128, *chroma)))


def to_rgb(luma: Plane, cb: Plane, cr: Plane) -> Plane:
    """Return real RGB within [0, 255], shape (3, rows, columns), of centred planes."""
    y = luma + 128
    red, blue = y + 2 * (1 - _KR) * cr, y + 2 * (1 - _KB) * cb
    green = (y - _KR * red - _KB * blue) / _KG
    return np.clip(np.stack([red, green, blue]), 0.0, 255.0)


def to_pixels(image: Image) -> Pixels:
    """Decode to uint8: RGB of shape (rows, columns, 3), or grey of shape (rows, columns).

    Halved chroma is interpolated linearly; values are rounded half up and clipped.
    """
    luma = image.components[0].samples()
    if image.grey:
        return _round(luma + 128)
    full = [luma]
    for component in image.components[1:]:
        windows = tuple(
            Window(0, n / h) for n, h in zip(image.shape, component.halved, strict=True)
        )
        full.append(resize(component.samples(), image.shape, (windows[0], windows[1])))
    return np.ascontiguousarray(_round(to_rgb(*full)).transpose(1, 2, 0))


def _component(samples: Plane) -> Component:
    rows, columns = samples.shape
    return Component(block_dct(samples, _BLOCK), (int(rows), int(columns)), (1, 1))


def _round(values: Plane) -> Pixels:
    return np.clip(np.floor(values + 0.5), 0, 255).astype(np.uint8)


def _check_pixels(pixels: NDArray[Any]) -> None:
    if not isinstance(pixels, np.ndarray):
        raise ParameterError(f"give pixels as a numpy array, not {type(pixels).__name__}")
    if pixels.ndim not in (2, 3) or (pixels.ndim == 3 and pixels.shape[2] != 3):
        raise ParameterError(
            f"pixels of shape {pixels.shape}: give (rows, columns, 3) in the order red, green, "
            "blue, or (rows, columns) for grey"
        )
    if not 1 <= pixels.shape[0] * pixels.shape[1] <= MAX_PIXELS:
        raise ParameterError(f"{pixels.shape[0]}x{pixels.shape[1]} pixels: give 1 to 2^24")
    if pixels.dtype != np.uint8 and not np.issubdtype(pixels.dtype, np.floating):
        raise ParameterError(f"pixels of dtype {pixels.dtype}: give uint8, or reals in [0, 255]")
    if pixels.dtype != np.uint8 and not (pixels.min() >= 0 and pixels.max() <= 255):
        raise ParameterError("pixels outside [0, 255] or not finite: scale them to 0 to 255")
