"""The backbone contract: one model, seen by encrypted inference, unlearning and valuation.

A backbone describes itself by records. Encrypted runtimes and the fixed-point simulator consume
only :meth:`Backbone.ops`, a static typed program that follows from the configuration alone, so a
party without weights knows it too. All records are frozen, torch-free and hold no weights.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, ClassVar, Literal, NewType, Protocol

import numpy as np
from numpy.typing import NDArray

from privml.errors import ParameterError, internal

if TYPE_CHECKING:
    from torch import Tensor

    from privml.backbones.batch import Encoded
    from privml.backbones.certificate import CertificateRecord

HexDigest = NewType("HexDigest", str)
"""A SHA-256 digest, 64 lower-case hexadecimal characters."""

Dim = int | Literal["B", "n"]
"""A size: a number, ``"B"`` (rows of the batch) or ``"n"`` (padded length)."""

Attr = int | float | str | bool


class Op(StrEnum):
    """Kinds of operations a program is made of."""

    EMBED = "embed"
    LINEAR = "linear"
    ATTENTION = "attention"
    ADD = "add"
    LAYERNORM = "layernorm"
    GELU = "gelu"
    TANH = "tanh"
    POOL_MEAN = "pool_mean"
    POOL_CLS = "pool_cls"
    POOL_LAST = "pool_last"


@dataclass(frozen=True)
class ValueSpec:
    """A named value of a program and its symbolic shape."""

    name: str
    shape: tuple[Dim, ...]

    def resolve(self, *, rows: int, length: int) -> tuple[int, ...]:
        """Return the shape for ``rows`` = B and ``length`` = n."""
        sizes = {"B": rows, "n": length}
        return tuple(d if isinstance(d, int) else sizes[d] for d in self.shape)


@dataclass(frozen=True, kw_only=True)
class OpNode:
    """One operation of a program.

    Parameters
    ----------
    kind
        What is computed; the meaning of each kind is written down in
        :mod:`privml.backbones.interpreter`, which is the reference.
    inputs, output
        Values read, in order, and the one value written. A node is known by its output's name.
    params
        Pairs (role, parameter name); the names are keys of ``Backbone.params()``.
    attrs
        Pairs (attribute, value), public constants.
    allowed_substitutes
        Names of approximations an encrypted run may put in place of the exact function.
    leakage
        What an optimised encrypted run may open at this node; empty if nothing.
    """

    kind: Op
    inputs: tuple[ValueSpec, ...]
    output: ValueSpec
    params: tuple[tuple[str, str], ...] = ()
    attrs: tuple[tuple[str, Attr], ...] = ()
    allowed_substitutes: tuple[str, ...] = ()
    leakage: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        """Name of the node, which is the name of its output."""
        return self.output.name

    def param(self, role: str) -> str:
        """Return the name of the parameter that plays ``role``."""
        return dict(self.params)[role]

    def int_attr(self, name: str) -> int:
        """Return a whole-number attribute."""
        value = dict(self.attrs)[name]
        internal(isinstance(value, int), f"attribute {name} of {self.name} is no integer")
        return int(value)

    def float_attr(self, name: str) -> float:
        """Return a real attribute."""
        value = dict(self.attrs)[name]
        internal(isinstance(value, float), f"attribute {name} of {self.name} is no real number")
        return float(value)

    def str_attr(self, name: str) -> str:
        """Return a text attribute."""
        return str(dict(self.attrs)[name])

    def flag(self, name: str) -> bool:
        """Return a yes-or-no attribute; an attribute the node does not have means no."""
        return dict(self.attrs).get(name, False) is True


@dataclass(frozen=True, kw_only=True)
class Interval:
    """A closed range of reachable values and how it was obtained.

    ``origin="calibrated"`` means: seen on ``samples`` texts and widened by ``factor``; it is never
    to be passed off as ``"proved"``.
    """

    low: float
    high: float
    origin: Literal["proved", "calibrated"]
    samples: int = 0
    factor: float = 1.0

    def __post_init__(self) -> None:
        if not (np.isfinite(self.low) and np.isfinite(self.high) and self.low <= self.high):
            raise ParameterError(
                f"[{self.low}, {self.high}] is no interval; both ends must be finite and in order"
            )

    @property
    def bound(self) -> float:
        """Largest magnitude in the interval."""
        return max(abs(self.low), abs(self.high))

    def contains(self, other: Interval) -> bool:
        """Say whether ``other`` lies inside."""
        return self.low <= other.low and other.high <= self.high


@dataclass(frozen=True, kw_only=True)
class TensorRef:
    """A part of a parameter: rows ``start`` to ``stop - 1`` of its first axis."""

    name: str
    start: int
    stop: int


@dataclass(frozen=True, kw_only=True)
class SliceSpec:
    """A part of the model with its own lineage.

    ``combine`` says how slices make up the model: ``prefix`` = each needs all before it.
    ``trained_on`` names data slices; empty means unknown, not "none".
    """

    id: str
    tensors: tuple[TensorRef, ...]
    depends_on: tuple[str, ...]
    combine: Literal["mean", "sum", "prefix", "exclusive"]
    trained_on: tuple[str, ...] = ()
    frozen: tuple[tuple[str, Attr], ...] = ()


@dataclass(frozen=True, kw_only=True, eq=False)
class Route:
    """Which shard serves each row, what the choice depends on and how many bits it leaks."""

    shards: NDArray[np.int64]
    depends_on: Literal["public", "client", "secret"]
    leaked_bits: float


@dataclass(frozen=True, kw_only=True)
class BackboneSpec:
    """Public facts about a backbone."""

    name: str
    architecture: str
    task: Literal["embedding", "classification"]
    output_dim: int
    max_length: int
    parameter_count: int
    config_digest: HexDigest
    program_digest: HexDigest


@dataclass(frozen=True, kw_only=True)
class TensorDigest:
    """Digest of one named parameter, see :func:`privml.backbones.digests.tensor_digest`."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    sha256: HexDigest


@dataclass(frozen=True, kw_only=True)
class Manifest:
    """Digests of all parameters of a model, sorted by name, and of the whole."""

    tensors: tuple[TensorDigest, ...]
    config_digest: HexDigest
    root: HexDigest

    def digest_of(self, name: str) -> HexDigest:
        """Return the digest of one parameter.

        Raises
        ------
        ParameterError
            If the model has no parameter of that name.
        """
        for tensor in self.tensors:
            if tensor.name == name:
                return tensor.sha256
        raise ParameterError(f"the model has no parameter {name!r}")


class Backbone(Protocol):
    """What the three areas may ask of a model.

    Rules every backbone keeps: an interpreter of ``ops()`` reproduces ``forward``; observing
    activations never changes results; ``deterministic`` is true only if every sum has a fixed
    order on every machine and thread count; digests follow :mod:`privml.backbones.digests`.
    """

    supported_ops: ClassVar[frozenset[Op]]
    deterministic: ClassVar[bool]

    def ops(self) -> tuple[OpNode, ...]:
        """Return the program, in execution order."""
        ...

    def params(self) -> Mapping[str, NDArray[np.float32]]:
        """Return every parameter the program names."""
        ...

    def spec(self) -> BackboneSpec:
        """Return the public facts."""
        ...

    def manifest(self) -> Manifest:
        """Return the digests of the parameters."""
        ...

    def ranges(self) -> Mapping[str, Interval]:
        """Return the reachable range of every value the encrypted runtimes need."""
        ...

    def slices(self) -> tuple[SliceSpec, ...]:
        """Return the parts with their own lineage; each parameter is in exactly one."""
        ...

    def route(self, batch: Encoded) -> Route:
        """Return which shard serves each row."""
        ...

    def features(self, batch: Encoded, layer: int) -> Tensor:
        """Return hidden states of one layer, shape ``(B, n, d)``."""
        ...

    def certificate_record(self) -> CertificateRecord:
        """Return facts about the model that are fit for an audit log."""
        ...
