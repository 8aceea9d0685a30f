"""Small JPEG files for tests: hand-made structure, and files of an encoder that is installed."""

from __future__ import annotations

import io
import struct
from collections.abc import Sequence
from typing import Final

import numpy as np
from numpy.typing import NDArray

from privml.rng import ScienceSeed

SAMPLINGS: Final = ("4:4:4", "4:2:2", "4:2:0")


def segment(marker: int, content: bytes) -> bytes:
    """Return one marker segment."""
    return bytes([0xFF, marker]) + struct.pack(">H", len(content) + 2) + content


COLOUR: Final = ((2, 2), (1, 1), (1, 1))


def frame(
    shape: tuple[int, int] = (16, 16),
    factors: Sequence[tuple[int, int]] = COLOUR,
    *,
    marker: int = 0xC0,
    precision: int = 8,
    ids: Sequence[int] | None = None,
) -> bytes:
    """Return a frame header; ``factors`` are (horizontal, vertical) of each component."""
    named = ids if ids is not None else range(1, len(factors) + 1)
    parts = b"".join(bytes([n, h << 4 | v, 0]) for n, (h, v) in zip(named, factors, strict=True))
    return segment(marker, struct.pack(">BHHB", precision, *shape, len(factors)) + parts)


def scan(
    ids: Sequence[int] = (1, 2, 3), *, start: int = 0, coded: bytes = b"\x12\xff\x00"
) -> bytes:
    """Return a scan of some components with coded data."""
    named = b"".join(bytes([n, 0]) for n in ids)
    return segment(0xDA, bytes([len(ids)]) + named + bytes([start, 63, 0])) + coded


def structure(*segments: bytes) -> bytes:
    """Return a file of segments: valid in structure, not necessarily decodable."""
    return b"\xff\xd8" + b"".join(segments) + b"\xff\xd9"


def encode(
    pixels: NDArray[np.uint8],
    *,
    sampling: str = "4:2:0",
    quality: int = 90,
    progressive: bool = False,
    tables: Sequence[Sequence[int]] | None = None,
) -> bytes:
    """Return a JPEG file of RGB or grey pixels by Pillow, which must be installed.

    ``tables`` are quantisers of luma and chroma, row-major, in place of those of ``quality``.
    """
    from PIL import Image

    stream = io.BytesIO()
    Image.fromarray(pixels).save(
        stream, "JPEG", progressive=progressive,
        **({"quality": quality} if tables is None else {"qtables": [list(t) for t in tables]}),
        **({"subsampling": SAMPLINGS.index(sampling)} if pixels.ndim == 3 else {}),
    )  # fmt: skip
    return stream.getvalue()


def decode(data: bytes, *, luma: bool = False) -> NDArray[np.uint8]:
    """Return the pixels of a file by Pillow: RGB or grey, or the luma plane alone."""
    from PIL import Image

    with Image.open(io.BytesIO(data)) as image:
        if luma:
            image.draft("L", image.size)  # the decoder's own luma, not one made of RGB
        return np.array(image)


def picture(shape: tuple[int, int], seed: int) -> NDArray[np.uint8]:
    """Return an asymmetric RGB picture that stays away from black and white."""
    rows, columns = np.mgrid[: shape[0], : shape[1]]
    slope = 25 * (columns / shape[1] - 0.3)
    waves = [40 * np.sin(rows / (3 + c) + c) * np.cos(columns / (7 - c)) + slope for c in range(3)]
    noise = ScienceSeed(seed).generator().normal(0, 4, (*shape, 3))
    return np.clip(128 + np.stack(waves, axis=-1) + noise, 40, 215).astype(np.uint8)
