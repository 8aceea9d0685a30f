"""What the client knows of a model: how inputs become integers, and integers become predictions."""

from __future__ import annotations

from dataclasses import dataclass, fields
from enum import StrEnum
from typing import Any, Final, TypeAlias

import msgspec
import numpy as np
from numpy.typing import NDArray

from privml.backbones.digests import canonical_json
from privml.errors import MalformedMessage, ParameterError, UnsupportedError
from privml.protocols.fhe.nodes import Floats, Ints

Label: TypeAlias = bool | int | float | str

FORMAT: Final = 1
MAX_FEATURES: Final = 1 << 16
MAX_OUTPUTS: Final = 1 << 12
MAX_BYTES: Final = 1 << 24


class Link(StrEnum):
    """How scores become what the model predicts."""

    IDENTITY = "identity"
    """Regression: the score is the prediction."""
    EXP = "exp"
    """Regression with a logarithmic link."""
    SHARES = "shares"
    """Scores are shares of classes, as forests average them."""
    SIGMOID = "sigmoid"
    """One score of the second of two classes."""
    SOFTMAX = "softmax"
    """One score per class."""
    REST = "rest"
    """One score per class against the rest, each through a sigmoid."""
    MARGIN = "margin"
    """A margin; there are no probabilities."""


REGRESSION: Final = frozenset({Link.IDENTITY, Link.EXP})


@dataclass(frozen=True, eq=False)
class Head:
    """Quantisation of inputs and meaning of outputs; no weights.

    A feature x becomes ``clip(round(((x - centre) / half) / in_scale + in_zero), in_low, in_high)``
    (round half to even), an integer answer y becomes ``out_scale * (y - out_zero)``, summed over
    its last axis if ``summed``, plus ``offset``.

    Attributes
    ----------
    link
        How scores become predictions.
    classes
        Labels in the order of the scores; empty for regression.
    centre, half, in_scale, in_zero
        float64 (features,).
    in_low, in_high
        int64 (features,).
    out_scale
        float64.
    out_zero, offset
        float64 (1 or outputs,).
    summed
        Whether an answer has one value for each tree.
    """

    link: Link
    classes: tuple[Label, ...]
    centre: Floats
    half: Floats
    in_scale: Floats
    in_zero: Floats
    in_low: Ints
    in_high: Ints
    out_scale: float
    out_zero: Floats
    summed: bool
    offset: Floats

    def __post_init__(self) -> None:
        columns = (self.centre, self.half, self.in_scale, self.in_zero, self.in_low, self.in_high)
        count = len(self.centre)
        shapes = all(part.shape == (count,) for part in columns) and 0 < count <= MAX_FEATURES
        ends = (self.out_zero, self.offset)
        small = all(part.ndim == 1 and 0 < len(part) <= MAX_OUTPUTS for part in ends)
        if not (shapes and small and len(self.classes) <= MAX_OUTPUTS):
            raise ParameterError("the arrays of a model's head do not fit together")
        numbers = np.concatenate([*columns, *ends, [self.out_scale]])
        positive = min(self.half.min(), self.in_scale.min(), self.out_scale) > 0
        span = (self.in_high - self.in_low).max(initial=0)
        ordered = (self.in_low <= self.in_high).all() and span < 1 << 16
        if not (np.isfinite(numbers).all() and positive and ordered):
            raise ParameterError("a number of a model's head is out of range")
        if (self.link in REGRESSION) != (not self.classes):
            raise ParameterError("classifiers have classes, and only they")

    @property
    def features(self) -> int:
        """Number of features."""
        return len(self.centre)

    def quantise(self, X: object) -> Ints:
        """Return rows as the circuit takes them.

        Parameters
        ----------
        X
            Rows (n, features) of finite numbers. Values outside the range that the model was
            calibrated on are taken as the nearest end of it.

        Raises
        ------
        ParameterError
            Wrong shape, or not finite.
        """
        rows = checked_rows(X)
        if rows.shape[1] != self.features:
            raise ParameterError(
                f"the rows have {rows.shape[1]} features, the model takes {self.features}"
            )
        # The order of operations is that of concrete-ml, so both give the same integers.
        places = np.rint(((rows - self.centre) / self.half) / self.in_scale + self.in_zero)
        return np.ascontiguousarray(places.clip(self.in_low, self.in_high), np.int64)

    def scores(self, integers: Ints) -> Floats:
        """Return the scores of decrypted answers (n, *shape), float64 (n, outputs)."""
        values = np.asarray(integers, np.float64)
        if self.summed:
            each = self.out_scale * (values - self.out_zero[0])
            values = each.reshape(len(values), -1, values.shape[-1]).sum(axis=2)
        else:
            values = self.out_scale * (values.reshape(len(values), -1) - self.out_zero)
        return np.asarray(values + self.offset, np.float64)

    def probabilities(self, scores: Floats) -> Floats:
        """Return the probability of each class, float64 (n, classes).

        Raises
        ------
        UnsupportedError
            The model has none.
        """
        if self.link is Link.SHARES:
            bounded = np.clip(scores, 0.0, None)
            total = bounded.sum(axis=1, keepdims=True)
            even = np.full_like(bounded, 1.0 / bounded.shape[1])
            return np.asarray(np.divide(bounded, total, out=even, where=total > 0), np.float64)
        if self.link is Link.SIGMOID:
            second = _sigmoid(scores[:, 0])
            return np.stack([1.0 - second, second], axis=1)
        if self.link is Link.SOFTMAX:
            powers = np.exp(scores - scores.max(axis=1, keepdims=True))
            return np.asarray(powers / powers.sum(axis=1, keepdims=True), np.float64)
        if self.link is Link.REST:
            each = _sigmoid(scores)
            return np.asarray(each / each.sum(axis=1, keepdims=True), np.float64)
        raise UnsupportedError("this kind of model has no probabilities; use its scores")

    def predict(self, scores: Floats) -> NDArray[Any]:
        """Return labels, or values of a regression, shape (n,) or (n, outputs)."""
        if self.link in REGRESSION:
            values = np.exp(scores) if self.link is Link.EXP else scores
            return values[:, 0] if values.shape[1] == 1 else values
        return np.asarray(self.classes)[self.indices(scores)]

    def indices(self, scores: Floats) -> Ints:
        """Return the index of the predicted class of each row; the first one of equals."""
        if scores.shape[1] == 1:
            return (scores[:, 0] > 0).astype(np.int64)
        result: Ints = scores.argmax(axis=1)
        return result

    def to_json(self) -> bytes:
        """Return the head as canonical JSON; floats come back as they were."""
        values: dict[str, Any] = {}
        for name in _NAMES:
            part = getattr(self, name)
            values[name] = part.tolist() if isinstance(part, np.ndarray) else part
        values["link"], values["classes"] = self.link.value, list(self.classes)
        return canonical_json({**values, "format": FORMAT})

    @classmethod
    def from_json(cls, data: bytes) -> Head:
        """Read :meth:`to_json` of somebody else.

        Raises
        ------
        MalformedMessage
            It is not what :meth:`to_json` writes.
        """
        try:
            if len(data) > MAX_BYTES:
                raise ValueError(f"more than {MAX_BYTES} bytes")
            raw = msgspec.json.decode(data, type=_Raw, strict=True)
            if raw.format != FORMAT:
                raise ValueError(f"format {raw.format}")
            return cls(
                link=Link(raw.link),
                classes=tuple(raw.classes),
                centre=np.array(raw.centre, np.float64),
                half=np.array(raw.half, np.float64),
                in_scale=np.array(raw.in_scale, np.float64),
                in_zero=np.array(raw.in_zero, np.float64),
                in_low=np.array(raw.in_low, np.int64),
                in_high=np.array(raw.in_high, np.int64),
                out_scale=raw.out_scale,
                out_zero=np.array(raw.out_zero, np.float64),
                offset=np.array(raw.offset, np.float64),
                summed=raw.summed,
            )
        except (ParameterError, ValueError, OverflowError, RecursionError) as error:
            raise MalformedMessage(f"the description of the model is not valid: {error}") from error


class _Raw(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    format: int
    link: str
    classes: list[Label]
    centre: list[float]
    half: list[float]
    in_scale: list[float]
    in_zero: list[float]
    in_low: list[int]
    in_high: list[int]
    out_scale: float
    out_zero: list[float]
    summed: bool
    offset: list[float]


_NAMES: Final = tuple(one.name for one in fields(Head))


def checked_rows(X: object) -> Floats:
    """Return rows as C-contiguous float64 (n, features).

    Raises
    ------
    ParameterError
        They are no table of finite numbers.
    """
    try:
        rows = np.ascontiguousarray(X, np.float64)
    except (TypeError, ValueError) as error:
        raise ParameterError(f"the rows are no table of numbers: {error}") from error
    if rows.ndim != 2 or not rows.shape[1]:
        raise ParameterError(f"rows have the shape (n, features), not {rows.shape}")
    if not np.isfinite(rows).all():
        raise ParameterError("a row holds a value that is missing or infinite; fill it in first")
    return rows


def _sigmoid(scores: Floats) -> Floats:
    positive = np.exp(-np.abs(scores))
    return np.where(scores >= 0, 1.0, positive) / (1.0 + positive)
