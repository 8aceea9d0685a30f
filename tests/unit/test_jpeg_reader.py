"""Coefficients of real JPEG files, and hostile ones, through the child process."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from privml.errors import MalformedMessage, UnsupportedError
from privml.protocols.fhe.front import jpeg_reader
from privml.protocols.fhe.front.blocks import as_cells, block_dct
from privml.protocols.fhe.front.components import Image, to_pixels
from privml.protocols.fhe.front.jpeg_file import inspect
from privml.protocols.fhe.front.jpeg_reader import JpegReader
from privml.testing.jpegs import (
    SAMPLINGS,
    decode,
    encode,
    frame,
    picture,
    scan,
    segment,
    structure,
)

pytest.importorskip("PIL", reason="making JPEG files needs Pillow (extra: report)")
pytest.importorskip("jpeglib", reason="reading coefficients needs jpeglib (extra: jpeg)")

SHAPE = (33, 51)


@pytest.fixture(scope="module")
def reader() -> Iterator[JpegReader]:
    with JpegReader() as opened:
        yield opened


def blocks(image: Image, component: int = 0) -> np.ndarray:
    """Return (vertical, horizontal, block row, block column)."""
    return as_cells(image.components[component].plane, (8, 8))


@pytest.mark.parametrize("progressive", [False, True])
@pytest.mark.parametrize("sampling", SAMPLINGS)
@pytest.mark.parametrize("quality", [30, 75, 100])
def test_luma_is_the_dct_of_the_decoders_luma(
    quality: int, sampling: str, progressive: bool, reader: JpegReader
) -> None:
    data = encode(picture(SHAPE, 1), quality=quality, sampling=sampling, progressive=progressive)
    image = reader.read(data)
    assert image.shape == SHAPE
    luma = decode(data, luma=True).astype(float) - 128
    assert luma.shape == SHAPE
    whole = (slice(0, 32), slice(0, 48))  # complete blocks: what pads the others is not decoded
    ours = block_dct(luma[whole], 8)
    # decoding rounds every sample by at most 1/2, and its integer DCT by a little more
    assert np.abs(ours - image.components[0].plane[whole]).max() < 8 * 0.6
    assert np.abs(ours - image.components[0].plane[whole]).mean() < 0.4


@pytest.mark.parametrize("sampling", SAMPLINGS)
def test_pixels_are_the_decoders(sampling: str, reader: JpegReader) -> None:
    data = encode(picture(SHAPE, 2), sampling=sampling)
    difference = np.abs(to_pixels(reader.read(data)).astype(int) - decode(data))
    assert difference.max() <= 4  # decoders round chroma to 8 bits before they mix colours
    assert difference.mean() < 0.6


def test_a_grey_file_has_one_component(reader: JpegReader) -> None:
    data = encode(picture(SHAPE, 3)[..., 0])
    image = reader.read(data)
    assert image.grey
    assert np.abs(to_pixels(image).astype(int) - decode(data)).max() <= 1


def test_vertical_frequency_comes_first(reader: JpegReader) -> None:
    columns = np.cos(np.pi * (2 * np.arange(24) + 1) * 3 / 16)
    stripes = np.broadcast_to(128 + 50 * columns, (16, 24)).astype(np.uint8)
    cells = blocks(reader.read(encode(np.ascontiguousarray(stripes), quality=100)))
    assert cells.shape == (8, 8, 2, 3)
    energy = np.square(cells[:, 1:]).sum(axis=(2, 3))
    assert np.unravel_index(energy.argmax(), energy.shape) == (0, 2)  # row 0, column 3
    turned = blocks(reader.read(encode(np.ascontiguousarray(stripes.T), quality=100)))
    assert np.allclose(turned, cells.transpose(1, 0, 3, 2), atol=3)


def test_blocks_lie_where_their_pixels_do(reader: JpegReader) -> None:
    grey = np.full((16, 24), 100, np.uint8)
    grey[8:16, 16:24] = 200
    means = blocks(reader.read(encode(grey, quality=100)))[0, 0] / 8 + 128
    assert np.allclose(means, [[100, 100, 100], [100, 100, 200]], atol=1)


def test_each_component_has_its_own_quantiser(reader: JpegReader) -> None:
    luma = [1 + i for i in range(64)]  # row-major, every entry distinct
    chroma = [100 + i for i in range(64)]
    image = reader.read(encode(picture((32, 32), 4), sampling="4:4:4", tables=[luma, chroma]))
    for component, table in ((0, luma), (1, chroma), (2, chroma)):
        steps = blocks(image, component) / np.reshape(table, (8, 8, 1, 1))
        assert np.array_equal(steps, np.rint(steps))
    turned = blocks(image) / np.reshape(luma, (8, 8, 1, 1)).swapaxes(0, 1)
    assert not np.array_equal(turned, np.rint(turned))


@pytest.mark.parametrize(
    ("colour", "cb", "cr"),
    [((255, 0, 0), -43, 127), ((0, 0, 255), 127, -21), ((0, 255, 0), -85, -107)],
)
def test_colours_are_not_swapped(
    colour: tuple[int, int, int], cb: int, cr: int, reader: JpegReader
) -> None:
    flat = np.broadcast_to(np.array(colour, np.uint8), (16, 32, 3))
    image = reader.read(encode(np.ascontiguousarray(flat), quality=100))
    assert np.allclose(blocks(image, 1)[0, 0] / 8, cb, atol=1.5)
    assert np.allclose(blocks(image, 2)[0, 0] / 8, cr, atol=1.5)


def test_files_that_are_not_read_leave_the_reader_usable(reader: JpegReader) -> None:
    from PIL import Image as Pillow

    good = encode(picture(SHAPE, 5))
    path = os.memfd_create("cmyk")
    try:
        with os.fdopen(os.dup(path), "wb") as stream:
            Pillow.new("CMYK", (16, 16)).save(stream, "JPEG")
        cmyk = os.pread(path, 1 << 20, 0)
    finally:
        os.close(path)
    with pytest.raises(UnsupportedError, match="CMYK"):
        reader.read(cmyk)
    reader.read(good)


def test_coded_data_that_ends_early_is_refused(reader: JpegReader) -> None:
    for progressive in (False, True):
        good = encode(picture(SHAPE, 6), progressive=progressive)
        for part in (0.5, 0.9, 0.99):
            with pytest.raises(MalformedMessage):
                reader.read(good[: int(len(good) * part)])
    baseline = encode(picture((96, 96), 6))
    with pytest.raises(MalformedMessage, match="broken"):
        reader.read(baseline[: len(baseline) // 2] + b"\xff\xd9")
    assert reader.read(baseline).shape == (96, 96)


def test_files_without_tables_are_refused(reader: JpegReader) -> None:
    empty = structure(frame(), scan())
    for data in (
        empty,
        structure(segment(0xDB, bytes(65)), segment(0xC4, bytes(19)), frame(), scan()),
    ):
        inspect(data)  # in order as far as structure goes
        with pytest.raises(MalformedMessage):
            reader.read(data)
    reader.read(encode(picture(SHAPE, 7)))


def test_damaged_files_end_in_our_errors(reader: JpegReader, rng: np.random.Generator) -> None:
    good = encode(picture((24, 24), 8), progressive=True)
    outcomes = set()
    for _ in range(60):
        data = bytearray(good)
        for position in rng.integers(0, len(data), 2):
            data[position] = rng.integers(0, 256)
        try:
            image = reader.read(data)
        except (MalformedMessage, UnsupportedError) as error:
            outcomes.add(type(error))
        else:
            assert all(np.isfinite(c.plane).all() for c in image.components)
    assert MalformedMessage in outcomes
    assert reader.read(good).shape == (24, 24)


def test_a_reader_recovers_from_a_killed_process() -> None:
    data = encode(picture(SHAPE, 9))
    with JpegReader() as reader:
        before = reader.read(data)
        assert reader._process is not None
        first = reader._process.pid
        reader._process.kill()
        reader._process.wait()
        after = reader.read(data)
        assert reader._process.pid != first
    assert np.array_equal(before.components[1].plane, after.components[1].plane)
    assert reader._process is None


def test_a_file_that_takes_too_long_is_given_up() -> None:
    data = encode(picture(SHAPE, 10))
    with JpegReader() as reader:
        reader.read(data)
        reader._limit_s = 0.0
        with pytest.raises(MalformedMessage, match="too long"):
            reader.read(data)
        reader._limit_s = 10.0
        assert reader.read(data).shape == SHAPE


def test_a_broken_parser_is_said_to_be_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jpeg_reader, "_MODULE", "privml.protocols.fhe.front.no_such_module")
    with JpegReader() as reader, pytest.raises(UnsupportedError, match=r"cannot start.*no_such"):
        reader.read(encode(picture(SHAPE, 11)))


def test_a_missing_parser_is_said_before_anything_starts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jpeg_reader, "find_spec", lambda name: None)
    with JpegReader() as reader, pytest.raises(UnsupportedError, match=r"privml\[jpeg\]"):
        reader.read(encode(picture(SHAPE, 12)))


def test_the_child_gets_a_small_environment_and_limits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "x")
    with JpegReader() as reader:
        reader.read(encode(picture(SHAPE, 13)))
        assert reader._process is not None
        folder = Path(f"/proc/{reader._process.pid}")
        assert b"AWS_SECRET" not in (folder / "environ").read_bytes()
        lines = (folder / "limits").read_text(encoding="ascii").splitlines()
    limits = {line[:26].strip(): line[26:].split()[0] for line in lines}
    assert limits["Max core file size"] == "0"
    assert limits["Max address space"] == str(1 << 30)
    assert int(limits["Max cpu time"]) < 60
