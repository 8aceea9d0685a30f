"""Structure of a JPEG file: checked and rewritten before a native parser sees it.

Only what decoding needs is kept: tables, one frame header, scans. Comments, thumbnails, colour
profiles and camera data (orientation included, which is not applied) are dropped, so the native
parser gets a file whose every length, size and component was checked here.
"""

from __future__ import annotations

import re
import struct
from dataclasses import dataclass, field
from typing import Final

from privml._typing import Bytes
from privml.errors import MalformedMessage, UnsupportedError
from privml.protocols.fhe.front.components import MAX_PIXELS

MAX_FILE_BYTES: Final = 1 << 26
MAX_SEGMENTS: Final = 1024
MAX_SCANS: Final = 128

_SOI, _EOI, _SOS, _DQT, _DHT, _DRI, _DAC = 0xD8, 0xD9, 0xDA, 0xDB, 0xC4, 0xDD, 0xCC
_APP0, _APP14, _COM, _TEM = 0xE0, 0xEE, 0xFE, 0x01
_FRAMES: Final = frozenset({0xC0, 0xC1, 0xC2})
_REFUSED_FRAMES: Final = {
    **dict.fromkeys((0xC3, 0xC7, 0xCB, 0xCF), "lossless"),
    **dict.fromkeys((0xC5, 0xC6), "hierarchical"),
    **dict.fromkeys((0xC9, 0xCA, 0xCD, 0xCE), "arithmetic-coded"),
}
#: A marker inside coded data: not a stuffed zero, a restart or a fill byte.
_MARKER: Final = re.compile(rb"\xff[\x01-\xcf\xd8-\xfe]")
_RESAVE = "; save it as an ordinary 8-bit RGB or grey JPEG, or decode it and use from_array"


@dataclass(frozen=True)
class Layout:
    """Sizes of a file, for buffers.

    Attributes
    ----------
    shape
        Rows and columns of pixels.
    blocks
        For each component, rows and columns of 8x8 blocks.
    samples
        For each component, rows and columns of samples that belong to the image.
    halved
        For each component and axis, 2 where there is a sample for every second pixel, else 1.
    """

    shape: tuple[int, int]
    blocks: tuple[tuple[int, int], ...]
    samples: tuple[tuple[int, int], ...]
    halved: tuple[tuple[int, int], ...]


@dataclass
class _Found:
    """What the walk has seen so far."""

    kept: bytearray = field(default_factory=lambda: bytearray(b"\xff\xd8"))
    layout: Layout | None = None
    ids: tuple[int, ...] = ()
    scanned: set[int] = field(default_factory=set)
    scans: int = 0
    jfif: bool = False
    adobe: int | None = None


def inspect(data: Bytes) -> tuple[Layout, bytes]:
    """Check a file and return its sizes and the part of it that is needed.

    Parameters
    ----------
    data
        A whole file of at most 64 MiB; what follows its end marker is ignored.

    Returns
    -------
    Layout
        Sizes.
    bytes
        A JPEG file with the same coefficients.

    Raises
    ------
    MalformedMessage
        Not a JPEG file, broken, or truncated.
    UnsupportedError
        A kind that is not read: CMYK, RGB-coded, 12-bit, arithmetic-coded, lossless,
        hierarchical, unusual sampling, more than 2^24 pixels or 64 MiB.
    """
    if len(data) > MAX_FILE_BYTES:
        raise UnsupportedError(f"the JPEG file has {len(data)} bytes; at most 64 MiB are read")
    raw = bytes(data)
    if raw[:2] != b"\xff\xd8":
        raise MalformedMessage("this is not a JPEG file; give the bytes of a whole one")
    found = _Found()
    position = 2
    for _ in range(MAX_SEGMENTS):
        marker, position = _next_marker(raw, position)
        if marker == _EOI:
            return _finish(found)
        position = _segment(raw, position, marker, found)
    raise MalformedMessage(f"the JPEG file has more than {MAX_SEGMENTS} segments")


def _finish(found: _Found) -> tuple[Layout, bytes]:
    if found.layout is None or found.scanned != set(found.ids):
        raise MalformedMessage("the JPEG file ends before every component was coded")
    if len(found.ids) == 3 and _is_rgb(found):
        raise UnsupportedError(f"the JPEG file stores RGB, not luma and chroma{_RESAVE}")
    return found.layout, bytes(found.kept) + b"\xff\xd9"


def _is_rgb(found: _Found) -> bool:
    if found.jfif:
        return False
    return found.adobe == 0 if found.adobe is not None else found.ids == (82, 71, 66)


def _truncated() -> MalformedMessage:
    return MalformedMessage("the JPEG file is truncated: it ends before its end marker")


def _next_marker(raw: bytes, position: int) -> tuple[int, int]:
    """Return the marker at ``position``, fill bytes skipped, and where its content starts."""
    end = position
    while raw[end : end + 1] == b"\xff":
        end += 1
    if end >= len(raw):
        raise _truncated()
    if end == position or raw[end] == 0:
        raise MalformedMessage(f"the JPEG file has no marker at byte {position}")
    return raw[end], end + 1


def _segment(raw: bytes, position: int, marker: int, found: _Found) -> int:
    """Check one segment, keep it if needed, and return where the next one starts."""
    if 0xD0 <= marker <= _SOI or marker == _TEM:
        raise MalformedMessage(f"the JPEG file has marker {marker:#x} where none belongs")
    if position + 2 > len(raw):
        raise _truncated()
    length = int.from_bytes(raw[position : position + 2], "big")
    end = position + length
    if length < 2:
        raise MalformedMessage(f"the JPEG file has a segment of length {length}")
    if end > len(raw):
        raise _truncated()
    content = raw[position + 2 : end]
    _check_order(marker, found)
    if marker in _REFUSED_FRAMES or marker == _DAC:
        kind = _REFUSED_FRAMES.get(marker, "arithmetic-coded")
        raise UnsupportedError(f"the JPEG file is {kind}{_RESAVE}")
    if marker in _FRAMES:
        found.layout, found.ids = _frame(content)
    elif marker == _SOS:
        end = _scan(raw, end, content, found)
    elif marker == _APP0:
        found.jfif = found.jfif or content[:5] == b"JFIF\0"
    elif marker == _APP14 and content[:5] == b"Adobe" and len(content) >= 12:
        found.adobe = content[11]
    if marker in _FRAMES or marker in (_SOS, _DQT, _DHT, _DRI):
        found.kept += b"\xff" + bytes([marker]) + raw[position:end]
    elif not (_APP0 <= marker <= 0xEF or marker == _COM):
        raise MalformedMessage(f"the JPEG file has marker {marker:#x} where none belongs")
    return end


def _check_order(marker: int, found: _Found) -> None:
    if marker in _FRAMES and found.layout is not None:
        raise MalformedMessage("the JPEG file has two frame headers")
    if marker == _SOS and found.layout is None:
        raise MalformedMessage("the JPEG file has a scan before its frame header")
    if marker == _DQT and found.scans:
        raise UnsupportedError(f"the JPEG file changes its quantiser between scans{_RESAVE}")


def _scan(raw: bytes, start: int, header: bytes, found: _Found) -> int:
    """Check a scan header and return where its coded data ends."""
    found.scans += 1
    if found.scans > MAX_SCANS:
        raise UnsupportedError(f"the JPEG file has more than {MAX_SCANS} scans{_RESAVE}")
    count = header[0] if header else 0
    if not 1 <= count <= len(found.ids) or len(header) != 4 + 2 * count:
        raise MalformedMessage("the JPEG file has a broken scan header")
    named = set(header[1 : 1 + 2 * count : 2])
    if len(named) != count or not named <= set(found.ids):
        raise MalformedMessage("the JPEG file has a scan of unknown components")
    if header[1 + 2 * count] == 0:  # a scan that starts at the mean, not a refinement of detail
        found.scanned |= named
    end = _MARKER.search(raw, start)
    if end is None:
        raise _truncated()
    return end.start()


def _frame(content: bytes) -> tuple[Layout, tuple[int, ...]]:
    """Read a frame header."""
    if len(content) < 6:
        raise MalformedMessage("the JPEG file has a broken frame header")
    precision, rows, columns, count = struct.unpack(">BHHB", content[:6])
    if len(content) != 6 + 3 * count or count == 0:
        raise MalformedMessage("the JPEG file has a broken frame header")
    if precision != 8:
        raise UnsupportedError(f"the JPEG file has {precision} bits per sample, not 8{_RESAVE}")
    if count not in (1, 3):
        kind = "CMYK or another four-colour image" if count == 4 else f"of {count} components"
        raise UnsupportedError(f"the JPEG file is {kind}{_RESAVE}")
    if rows == 0 or columns == 0:
        raise MalformedMessage("the JPEG file declares no rows or no columns")
    if rows * columns > MAX_PIXELS:
        raise UnsupportedError(f"the JPEG file has {rows}x{columns} pixels, more than 2^24")
    ids = tuple(content[6::3])
    if len(set(ids)) != count:
        raise MalformedMessage("the JPEG file names a component twice")
    factors = [(code & 15, code >> 4) for code in content[7::3]]
    return _layout((rows, columns), factors), ids


def _layout(shape: tuple[int, int], factors: list[tuple[int, int]]) -> Layout:
    """Return block counts and sizes of (vertical, horizontal) sampling factors."""
    if any(not 1 <= n <= 4 for pair in factors for n in pair):
        raise MalformedMessage("the JPEG file has a sampling factor outside 1 to 4")
    largest = (max(v for v, _ in factors), max(h for _, h in factors))
    halved = tuple((largest[0] // v, largest[1] // h) for v, h in factors)
    plain = all(
        n * part == most and part in (1, 2)
        for pair, parts in zip(factors, halved, strict=True)
        for n, part, most in zip(pair, parts, largest, strict=True)
    )
    if not plain or halved[0] != (1, 1):
        sampling = ", ".join(f"{h}x{v}" for v, h in factors)
        raise UnsupportedError(f"the JPEG file has sampling factors {sampling}{_RESAVE}")
    samples = tuple((-(-shape[0] // r), -(-shape[1] // c)) for r, c in halved)
    blocks = tuple((-(-rows // 8), -(-columns // 8)) for rows, columns in samples)
    return Layout(shape, blocks, samples, halved)
