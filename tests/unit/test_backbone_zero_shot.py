"""Zero-shot classification from embeddings."""

from __future__ import annotations

import math

import numpy as np
import pytest

from privml.backbones.zero_shot import label_prompts, similarity, zero_shot
from privml.errors import ParameterError


def test_prompts() -> None:
    assert label_prompts([" sports", "art"]) == (
        "This text is about sports.",
        "This text is about art.",
    )
    assert label_prompts(["{x}"], template="<{label}>") == ("<{x}>",)


@pytest.mark.parametrize(
    ("labels", "template", "match"),
    [
        ([], "{label}", "labels are missing"),
        (["a", " "], "{label}", "missing or empty"),
        (["a", "a "], "{label}", "repeat"),
        (["a"], "topic", "exactly once"),
        (["a"], "{label} {label}", "exactly once"),
    ],
)
def test_bad_labels_are_refused(labels: list[str], template: str, match: str) -> None:
    with pytest.raises(ParameterError, match=match):
        label_prompts(labels, template=template)


def test_similarity_known_answers() -> None:
    texts = np.array([[2.0, 0.0], [1.0, 1.0], [0.0, 0.0]], np.float32)
    labels = np.array([[3.0, 0.0], [0.0, -1.0]])
    half = 1 / math.sqrt(2)
    expected = np.array([[1, 0], [half, -half], [0, 0]])
    assert similarity(texts, labels) == pytest.approx(expected, abs=1e-12)


def test_verdicts() -> None:
    texts = np.array([[1.0, 0.1], [0.2, 1.0], [1.0, 1.0]])
    first, second, tie = zero_shot(texts, np.eye(2), labels=("x", "y"))
    assert (first.label, second.label, tie.label) == ("x", "y", "x")
    assert first.score == max(first.scores)
    assert first.margin == pytest.approx(first.scores[0] - first.scores[1])
    assert tie.margin == 0.0
    assert zero_shot(texts, np.eye(2)[:1], labels=("x",))[0].margin == math.inf


@pytest.mark.parametrize(
    ("texts", "labels", "names", "match"),
    [
        (np.ones(2), np.ones((1, 2)), ("a",), "matrices"),
        (np.ones((1, 3)), np.ones((1, 2)), ("a",), "widths differ"),
        (np.full((1, 2), np.nan), np.ones((1, 2)), ("a",), "not finite"),
        (np.ones((1, 2)), np.ones((2, 2)), ("a",), "1 labels for 2"),
    ],
)
def test_bad_embeddings_are_refused(
    texts: np.ndarray, labels: np.ndarray, names: tuple[str, ...], match: str
) -> None:
    with pytest.raises(ParameterError, match=match):
        zero_shot(texts, labels, labels=names)
