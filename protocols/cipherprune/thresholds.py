"""The learned thresholds of a model: the server's secret, and the two files that keep it.

``NAME.json`` says what the thresholds belong to and holds the SHA-256 digest of
``NAME.safetensors``, which holds the numbers as ring integers. Torch-free.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final, Protocol

import msgspec
import numpy as np
import safetensors
import safetensors.numpy
from numpy.typing import NDArray

from privml.backbones.base import HexDigest, Manifest
from privml.backbones.config import EncoderConfig
from privml.backbones.digests import canonical_json, sha256
from privml.errors import Corrupt, ParameterError, UntrustedArtifact
from privml.params import check, outside
from privml.storage.files import read_file
from privml.storage.publish import atomic_write

#: Fractional bits of a raw score in the ring; thresholds are multiples of 2^-16.
SCORE_BITS: Final = 16

_FORMAT: Final = "privml.thresholds"
_MAX_JSON, _MAX_TENSORS = 1 << 16, 1 << 20
_MAX_LAYERS, _MAX_SIZE = 1024, 1 << 16
_DIGEST_CHARS: Final = 64


class Digestible(Protocol):
    """What thresholds ask of the model they belong to."""

    config: EncoderConfig

    def manifest(self) -> Manifest:
        """Return the digests of the parameters."""
        ...


@dataclass(frozen=True)
class Thresholds:
    """Thresholds of token pruning, one pair for each layer but the last; secret to the server.

    A token of layer ``l`` has the score ``(sum of its attention column) / (heads * reference)``.
    It is kept if the score reaches ``theta[l]``, and of high importance if it reaches ``beta[l]``.

    Parameters
    ----------
    theta, beta
        Thresholds in units of the score, ``0 <= theta[l] <= beta[l] <= 1``. They are rounded to
        the ring's grid: multiples of ``2**-16 / (heads * reference)``.
    heads
        Attention heads of the model.
    reference
        Length that scores are normalised by, whatever the length of the text.
    model_digest
        Digest of the model they were learned for, see :func:`model_digest`; empty for any model
        of this shape.
    shortest
        Texts of at most so many tokens are not pruned; public.

    Raises
    ------
    ParameterError
        Naming every value that is out of range.

    Notes
    -----
    ``repr`` shows sizes only, because the values are secret.
    """

    theta: tuple[float, ...] = field(repr=False)
    beta: tuple[float, ...] = field(repr=False)
    heads: int = field(kw_only=True)
    reference: int = field(default=128, kw_only=True)
    model_digest: str = field(default="", kw_only=True)
    shortest: int = field(default=0, kw_only=True)

    def __post_init__(self) -> None:
        check("thresholds", _problems(self))
        object.__setattr__(self, "theta", tuple(k / self.unit for k in self.raw_theta))
        object.__setattr__(self, "beta", tuple(k / self.unit for k in self.raw_beta))

    @classmethod
    def of_raw(
        cls,
        theta: Sequence[int],
        beta: Sequence[int],
        *,
        heads: int,
        reference: int = 128,
        model_digest: str = "",
        shortest: int = 0,
    ) -> Thresholds:
        """Build thresholds from ring integers, raw scores at scale 2^16."""
        unit = heads * reference << SCORE_BITS
        if unit <= 0:
            raise ParameterError(f"{heads = } and {reference = } must be positive")
        return cls(
            tuple(k / unit for k in theta), tuple(k / unit for k in beta),
            heads=heads, reference=reference, model_digest=model_digest, shortest=shortest,
        )  # fmt: skip

    @property
    def layers(self) -> int:
        """Layers of the model."""
        return len(self.theta) + 1

    @property
    def unit(self) -> int:
        """Ring integer of the score 1: heads * reference * 2^16."""
        return self.heads * self.reference << SCORE_BITS

    @property
    def raw_theta(self) -> tuple[int, ...]:
        """Pruning thresholds as ring integers: raw column sums at scale 2^16."""
        return tuple(round(value * self.unit) for value in self.theta)

    @property
    def raw_beta(self) -> tuple[int, ...]:
        """Reduction thresholds as ring integers: raw column sums at scale 2^16."""
        return tuple(round(value * self.unit) for value in self.beta)

    def bound_to(self, model: Digestible) -> Thresholds:
        """Return the same thresholds with the digest of a model."""
        return replace(self, model_digest=model_digest(model))

    def require(self, model: Digestible) -> None:
        """Refuse a model that these thresholds were not learned for.

        Cost: one pass over the weights unless the model knows its digests already.

        Raises
        ------
        ParameterError
            If the number of layers or heads, or the digest of the model differs.
        """
        config = model.config
        if (config.layers, config.heads) != (self.layers, self.heads):
            raise ParameterError(
                f"the thresholds are for {self.layers} layers of {self.heads} heads, the model has "
                f"{config.layers} of {config.heads}"
            )
        if self.model_digest and self.model_digest != model_digest(model):
            raise ParameterError(
                "the thresholds were learned for other weights; load the model that was saved "
                "beside them, or learn thresholds for this one"
            )

    def save(self, path: Path | str, *, replace: bool = False) -> Path:
        """Write ``NAME.safetensors`` and then ``NAME.json``, both readable by the owner only.

        Parameters
        ----------
        path
            ``NAME``, ``NAME.json`` or ``NAME.safetensors``; its directory must exist.
        replace
            Replace files that exist.

        Returns
        -------
        Path
            The path of the JSON file.

        Raises
        ------
        StorageError
            A file exists and ``replace`` is false, or the system failed.
        """
        document, tensors = _files(path)
        arrays = {
            "theta": np.array(self.raw_theta, np.int64),
            "beta": np.array(self.raw_beta, np.int64),
        }
        data = safetensors.numpy.save(arrays)
        text = canonical_json({
            "format": _FORMAT, "version": 1, "heads": self.heads, "reference": self.reference,
            "layers": self.layers, "model_digest": self.model_digest, "shortest": self.shortest,
            "tensors": hashlib.sha256(data).hexdigest(),
        })  # fmt: skip
        atomic_write(tensors, data, replace=replace)
        atomic_write(document, text + b"\n", replace=replace)
        return document

    @classmethod
    def load(cls, path: Path | str) -> Thresholds:
        """Read what :meth:`save` wrote.

        Raises
        ------
        StorageError
            A file is missing or unreadable.
        Corrupt
            A file is no thresholds file, or holds values out of range.
        UntrustedArtifact
            The two files do not belong together.
        """
        document, tensors = _files(path)
        header = _read_header(document)
        data = read_file(tensors, limit=_MAX_TENSORS)
        if hashlib.sha256(data).hexdigest() != header.tensors:
            raise UntrustedArtifact(
                f"{tensors.name} does not have the digest that {document.name} names; copy both "
                "files of one run, or learn the thresholds anew"
            )
        theta, beta = _read_tensors(data, tensors.name, count=header.layers - 1)
        try:
            return cls.of_raw(
                theta, beta, heads=header.heads, reference=header.reference,
                model_digest=header.model_digest, shortest=header.shortest,
            )  # fmt: skip
        except ParameterError as error:
            raise Corrupt(f"{document.name}: {error}") from error


def model_digest(model: Digestible) -> HexDigest:
    """Return the digest of weights and configuration that thresholds belong to.

    The model's name is left out, so that a copy in another folder has the same digest.
    """
    return sha256(
        canonical_json({
            "config": model.config.identity(),
            "tensors": {tensor.name: tensor.sha256 for tensor in model.manifest().tensors},
        })
    )  # fmt: skip


class _Header(msgspec.Struct, forbid_unknown_fields=True):
    """What the JSON file holds."""

    format: str
    version: int
    heads: int
    reference: int
    layers: int
    model_digest: str
    tensors: str
    shortest: int = 0


def _problems(found: Thresholds) -> list[str]:
    problems = outside("heads", found.heads, 1, _MAX_SIZE)
    problems += outside("reference", found.reference, 1, _MAX_SIZE)
    problems += outside("shortest", found.shortest, 0, _MAX_SIZE)
    problems += outside("layers", len(found.theta) + 1, 1, _MAX_LAYERS)
    if len(found.theta) != len(found.beta):
        problems.append(f"{len(found.theta)} values of theta and {len(found.beta)} of beta")
    for layer, (low, high) in enumerate(zip(found.theta, found.beta, strict=False)):
        if not (math.isfinite(low) and math.isfinite(high) and 0 <= low <= high <= 1):
            problems.append(f"layer {layer}: needs 0 <= theta <= beta <= 1")
    digest = found.model_digest
    if digest and (len(digest) != _DIGEST_CHARS or set(digest) - set("0123456789abcdef")):
        problems.append("model_digest must be 64 hexadecimal digits or empty")
    return problems


def _files(path: Path | str) -> tuple[Path, Path]:
    """Return the paths of the JSON file and of the safetensors file."""
    base = Path(path)
    name = base.name.removesuffix(".json").removesuffix(".safetensors")
    if not name:
        raise ParameterError(f"{path} names no thresholds file; give NAME or NAME.json")
    return base.with_name(f"{name}.json"), base.with_name(f"{name}.safetensors")


def _read_header(path: Path) -> _Header:
    data = read_file(path, limit=_MAX_JSON)
    try:
        header = msgspec.json.decode(data, type=_Header)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise Corrupt(f"{path.name} is no thresholds file: {error}") from error
    if header.format != _FORMAT or header.version != 1:
        raise Corrupt(
            f"{path.name} has format {header.format[:40]!r} version {header.version}; this release "
            f"reads {_FORMAT!r} version 1"
        )
    return header


def _read_tensors(data: bytes, name: str, *, count: int) -> tuple[list[int], list[int]]:
    try:
        arrays: dict[str, NDArray[np.generic]] = safetensors.numpy.load(data)
    except (safetensors.SafetensorError, KeyError, ValueError, TypeError) as error:
        raise Corrupt(f"{name} is not a safetensors file: {error}") from error
    kinds = {key: (array.dtype.name, array.shape) for key, array in arrays.items()}
    expected = ("int64", (count,))
    if kinds != {"theta": expected, "beta": expected}:
        raise Corrupt(f"{name} must hold theta and beta, each {count} int64 values")
    return [int(k) for k in arrays["theta"]], [int(k) for k in arrays["beta"]]
