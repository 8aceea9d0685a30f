"""The structure check of untrusted JPEG files; nothing is decoded here."""

from __future__ import annotations

import struct
import time

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from privml.errors import MalformedMessage, UnsupportedError
from privml.protocols.fhe.front.jpeg_file import MAX_SCANS, MAX_SEGMENTS, inspect
from privml.testing.jpegs import frame, scan, segment, structure

TABLES = segment(0xDB, bytes(65)) + segment(0xC4, bytes(19))
GREY = ((1, 1),)
VALID = structure(TABLES, frame(), scan())


@pytest.mark.parametrize(
    ("factors", "shape", "blocks", "halved"),
    [
        (((2, 2), (1, 1), (1, 1)), (33, 17), ((5, 3), (3, 2), (3, 2)), (2, 2)),
        (((2, 1), (1, 1), (1, 1)), (33, 17), ((5, 3), (5, 2), (5, 2)), (1, 2)),
        (((1, 2), (1, 1), (1, 1)), (33, 17), ((5, 3), (3, 3), (3, 3)), (2, 1)),
        (((1, 1), (1, 1), (1, 1)), (8, 8), ((1, 1), (1, 1), (1, 1)), (1, 1)),
        (((2, 2), (2, 2), (2, 2)), (9, 8), ((2, 1), (2, 1), (2, 1)), (1, 1)),
    ],
)
def test_sizes_of_components(
    factors: tuple[tuple[int, int], ...], shape: tuple[int, int],
    blocks: tuple[tuple[int, int], ...], halved: tuple[int, int],
) -> None:  # fmt: skip
    layout, _ = inspect(structure(TABLES, frame(shape, factors), scan()))
    assert layout.shape == shape
    assert layout.blocks == blocks
    assert layout.halved == ((1, 1), halved, halved)
    assert layout.samples[1] == tuple(-(-n // h) for n, h in zip(shape, halved, strict=True))


def test_only_what_decoding_needs_is_passed_on() -> None:
    secret = b"camera 4711 was here"
    noisy = structure(
        segment(0xE0, b"JFIF\0" + bytes(9)),
        segment(0xE1, b"Exif\0\0" + secret),
        TABLES,
        segment(0xFE, secret),
        b"\xff\xff\xff",
        frame(),
        scan(coded=b"\x00\xff\xd0\x01\xff\x00\x02"),
    )
    layout, needed = inspect(noisy + b"trailing " + secret)
    assert secret not in needed
    assert needed == structure(TABLES, frame(), scan(coded=b"\x00\xff\xd0\x01\xff\x00\x02"))
    assert inspect(needed) == (layout, needed)


@pytest.mark.parametrize(
    ("data", "why"),
    [
        (structure(TABLES, frame(factors=((1, 1),) * 4), scan((1, 2, 3, 4))), "CMYK"),
        (structure(TABLES, frame(factors=((1, 1),) * 2), scan((1, 2))), "2 components"),
        (structure(TABLES, frame(precision=12, marker=0xC1), scan()), "12 bits"),
        (structure(TABLES, frame(marker=0xC9), scan()), "arithmetic"),
        (structure(TABLES, frame(marker=0xCA), scan()), "arithmetic"),
        (structure(segment(0xCC, b"\0\0"), frame(), scan()), "arithmetic"),
        (structure(TABLES, frame(marker=0xC3), scan()), "lossless"),
        (structure(TABLES, frame(marker=0xC5), scan()), "hierarchical"),
        (structure(TABLES, frame((4097, 4096), GREY), scan((1,))), "2\\^24"),
        (structure(TABLES, frame((65535, 65535)), scan()), "2\\^24"),
        (structure(TABLES, frame(factors=((4, 1), (1, 1), (1, 1))), scan()), "sampling"),
        (structure(TABLES, frame(factors=((1, 1), (2, 2), (1, 1))), scan()), "sampling"),
        (structure(TABLES, frame(factors=((3, 1), (2, 1), (1, 1))), scan()), "sampling"),
        (structure(TABLES, frame(ids=(82, 71, 66)), scan((82, 71, 66))), "RGB"),
        (structure(segment(0xEE, b"Adobe" + bytes(7)), TABLES, frame(), scan()), "RGB"),
        (structure(TABLES, frame(), scan(), TABLES, scan()), "between scans"),
        (structure(TABLES, frame(), *[scan()] * (MAX_SCANS + 1)), "scans"),
    ],
)
def test_kinds_that_are_not_read(data: bytes, why: str) -> None:
    with pytest.raises(UnsupportedError, match=why):
        inspect(data)


@pytest.mark.parametrize(
    ("data", "why"),
    [
        (b"", "not a JPEG"),
        (b"\x89PNG\r\n", "not a JPEG"),
        (b"\xff\xd8", "truncated"),
        (b"\xff\xd8" + b"\xff" * 100, "truncated"),
        (VALID[:-2], "truncated"),
        (VALID[:-4], "truncated"),
        (structure(), "every component"),
        (structure(TABLES, scan()), "before its frame"),
        (structure(TABLES, frame(), frame(), scan()), "two frame"),
        (structure(TABLES, frame(), scan((1,))), "every component"),
        (structure(TABLES, frame(), scan((1, 2, 3), start=1)), "every component"),
        (structure(TABLES, frame(), scan((1, 2, 4))), "unknown components"),
        (structure(TABLES, frame(), scan((1, 1, 2))), "unknown components"),
        (structure(TABLES, frame(), segment(0xDA, b"")), "scan header"),
        (structure(TABLES, frame(), segment(0xDA, b"\3\1\0")), "scan header"),
        (structure(TABLES, frame(ids=(1, 1, 2)), scan()), "twice"),
        (structure(TABLES, frame((0, 16)), scan()), "no rows"),
        (structure(TABLES, frame((16, 0)), scan()), "no rows"),
        (structure(TABLES, frame(factors=((0, 1), (1, 1), (1, 1))), scan()), "factor"),
        (structure(TABLES, frame(factors=((5, 1), (1, 1), (1, 1))), scan()), "factor"),
        (structure(segment(0xC0, b"\x08\0\x10"), scan()), "frame header"),
        (structure(segment(0xC0, b"\x08\0\x10\0\x10\3\1"), scan()), "frame header"),
        (structure(segment(0xC0, b"\x08\0\x10\0\x10\0"), scan()), "frame header"),
        (structure(b"\xff\x01", frame(), scan()), "none belongs"),
        (structure(b"\xff\xd8", frame(), scan()), "none belongs"),
        (structure(segment(0xDC, b"\0\x10"), frame(), scan()), "none belongs"),
        (structure(b"\xff\xdb\0\1", frame(), scan()), "length 1"),
        (structure(b"\xff\xdb\xff\xff", frame(), scan()), "truncated"),
        (structure(b"junk", frame(), scan()), "no marker"),
        (structure(*[segment(0xFE, b"")] * MAX_SEGMENTS, frame(), scan()), "segments"),
    ],
)
def test_broken_files(data: bytes, why: str) -> None:
    with pytest.raises(MalformedMessage, match=why):
        inspect(data)


def test_colour_markers_are_read_as_decoders_do() -> None:
    jfif = segment(0xE0, b"JFIF\0" + bytes(9))
    adobe_rgb = segment(0xEE, b"Adobe" + bytes(7))
    adobe_ycc = segment(0xEE, b"Adobe" + bytes(6) + b"\1")
    for first in (jfif, jfif + adobe_rgb, adobe_ycc):
        inspect(structure(first, TABLES, frame(), scan()))
    inspect(structure(adobe_ycc, TABLES, frame(ids=(82, 71, 66)), scan((82, 71, 66))))
    inspect(structure(adobe_rgb, TABLES, frame(factors=GREY), scan((1,))))


def test_every_prefix_is_refused() -> None:
    for length in range(len(VALID)):
        with pytest.raises(MalformedMessage):
            inspect(VALID[:length])


@given(st.integers(0, len(VALID) - 1), st.integers(0, 7))
def test_a_flipped_bit_gives_our_errors_or_a_bounded_layout(position: int, bit: int) -> None:
    data = bytearray(VALID)
    data[position] ^= 1 << bit
    try:
        layout, needed = inspect(bytes(data))
    except (MalformedMessage, UnsupportedError):
        return
    assert layout.shape[0] * layout.shape[1] <= 1 << 24
    assert len(needed) <= len(data)


@given(st.binary(max_size=200))
def test_random_bytes_give_our_errors(tail: bytes) -> None:
    for data in (tail, b"\xff\xd8" + tail, VALID[:100] + tail):
        try:
            inspect(data)
        except (MalformedMessage, UnsupportedError):
            continue


@pytest.mark.parametrize("pattern", [b"\xff", b"\xff\x00", b"\xff\xd0", b"\x00"])
def test_a_hostile_scan_costs_linear_time(pattern: bytes) -> None:
    coded = pattern * (1 << 20)
    start = time.process_time()
    layout, _ = inspect(structure(TABLES, frame(), scan(coded=coded)))
    assert layout.shape == (16, 16)
    assert time.process_time() - start < 1.0


def test_sizes_up_to_the_limit_are_read() -> None:
    layout, _ = inspect(structure(TABLES, frame((4096, 4096), GREY), scan((1,))))
    assert layout.blocks == ((512, 512),)
    with pytest.raises(UnsupportedError, match="64 MiB"):
        inspect(np.zeros((1 << 26) + 1, np.uint8).data)


def test_lengths_at_the_edges() -> None:
    for length in (0, 1, 2, 0x7FFF, 0xFFFF):
        data = b"\xff\xd8\xff\xfe" + struct.pack(">H", length)
        with pytest.raises(MalformedMessage):
            inspect(data)
