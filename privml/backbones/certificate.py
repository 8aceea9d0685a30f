"""Facts about a model that are fit for an audit log, and the model's parts; torch-free."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Literal, Protocol

from privml.backbones.base import (
    HexDigest,
    Interval,
    Manifest,
    Op,
    OpNode,
    SliceSpec,
    TensorRef,
)
from privml.backbones.config import EncoderConfig
from privml.backbones.digests import canonical_json, sha256
from privml.backbones.program import encoder_ops, parameter_shapes

FRACTIONAL_BITS = 16
"""Fractional bits f at which the record states integer widths."""

_HEAD = ("final_norm", "pooler", "classifier")
_SLOPES: Mapping[str, tuple[float, float]] = {
    # Largest slope of either GELU is 1.1290 near 1.41, the smallest is one minus that.
    "gelu": (-0.1291, 1.1291),
    "tanh": (0.0, 1.0),
    "exp": (0.0, 1.0),  # of scores minus their row maximum
}


@dataclass(frozen=True, kw_only=True)
class NonLinearity:
    """A non-linear function at a value: where its inputs lie and how steep it is there."""

    value: str
    function: Literal["gelu", "tanh", "exp", "rsqrt"]
    reach: Interval
    slope: Interval


@dataclass(frozen=True, kw_only=True)
class BlockFacts:
    """Width of a block in the ring: sign and integer bits of its largest calibrated value."""

    name: str
    integer_bits: int
    fractional_bits: int


@dataclass(frozen=True, kw_only=True)
class SliceDigest:
    """Digest over the digests of a slice's parameters."""

    id: str
    combine: str
    sha256: HexDigest


@dataclass(frozen=True, kw_only=True)
class CertificateRecord:
    """Facts about one model under one kernel plan; this is not the erasure certificate.

    Equality claims hold for the kernel plan named inside. A calibrated range says so and carries
    the number of texts it was seen on; it never passes for a proved one.
    """

    format: int
    name: str
    model_root: HexDigest
    config_digest: HexDigest
    program_digest: HexDigest
    parameter_count: int
    deterministic: bool
    kernel_plan: str
    nonlinearities: tuple[NonLinearity, ...]
    blocks: tuple[BlockFacts, ...]
    slices: tuple[SliceDigest, ...]

    def to_json(self) -> bytes:
        """Return the canonical JSON (RFC 8785), the bytes of an audit-log leaf."""
        return canonical_json(asdict(self))


class Describable(Protocol):
    """What :func:`build_record` asks of an encoder."""

    config: EncoderConfig

    @property
    def deterministic(self) -> bool:
        """Whether all sums have a fixed order."""
        ...

    def manifest(self) -> Manifest:
        """Return the digests of the parameters."""
        ...

    def ranges(self) -> Mapping[str, Interval]:
        """Return the reachable ranges."""
        ...


def build_record(model: Describable, *, kernel_plan: str) -> CertificateRecord:
    """Collect the record of an encoder.

    Parameters
    ----------
    model
        Encoder with configuration, manifest and ranges.
    kernel_plan
        Library, version and instruction set the ranges were computed with.
    """
    config, manifest, ranges = model.config, model.manifest(), model.ranges()
    ops = encoder_ops(config)
    shapes = parameter_shapes(config).values()
    return CertificateRecord(
        format=1,
        name=config.name,
        model_root=manifest.root,
        config_digest=manifest.config_digest,
        program_digest=sha256(canonical_json([asdict(node) for node in ops])),
        parameter_count=sum(math.prod(shape) for shape in shapes),
        deterministic=model.deterministic,
        kernel_plan=kernel_plan,
        nonlinearities=tuple(fact for node in ops for fact in _nonlinear(node, ranges)),
        blocks=_blocks(config, ranges),
        slices=tuple(_slice_digest(part, manifest) for part in encoder_slices(config)),
    )


def encoder_slices(config: EncoderConfig) -> tuple[SliceSpec, ...]:
    """Return the embedding, one slice per layer and the head if it has parameters."""
    shapes = parameter_shapes(config)
    groups: dict[str, list[str]] = {}
    for name in shapes:
        first = name.split(".")[0]
        groups.setdefault("head" if first in _HEAD else first, []).append(name)
    parts: list[SliceSpec] = []
    for group, names in groups.items():
        parts.append(
            SliceSpec(
                id=group,
                tensors=tuple(TensorRef(name=n, start=0, stop=shapes[n][0]) for n in names),
                depends_on=tuple(part.id for part in parts),
                combine="prefix",
                frozen=(("norm", "layernorm"), ("eps", config.eps)),
            )
        )
    return tuple(parts)


def _nonlinear(node: OpNode, ranges: Mapping[str, Interval]) -> tuple[NonLinearity, ...]:
    source = node.inputs[0].name
    if node.kind is Op.ATTENTION:
        scores = ranges[node.name.removesuffix("context") + "scores"]
        reach = Interval(
            low=-2 * scores.bound,
            high=0.0,
            origin=scores.origin,
            samples=scores.samples,
            factor=scores.factor,
        )
        return (NonLinearity(value=node.name, function="exp", reach=reach, slope=_slope("exp")),)
    if node.kind is Op.LAYERNORM:
        return (_rsqrt(node, ranges[f"{source}.var"]),)
    if node.kind in (Op.GELU, Op.TANH):
        function: Literal["gelu", "tanh"] = "gelu" if node.kind is Op.GELU else "tanh"
        reach, slope = ranges[source], _slope(function)
        return (NonLinearity(value=node.name, function=function, reach=reach, slope=slope),)
    return ()


def _rsqrt(node: OpNode, variance: Interval) -> NonLinearity:
    """Describe ``1 / sqrt(var + eps)``, whose slope is ``-(var + eps)^(-3/2) / 2``."""
    eps = node.float_attr("eps")
    steep, flat = (-0.5 * (v + eps) ** -1.5 for v in (variance.low, variance.high))
    slope = Interval(
        low=steep,
        high=flat,
        origin=variance.origin,
        samples=variance.samples,
        factor=variance.factor,
    )
    return NonLinearity(value=node.name, function="rsqrt", reach=variance, slope=slope)


def _slope(function: str) -> Interval:
    low, high = _SLOPES[function]
    return Interval(low=low, high=high, origin="proved")


def _blocks(config: EncoderConfig, ranges: Mapping[str, Interval]) -> tuple[BlockFacts, ...]:
    blocks = []
    for name in ("embed", *(f"layer{index}" for index in range(config.layers))):
        bounds = [r.bound for key, r in ranges.items() if key.split(".")[0] == name]
        width = max(math.ceil(math.log2(max(*bounds, 1.0))), 0) + 1
        facts = BlockFacts(name=name, integer_bits=width, fractional_bits=FRACTIONAL_BITS)
        blocks.append(facts)
    return tuple(blocks)


def _slice_digest(part: SliceSpec, manifest: Manifest) -> SliceDigest:
    entries = [[ref.name, manifest.digest_of(ref.name)] for ref in part.tensors]
    return SliceDigest(id=part.id, combine=part.combine, sha256=sha256(canonical_json(entries)))
