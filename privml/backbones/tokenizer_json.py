"""Checks on ``tokenizer.json``: only the WordPiece pipeline of BERT gets to the tokenizer library.

A tokenizer file may come from the other party. Regular expressions, byte-level models and other
parts that BERT does not need are refused before the library sees them, and stored truncation and
padding are removed, so that a text is never cut or filled behind the caller's back.
"""

from __future__ import annotations

import json
from collections.abc import Mapping

from privml.backbones.digests import Json, canonical_json
from privml.errors import UnsupportedError

MAX_TOKENIZER_BYTES = 64 << 20
"""Largest tokenizer file that is read, in bytes."""

_ALLOWED: Mapping[str, frozenset[str]] = {
    "normalizer": frozenset({"BertNormalizer", "Lowercase", "NFC", "NFD", "NFKC", "StripAccents"}),
    "pre_tokenizer": frozenset({"BertPreTokenizer", "Whitespace", "WhitespaceSplit"}),
    "post_processor": frozenset({"TemplateProcessing", "BertProcessing"}),
    "decoder": frozenset({"WordPiece"}),
}
_SEQUENCES = {"normalizer": "normalizers", "pre_tokenizer": "pretokenizers"}
_PARTS = frozenset({*_ALLOWED, "version", "truncation", "padding", "added_tokens", "model"})


def checked_json(data: bytes) -> bytes:
    """Return a tokenizer file in canonical form, without stored truncation and padding.

    Raises
    ------
    UnsupportedError
        If the file is not a JSON object with BERT's WordPiece pipeline; the message names the
        part that is in the way.
    """
    root = _parse(data)
    unknown = sorted(set(root) - _PARTS)
    if unknown:
        raise UnsupportedError(f"tokenizer.json has parts that BERT does not use: {unknown}")
    for part, allowed in _ALLOWED.items():
        _check_component(part, root.get(part), allowed, nested=part in _SEQUENCES)
    _check_model(root.get("model"))
    return canonical_json({**root, "truncation": None, "padding": None})


def wordpiece_json(vocabulary: list[str], *, lowercase: bool) -> bytes:
    """Build a tokenizer file from a WordPiece vocabulary (one token per line of ``vocab.txt``).

    Parameters
    ----------
    vocabulary
        Tokens; the position is the id. Must hold [UNK], [CLS], [SEP] and [PAD].
    lowercase
        Whether texts are lower-cased and lose their accents, as in "uncased" models.

    Raises
    ------
    UnsupportedError
        If a special token is missing or a token repeats.
    """
    index = {token: number for number, token in enumerate(vocabulary)}
    special = ("[PAD]", "[UNK]", "[CLS]", "[SEP]")
    missing = [token for token in special if token not in index]
    if missing or len(index) != len(vocabulary):
        raise UnsupportedError(f"vocab.txt repeats a token or lacks one of {special}: {missing}")
    cls, sep = ({"id": t, "ids": [index[t]], "tokens": [t]} for t in ("[CLS]", "[SEP]"))
    added: list[Json] = [
        {"id": index[token], "content": token, "special": True, **_PLAIN}
        for token in sorted(special, key=index.__getitem__)
    ]
    tree: Json = {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": added,
        "normalizer": {
            "type": "BertNormalizer",
            "clean_text": True,
            "handle_chinese_chars": True,
            "strip_accents": None,
            "lowercase": lowercase,
        },
        "pre_tokenizer": {"type": "BertPreTokenizer"},
        "post_processor": {
            "type": "TemplateProcessing",
            "single": [_token("[CLS]", 0), _sequence("A", 0), _token("[SEP]", 0)],
            "pair": [
                _token("[CLS]", 0),
                _sequence("A", 0),
                _token("[SEP]", 0),
                _sequence("B", 1),
                _token("[SEP]", 1),
            ],
            "special_tokens": {"[CLS]": cls, "[SEP]": sep},
        },
        "decoder": {"type": "WordPiece", "prefix": "##", "cleanup": True},
        "model": {
            "type": "WordPiece",
            "unk_token": "[UNK]",
            "continuing_subword_prefix": "##",
            "max_input_chars_per_word": 100,
            "vocab": index,
        },
    }
    return canonical_json(tree)


_PLAIN = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False}


def _token(name: str, segment: int) -> Json:
    return {"SpecialToken": {"id": name, "type_id": segment}}


def _sequence(name: str, segment: int) -> Json:
    return {"Sequence": {"id": name, "type_id": segment}}


def _parse(data: bytes) -> Mapping[str, Json]:
    if len(data) > MAX_TOKENIZER_BYTES:
        raise UnsupportedError("tokenizer.json is larger than 64 MiB")
    try:
        root = json.loads(data, parse_constant=_refuse_constant)
    except (ValueError, RecursionError) as error:
        raise UnsupportedError("tokenizer.json is not valid JSON") from error
    if not isinstance(root, dict):
        raise UnsupportedError("tokenizer.json is not a JSON object")
    return root


def _refuse_constant(name: str) -> Json:
    raise ValueError(f"{name} is no JSON number")


def _check_component(part: str, value: Json, allowed: frozenset[str], *, nested: bool) -> None:
    """Refuse a pipeline part of unknown kind; ``Sequence`` parts are checked one level down."""
    if value is None:
        return
    if not isinstance(value, dict):
        raise UnsupportedError(f"tokenizer.json: {part} is not an object")
    kind = value.get("type")
    if kind == "Sequence" and nested:
        members = value.get(_SEQUENCES[part])
        if not isinstance(members, list) or len(members) > 16:
            raise UnsupportedError(f"tokenizer.json: {part} is not a short sequence")
        for member in members:
            _check_component(part, member, allowed, nested=False)
        return
    if kind not in allowed:
        raise UnsupportedError(
            f"tokenizer.json: {part} of type {kind!r:.60} is not supported; "
            f"supported are {sorted(allowed)}"
        )


def _check_model(model: Json) -> None:
    if not isinstance(model, dict) or model.get("type") != "WordPiece":
        kind = model.get("type") if isinstance(model, dict) else None
        raise UnsupportedError(f"tokenizer model {kind!r:.60} is not supported; WordPiece is")
    vocabulary = model.get("vocab")
    if not isinstance(vocabulary, dict) or not vocabulary:
        raise UnsupportedError("tokenizer.json has no vocabulary")
    ids = list(vocabulary.values())
    if any(type(number) is not int for number in ids) or sorted(ids) != list(range(len(ids))):
        raise UnsupportedError("tokenizer.json: token ids are not 0, 1, 2, ... without gaps")
    length = model.get("max_input_chars_per_word")
    if type(length) is not int or not 1 <= length <= 1000:
        raise UnsupportedError("tokenizer.json: max_input_chars_per_word must lie in [1, 1000]")
