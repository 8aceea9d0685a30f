"""The client's front end as users call it."""

from __future__ import annotations

import json
from dataclasses import FrozenInstanceError, replace

import msgspec
import numpy as np
import pytest
import scipy.fft
from hypothesis import given
from hypothesis import strategies as st

from privml.errors import MalformedMessage, ParameterError
from privml.protocols.fhe.frequency import Frequency
from privml.protocols.fhe.front.cells import Geometry, to_cells
from privml.protocols.fhe.front.components import from_pixels, to_pixels
from privml.protocols.fhe.front.controls import Control, missing_controls
from privml.testing.jpegs import picture

CONTROLS = [control.value for control in Control]


def train(count: int = 4, shape: tuple[int, int] = (16, 24)) -> list[np.ndarray]:
    return [picture(shape, seed) for seed in range(count)]


def fitted(**options: object) -> Frequency:
    return Frequency(**{"source": "array", **options}).fit(train())  # type: ignore[arg-type]


def luma(rgb: np.ndarray) -> np.ndarray:
    return rgb @ np.array([0.299, 0.587, 0.114])


def test_values_by_hand() -> None:
    front = fitted(block=2, channels="y4c1")
    image = picture((16, 24), 99)
    assert front.shape == (6, 8, 12)
    assert front.statistics is not None
    values = front.from_array(image) * np.array(front.statistics.std)[:, None, None]
    values += np.array(front.statistics.mean)[:, None, None]
    y = luma(image.astype(float)) - 128
    cell = scipy.fft.dctn(y[6:8, 10:12], norm="ortho")
    assert np.allclose(values[:4, 3, 5], cell.reshape(-1), atol=1e-3)
    blue = (image[..., 2] - luma(image.astype(float))) / 1.772
    half = scipy.fft.idctn(scipy.fft.dctn(blue[:8, 8:16], norm="ortho")[:4, :4] / 2, norm="ortho")
    assert np.allclose(values[4, 3, 5], half[3, 1], atol=1e-3)


def test_training_images_come_out_normalised() -> None:
    front = fitted(block=4, channels="full")
    batch = front.batch(train())
    assert batch.shape == (4, *front.shape) == (4, 24, 4, 6)
    assert batch.dtype == np.float32
    assert np.allclose(batch.mean(axis=(0, 2, 3)), 0, atol=1e-5)
    assert np.allclose(batch.std(axis=(0, 2, 3)), 1, atol=1e-5)


@pytest.mark.parametrize(
    ("control", "shape"),
    [
        ("dct", (6, 8, 12)), ("pixel", (3, 16, 24)), ("pixel-ycc", (3, 16, 24)),
        ("mean-pool", (3, 8, 12)), ("space-to-depth", (6, 8, 12)), ("random-basis", (6, 8, 12)),
    ],
)  # fmt: skip
def test_controls_have_the_shape_they_compare(control: str, shape: tuple[int, ...]) -> None:
    front = fitted(block=2, channels="y4c1", control=control)
    assert front.shape == shape
    assert front.from_array(train()[0]).shape == shape
    grey = fitted(block=2, channels="y3", control=control)
    colours = {"dct": 3, "random-basis": 3, "space-to-depth": 4}
    assert grey.shape == (colours.get(control, 1), *shape[1:])
    assert grey.from_array(train()[0]).shape == grey.shape


def raw(front: Frequency, image: np.ndarray) -> np.ndarray:
    """Return channels in their own units."""
    assert front.statistics is not None
    scale, shift = (
        np.array(v)[:, None, None] for v in (front.statistics.std, front.statistics.mean)
    )
    return front.from_array(image) * scale + shift


def test_controls_say_what_they_say() -> None:
    image = picture((16, 24), 5)
    rgb = image.astype(float)
    pixel = raw(fitted(channels="y4c1", control="pixel"), image)
    assert np.allclose(luma(pixel.transpose(1, 2, 0)), luma(rgb), atol=1e-3)  # chroma is halved
    pool = raw(fitted(block=4, channels="y4c1", control="mean-pool"), image)
    means = (luma(rgb) - 128).reshape(4, 4, 6, 4).mean(axis=(1, 3))
    assert np.allclose(pool[0], means, atol=1e-3)
    depth = raw(fitted(block=4, channels="full", control="space-to-depth"), image)
    assert np.allclose(depth[7], (luma(rgb) - 128)[1::4, 3::4], atol=1e-3)
    full = raw(fitted(block=4, channels="full"), image)
    assert np.isclose(np.square(full).sum(), np.square(depth).sum(), rtol=1e-5)
    assert np.allclose(full[0] / 4, pool[0], atol=1e-3)
    mixed = raw(fitted(block=4, channels="full", control="random-basis"), image)
    assert np.isclose(np.square(full).sum(), np.square(mixed).sum(), rtol=1e-5)
    other = raw(fitted(block=4, channels="full", control="random-basis", seed=1), image)
    assert not np.allclose(mixed, other, atol=1)


@pytest.mark.parametrize("index", [0, 1, 2])
def test_single_colours_stay_in_order(index: int) -> None:
    flat = np.zeros((16, 24, 3), np.uint8)
    flat[..., index] = 200
    front = fitted(channels="y1c1", control="pixel")
    values = raw(front, flat).mean(axis=(1, 2))
    assert np.allclose(values, np.eye(3)[index] * 200, atol=0.1)
    y, cb, cr = raw(fitted(channels="y1c1"), flat).mean(axis=(1, 2))
    assert np.isclose(y / 2 + 128, (0.299, 0.587, 0.114)[index] * 200, atol=0.1)
    assert (cb > 0) == (index == 2)
    assert (cr > 0) == (index == 0)


@pytest.mark.parametrize("control", CONTROLS)
@pytest.mark.parametrize("order", ["fortran", "strided", "transposed"])
def test_memory_layout_never_matters(control: str, order: str) -> None:
    front = fitted(channels="y4c1", control=control)
    image = picture((16, 24), 7)
    expected = front.from_array(image)
    if order == "fortran":
        other = np.asfortranarray(image)
    elif order == "strided":
        other = np.repeat(image, 2, axis=1)[:, ::2]
    else:
        other = np.ascontiguousarray(image.transpose(2, 1, 0)).transpose(2, 1, 0)
    assert np.shares_memory(other, other.base if other.base is not None else other)
    result = front.from_array(other)
    assert np.array_equal(result, expected)
    assert result.flags.c_contiguous
    assert front.batch([other, image]).flags.c_contiguous


def test_grey_images_have_zero_chroma_before_normalisation() -> None:
    front = fitted(channels="y4c1")
    grey = picture((16, 24), 8)[..., 1]
    as_rgb = np.repeat(grey[..., None], 3, axis=2)
    assert np.allclose(front.from_array(grey), front.from_array(as_rgb), atol=1e-5)
    assert np.allclose(raw(front, grey)[4:], 0, atol=1e-4)


def test_odd_sizes_are_cut_to_whole_cells() -> None:
    front = Frequency(block=2, source="array").fit(train(2, (17, 25)))
    assert front.size == (16, 24)
    image = picture((17, 25), 3)
    assert to_cells(from_pixels(image), Geometry((16, 24), 2)).route == "exact"
    assert np.allclose(raw(front, image)[:4], raw(front, image[:16, :24])[:4], atol=1e-3)


@given(st.sampled_from([2, 4, 8]), st.sampled_from(["aligned", "bilinear"]), st.data())
def test_any_image_comes_to_the_declared_shape(
    block: int, chroma: str, data: st.DataObject
) -> None:
    geometry = Geometry((32, 16), block, "bilinear" if chroma == "bilinear" else "aligned")
    shape = data.draw(st.tuples(st.integers(1, 70), st.integers(1, 70)))
    cells = to_cells(from_pixels(picture(shape, 1)), geometry)
    side = geometry.chroma_block
    assert cells.luma.shape == (block, block, 32 // block, 16 // block)
    assert all(c.shape == (side, side, 32 // block, 16 // block) for c in cells.chroma)
    assert all(c.flags.c_contiguous for c in (cells.luma, *cells.chroma))


@pytest.mark.parametrize("block", [2, 4, 8])
@pytest.mark.parametrize(("shape", "kept"), [((64, 96), 4), ((128, 192), 2), ((256, 384), 1)])
def test_larger_images_are_scaled_in_the_dct_domain(
    block: int, shape: tuple[int, int], kept: int
) -> None:
    rows, columns = np.mgrid[: shape[0], : shape[1]]
    smooth = 128 + 60 * np.sin(rows * kept / 60) * np.cos(columns * kept / 80)
    geometry = Geometry((32, 48), block)
    if kept == 1:  # full chroma would keep half a frequency
        colour = np.repeat(smooth[..., None], 3, axis=2)
        assert to_cells(from_pixels(colour), geometry).route == "decoded"
    cells = to_cells(from_pixels(smooth), geometry)
    assert cells.route == "scaled"
    times = 8 // kept
    averaged = smooth.reshape(32, times, 48, times).mean(axis=(1, 3))
    exact = to_cells(from_pixels(averaged), geometry)
    assert exact.route == "exact"
    assert np.abs(cells.luma - exact.luma).max() < 0.6 * block


def test_other_sizes_are_resampled_from_the_centre() -> None:
    front = replace(fitted(channels="y1"), size=(16, 16), statistics=None)
    front = front.fit([picture((16, 16), 1)])
    wide = np.zeros((20, 60), np.uint8)
    wide[:, 20:40] = 200
    assert np.allclose(raw(front, wide)[0, :, 1:-1] / 2 + 128, 200, atol=0.1)
    paper = Frequency(block=4, channels="y1", source="array", size=64, margin=1.15).fit(train())
    assert paper.shape == (1, 16, 16)


def test_bilinear_chroma_is_the_papers() -> None:
    front = Frequency(block=4, channels="paper-24", chroma="bilinear", size=64, source="array")
    front = front.fit([picture((64, 64), 1)])
    assert front.shape == (24, 16, 16)
    flat = np.broadcast_to(np.array([10, 60, 200], np.uint8), (64, 64, 3))
    values = raw(front, flat)
    cb = (200 - luma(np.array([10.0, 60, 200]))) / 1.772
    assert np.allclose(values[12], 4 * cb, atol=1e-2)
    assert np.allclose(values[13:18], 0, atol=1e-2)


def test_fit_returns_another_object() -> None:
    front = Frequency(block=2, source="array")
    with pytest.raises(ParameterError, match="size of the input is not known"):
        _ = front.shape
    ready = front.fit(iter(train()))
    assert front.statistics is None
    assert ready.shape == (6, 8, 12)
    with pytest.raises(FrozenInstanceError):
        ready.block = 4  # type: ignore[misc]
    with pytest.raises(ParameterError, match="object that fit"):
        replace(ready, statistics=None).from_array(train()[0])
    with pytest.raises(ParameterError, match="no training image"):
        front.fit([])
    with pytest.raises(ParameterError, match="source='array'"):
        Frequency().fit(train())
    with pytest.raises(ParameterError, match="bytes of a JPEG"):
        ready.batch(["photo.jpg"])  # type: ignore[list-item]
    assert ready.batch([]).shape == (0, 6, 8, 12)


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({"block": 3}, "block = 3"),
        ({"source": "png"}, "source"),
        ({"control": "dft"}, "control"),
        ({"chroma": "nearest"}, "chroma"),
        ({"chroma": "bilinear", "control": "mean-pool"}, "bilinear"),
        ({"margin": 0.5}, "margin"),
        ({"margin": float("nan")}, "margin"),
        ({"seed": -1}, "seed"),
        ({"size": 31}, "multiple of 2"),
        ({"size": (32, 0)}, "size = 0"),
        ({"size": 8192}, "4096"),
        ({"block": 4, "chroma": "bilinear", "size": 36}, "multiple of 8"),
        ({"channels": "y5c1"}, "y5c1"),
        ({"channels": "paper-24", "block": 4}, "a cell has 2x2"),
    ],
)
def test_options_that_do_not_fit(options: dict[str, object], why: str) -> None:
    with pytest.raises(ParameterError, match=why):
        Frequency(**options)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "pixels",
    [
        np.zeros((4, 4, 4), np.uint8), np.zeros((3, 4, 4), np.uint8), np.zeros(4, np.uint8),
        np.zeros((4, 4), np.int64), np.full((4, 4), -1.0), np.full((4, 4), np.nan),
        np.full((4, 4), 255.5), np.zeros((0, 4), np.uint8), np.zeros((4, 4), bool),
    ],
)  # fmt: skip
def test_pixels_that_are_refused(pixels: np.ndarray) -> None:
    with pytest.raises(ParameterError):
        fitted().from_array(pixels)


def test_decoding_pixels_gives_them_back() -> None:
    image = picture((17, 25), 2)
    assert np.array_equal(to_pixels(from_pixels(image)), image)
    assert np.array_equal(to_pixels(from_pixels(image[..., 0])), image[..., 0])


def test_learned_channels_keep_their_statistics() -> None:
    full = fitted(block=4, channels="full")
    scores = np.arange(24) % 7
    chosen = full.select(scores, keep=5)
    assert chosen.shape == (5, 4, 6)
    picked = sorted(sorted(range(24), key=lambda i: (-scores[i], i))[:5])
    image = train()[1]
    assert np.array_equal(chosen.from_array(image), full.from_array(image)[picked])
    with pytest.raises(ParameterError, match="one score for each of 24"):
        full.select(scores[:-1], keep=5)
    with pytest.raises(ParameterError, match="control='dct'"):
        fitted(control="mean-pool").select(np.ones(6), keep=3)


@pytest.mark.parametrize("control", CONTROLS)
def test_json_round_trips(control: str) -> None:
    front = fitted(block=2, channels="y3c1", control=control)
    again = Frequency.from_json(front.to_json())
    assert again == front
    assert again.digest() == front.digest()
    assert np.array_equal(again.from_array(train()[0]), front.from_array(train()[0]))
    assert replace(front, statistics=None).digest() != front.digest()
    empty = Frequency(block=8, channels="paper-64")
    assert Frequency.from_json(empty.to_json()) == empty


def test_every_option_changes_the_digest() -> None:
    front = Frequency(size=32)
    variants: list[dict[str, object]] = [
        {"block": 4, "channels": "full"}, {"channels": "y3c1"}, {"source": "array"},
        {"control": "pixel"}, {"size": 64}, {"chroma": "bilinear"}, {"margin": 1.15}, {"seed": 1},
    ]  # fmt: skip
    digests = {front.digest(), *(replace(front, **v).digest() for v in variants)}  # type: ignore[arg-type]
    assert len(digests) == len(variants) + 1


def test_foreign_json_gives_one_error() -> None:
    good = fitted(channels="y4c1").to_json()
    tree = json.loads(good)
    wrong: list[dict[str, object]] = [
        {"block": 3}, {"block": 2.5}, {"luma": []}, {"luma": [[0, 0], [0, 0]]}, {"luma": [[0, 2]]},
        {"cb": [[0, 0, 0]]}, {"control": "x"}, {"source": "x"}, {"size": [16]}, {"size": [-2, 2]},
        {"margin": 9}, {"seed": 1 << 60}, {"format": "privml.frequency.2"}, {"extra": 1},
        {"statistics": {**tree["statistics"], "std": [0] * 6}},
        {"statistics": {**tree["statistics"], "mean": [0.0]}},
        {"statistics": {**tree["statistics"], "images": 0}},
    ]  # fmt: skip
    documents = [msgspec.json.encode({**tree, **change}) for change in wrong]
    documents += [b"", b"{}", b"[" * 5000, b"\xff", good + b" ", good[:-1], b" " * (1 << 18)]
    documents += [json.dumps(tree, indent=1).encode()]
    for document in documents:
        with pytest.raises(MalformedMessage):
            Frequency.from_json(document)


@given(st.integers(0, 400), st.integers(0, 255))
def test_changed_json_is_refused_or_valid(position: int, value: int) -> None:
    data = bytearray(Frequency(size=32, channels="y4c1").to_json())
    data[position % len(data)] = value
    try:
        front = Frequency.from_json(bytes(data))
    except MalformedMessage:
        return
    assert front.to_json() == data


def test_a_table_of_results_needs_its_controls() -> None:
    assert missing_controls(["dct"]) == ("pixel", "mean-pool", "space-to-depth")
    assert missing_controls(CONTROLS) == ()
