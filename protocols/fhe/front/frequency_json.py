"""The JSON form of a front end: every coefficient and statistic written out."""

from __future__ import annotations

from typing import Any, Final, Literal, Protocol

import msgspec

from privml.backbones.digests import Json, canonical_json
from privml.errors import MalformedMessage, ParameterError
from privml.protocols.fhe.front.channels import ChannelSet
from privml.protocols.fhe.front.statistics import Statistics

FORMAT: Final = "privml.frequency.1"
MAX_JSON_BYTES: Final = 1 << 17


class Specification(Protocol):
    """The fields that are written as they are."""

    @property
    def block(self) -> int:
        """Side of a cell."""

    @property
    def source(self) -> str:
        """Source."""

    @property
    def control(self) -> str:
        """Control."""

    @property
    def chroma(self) -> str:
        """Chroma."""

    @property
    def margin(self) -> float:
        """Margin."""

    @property
    def seed(self) -> int:
        """Seed."""

    @property
    def statistics(self) -> Statistics | None:
        """Statistics."""


class _Moments(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    mean: tuple[float, ...]
    std: tuple[float, ...]
    images: int


class _Document(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    format: Literal["privml.frequency.1"]
    block: int
    luma: tuple[tuple[int, int], ...]
    cb: tuple[tuple[int, int], ...]
    cr: tuple[tuple[int, int], ...]
    source: Literal["jpeg", "array"]
    control: str
    size: tuple[int, int] | None
    chroma: Literal["aligned", "bilinear"]
    margin: float
    seed: int
    statistics: _Moments | None


def encode(front: Specification, *, size: tuple[int, int] | None, chosen: ChannelSet) -> bytes:
    """Return the canonical JSON of a front end."""
    planes: dict[str, Json] = {name: [list(p) for p in plane] for name, plane in chosen.planes()}
    moments: Json = None
    if (known := front.statistics) is not None:
        moments = {"images": known.images, "mean": list(known.mean), "std": list(known.std)}
    return canonical_json(
        {
            "format": FORMAT, "block": front.block, "source": str(front.source),
            "control": str(front.control), "size": None if size is None else list(size),
            "chroma": str(front.chroma), "margin": front.margin, "seed": front.seed,
            "statistics": moments, **planes,
        }
    )  # fmt: skip


def decode(data: bytes) -> dict[str, Any]:
    """Return the constructor's arguments of a front end that came from outside.

    Raises
    ------
    MalformedMessage
        Not such a document.
    """
    if len(data) > MAX_JSON_BYTES:
        raise MalformedMessage(f"the front end is longer than {MAX_JSON_BYTES} bytes")
    try:
        read = msgspec.json.decode(data, type=_Document, strict=True)
        channels = ChannelSet(read.luma, read.cb, read.cr)
        known = read.statistics
        statistics = None if known is None else Statistics(known.mean, known.std, known.images)
    except (msgspec.DecodeError, ParameterError, UnicodeDecodeError, RecursionError) as error:
        raise MalformedMessage(f"the front end is not valid: {error}") from error
    return {
        "block": read.block, "channels": channels, "source": read.source,
        "control": read.control, "size": read.size, "chroma": read.chroma,
        "margin": read.margin, "seed": read.seed, "statistics": statistics,
    }  # fmt: skip
