"""Reads ``tokenizer.json`` of a BERT model into a checked description and writes it back.

A tokenizer file may come from the other party, and the tokenizer library does not survive every
inconsistent file. So the file is read here into :class:`WordPiece`, which can only say what BERT
needs, and the library gets JSON written from that description. Truncation and padding stored in a
file are dropped: a text is never cut or filled behind the caller's back.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import msgspec

from privml.backbones.digests import Json, canonical_json
from privml.errors import UnsupportedError

MAX_TOKENIZER_BYTES = 64 << 20
"""Largest tokenizer file that is read, in bytes."""

PAD, UNK, CLS, SEP = "[PAD]", "[UNK]", "[CLS]", "[SEP]"
PREFIX = "##"
_SPECIAL = (PAD, UNK, CLS, SEP)
_LONGEST_WORD = 1000


class _Strict(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Base of what is read: unknown fields are refused, since they could change the meaning."""


class AddedToken(_Strict, frozen=True):
    """A token that is looked for before words are split."""

    id: int
    content: str
    single_word: bool = False
    lstrip: bool = False
    rstrip: bool = False
    normalized: bool = True
    special: bool = False


class Normalizer(_Strict, frozen=True, tag_field="type", tag="BertNormalizer"):
    """How characters are cleaned before splitting."""

    clean_text: bool = True
    handle_chinese_chars: bool = True
    strip_accents: bool | None = None
    lowercase: bool = True


class _PreTokenizer(_Strict, frozen=True, tag_field="type", tag="BertPreTokenizer"):
    pass


class _Model(_Strict, frozen=True, tag_field="type", tag="WordPiece"):
    vocab: dict[str, int]
    unk_token: Literal["[UNK]"]
    continuing_subword_prefix: Literal["##"]
    max_input_chars_per_word: int = 100


class _SpecialToken(_Strict, frozen=True):
    id: str
    ids: list[int]
    tokens: list[str]


class _Template(_Strict, frozen=True, tag_field="type", tag="TemplateProcessing"):
    single: list[dict[str, dict[str, str | int]]]
    pair: msgspec.Raw
    special_tokens: dict[str, _SpecialToken]


class _BertProcessing(_Strict, frozen=True, tag_field="type", tag="BertProcessing"):
    sep: tuple[str, int]
    cls: tuple[str, int]


class _Root(_Strict, frozen=True):
    model: _Model
    pre_tokenizer: _PreTokenizer
    post_processor: _Template | _BertProcessing
    normalizer: Normalizer | None = None
    added_tokens: tuple[AddedToken, ...] = ()
    version: str = "1.0"
    truncation: msgspec.Raw = msgspec.Raw(b"null")
    padding: msgspec.Raw = msgspec.Raw(b"null")
    decoder: msgspec.Raw = msgspec.Raw(b"null")


@dataclass(frozen=True, kw_only=True, repr=False)
class WordPiece:
    """A BERT tokenizer: [CLS], the pieces of one text, [SEP].

    Parameters
    ----------
    vocabulary
        Tokens; the position is the id. Holds [PAD], [UNK], [CLS] and [SEP], none twice.
    normalizer
        Character clean-up, or none.
    added
        Tokens matched as a whole: entries of the vocabulary, or ids that follow it without gaps.
    longest_word
        Words with more characters become [UNK].

    Raises
    ------
    UnsupportedError
        If one of the rules above is broken.
    """

    vocabulary: tuple[str, ...]
    normalizer: Normalizer | None
    added: tuple[AddedToken, ...]
    longest_word: int = 100

    def __post_init__(self) -> None:
        index = set(self.vocabulary)
        missing = [token for token in _SPECIAL if token not in index]
        if missing or len(index) != len(self.vocabulary) or "" in index:
            raise UnsupportedError(
                f"the vocabulary lacks {missing}, repeats a token or has an empty one"
            )
        if not 1 <= self.longest_word <= _LONGEST_WORD:
            raise UnsupportedError(f"max_input_chars_per_word must lie in [1, {_LONGEST_WORD}]")
        _check_added(self.vocabulary, self.added)

    def to_json(self) -> bytes:
        """Return the canonical ``tokenizer.json``."""
        index = {token: number for number, token in enumerate(self.vocabulary)}
        normalizer = None if self.normalizer is None else _builtins(self.normalizer)
        return canonical_json(
            {
                "version": "1.0",
                "truncation": None,
                "padding": None,
                "added_tokens": [_builtins(token) for token in self.added],
                "normalizer": normalizer,
                "pre_tokenizer": {"type": "BertPreTokenizer"},
                "post_processor": {
                    "type": "BertProcessing",
                    "sep": [SEP, index[SEP]],
                    "cls": [CLS, index[CLS]],
                },
                "decoder": {"type": "WordPiece", "prefix": PREFIX, "cleanup": True},
                "model": {
                    "type": "WordPiece",
                    "unk_token": UNK,
                    "continuing_subword_prefix": PREFIX,
                    "max_input_chars_per_word": self.longest_word,
                    "vocab": index,
                },
            }
        )


def read_wordpiece(data: bytes) -> WordPiece:
    """Read a ``tokenizer.json``.

    Raises
    ------
    UnsupportedError
        If the file is not JSON or not BERT's WordPiece pipeline; the message names the part.
    """
    if len(data) > MAX_TOKENIZER_BYTES:
        raise UnsupportedError("tokenizer.json is larger than 64 MiB")
    try:
        root = msgspec.json.decode(data, type=_Root)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise UnsupportedError(
            f"tokenizer.json is not that of a BERT model: {str(error)[:200]}"
        ) from error
    vocab = root.model.vocab
    if sorted(vocab.values()) != list(range(len(vocab))):
        raise UnsupportedError("tokenizer.json: token ids are not 0, 1, 2, ... without gaps")
    _check_processor(root.post_processor, vocab)
    return WordPiece(
        vocabulary=tuple(sorted(vocab, key=vocab.__getitem__)),
        normalizer=root.normalizer,
        added=root.added_tokens,
        longest_word=root.model.max_input_chars_per_word,
    )


def wordpiece_of(vocabulary: Sequence[str], *, lowercase: bool) -> WordPiece:
    """Describe the tokenizer of a ``vocab.txt``.

    Parameters
    ----------
    vocabulary
        Lines of the file; the position is the id.
    lowercase
        Whether texts are lower-cased and lose their accents, as in "uncased" models.

    Raises
    ------
    UnsupportedError
        If a special token is missing or a token repeats.
    """
    added = tuple(
        AddedToken(id=number, content=token, normalized=False, special=True)
        for number, token in enumerate(vocabulary)
        if token in (*_SPECIAL, "[MASK]")
    )
    return WordPiece(
        vocabulary=tuple(vocabulary), normalizer=Normalizer(lowercase=lowercase), added=added
    )


def _check_added(vocabulary: tuple[str, ...], added: tuple[AddedToken, ...]) -> None:
    index, size = {token: number for number, token in enumerate(vocabulary)}, len(vocabulary)
    contents = {token.content for token in added}
    beyond = [token.id for token in added if token.content not in index]
    placed = all(index.get(token.content, token.id) == token.id for token in added)
    if not placed or beyond != list(range(size, size + len(beyond))):
        raise UnsupportedError("added tokens do not agree with the vocabulary or leave gaps")
    if len(contents) != len(added) or "" in contents:
        raise UnsupportedError("an added token is empty or stands there twice")


def _check_processor(processor: _Template | _BertProcessing, vocab: Mapping[str, int]) -> None:
    """Refuse anything but [CLS] text [SEP], all in segment 0."""
    if isinstance(processor, _BertProcessing):
        good = processor.cls == (CLS, vocab.get(CLS)) and processor.sep == (SEP, vocab.get(SEP))
    else:
        good = processor.single == [
            {"SpecialToken": {"id": CLS, "type_id": 0}},
            {"Sequence": {"id": "A", "type_id": 0}},
            {"SpecialToken": {"id": SEP, "type_id": 0}},
        ] and all(
            (entry := processor.special_tokens.get(token)) is not None
            and entry.ids == [vocab.get(token)]
            for token in (CLS, SEP)
        )
    if not good:
        raise UnsupportedError("tokenizer.json: only the form [CLS] text [SEP] is supported")


def _builtins(record: msgspec.Struct) -> Json:
    tree: Json = msgspec.to_builtins(record)
    return tree
