"""Tokenizer: limits, truncation, padding, and files that must not reach the library."""

from __future__ import annotations

import copy
import json
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from privml.backbones.tokenizer import Tokenizer
from privml.backbones.tokenizer_json import AddedToken, WordPiece, read_wordpiece, wordpiece_of
from privml.errors import ParameterError, UnsupportedError

VOCABULARY = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "a", "b", "##a", "##b", "ab", "."]
SPEC = wordpiece_of(VOCABULARY, lowercase=True)
TOKENIZER = Tokenizer(SPEC, max_length=8)
TREE = json.loads(SPEC.to_json())


def test_known_answer() -> None:
    batch = TOKENIZER.encode(["AB a.", "ba", "zz [MASK]"])
    assert batch.ids.tolist() == [[2, 9, 5, 10, 3], [2, 6, 7, 3, 0], [2, 1, 4, 3, 0]]
    assert batch.mask.sum(1).tolist() == [5, 4, 4]
    assert not batch.type_ids.any()
    assert np.array_equal(TOKENIZER.encode("ba").ids, [[2, 6, 7, 3]])


def test_limit_and_truncation() -> None:
    long = "a " * 7
    with pytest.raises(ParameterError, match=r"text 2 has 9 tokens, the limit is 8.*truncate=True"):
        TOKENIZER.encode(["a", long])
    assert TOKENIZER.encode(long, truncate=True).ids.tolist() == [[2, 5, 5, 5, 5, 5, 5, 3]]
    assert TOKENIZER.encode(long, truncate=True, length=4).ids.tolist() == [[2, 5, 5, 3]]
    with pytest.raises(ParameterError, match="the limit is 4"):
        TOKENIZER.encode("a a a", length=4)
    assert TOKENIZER.encode("a a a a a a").length == 8


def test_padding() -> None:
    assert TOKENIZER.encode("a", pad_to=6).ids.tolist() == [[2, 5, 3, 0, 0, 0]]
    with pytest.raises(ParameterError, match="the limit is 4"):
        TOKENIZER.encode("a a a", pad_to=4)
    assert TOKENIZER.encode("a a a", pad_to=4, truncate=True).length == 4


@pytest.mark.parametrize("option", ["length", "pad_to"])
@pytest.mark.parametrize("value", [-1, 0, 2, 9])
def test_lengths_out_of_range(option: str, value: int) -> None:
    with pytest.raises(ParameterError, match=rf"{option} = {value} must lie in \[3, 8\]"):
        TOKENIZER.encode("a", **{option: value})


@pytest.mark.parametrize(
    ("texts", "match"),
    [
        ([], "no texts"),
        ("", "text 1 is empty"),
        (["a", " \n\t"], "text 2 is empty"),
        (["\x00\x01"], "text 1 has no token"),
        (["a", 5], "text 2 is not a str"),
        ([None], "text 1 is not a str"),
        (b"a", "not a str"),
    ],
)
def test_bad_texts_are_refused(texts: object, match: str) -> None:
    with pytest.raises(ParameterError, match=match):
        TOKENIZER.encode(texts)  # type: ignore[arg-type]


def test_errors_do_not_quote_the_text() -> None:
    with pytest.raises(ParameterError) as caught:
        TOKENIZER.encode("b. " * 20)
    assert "b." not in str(caught.value)


@settings(max_examples=200, deadline=None)
@given(st.lists(st.text(max_size=30), min_size=1, max_size=4))
def test_any_text_gives_a_valid_batch_or_one_clear_error(texts: list[str]) -> None:
    try:
        batch = TOKENIZER.encode(texts, truncate=True)
    except ParameterError:
        return
    assert batch.batch_size == len(texts)
    assert 0 <= batch.ids.min() <= batch.ids.max() < TOKENIZER.vocab_size
    assert batch.length <= 8
    for row, mask in zip(batch.ids, batch.mask, strict=True):
        used = int(mask.sum())
        assert mask[:used].all()
        assert (row[0], row[used - 1]) == (2, 3)
        assert not row[used:].any()


def test_stored_truncation_and_padding_are_dropped(tmp_path: Path) -> None:
    tree = {
        **TREE,
        "truncation": {"max_length": 3, "strategy": "LongestFirst", "stride": 0},
        "padding": {"strategy": {"Fixed": 8}, "direction": "Right", "pad_id": 0},
    }
    (tmp_path / "tokenizer.json").write_text(json.dumps(tree))
    tokenizer = Tokenizer.from_file(tmp_path / "tokenizer.json", max_length=8)
    assert tokenizer.encode("a a a").ids.tolist() == [[2, 5, 5, 5, 3]]
    assert tokenizer.to_json() == TOKENIZER.to_json()
    with pytest.raises(ParameterError, match="cannot read"):
        Tokenizer.from_file(tmp_path / "none.json", max_length=8)


def test_template_form_reads_like_the_short_form() -> None:
    tree = copy.deepcopy(TREE)
    tree["post_processor"] = template()
    assert read_wordpiece(json.dumps(tree).encode()).to_json() == SPEC.to_json()


def template() -> dict[str, object]:
    special = [{"SpecialToken": {"id": t, "type_id": 0}} for t in ("[CLS]", "[SEP]")]
    single = [special[0], {"Sequence": {"id": "A", "type_id": 0}}, special[1]]
    names = {"[CLS]": 2, "[SEP]": 3}
    table = {t: {"id": t, "ids": [i], "tokens": [t]} for t, i in names.items()}
    return {"type": "TemplateProcessing", "single": single, "pair": [], "special_tokens": table}


def test_added_tokens_beyond_the_vocabulary() -> None:
    extra = AddedToken(id=11, content="<x>", normalized=False)
    spec = WordPiece(vocabulary=SPEC.vocabulary, normalizer=None, added=(extra,))
    tokenizer = Tokenizer(spec, max_length=8)
    assert tokenizer.vocab_size == 12
    assert tokenizer.encode("a <x>").ids.tolist() == [[2, 5, 11, 3]]
    assert read_wordpiece(spec.to_json()).to_json() == spec.to_json()
    for bad in (
        AddedToken(id=12, content="<x>"),
        AddedToken(id=3, content="<x>"),
        AddedToken(id=4, content="a"),
        AddedToken(id=99, content="a"),
        AddedToken(id=11, content=""),
    ):
        with pytest.raises(UnsupportedError, match="added token"):
            WordPiece(vocabulary=SPEC.vocabulary, normalizer=None, added=(bad,))


def changed(path: tuple[str, ...], value: object) -> bytes:
    tree = copy.deepcopy(TREE)
    place = tree
    for key in path[:-1]:
        place = place[key]
    if value is ...:
        del place[path[-1]]
    else:
        place[path[-1]] = value
    return json.dumps(tree).encode()


@pytest.mark.parametrize(
    ("path", "value", "match"),
    [
        (("model", "type"), "BPE", "BPE"),
        (("model", "vocab", "a"), 6, "without gaps"),
        (("model", "vocab", "a"), -1, "without gaps"),
        (("model", "vocab", "a"), 2**70, "without gaps"),
        (("model", "vocab", "a"), "5", "vocab"),
        (("model", "unk_token"), "a", "unk_token"),
        (("model", "max_input_chars_per_word"), 10**9, "max_input_chars"),
        (("model",), None, "model"),
        (("model", "surprise"), 1, "surprise"),
        (("normalizer",), {"type": "Replace", "pattern": {"Regex": "(a+)+$"}}, "Replace"),
        (("normalizer", "lowercase"), "yes", "lowercase"),
        (("pre_tokenizer",), {"type": "Split"}, "Split"),
        (("post_processor",), None, "post_processor"),
        (("post_processor", "cls"), ["[CLS]", 3], "\\[CLS\\] text \\[SEP\\]"),
        (("post_processor", "cls"), ["a", 5], "\\[CLS\\] text \\[SEP\\]"),
        (("added_tokens",), [{"id": 3, "content": "[CLS]"}], "added tokens"),
        (("unknown",), 1, "unknown"),
        (("post_processor",), ..., "post_processor"),
    ],
)
def test_other_pipelines_are_refused(path: tuple[str, ...], value: object, match: str) -> None:
    with pytest.raises(UnsupportedError, match=match):
        Tokenizer.from_bytes(changed(path, value), max_length=8)


@pytest.mark.parametrize("part", ["single", "special_tokens"])
def test_other_templates_are_refused(part: str) -> None:
    tree = copy.deepcopy(TREE)
    tree["post_processor"] = {**template(), part: type(template()[part])()}
    with pytest.raises(UnsupportedError, match="text"):
        Tokenizer.from_bytes(json.dumps(tree).encode(), max_length=8)


@pytest.mark.parametrize("data", [b"", b"{", b"[]", b"\xff", b"[" * 10**6, b'{"a":' * 10**5])
def test_no_json_is_refused(data: bytes) -> None:
    with pytest.raises(UnsupportedError, match="BERT model"):
        Tokenizer.from_bytes(data, max_length=8)


@pytest.mark.parametrize("vocabulary", [VOCABULARY[1:], [*VOCABULARY, "a"], [*VOCABULARY, ""], []])
def test_bad_vocabularies_are_refused(vocabulary: list[str]) -> None:
    with pytest.raises(UnsupportedError, match="vocabulary"):
        Tokenizer.from_vocabulary(vocabulary, max_length=8, lowercase=True)


def test_room_for_a_token() -> None:
    with pytest.raises(ParameterError, match="must exceed the 2 special tokens"):
        Tokenizer(SPEC, max_length=2)


VALUES = (None, 0, -1, 1e300, 2**32, 2**53 + 5, 2**70, "", "x", [], {}, True, [[]], "[CLS]", ...)


def spots(tree: object, path: tuple[object, ...] = ()) -> list[tuple[object, ...]]:
    items = (
        tree.items()
        if isinstance(tree, dict)
        else enumerate(tree)
        if isinstance(tree, list)
        else ()
    )
    found = [path] if path else []
    for key, child in items:
        found += spots(child, (*path, key))
    return found


def test_every_altered_field_loads_or_is_refused() -> None:
    loaded = 0
    for path in spots(TREE):
        for value in VALUES:
            try:
                tokenizer = Tokenizer.from_bytes(changed(path, value), max_length=8)  # type: ignore[arg-type]
                tokenizer.encode(["ab zz é"], truncate=True)
            except (UnsupportedError, ParameterError):
                continue
            loaded += 1
    assert loaded > 20
