"""Calibrated ranges of named models, kept beside the code so that planning need not repeat them.

``known_ranges.json`` maps the digest of a model to what calibration gives for it; a test compares
the file with a fresh calibration, and ``.ci/known_ranges.py`` writes it. Torch-free.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, replace
from pathlib import Path
from typing import Protocol

import msgspec

from privml.backbones.base import HexDigest, Interval, Manifest
from privml.backbones.config import EncoderConfig
from privml.backbones.digests import canonical_json, sha256
from privml.backbones.tokenizer import Tokenizer

_FILE = Path(__file__).with_name("known_ranges.json")


class Known(msgspec.Struct, forbid_unknown_fields=True):
    """What the file holds about one model: shape, texts seen, margin, ends of each range."""

    shape: str
    samples: int
    factor: float
    ranges: dict[str, tuple[float, float]]


class Digestible(Protocol):
    """What a lookup asks of an encoder."""

    config: EncoderConfig
    tokenizer: Tokenizer | None

    def manifest(self) -> Manifest:
        """Return the digests of the parameters."""
        ...


def key_of(encoder: Digestible) -> HexDigest:
    """Return a digest of all that calibration depends on: weights, configuration, tokenizer.

    The model's name is left out. Cost: one pass over the weights unless the encoder knows their
    digests already.
    """
    tokenizer = encoder.tokenizer
    return sha256(
        canonical_json({
            "config": replace(encoder.config, name="any").digest(),
            "tensors": [asdict(tensor) for tensor in encoder.manifest().tensors],
            "tokenizer": None if tokenizer is None else sha256(tokenizer.to_json()),
        })
    )  # fmt: skip


def known_ranges(encoder: Digestible) -> dict[str, Interval] | None:
    """Return the ranges the file has for exactly this model, or ``None``."""
    models = msgspec.json.decode(_FILE.read_bytes(), type=dict[str, Known])
    if not any(known.shape == _shape(encoder.config) for known in models.values()):
        return None  # no need to digest the weights
    found = models.get(key_of(encoder))
    if found is None:
        return None
    return {
        name: Interval(
            low=low, high=high, origin="calibrated", samples=found.samples, factor=found.factor
        )
        for name, (low, high) in found.ranges.items()
    }


def entry_of(encoder: Digestible, ranges: Mapping[str, Interval]) -> tuple[HexDigest, Known]:
    """Return key and entry of the file for freshly calibrated ranges of a model."""
    first = next(iter(ranges.values()))
    ends = {name: (interval.low, interval.high) for name, interval in sorted(ranges.items())}
    return key_of(encoder), Known(_shape(encoder.config), first.samples, first.factor, ends)


def _shape(config: EncoderConfig) -> str:
    return f"{config.layers} layers of width {config.hidden}, {config.vocab} tokens"
