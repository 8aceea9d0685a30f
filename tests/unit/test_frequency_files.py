"""The front end on real JPEG files, against the same files decoded by another library."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from privml.errors import MalformedMessage
from privml.protocols.fhe.frequency import Frequency
from privml.testing.jpegs import SAMPLINGS, decode, encode, picture

pytest.importorskip("PIL", reason="making JPEG files needs Pillow (extra: report)")
pytest.importorskip("jpeglib", reason="reading coefficients needs jpeglib (extra: jpeg)")


@pytest.mark.parametrize("block", [2, 4, 8])
def test_a_file_and_its_pixels_agree(block: int) -> None:
    shape = (35, 53)
    front = Frequency(block=block, size=(32, 48))
    for sampling in SAMPLINGS:
        data = encode(picture(shape, 3), sampling=sampling, quality=80)
        file, array = front.cells(data), front.cells(decode(data))
        assert file.route == array.route
        assert np.abs(file.luma - array.luma).max() < 1.6 * block
        for one, other in zip(file.chroma, array.chroma, strict=True):
            assert np.abs(one - other).mean() < 1.5


def test_420_chroma_of_a_file_is_used_as_it_is() -> None:
    data = encode(picture((32, 32), 4), sampling="4:2:0")
    front = Frequency(block=2, channels="y4c1").fit([data, encode(picture((32, 32), 5))])
    cells = front.cells(data)
    assert cells.route == "exact"
    assert cells.chroma[0].shape == (1, 1, 16, 16)
    full = Frequency(block=4, channels="full", size=32).cells(data)
    assert np.isclose(np.square(full.luma).sum(), np.square(cells.luma).sum())
    assert np.isclose(np.square(full.chroma[1]).sum(), np.square(cells.chroma[1]).sum())


def test_shapes_do_not_depend_on_the_file() -> None:
    files = [
        encode(picture(shape, 1), sampling=sampling, progressive=progressive)
        for shape in ((32, 32), (33, 40), (128, 128), (7, 90))
        for sampling in SAMPLINGS
        for progressive in (False, True)
    ]
    files.append(encode(picture((32, 32), 2)[..., 0]))
    front = Frequency(block=4, channels="paper-6", size=32).fit(files)
    batch = front.batch(files)
    assert batch.shape == (25, 6, 8, 8)
    assert batch.flags.c_contiguous
    assert np.isfinite(batch).all()
    assert np.array_equal(front.from_jpeg(files[0]), batch[0])


def test_source_array_decodes_files() -> None:
    data = encode(picture((16, 24), 6))
    front = Frequency(channels="y4c1", source="array").fit([picture((16, 24), 1)])
    values, pixels = front.from_jpeg(data), front.from_array(decode(data))
    assert np.abs(values - pixels).max() < 0.5
    jpeg = replace(front, source="jpeg")
    assert not np.array_equal(jpeg.from_jpeg(data), values)


def test_a_broken_file_stops_fit() -> None:
    with pytest.raises(MalformedMessage):
        Frequency().fit([encode(picture((16, 16), 1)), b"\xff\xd8"])
