"""Client front end: an image becomes a few coarse planes of block-DCT coefficients.

The choice of coefficients is static; the statistics are fitted on training data and are public to
every client. The shape of the result is fixed by the specification, whatever the file. Method:
"DCT-CryptoNets: Scaling Private Inference in the Frequency Domain" (ICLR 2025), with exact
re-blocking of a file's own coefficients in place of decoding and encoding again.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable
from contextlib import ExitStack
from dataclasses import KW_ONLY, dataclass, replace
from typing import Any, Final, Literal, Self, TypeAlias

import numpy as np
from numpy.typing import ArrayLike, NDArray

from privml._typing import Bytes
from privml.backbones.base import HexDigest
from privml.backbones.digests import sha256
from privml.errors import MalformedMessage, ParameterError, internal
from privml.params import check, outside
from privml.protocols.fhe.front import frequency_json as document
from privml.protocols.fhe.front.blocks import Plane
from privml.protocols.fhe.front.cells import Cells, Chroma, Geometry, to_cells
from privml.protocols.fhe.front.channels import ChannelSet, channel_set, select
from privml.protocols.fhe.front.components import Image, from_pixels, to_pixels
from privml.protocols.fhe.front.controls import (
    Control,
    channel_count,
    grid_shape,
    make_channels,
)
from privml.protocols.fhe.front.jpeg_reader import JpegReader
from privml.protocols.fhe.front.statistics import Statistics, measure
from privml.rng import ScienceSeed

Source: TypeAlias = Literal["jpeg", "array"]
Size: TypeAlias = int | tuple[int, int] | None
Photo: TypeAlias = "Bytes | NDArray[Any]"
"""The bytes of a JPEG file, or pixels as a numpy array."""

MAX_SIDE: Final = 4096
_MAX_SEED: Final = 1 << 53


@dataclass(frozen=True)
class Frequency:
    """Specification of the encrypted network's input, with statistics once fitted.

    Parameters
    ----------
    block
        Pixels on the side of a cell: 2, 4 or 8.
    channels
        ``"y4c1"`` (4 luma coefficients, 1 of each chroma plane), ``"y3"`` (no colour),
        ``"paper-24"``, ``"full"``, or a :class:`ChannelSet`.
    source
        ``"jpeg"``: the coefficients of the file itself. ``"array"``: pixels; files are decoded
        to 8 bits first. A network belongs to the source that it was trained on.
    control
        ``"dct"``, or what to compare it with: ``"pixel"``, ``"pixel-ycc"``, ``"mean-pool"``,
        ``"space-to-depth"``, ``"random-basis"``.
    size
        Side, or rows and columns, in pixels that every image is brought to. None: that of the
        first training image, cut to whole cells.
    chroma
        ``"aligned"``: half-size chroma in half-size cells. ``"bilinear"``: the paper's chroma,
        full cells on half-size chroma, interpolated.
    margin
        1.15 as in the paper resamples every image and cuts out the centre; 1 keeps all.
    seed
        Basis of ``"random-basis"``.
    statistics
        Mean and deviation of each channel; given by :meth:`fit`.

    Raises
    ------
    ParameterError
        Naming every option that does not fit.

    Examples
    --------
    >>> import numpy as np
    >>> train = np.arange(5 * 8 * 8).reshape(5, 8, 8).astype(float) % 251
    >>> front = Frequency(block=2, channels="y3", source="array").fit(train)
    >>> front.shape
    (3, 4, 4)
    >>> front.from_array(train[0]).dtype
    dtype('float32')
    """

    block: int = 2
    _: KW_ONLY
    channels: ChannelSet | str = "full"
    source: Source = "jpeg"
    control: Control | str = Control.DCT
    size: Size = None
    chroma: Chroma = "aligned"
    margin: float = 1.0
    seed: int = 0
    statistics: Statistics | None = None

    def __post_init__(self) -> None:
        _check(self)
        size = (self.size, self.size) if isinstance(self.size, int) else self.size
        cell = self._geometry((0, 0))
        chosen = self.channels
        if isinstance(chosen, str):
            chosen = channel_set(chosen, block=self.block, chroma_block=cell.chroma_block)
        chosen.fit_in(self.block, cell.chroma_block)
        _check_size(size, cell.cell)
        object.__setattr__(self, "channels", chosen)
        object.__setattr__(self, "control", Control(self.control))
        object.__setattr__(self, "size", size)
        object.__setattr__(self, "margin", float(self.margin))
        count = channel_count(Control(self.control), cell, chosen)
        if self.statistics is not None and len(self.statistics.mean) != count:
            raise ParameterError(
                f"the statistics are of {len(self.statistics.mean)} channels, the front end has "
                f"{count}: fit it again"
            )

    @property
    def coefficients(self) -> ChannelSet:
        """The chosen coefficients, in channel order."""
        internal(isinstance(self.channels, ChannelSet), "channels are resolved when made")
        return self.channels if isinstance(self.channels, ChannelSet) else ChannelSet(())

    @property
    def shape(self) -> tuple[int, int, int]:
        """Channels, rows and columns of the network's input."""
        geometry = self._sized()
        count = channel_count(Control(self.control), geometry, self.coefficients)
        return (count, *grid_shape(Control(self.control), geometry))

    def fit(self, train: Iterable[Photo]) -> Self:
        """Return this front end with the statistics of ``train``.

        Parameters
        ----------
        train
            Training images, read once: bytes of JPEG files, or arrays as in :meth:`from_array`.

        Raises
        ------
        ParameterError
            No image, or arrays although ``source`` is ``"jpeg"``.
        MalformedMessage, UnsupportedError
            A file that cannot be read.
        """
        with JpegReader() as reader:
            images = (self._load(photo, reader, fitting=True) for photo in train)
            first = next(images, None)
            if first is None:
                raise ParameterError("there is no training image to fit the front end on")
            sized = self if self.size is not None else replace(self, size=self._whole(first))
            every = itertools.chain([first], images)
            statistics = measure(sized._raw(image) for image in every)
        return replace(sized, statistics=statistics)

    def from_jpeg(self, data: Bytes, *, reader: JpegReader | None = None) -> NDArray[np.float32]:
        """Return the network's input of one JPEG file.

        Parameters
        ----------
        data
            The file; it is parsed in a child process. Orientation tags are not applied.
        reader
            An open reader, to start the process once for many files.

        Returns
        -------
        float32 of :attr:`shape`, normalised, C-contiguous.

        Raises
        ------
        MalformedMessage
            Broken or truncated.
        UnsupportedError
            A kind that is not read (CMYK, 12-bit, arithmetic-coded, over 2^24 pixels, ...), or
            ``jpeglib`` is missing.
        ParameterError
            The front end is not fitted.
        """
        with ExitStack() as stack:
            reader = reader or stack.enter_context(JpegReader())
            return self._finish(self._load(data, reader))

    def from_array(self, rgb: NDArray[Any]) -> NDArray[np.float32]:
        """Return the network's input of decoded pixels.

        Parameters
        ----------
        rgb
            Shape (rows, columns, 3), red first, or (rows, columns) for grey; uint8, or reals in
            [0, 255]. Any memory layout.

        Returns
        -------
        float32 of :attr:`shape`, normalised, C-contiguous.
        """
        return self._finish(from_pixels(rgb))

    def batch(self, images: Iterable[Photo]) -> NDArray[np.float32]:
        """Return the inputs of many images, files or arrays: float32, (images, *shape)."""
        with JpegReader() as reader:
            inputs = [self._finish(self._load(photo, reader)) for photo in images]
        return np.stack(inputs) if inputs else np.zeros((0, *self.shape), np.float32)

    def cells(self, image: Photo) -> Cells:
        """Return all coefficients of one image, before selection and normalisation."""
        with JpegReader() as reader:
            return to_cells(self._load(image, reader), self._sized())

    def select(self, scores: ArrayLike, keep: int) -> Self:
        """Return the front end with the ``keep`` channels of highest importance.

        Scores come from gates trained over this front end's channels and then frozen; statistics
        stay those of the same coefficients. See :func:`.front.channels.select`.

        Raises
        ------
        ParameterError
            Scores that do not fit the channels, or a control other than ``dct``.
        """
        chosen = self.coefficients
        if self.control is not Control.DCT or np.shape(scores) != (len(chosen),):
            raise ParameterError(
                f"give one score for each of {len(chosen)} channels of a front end with "
                f"control='dct', not shape {np.shape(scores)} with control={str(self.control)!r}"
            )
        indices = select(scores, keep)
        statistics = self.statistics.keep(indices) if self.statistics else None
        return replace(self, channels=chosen.keep(indices), statistics=statistics)

    def to_json(self) -> bytes:
        """Return the canonical JSON (RFC 8785) of specification and statistics."""
        return document.encode(
            self, size=self._sized().shape if self.size else None, chosen=self.coefficients
        )

    def digest(self) -> HexDigest:
        """Return the SHA-256 of :meth:`to_json` in hexadecimal."""
        return sha256(self.to_json())

    @classmethod
    def from_json(cls, data: bytes) -> Self:
        """Read a specification that came from outside.

        Raises
        ------
        MalformedMessage
            The bytes are not exactly what :meth:`to_json` of a valid front end returns.
        """
        fields = document.decode(data)
        try:
            front = cls(**fields)
        except ParameterError as error:
            raise MalformedMessage(f"the front end is not valid: {error}") from error
        if front.to_json() != data:
            raise MalformedMessage("the front end is not in canonical form")
        return front

    def _geometry(self, shape: tuple[int, int]) -> Geometry:
        return Geometry(shape, self.block, self.chroma, self.margin)

    def _sized(self) -> Geometry:
        if not isinstance(self.size, tuple):
            raise ParameterError("the size of the input is not known: give size=, or fit first")
        return self._geometry(self.size)

    def _whole(self, image: Image) -> tuple[int, int]:
        """Return the size of an image cut to whole cells."""
        cell = self._geometry((0, 0)).cell
        rows, columns = (n // cell * cell for n in image.shape)
        return rows, columns

    def _load(self, photo: Photo, reader: JpegReader, *, fitting: bool = False) -> Image:
        if isinstance(photo, np.ndarray):
            if fitting and self.source == "jpeg":
                raise ParameterError(
                    "fit was given pixels although source='jpeg': give the files, or use "
                    "source='array'"
                )
            return from_pixels(photo)
        if not isinstance(photo, bytes | bytearray | memoryview):
            raise ParameterError(
                f"give the bytes of a JPEG file or a numpy array, not {type(photo).__name__}"
            )
        image = reader.read(photo)
        return image if self.source == "jpeg" else from_pixels(to_pixels(image))

    def _raw(self, image: Image) -> Plane:
        return make_channels(
            to_cells(image, self._sized()),
            Control(self.control),
            self.coefficients,
            seed=ScienceSeed(self.seed),
        )

    def _finish(self, image: Image) -> NDArray[np.float32]:
        if self.statistics is None:
            raise ParameterError(
                "the front end has no statistics: use the object that fit(train) returns"
            )
        return self.statistics.normalise(self._raw(image))


def _check(front: Frequency) -> None:
    problems = []
    if front.block not in (2, 4, 8):
        problems.append(f"block = {front.block}: choose 2, 4 or 8")
    if front.source not in ("jpeg", "array"):
        problems.append(f"source = {front.source!r}: choose jpeg or array")
    if front.chroma not in ("aligned", "bilinear"):
        problems.append(f"chroma = {front.chroma!r}: choose aligned or bilinear")
    known = [control.value for control in Control]
    if front.control not in known:
        problems.append(f"control = {front.control!r}: choose {', '.join(known)}")
    elif front.chroma == "bilinear" and front.control != Control.DCT:
        problems.append("controls use chroma='aligned'; 'bilinear' belongs to control='dct'")
    problems += outside("margin", front.margin, 1.0, 2.0)
    problems += outside("seed", front.seed, 0, _MAX_SEED - 1)
    check("front end", problems)


def _check_size(size: tuple[int, int] | None, cell: int) -> None:
    problems = [
        f"size = {side}: give a multiple of {cell} from {cell} to {MAX_SIDE}"
        for side in size or ()
        if side % cell or not cell <= side <= MAX_SIDE
    ]
    check("front end", problems)
