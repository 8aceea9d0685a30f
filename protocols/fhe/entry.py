"""What enters and leaves an encrypted circuit: shapes, ranges, and the checks at the one door.

concrete-python reads the memory of an array in the wrong order when it is not C-contiguous, and
wraps values that are out of range; both give wrong answers without an error. So every image passes
:meth:`ImageSpec.check` before it is encrypted or simulated, in all modes and in the client.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

import numpy as np

from privml.errors import ParameterError
from privml.protocols.fhe.nodes import Floats, Ints


class Mode(StrEnum):
    """How a graph is run; there is no fallback from one to another."""

    CLEAR = "clear"
    """Exact integers, no encryption."""
    SIMULATE = "simulate"
    """The error model of the scheme, no encryption."""
    EXECUTE = "execute"
    """Real ciphertexts."""


@dataclass(frozen=True)
class ImageSpec:
    """The quantised image that a circuit takes: integers of ``shape`` in [low, high]."""

    shape: tuple[int, ...]
    low: int
    high: int

    def check(self, x: Ints) -> Ints:
        """Return images of shape (n, *shape) as C-contiguous int64, inside the range.

        Raises
        ------
        ParameterError
            They are no integers, or have another shape, or lie outside [low, high].
        """
        array = np.asarray(x)
        if array.dtype.kind not in "iu" or array.shape[1:] != self.shape or array.ndim < 2:
            raise ParameterError(
                f"the images must be integers of shape (n, {', '.join(map(str, self.shape))}), "
                f"not {array.dtype} of shape {array.shape}"
            )
        if array.size and not (self.low <= int(array.min()) and int(array.max()) <= self.high):
            raise ParameterError(
                f"the images must lie in [{self.low}, {self.high}]; quantise them with the "
                "model's front end"
            )
        return np.ascontiguousarray(array, np.int64)


@dataclass(frozen=True, eq=False, kw_only=True)
class Scores:
    """Result of a run, the same type in every mode.

    Attributes
    ----------
    scores
        Shape (n, classes), float64.
    mode
        How they came about. Scores of :attr:`Mode.SIMULATE` carry simulated errors and are no
        result of an encrypted run.
    """

    scores: Floats
    mode: Mode

    @property
    def classes(self) -> Ints:
        """Index of the highest score of each image, shape (n,); the first one of equals."""
        result: Ints = self.scores.argmax(axis=1)
        return result

    @property
    def label(self) -> str:
        """What to print beside any figure that comes from these scores."""
        return {
            Mode.CLEAR: "clear integers",
            Mode.SIMULATE: "simulated, not encrypted",
            Mode.EXECUTE: "encrypted",
        }[self.mode]


@dataclass(frozen=True, eq=False, kw_only=True)
class Answer(Scores):
    """Result of an integer graph.

    Attributes
    ----------
    integers
        The integers behind the scores, same shape, int64.
    """

    integers: Ints
