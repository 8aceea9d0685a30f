"""A small task that a tiny model solves: one word of each text decides its class."""

from __future__ import annotations

from functools import cache

import numpy as np

from privml.backbones.encoder import Encoder
from privml.backbones.loader import random_encoder
from privml.backbones.synthetic import random_params
from privml.backbones.tokenizer import Tokenizer
from privml.protocols.cipherprune.learning import Recipe, TaskData, fine_tune, with_classifier
from privml.rng import ScienceSeed

GOOD, BAD = ("fine", "great", "lovely"), ("awful", "dull", "sad")
FILL = ("a", "and", "film", "is", "it", "of", "plot", "scene", "the", "was", "with")
SPECIAL = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
ROWS = 240


@cache
def small_data() -> TaskData:
    """Return filler words and one word that decides the class, 5 to 11 tokens a text."""
    generator = ScienceSeed(5).generator()
    texts, labels = [], []
    for _ in range(ROWS):
        label = int(generator.integers(2))
        words = [str(word) for word in generator.choice(FILL, int(generator.integers(3, 9)))]
        words.insert(int(generator.integers(len(words))), str(generator.choice((BAD, GOOD)[label])))
        texts.append(" ".join(words))
        labels.append(label)
    return TaskData(tuple(texts), np.array(labels))


@cache
def small_encoder() -> Encoder:
    """Return a random encoder of three layers that knows the words."""
    words = [*SPECIAL, *GOOD, *BAD, *FILL]
    tokenizer = Tokenizer.from_vocabulary(words, max_length=16, lowercase=True)
    plain = random_encoder(
        layers=3, hidden=16, heads=2, ffn=24, vocab=len(words), max_positions=16, seed=1
    )
    params = random_params(plain.config, seed=1)
    return Encoder(plain.config, params, tokenizer=tokenizer)


@cache
def small_model() -> Encoder:
    """Return a classifier that solves the task."""
    fresh = with_classifier(small_encoder(), ("bad", "good"), seed=2)
    recipe = Recipe(epochs=10, rate=1e-2, batch=24)
    return fine_tune(fresh, small_data(), recipe=recipe, precision="float32")


def equal_weights(a: Encoder, b: Encoder) -> bool:
    """Return whether two models have the same parameters, bit by bit."""
    return all(np.array_equal(x, b.params()[name]) for name, x in a.params().items())
