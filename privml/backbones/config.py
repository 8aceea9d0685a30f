"""Configuration of BERT- and GPT-2-type models: all that is public about one; torch-free."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field, replace
from typing import Literal

import msgspec

from privml.backbones.base import HexDigest
from privml.backbones.digests import canonical_json, sha256
from privml.errors import MalformedMessage, ParameterError

Activation = Literal["gelu", "gelu_tanh"]
Pooling = Literal["mean", "cls", "pooler", "last"]

_FLAGS = ("causal", "pre_norm")

MAX_JSON_BYTES = 1 << 20
"""Longest configuration text that is read, in bytes."""

_LIMITS: tuple[tuple[str, int, int], ...] = (
    ("layers", 1, 1024),
    ("hidden", 1, 1 << 16),
    ("heads", 1, 1 << 12),
    ("ffn", 1, 1 << 18),
    ("vocab", 1, 1 << 24),
    ("max_positions", 1, 1 << 20),
    ("type_vocab", 1, 1 << 10),
    ("max_length", 1, 1 << 20),
    ("pad_id", 0, (1 << 24) - 1),
)


@dataclass(frozen=True, kw_only=True)
class EncoderConfig:
    """Shape and options of an encoder, or of a decoder read as one.

    BERT has neither ``causal`` nor ``pre_norm``; GPT-2 has both, ``gelu_tanh`` and ``last``. Both
    flags are left out of the JSON where they are off.

    Parameters
    ----------
    name
        Short name shown to people, 1 to 128 printable characters. It is the directory's, so it
        does not count in comparisons and :meth:`identity`: a copy elsewhere is the same model.
    layers, hidden, heads, ffn
        Number of layers, width d, attention heads (dividing d) and width of the feed-forward part.
    vocab, max_positions, type_vocab
        Rows of the token, position and segment embedding tables.
    eps
        Constant added to the variance in each LayerNorm.
    activation
        ``gelu`` (by the error function) or ``gelu_tanh``.
    pooling
        ``mean`` over tokens, ``cls`` (first hidden state), ``pooler`` (first hidden state through a
        dense layer and tanh) or ``last`` (hidden state of the last token, see
        :attr:`~privml.backbones.batch.Encoded.last`).
    normalize
        Whether the holder of the output divides it by its Euclidean norm.
    labels
        Names of the classes if a classifier stands on the pooler's output or on the last hidden
        state, else empty.
    max_length
        Longest text in tokens, special tokens included; at most ``max_positions``.
    pad_id
        Token id of padding.
    causal
        Whether a position attends only to itself and to positions before it.
    pre_norm
        Whether LayerNorm stands before attention and feed-forward part instead of after the sums;
        there is none on the embedding then, and one more after the last layer.

    Raises
    ------
    ParameterError
        Listing every field that is out of range.
    """

    name: str = field(compare=False)
    layers: int
    hidden: int
    heads: int
    ffn: int
    vocab: int
    max_positions: int
    type_vocab: int = 2
    eps: float = 1e-12
    activation: Activation = "gelu"
    pooling: Pooling = "mean"
    normalize: bool = False
    labels: tuple[str, ...] = ()
    max_length: int
    pad_id: int = 0
    causal: bool = False
    pre_norm: bool = False

    def __post_init__(self) -> None:
        problems = _problems(self)
        if problems:
            raise ParameterError("encoder configuration: " + "; ".join(problems))

    @property
    def head_dim(self) -> int:
        """Width of one attention head."""
        return self.hidden // self.heads

    @property
    def task(self) -> Literal["embedding", "classification"]:
        """What the output is: an embedding or one logit per class."""
        return "classification" if self.labels else "embedding"

    @property
    def output_dim(self) -> int:
        """Width of the output."""
        return len(self.labels) or self.hidden

    @property
    def architecture(self) -> str:
        """What the model is: ``bert-encoder``, ``gpt2-decoder`` or one of the two mixtures."""
        family = "gpt2" if self.pre_norm else "bert"
        return f"{family}-decoder" if self.causal else f"{family}-encoder"

    def to_json(self) -> bytes:
        """Return the canonical JSON of the configuration."""
        tree = asdict(self)
        return canonical_json({k: v for k, v in tree.items() if v is True or k not in _FLAGS})

    def digest(self) -> HexDigest:
        """Return the SHA-256 digest of the canonical JSON."""
        return sha256(self.to_json())

    def identity(self) -> HexDigest:
        """Return the digest without the name: equal exactly if the configurations are."""
        return replace(self, name="any").digest()

    @classmethod
    def from_json(cls, data: bytes) -> EncoderConfig:
        """Read a configuration that came from outside.

        Raises
        ------
        MalformedMessage
            If the bytes are not exactly what :meth:`to_json` of a valid configuration returns.
        """
        if len(data) > MAX_JSON_BYTES:
            raise MalformedMessage("the encoder configuration is longer than 1 MiB")
        try:
            config = msgspec.json.decode(data, type=cls)
        except (msgspec.DecodeError, ParameterError, UnicodeDecodeError, RecursionError) as error:
            raise MalformedMessage(f"the encoder configuration is not valid: {error}") from error
        if config.to_json() != data:
            raise MalformedMessage("the encoder configuration is not in canonical form")
        return config


def _problems(config: EncoderConfig) -> list[str]:
    """List every field that is out of range."""
    found = [
        f"{field} = {value} must lie in [{low}, {high}]"
        for field, low, high in _LIMITS
        if not low <= (value := int(getattr(config, field))) <= high
    ]
    if not (0 < len(config.name) <= 128 and config.name.isprintable()):
        found.append("name must have 1 to 128 printable characters")
    if config.heads > 0 and config.hidden % config.heads:
        found.append(f"hidden = {config.hidden} is not a multiple of heads = {config.heads}")
    if config.max_length > config.max_positions:
        found.append(f"max_length exceeds max_positions = {config.max_positions}")
    if config.pad_id >= config.vocab:
        found.append(f"pad_id = {config.pad_id} is not below vocab = {config.vocab}")
    if not 0.0 < config.eps <= 1e-3:
        found.append(f"eps = {config.eps} must lie in (0, 0.001]")
    if config.activation not in ("gelu", "gelu_tanh"):
        found.append(f"activation {config.activation!r} is not gelu or gelu_tanh")
    if config.pooling not in ("mean", "cls", "pooler", "last"):
        found.append(f"pooling {config.pooling!r} is not mean, cls, pooler or last")
    if config.causal and config.pooling in ("cls", "pooler"):
        found.append("the first position of a causal model sees no other: pool by last or mean")
    if config.labels and (config.pooling not in ("pooler", "last") or config.normalize):
        found.append("a classifier needs pooling = 'pooler' or 'last' and normalize = False")
    if len(set(config.labels)) != len(config.labels):
        found.append("labels repeat")
    return found
