"""Training data of image networks: arrays or images behind a front end, and their augmentation.

All randomness comes from the generator that the trainer hands in. Images are changed before the
front end, coefficients after it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol, TypeAlias

import numpy as np
from numpy.typing import ArrayLike, NDArray

from privml.backbones.digests import canonical_json, sha256, tensor_digest
from privml.errors import ParameterError
from privml.params import check, outside
from privml.rng import Generator

Floats: TypeAlias = NDArray[np.float32]
Transform: TypeAlias = Callable[[NDArray[np.uint8]], ArrayLike]


class Source(Protocol):
    """Labelled inputs of a network."""

    @property
    def labels(self) -> NDArray[np.int64]:
        """Class numbers, (n,)."""
        ...

    @property
    def front_digest(self) -> str:
        """Digest of the front end that the inputs went through; empty if not known."""
        ...

    def digest(self) -> str:
        """Return the digest of all that :meth:`batch` depends on."""
        ...

    def batch(self, which: NDArray[np.int64], *, rng: Generator | None) -> Floats:
        """Return (len(which), C, H, W) inputs, augmented if there is a generator."""
        ...


@dataclass(frozen=True)
class FlipRule:
    """What mirroring an image does to standardised coefficients: ``sign*x + offset`` per channel.

    Build it with :func:`flip_rule`.
    """

    sign: tuple[float, ...]
    offset: tuple[float, ...]


def flip_rule(
    frequencies: Sequence[int], *, mean: Sequence[float] = (), std: Sequence[float] = ()
) -> FlipRule:
    """Return the rule for channels of block-DCT coefficients.

    Parameters
    ----------
    frequencies
        Horizontal frequency of each channel; odd ones change sign.
    mean, std
        Statistics that the coefficients were standardised with; zero and one if not given.

    Raises
    ------
    ParameterError
        The lists differ in length, or a deviation is not positive.
    """
    count = len(frequencies)
    means, stds = list(mean) or [0.0] * count, list(std) or [1.0] * count
    if {len(means), len(stds)} != {count} or min(stds, default=1.0) <= 0:
        raise ParameterError("give one mean and one positive std for each frequency")
    sign = tuple(-1.0 if f % 2 else 1.0 for f in frequencies)
    offset = tuple((s - 1.0) * m / d for s, m, d in zip(sign, means, stds, strict=True))
    return FlipRule(sign, offset)


@dataclass(frozen=True, kw_only=True)
class Augment:
    """Random changes of images or of grids of coefficients.

    Attributes
    ----------
    shift
        Largest shift in pixels, or in cells, each way; what comes in from outside is zero.
    flip
        Mirror half of the inputs; on coefficients the rule says how, on images ``True`` does.
    cut
        Side of a square set to zero at a random place; none if 0.
    """

    shift: int = 0
    flip: FlipRule | bool = False
    cut: int = 0

    def __post_init__(self) -> None:
        check("augmentation", outside("shift", self.shift, 0, 64) + outside("cut", self.cut, 0, 64))

    def __call__(self, x: NDArray[np.generic], rng: Generator) -> NDArray[np.generic]:
        """Return a changed copy of (n, C, H, W)."""
        result = x.copy()
        count, _, rows, columns = x.shape
        if self.flip is not False:
            which = np.flatnonzero(rng.random(count) < 0.5)
            result[which] = _mirrored(result[which], self.flip)
        if self.shift:
            moves = rng.integers(-self.shift, self.shift + 1, (count, 2))
            result = _shifted(result, moves, self.shift)
        if self.cut:
            corners = rng.integers(0, (rows, columns), (count, 2)) - self.cut // 2
            for image, (top, left) in zip(result, corners, strict=True):
                area = np.s_[:, max(top, 0) : top + self.cut, max(left, 0) : left + self.cut]
                image[area] = 0
        return result


class Arrays:
    """Inputs that are arrays already: coefficients after a front end, or any features.

    Parameters
    ----------
    x
        (n, C, H, W) finite numbers.
    labels
        (n,) class numbers from 0.
    augment
        Changes of each batch in training.
    front
        Digest of the front end that gave them, if one did; training refuses those of another.

    Raises
    ------
    ParameterError
        Shapes or values do not fit.
    """

    def __init__(
        self, x: ArrayLike, labels: ArrayLike, *, augment: Augment | None = None, front: str = ""
    ) -> None:
        self.front_digest = front
        self.x: Floats = np.ascontiguousarray(x, np.float32)
        self._labels = _labelled(self.x, labels)
        self.augment = augment
        if not np.isfinite(self.x).all():
            raise ParameterError("inputs must be finite")
        if augment is not None and augment.flip is True:
            raise ParameterError("mirroring coefficients needs a rule; build it with flip_rule")

    @property
    def labels(self) -> NDArray[np.int64]:
        """Class numbers, (n,)."""
        return self._labels

    def digest(self) -> str:
        """Return the digest of inputs, labels and augmentation."""
        return _digest(self.x, self._labels, self.augment)

    def batch(self, which: NDArray[np.int64], *, rng: Generator | None) -> Floats:
        """Return (len(which), C, H, W) inputs, augmented if there is a generator."""
        x = self.x[which]
        if rng is None or self.augment is None:
            return x
        return self.augment(x, rng).astype(np.float32, copy=False)


class Images:
    """Images that pass a front end batch by batch, after augmentation.

    Parameters
    ----------
    images
        (n, C, H, W) uint8.
    labels
        (n,) class numbers from 0.
    front
        Front end: uint8 images to (n, C', H', W') numbers.
    version
        What identifies the front end in digests: best the digest of its specification, which
        training then compares with the model's.
    augment
        Changes of each batch in training.
    """

    def __init__(
        self, images: NDArray[np.uint8], labels: ArrayLike, *, front: Transform, version: str,
        augment: Augment | None = None,
    ) -> None:  # fmt: skip
        if images.dtype != np.uint8:
            raise ParameterError(f"images are uint8, not {images.dtype}")
        if augment is not None and isinstance(augment.flip, FlipRule):
            raise ParameterError("images are mirrored with flip=True; rules are for coefficients")
        self.images = images
        self._labels = _labelled(images, labels)
        self.front, self.version, self.augment = front, version, augment
        self.front_digest = version if re.fullmatch(r"[0-9a-f]{64}", version) else ""

    @property
    def labels(self) -> NDArray[np.int64]:
        """Class numbers, (n,)."""
        return self._labels

    def digest(self) -> str:
        """Return the digest of images, labels, augmentation and the front end's version."""
        return _digest(self.images, self._labels, self.augment, self.version)

    def batch(self, which: NDArray[np.int64], *, rng: Generator | None) -> Floats:
        """Return (len(which), C', H', W') inputs, augmented if there is a generator."""
        images: NDArray[np.uint8] = self.images[which]
        if rng is not None and self.augment is not None:
            images = self.augment(images, rng).astype(np.uint8, copy=False)
        return np.ascontiguousarray(self.front(images), np.float32)


def _mirrored(x: NDArray[np.generic], flip: FlipRule | bool) -> NDArray[np.generic]:
    turned = x[..., ::-1]
    if not isinstance(flip, FlipRule):
        return turned
    if len(flip.sign) != x.shape[1]:
        raise ParameterError(
            f"the rule of mirroring has {len(flip.sign)} channels, the inputs have {x.shape[1]}"
        )
    sign, offset = (np.array(v, np.float32)[:, None, None] for v in (flip.sign, flip.offset))
    result: NDArray[np.generic] = turned.astype(np.float32) * sign + offset
    return result


def _shifted(x: NDArray[np.generic], moves: NDArray[np.int64], most: int) -> NDArray[np.generic]:
    _, _, rows, columns = x.shape
    padded = np.pad(x, ((0, 0), (0, 0), (most, most), (most, most)))
    return np.stack(
        [
            image[:, most + down : most + down + rows, most + right : most + right + columns]
            for image, (down, right) in zip(padded, moves, strict=True)
        ]
    )


def _labelled(x: NDArray[np.generic], labels: ArrayLike) -> NDArray[np.int64]:
    found = np.asarray(labels)
    if x.ndim != 4 or found.shape != x.shape[:1] or not len(x):
        raise ParameterError(
            f"give inputs (n, C, H, W) and labels (n,) with n at least 1, not {x.shape} and "
            f"{found.shape}"
        )
    if found.dtype.kind not in "iu" or int(found.min()) < 0:
        raise ParameterError("labels are class numbers from 0")
    return found.astype(np.int64)


def _digest(
    x: NDArray[np.generic], labels: NDArray[np.int64], augment: Augment | None, version: str = ""
) -> str:
    parts = [tensor_digest("x", x).sha256, tensor_digest("labels", labels).sha256]
    return sha256(canonical_json([*parts, repr(augment), version]))
