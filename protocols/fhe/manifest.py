"""The manifest: all that is public about a compiled program, in canonical JSON, named by digest.

A manifest holds no date, no path and no weight besides the scale of the scores, so equal programs
compiled by equal versions have equal ids. Its reader treats the bytes as hostile and accepts only
the canonical form.
"""

from __future__ import annotations

import math
import platform
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Final, Literal, Self

import msgspec
from msgspec import Meta

from privml.backbones.digests import Json, canonical_json, sha256
from privml.errors import MalformedMessage, UntrustedArtifact
from privml.protocols.fhe import toolkit
from privml.protocols.fhe.licence import NOTICE
from privml.protocols.fhe.planned import SHARE_RESULTS

FORMAT: Final = "privml.fhe.manifest.1"
MAX_MANIFEST_BYTES: Final = 1 << 20
FUNCTION_PRIVACY: Final = "heuristic"
_MAX_LAYERS: Final = 4096
_CPUINFO: Final = Path("/proc/cpuinfo")
_FEATURES: Final = ("avx2", "avx512f", "fma")

Hex = Annotated[str, Meta(pattern=r"\A[0-9a-f]{64}\Z")]
Name = Annotated[str, Meta(min_length=1, max_length=200)]
_Size = Annotated[int, Meta(ge=0, le=1 << 48)]
_Side = Annotated[int, Meta(ge=1, le=1 << 20)]
_Int = Annotated[int, Meta(ge=-(1 << 40), le=1 << 40)]
_Probability = Annotated[float, Meta(ge=0, le=1)]


class Toolkit(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Versions that a compiled program belongs to; a server with others refuses it.

    Attributes
    ----------
    concrete_python, python, machine
        Library release, Python release without its last number, processor architecture.
    features
        Instruction sets of the machine that compiled, of those that matter; the server has all.
    """

    concrete_python: Name
    python: Name
    machine: Name
    features: Annotated[tuple[Name, ...], Meta(max_length=16)]

    @classmethod
    def here(cls) -> Self:
        """Return the versions of this process."""
        python = f"{sys.version_info[0]}.{sys.version_info[1]}"
        return cls(toolkit.VERSION, python, platform.machine(), _features())

    def require_here(self) -> None:
        """Check that a program of these versions runs in this process.

        Raises
        ------
        UntrustedArtifact
            It does not; the message names both sides.
        """
        here = self.here()
        problems = [
            f"{what} {theirs} there, {ours} here"
            for what, theirs, ours in (
                ("concrete-python", self.concrete_python, here.concrete_python),
                ("Python", self.python, here.python),
                ("processor", self.machine, here.machine),
            )
            if theirs != ours
        ]
        lacking = sorted(set(self.features) - set(here.features))
        if lacking:
            problems.append(f"this processor lacks {', '.join(lacking)}")
        if problems:
            raise UntrustedArtifact(
                f"the program was compiled elsewhere: {'; '.join(problems)}; compile it again from "
                "its integer graph: privml fhe compile graph.safetensors"
            )


class Input(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What the client encrypts: integers of a shape within bounds.

    Attributes
    ----------
    shape, low, high
        Of the image after the front end.
    scale
        One unit, in normalised front-end values; None without a front end.
    front
        Digest of the front-end specification, or None: the client brings integers.
    """

    shape: Annotated[tuple[_Side, ...], Meta(min_length=1, max_length=4)]
    low: _Int
    high: _Int
    scale: float | None
    front: Hex | None


class Output(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What the client decrypts: ``scale * (integer + low) + offset``, one score per class.

    ``labels`` names the classes, or is empty.
    """

    low: _Int
    scale: Annotated[tuple[float, ...], Meta(min_length=1, max_length=1 << 16)]
    offset: Annotated[tuple[float, ...], Meta(min_length=1, max_length=1 << 16)]
    labels: Annotated[tuple[Name, ...], Meta(max_length=1 << 16)]


class Layer(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Tables of one node: planned count, bootstraps as compiled, bits, rounding."""

    name: Name
    tables: _Size
    bootstraps: _Size
    accumulator_bits: _Size
    table_bits: _Size
    round_to: _Size | None
    exact: bool


class Measured(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Measured disagreement, see :class:`privml.protocols.fhe.reliability.Disagreement`."""

    images: _Size
    seeds: _Size
    rate: _Probability
    low: _Probability
    high: _Probability
    confidence: _Probability
    source: Literal["reference", "simulate", "execute"]


class Sizes(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Bytes of evaluation keys, query and answer without envelopes, and of loaded keys."""

    keys: _Size
    query: _Size
    answer: _Size
    loaded_keys: _Size


@dataclass(frozen=True)
class Digests:
    """What a manifest pins, in hexadecimal: artefact, public parameters, integer graph."""

    program: str
    parameters: str
    graph: str


class Manifest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """See the module's text.

    Attributes
    ----------
    program, parameters, graph
        Digests of the server's compiled artefact, of the public parameters, of the integer graph.
    p_error, global_failure
        Of one table as compiled, and of at least one table of an image.
    contract, disagreement
        As in the plan.
    head
        Where the last layer runs; ``"server"``: encrypted.
    share_results
        Decrypted results go to nobody, not even back to the server.
    """

    format: Literal["privml.fhe.manifest.1"]
    scheme: Literal["tfhe"]
    program: Hex
    parameters: Hex
    graph: Hex
    toolkit: Toolkit
    input: Input
    output: Output
    layers: Annotated[tuple[Layer, ...], Meta(max_length=_MAX_LAYERS)]
    sizes: Sizes
    p_error: _Probability
    global_failure: _Probability
    contract: Literal["exact", "measured"]
    disagreement: Measured | None
    head: Literal["server"]
    share_results: Literal["forbidden"]
    function_privacy: Literal["heuristic"]
    licence: Annotated[str, Meta(max_length=2000)]

    @property
    def id(self) -> str:
        """Digest of the manifest in hexadecimal: the id of the program."""
        return sha256(self.to_json())

    @property
    def bootstraps(self) -> int:
        """Bootstraps of one image."""
        return sum(layer.bootstraps for layer in self.layers)

    def to_json(self) -> bytes:
        """Return the canonical JSON (RFC 8785)."""
        tree: Json = msgspec.to_builtins(self)
        return canonical_json(tree)

    @classmethod
    def from_json(cls, data: bytes) -> Manifest:
        """Read a manifest that came from outside.

        Raises
        ------
        MalformedMessage
            The bytes are not exactly what :meth:`to_json` of a valid manifest returns.
        """
        if len(data) > MAX_MANIFEST_BYTES:
            raise MalformedMessage(f"the manifest is longer than {MAX_MANIFEST_BYTES} bytes")
        try:
            manifest = msgspec.json.decode(data, type=cls, strict=True)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            raise MalformedMessage(
                f"the manifest is not valid: {error}; compile the program again with this version"
            ) from error
        _check(manifest)
        if manifest.to_json() != data:
            raise MalformedMessage("the manifest is not in canonical form")
        return manifest


def common() -> dict[str, str]:
    """Return the fields that are the same in every manifest of this version."""
    return {
        "format": FORMAT, "scheme": "tfhe", "head": "server", "share_results": SHARE_RESULTS,
        "function_privacy": FUNCTION_PRIVACY, "licence": NOTICE,
    }  # fmt: skip


def _check(manifest: Manifest) -> None:
    image, scores = manifest.input, manifest.output
    numbers = [*scores.scale, *scores.offset, *([] if image.scale is None else [image.scale])]
    rules = (
        (image.low < image.high, "the bounds of the image are not in order"),
        (math.prod(image.shape) <= 1 << 24, "the image is too large"),
        ((image.scale is None) == (image.front is None), "scale and front end belong together"),
        (image.scale is None or image.scale > 0, "the input scale is not positive"),
        (len(scores.scale) == len(scores.offset), "scale and offset differ in length"),
        (len(scores.labels) in (0, len(scores.scale)), "labels and classes differ in number"),
        (all(map(math.isfinite, numbers)), "a number is not finite"),
        (
            manifest.contract == "exact" or manifest.disagreement is not None,
            "contract 'measured' needs a measured disagreement",
        ),
    )
    for holds, problem in rules:
        if not holds:
            raise MalformedMessage(f"the manifest is not valid: {problem}")


def _features() -> tuple[str, ...]:
    try:
        text = _CPUINFO.read_text(encoding="ascii", errors="replace")
    except OSError:
        return ()
    flags = next((line for line in text.splitlines() if line.startswith("flags")), "")
    return tuple(sorted(set(_FEATURES) & set(flags.partition(":")[2].split())))
