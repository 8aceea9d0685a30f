"""Digits for the audit of encrypted images: folds, networks of equal shape, training.

Seed k of a measurement is also fold k: its test rows are a quarter of the digits, which no other
fold tests, and which only measure. What is chosen is chosen on validation rows of the same fold;
final networks are trained on training and validation rows together.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache

import numpy as np
from numpy.typing import NDArray

from privml.backbones.cnn import Basic, Bits, Cnn, CnnSpec, Plain
from privml.backbones.cnn_spec import Block
from privml.backbones.cnn_training import Recipe, Training, fit
from privml.protocols.fhe import EncryptedClassifier, Frequency
from privml.protocols.fhe.binding import bind, training_data
from privml.rng import ScienceSeed

SPLIT = ScienceSeed(6).child("digits folds")
FOLDS, VALID = 4, 247
TRAINING = Training(
    first=Recipe(epochs=40, rate=0.1, batch=64, decay=2e-3, smoothing=0.1),
    second=Recipe(epochs=30, rate=0.02, batch=64, warm_up=0.1, smoothing=0.05, frozen=1 / 3),
)
"""Chosen on validation rows of an earlier split."""
QUICK = Training(
    first=Recipe(epochs=3, rate=0.1, batch=64, decay=2e-3, smoothing=0.1),
    second=Recipe(epochs=1, rate=0.02, batch=64, warm_up=0.1, smoothing=0.05, frozen=1 / 3),
)
"""For --quick, which shows that everything runs and judges cost, not accuracy."""
BRIEF = Training(first=Recipe(epochs=1, rate=0.1, batch=64), second=Recipe(epochs=0, rate=0.02))
"""Where only the shape matters."""


@dataclass(frozen=True)
class Rows:
    """Digits (n, 8, 8) in grey levels 0 to 255, and their classes."""

    images: NDArray[np.uint8]
    labels: NDArray[np.int64]

    def front(self, block: int, channels: str, control: str = "dct") -> Frequency:
        """Return a front end fitted on these rows."""
        front = Frequency(block, channels=channels, control=control, source="array")
        return front.fit(list(self.images))


@cache
def digits(fold: int = 0) -> dict[str, Rows]:
    """Return the rows ``train``, ``valid``, ``both`` (those two) and ``test`` of a fold."""
    from sklearn.datasets import load_digits

    table = load_digits()
    images = np.rint(table.images * 15.9375).astype(np.uint8)
    parts = np.array_split(SPLIT.generator().permutation(len(images)), FOLDS)
    both = np.concatenate([part for number, part in enumerate(parts) if number != fold])
    both = both[SPLIT.child(fold).generator().permutation(len(both))]
    chosen = {"train": both[:-VALID], "valid": both[-VALID:], "both": both, "test": parts[fold]}
    return {
        name: Rows(images[which], table.target[which].astype(np.int64))
        for name, which in chosen.items()
    }


SEEDS = (0, 1, 2)
"""Each with its own fold."""
P_ERROR = 1e-2


def plain(shape: Sequence[int], widths: Sequence[int] = (16, 16, 16)) -> tuple[Block, ...]:
    """Return the same layers for any grid: the second halves it if it is that of all pixels."""
    first, second, last = widths
    stride = 2 if shape[1] == 8 else 1
    return Plain(first), Plain(second, stride=stride), Plain(last, kernel=4, pad=0)


RESIDUAL = (16, ((16, 1), (16, 2), (24, 2)))
"""Width of the stem, and width and stride of each residual block, on a 4 x 4 grid: no narrower
than :func:`plain`; the paper's are 48 to 64 wide."""


def residual() -> tuple[Block, ...]:
    """Return a residual network of three blocks that ends in one cell."""
    stem, blocks = RESIDUAL
    return Plain(stem), *(Basic(width, stride) for width, stride in blocks)


@dataclass(frozen=True)
class Trained:
    """A network and what it gets right on rows that it was not trained on."""

    classifier: EncryptedClassifier
    rows: Rows
    accuracy: float


def train(
    front: Frequency, blocks: Sequence[Block], *, seed: int, bits: Bits | None = None,
    part: str = "both", training: Training = TRAINING,
) -> Trained:  # fmt: skip
    """Train a quantised network in the fold of its seed.

    Parameters
    ----------
    part
        ``"both"``: all rows but the test rows, which judge it. ``"train"``: without the validation
        rows, which judge it.
    """
    rows = digits(seed)[part]
    judged = digits(seed)["test" if part == "both" else "valid"]
    spec = CnnSpec("digits", front.shape, 10, tuple(blocks))
    net = Cnn(spec, bits=bits, seed=ScienceSeed(seed).child("network"))
    model = bind(net, front, names=[str(digit) for digit in range(10)])
    data = training_data(front, list(rows.images), rows.labels)
    fit(model, data, training=training, seed=ScienceSeed(seed))
    classifier = EncryptedClassifier(model, front=front)
    return Trained(classifier, judged, accuracy(classifier, judged))


def accuracy(classifier: EncryptedClassifier, rows: Rows, *, mode: str = "clear") -> float:
    """Return the share of right predictions."""
    found = classifier.run(list(rows.images), mode=mode)
    return float((found.classes == rows.labels).mean())
