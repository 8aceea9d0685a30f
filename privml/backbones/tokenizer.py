"""Text to token ids, by the ``tokenizers`` library; torch-free, used at the client."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import tokenizers

from privml.backbones.batch import Encoded
from privml.backbones.tokenizer_json import PAD, WordPiece, read_wordpiece, wordpiece_of
from privml.errors import ParameterError


class Tokenizer:
    """WordPiece tokenizer of a BERT-type encoder.

    Parameters
    ----------
    pipeline
        Vocabulary and character clean-up.
    max_length
        Longest text in tokens, special tokens included.

    Raises
    ------
    ParameterError
        If ``max_length`` leaves no room for a token.
    """

    def __init__(self, pipeline: WordPiece, *, max_length: int) -> None:
        self._json = pipeline.to_json()
        self._inner = tokenizers.Tokenizer.from_buffer(self._json)
        self._special = self._inner.num_special_tokens_to_add(is_pair=False)
        if max_length <= self._special:
            raise ParameterError(
                f"max_length = {max_length} must exceed the {self._special} special tokens"
            )
        self._max_length = max_length
        self._pad_id = pipeline.vocabulary.index(PAD)

    @classmethod
    def from_bytes(cls, data: bytes, *, max_length: int) -> Tokenizer:
        """Build a tokenizer from the bytes of ``tokenizer.json``.

        Truncation and padding stored in the file are ignored.

        Raises
        ------
        UnsupportedError
            If the file is not BERT's WordPiece pipeline; the message names the part.
        """
        return cls(read_wordpiece(data), max_length=max_length)

    @classmethod
    def from_file(cls, path: str | Path, *, max_length: int) -> Tokenizer:
        """Build a tokenizer from a ``tokenizer.json`` file.

        Raises
        ------
        ParameterError
            If the file cannot be read.
        UnsupportedError
            If it is not BERT's WordPiece pipeline.
        """
        try:
            data = Path(path).read_bytes()
        except OSError as error:
            raise ParameterError(f"cannot read the tokenizer file: {error}") from error
        return cls.from_bytes(data, max_length=max_length)

    @classmethod
    def from_vocabulary(
        cls, vocabulary: list[str], *, max_length: int, lowercase: bool
    ) -> Tokenizer:
        """Build a tokenizer from the lines of a ``vocab.txt``."""
        return cls(wordpiece_of(vocabulary, lowercase=lowercase), max_length=max_length)

    @property
    def max_length(self) -> int:
        """Longest text in tokens, special tokens included."""
        return self._max_length

    @property
    def vocab_size(self) -> int:
        """Number of token ids."""
        return int(self._inner.get_vocab_size(with_added_tokens=True))

    @property
    def pad_id(self) -> int:
        """Token id used for padding."""
        return self._pad_id

    def to_json(self) -> bytes:
        """Return the canonical ``tokenizer.json`` without stored truncation and padding."""
        return self._json

    def encode(
        self,
        texts: str | Sequence[str],
        *,
        length: int | None = None,
        truncate: bool = False,
        pad_to: int | None = None,
    ) -> Encoded:
        """Tokenise texts.

        Parameters
        ----------
        texts
            One text, or several; none may be empty.
        length
            Longest row in tokens, special tokens included; the model's limit if not given.
        truncate
            Cut longer texts at the limit (special tokens stay) instead of refusing them.
        pad_to
            Pad all rows to this many positions; the longest row if not given.

        Returns
        -------
        Encoded
            Batch of shape ``(len(texts), n)``.

        Raises
        ------
        ParameterError
            If a text is empty, has no token or is too long and ``truncate`` is off, or if
            ``length`` or ``pad_to`` is out of range. Texts are named by number, never quoted.
        """
        rows = [texts] if isinstance(texts, str) else list(texts)
        limit = self._limit(length, pad_to)
        _check_texts(rows)
        encodings = self._inner.encode_batch(rows, add_special_tokens=False)
        room = limit - self._special
        for number, encoding in enumerate(encodings, start=1):
            if not len(encoding):
                raise ParameterError(f"text {number} has no token; pass a text with words")
            if len(encoding) <= room:
                continue
            if not truncate:
                raise ParameterError(
                    f"text {number} has {len(encoding) + self._special} tokens, the limit is "
                    f"{limit}; shorten it, or pass truncate=True to cut it"
                )
            encoding.truncate(room)
        done = [self._inner.post_process(encoding, None, True) for encoding in encodings]
        return self._pad(done, pad_to or max(len(encoding) for encoding in done))

    def _limit(self, length: int | None, pad_to: int | None) -> int:
        limit = self._max_length if length is None else length
        if not self._special < limit <= self._max_length:
            raise ParameterError(
                f"length = {limit} must lie in [{self._special + 1}, {self._max_length}]"
            )
        if pad_to is None:
            return limit
        if not self._special < pad_to <= self._max_length:
            raise ParameterError(
                f"pad_to = {pad_to} must lie in [{self._special + 1}, {self._max_length}]"
            )
        return min(limit, pad_to)

    def _pad(self, encodings: list[tokenizers.Encoding], n: int) -> Encoded:
        shape = (len(encodings), n)
        ids = np.full(shape, self._pad_id, np.int64)
        mask, type_ids = np.zeros(shape, np.bool_), np.zeros(shape, np.int64)
        for row, encoding in enumerate(encodings):
            used = len(encoding)
            ids[row, :used] = encoding.ids
            type_ids[row, :used] = encoding.type_ids
            mask[row, :used] = True
        return Encoded(ids=ids, mask=mask, type_ids=type_ids)


def _check_texts(rows: list[str]) -> None:
    if not rows:
        raise ParameterError("no texts were given; pass at least one")
    for number, text in enumerate(rows, start=1):
        if not isinstance(text, str):
            raise ParameterError(f"text {number} is not a str")
        if not text.strip():
            raise ParameterError(f"text {number} is empty; pass a text with words")
