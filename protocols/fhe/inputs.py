"""Images of a client as the integers that a program takes: front end, then one rounding rule."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from privml.errors import ParameterError
from privml.protocols.fhe.bundle import ClientPart
from privml.protocols.fhe.frequency import Photo
from privml.protocols.fhe.nodes import Ints


def quantise(x: NDArray[np.floating], *, scale: float, low: int, high: int) -> Ints:
    """Return ``clip(floor(x / scale + 1/2), low, high)``, int64, C-contiguous, same shape.

    Computed in float64: the rule of the trained network's input quantiser, bit for bit.
    """
    units = np.floor(np.asarray(x, np.float64) / scale + 0.5)
    return np.ascontiguousarray(np.clip(units, low, high), np.int64)


def prepare(part: ClientPart, images: Sequence[Photo]) -> Ints:
    """Return the integers (n, *shape) of images.

    Parameters
    ----------
    part
        The client's part of the program.
    images
        JPEG files as bytes, or pixel arrays; without a front end, integer arrays of the program's
        shape.

    Raises
    ------
    ParameterError
        No image, or one does not fit.
    MalformedMessage, UnsupportedError
        A file cannot be read.
    """
    if not images:
        raise ParameterError("give at least one image")
    image, front = part.spec.image, part.frontend
    if front is None or part.manifest.input.scale is None:
        if not all(isinstance(one, np.ndarray) for one in images):
            raise ParameterError(
                "this program has no front end: give its integers as .npy files of shape "
                f"{image.shape}"
            )
        return image.check(np.stack([np.asarray(one) for one in images]))
    return quantise(
        front.batch(images), scale=part.manifest.input.scale, low=image.low, high=image.high
    )
