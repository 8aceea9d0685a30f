"""What a client gets of an encoder: configuration, tokenizer and, if released, embedding tables.

One blob in the safetensors format with a single metadata entry ``privml`` that holds the canonical
JSON of the configuration. Tensors: ``tokenizer`` (bytes of tokenizer.json, U8) and, if the tables
are released, ``embed.word``, ``embed.position``, ``embed.segment`` and, unless the model is
pre-norm, ``embed.norm.gamma`` and ``embed.norm.beta`` (F32). The tables are part of the model:
whoever gets them knows them.
Torch-free; the reader treats the bytes as hostile.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Protocol

import msgspec
import numpy as np
from numpy.typing import NDArray
from safetensors.numpy import save

from privml.backbones.base import HexDigest
from privml.backbones.batch import Encoded
from privml.backbones.config import EncoderConfig
from privml.backbones.digests import canonical_json, sha256, tensor_digest
from privml.backbones.program import parameter_shapes
from privml.backbones.tokenizer import Tokenizer
from privml.backbones.tokenizer_json import MAX_TOKENIZER_BYTES
from privml.errors import MalformedMessage, ParameterError, UnsupportedError

TABLES = ("embed.word", "embed.position", "embed.segment", "embed.norm.gamma", "embed.norm.beta")
"""The tables of a post-norm model; see :func:`table_names`."""

MAX_HEADER_BYTES = 1 << 21
_KEY = "privml"
_TOKENIZER = "tokenizer"

Table = NDArray[np.float32]


class _Entry(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    dtype: str
    shape: tuple[int, ...]
    data_offsets: tuple[int, int]


def table_names(config: EncoderConfig) -> tuple[str, ...]:
    """Return the parameters a client needs to embed tokens itself."""
    return TABLES[:3] if config.pre_norm else TABLES


class EncoderLike(Protocol):
    """What :func:`public_part` asks of an encoder."""

    config: EncoderConfig
    tokenizer: Tokenizer | None

    def params(self) -> Mapping[str, Table]:
        """Return the parameters by name."""
        ...


def public_part(encoder: EncoderLike, *, tables: bool = True) -> bytes:
    """Return what the client needs of an encoder, without any other weights.

    Parameters
    ----------
    encoder
        Encoder, with or without tokenizer.
    tables
        Whether the embedding tables are released; without them the client cannot embed tokens
        itself. With them the blob is about ``4 * hidden * (vocab + max_positions)`` bytes.
    """
    return PublicPart(
        config=encoder.config,
        tokenizer=encoder.tokenizer,
        tables={n: encoder.params()[n] for n in table_names(encoder.config)} if tables else {},
    ).to_bytes()


@dataclass(frozen=True, eq=False, repr=False)
class PublicPart:
    """Configuration, tokenizer and embedding tables of an encoder.

    ``tables`` is empty if they are not released; ``tokenizer`` is missing if the encoder has none.
    """

    config: EncoderConfig
    tokenizer: Tokenizer | None
    tables: Mapping[str, Table]

    @property
    def released(self) -> bool:
        """Whether the embedding tables are inside."""
        return bool(self.tables)

    def to_bytes(self) -> bytes:
        """Return the blob."""
        tensors: dict[str, NDArray[np.generic]] = {
            name: np.ascontiguousarray(table, dtype="<f4") for name, table in self.tables.items()
        }
        if self.tokenizer is not None:
            tensors[_TOKENIZER] = np.frombuffer(self.tokenizer.to_json(), np.uint8)
        return save(tensors, metadata={_KEY: self.config.to_json().decode()})

    def digest(self) -> HexDigest:
        """Return a digest of the content, not of bytes or name: equal parts have equal digests."""
        entries = [asdict(tensor_digest(name, self.tables[name])) for name in sorted(self.tables)]
        text = None if self.tokenizer is None else sha256(self.tokenizer.to_json())
        return sha256(
            canonical_json({"config": self.config.identity(), "tokenizer": text, "tables": entries})
        )

    @classmethod
    def from_bytes(cls, data: bytes) -> PublicPart:
        """Read a blob that came from outside; tables are read-only views of ``data``.

        Raises
        ------
        MalformedMessage
            If anything differs from what :meth:`to_bytes` writes: framing, names, types, shapes,
            unused bytes, numbers that are not finite, a tokenizer that does not fit.
        """
        entries, text, body = _split(data)
        config = EncoderConfig.from_json(text)
        _check_layout(entries, body, config)
        tables = {n: _table(n, e, body) for n, e in entries.items() if n != _TOKENIZER}
        entry = entries.get(_TOKENIZER)
        tokenizer = None if entry is None else _tokenizer(body[slice(*entry.data_offsets)], config)
        return cls(config, tokenizer, tables)

    def embed(self, batch: Encoded) -> Table:
        """Return the first hidden states: sum of the three tables, then LayerNorm.

        A pre-norm model has no LayerNorm here; the protocol starts with that of its first layer.

        Parameters
        ----------
        batch
            Token batch of shape ``(B, n)``.

        Returns
        -------
        ndarray
            Shape ``(B, n, hidden)``, float32, equal to the value ``embed.norm`` of the program
            (``embed`` if pre-norm) up to float32 rounding; padded positions are embedded like
            others.

        Raises
        ------
        ParameterError
            If the tables are not released or the batch reaches outside them.
        """
        if not self.released:
            raise ParameterError(
                "the server keeps its embedding tables; use a plan with embedding='private'"
            )
        self._check(batch)
        words, types = self.tables["embed.word"], self.tables["embed.segment"]
        x = words[batch.ids] + self.tables["embed.position"][: batch.length]  # (B, n, d)
        x = (x + types[batch.type_ids]).astype(np.float64)
        if not self.config.pre_norm:
            x -= x.mean(axis=-1, keepdims=True)
            x /= np.sqrt(np.square(x).mean(axis=-1, keepdims=True) + self.config.eps)
            x = x * self.tables["embed.norm.gamma"] + self.tables["embed.norm.beta"]
        result: Table = x.astype(np.float32)
        return result

    def _check(self, batch: Encoded) -> None:
        config = self.config
        if batch.length > config.max_positions:
            raise ParameterError(f"{batch.length} positions exceed {config.max_positions}")
        if int(batch.ids.max()) >= config.vocab or int(batch.type_ids.max()) >= config.type_vocab:
            raise ParameterError(
                f"token ids must be below {config.vocab}, segment ids below {config.type_vocab}"
            )

    def __repr__(self) -> str:
        return f"PublicPart({self.config.name!r}, released={self.released})"


def _split(data: bytes) -> tuple[dict[str, _Entry], bytes, memoryview]:
    """Take the framing apart: tensor entries, configuration text, tensor bytes."""
    size = int.from_bytes(data[:8], "little")
    if len(data) < 8 or not 2 <= size <= min(MAX_HEADER_BYTES, len(data) - 8):
        raise MalformedMessage("the public part has no header of valid length")
    try:
        raw = msgspec.json.decode(data[8 : 8 + size], type=dict[str, msgspec.Raw])
        metadata = msgspec.json.decode(raw.pop("__metadata__"), type=dict[str, str])
        entries = {
            name: msgspec.json.decode(value, type=_Entry, strict=True)
            for name, value in raw.items()
        }
    except (msgspec.DecodeError, KeyError, UnicodeDecodeError, RecursionError) as error:
        raise MalformedMessage("the header of the public part is not valid") from error
    if set(metadata) != {_KEY}:
        raise MalformedMessage("the public part must have exactly one metadata entry")
    return entries, metadata[_KEY].encode(), memoryview(data)[8 + size :]


def _check_layout(entries: Mapping[str, _Entry], body: memoryview, config: EncoderConfig) -> None:
    """Check names, types, shapes, and that the tensors cover the body exactly."""
    names = set(entries) - {_TOKENIZER}
    if names not in (set(), set(table_names(config))):
        raise MalformedMessage("the public part must hold all embedding tables or none")
    shapes = parameter_shapes(config) if names else {}
    position = 0
    for name, entry in sorted(entries.items(), key=lambda item: item[1].data_offsets):
        is_text = name == _TOKENIZER
        start, stop = entry.data_offsets
        shape = (stop - start,) if is_text else shapes[name]
        dtype, width = ("U8", 1) if is_text else ("F32", 4)
        fits = start == position and stop == start + math.prod(shape) * width and stop >= start
        if entry.dtype != dtype or entry.shape != shape or not fits:
            raise MalformedMessage(f"{name} of the public part has a wrong type, shape or place")
        position = stop
    if position != len(body):
        raise MalformedMessage("the public part and its header differ in size")


def _table(name: str, entry: _Entry, body: memoryview) -> Table:
    """Return a checked view of one table."""
    table: Table = np.frombuffer(body[slice(*entry.data_offsets)], "<f4").reshape(entry.shape)
    if not np.isfinite(table).all():
        raise MalformedMessage(f"{name} of the public part has values that are not finite")
    return table


def _tokenizer(view: memoryview, config: EncoderConfig) -> Tokenizer:
    data = bytes(view[: MAX_TOKENIZER_BYTES + 1])  # a longer file is refused by the tokenizer
    try:
        tokenizer = Tokenizer.from_bytes(data, max_length=config.max_length)
    except (UnsupportedError, ParameterError) as error:
        raise MalformedMessage(f"the tokenizer of the public part is not valid: {error}") from error
    if tokenizer.to_json() != data:
        raise MalformedMessage("the tokenizer of the public part is not in canonical form")
    if tokenizer.vocab_size > config.vocab or tokenizer.pad_id != config.pad_id:
        raise MalformedMessage("the tokenizer of the public part does not fit the configuration")
    return tokenizer
