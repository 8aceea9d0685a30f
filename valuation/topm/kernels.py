"""Prior covariance of the values, as a weighted sum of kernels on features and labels.

A kernel is a list of components, each positive semidefinite with mean variance about 1; sums and
elementwise products of such kernels stay so. Names:

* ``rbf-label``: exp(-d^2 / (s^2 median d^2)) for arms with the same label, 0 otherwise (for groups:
  times the inner product of class shares; for a regression: times an RBF of the target);
* ``linear-label``: linear in [y x, y], the label coded as corners of a simplex;
* ``agreement``: ``rbf-label`` and, with a weight of its own, an RBF of the share of an arm's k
  nearest neighbours that have its label;
* ``mixture``: all three with weights of their own; the evidence decides.

The label has to enter: two rows with equal x and different labels have very different values.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final, Protocol, TypeAlias

import numpy as np

from privml.rng import Generator
from privml.valuation.errors import SettingError
from privml.valuation.topm.arms import Arms
from privml.valuation.topm.sums import Floats, Ints

_PAIRS_FOR_MEDIAN: Final = 200_000
_NEIGHBOURS: Final = 5
_CHUNK: Final = 1024

KernelFunction: TypeAlias = Callable[[Floats, Floats], Floats]
"""Covariance of a user: (features and labels of k arms, of l arms) -> (k, l)."""


class Component(Protocol):
    """One positive semidefinite kernel on the arms."""

    def block(self, rows: Ints, columns: Ints) -> Floats:
        """Return (rows, columns) float64 covariances."""

    def diagonal(self) -> Floats:
        """Return (n,) float64 variances."""


@dataclass(frozen=True, eq=False)
class Radial:
    """exp(-d^2 / scale) on the points, times the inner products of the labels."""

    points: Floats
    scale: float
    labels: Floats | None = None

    def block(self, rows: Ints, columns: Ints) -> Floats:
        """Return (rows, columns) float64 covariances."""
        value: Floats = np.exp(-_distances(self.points[rows], self.points[columns]) / self.scale)
        if self.labels is not None:
            value *= self.labels[rows] @ self.labels[columns].T
        return value

    def diagonal(self) -> Floats:
        """Return (n,) float64 variances."""
        if self.labels is None:
            return np.ones(len(self.points))
        diagonal: Floats = np.einsum("ij,ij->i", self.labels, self.labels)
        return diagonal


@dataclass(frozen=True, eq=False)
class Linear:
    """Inner products of points, divided by their mean variance, times those of label codes."""

    points: Floats
    codes: Floats

    def block(self, rows: Ints, columns: Ints) -> Floats:
        """Return (rows, columns) float64 covariances."""
        value: Floats = self.points[rows] @ self.points[columns].T
        value *= self.codes[rows] @ self.codes[columns].T
        return value

    def diagonal(self) -> Floats:
        """Return (n,) float64 variances."""
        value: Floats = np.einsum("ij,ij->i", self.points, self.points)
        value *= np.einsum("ij,ij->i", self.codes, self.codes)
        return value


@dataclass(frozen=True, eq=False)
class Custom:
    """A user's covariance function of the stacked features and labels."""

    function: KernelFunction
    points: Floats

    def block(self, rows: Ints, columns: Ints) -> Floats:
        """Return (rows, columns) float64 covariances."""
        value = np.asarray(self.function(self.points[rows], self.points[columns]), np.float64)
        if value.shape != (len(rows), len(columns)) or not np.isfinite(value).all():
            raise SettingError(
                f"the kernel gave shape {value.shape} or numbers that are not finite for "
                f"{len(rows)} x {len(columns)} arms"
            )
        return value

    def diagonal(self) -> Floats:
        """Return (n,) float64 variances."""
        arms = np.arange(len(self.points))
        return np.concatenate([np.diag(self.block(a, a)) for a in _chunks(arms)])


KERNELS: Final = ("rbf-label", "linear-label", "agreement", "mixture")


def components(kernel: Any, arms: Arms, *, lengthscale: float = 1.0) -> tuple[Component, ...]:  # noqa: ANN401
    """Return the components of a kernel.

    Parameters
    ----------
    kernel
        A name, or a function (features and labels, the same) -> covariances.
    arms
        Features and labels.
    lengthscale
        Factor s of the median distance.

    Raises
    ------
    SettingError
        The name is unknown or the length scale not positive.
    """
    if not lengthscale > 0:
        raise SettingError(f"lengthscale={lengthscale} must be positive")
    if callable(kernel):
        return (Custom(kernel, np.hstack([arms.features, arms.labels])),)
    if kernel == "rbf-label":
        return (_radial(arms, lengthscale),)
    if kernel == "linear-label":
        return (_linear(arms),)
    if kernel == "agreement":
        return (_radial(arms, lengthscale), _agreement(arms))
    if kernel == "mixture":
        return (_radial(arms, lengthscale), _linear(arms), _agreement(arms))
    raise SettingError(f"kernel={kernel!r} is unknown; choose {', '.join(KERNELS)} or a function")


def nystrom(
    parts: Sequence[Component], weights: Sequence[float], *, rank: int, tolerance: float = 1e-10
) -> tuple[Floats, Floats]:
    """Return features of the weighted sum of kernels by a pivoted Cholesky decomposition.

    Returns
    -------
    features
        (n, D) float64 with D <= rank; features features' approximates the kernel from below.
    residual
        (n,) float64 diagonal that is missing, at least 0.

    Cost n D^2 / 2 flop plus D kernel columns.
    """
    residual: Floats = np.zeros(len(parts[0].diagonal()))
    for part, weight in zip(parts, weights, strict=True):
        residual += weight * part.diagonal()
    start = float(residual.max(initial=0.0))
    everyone = np.arange(len(residual))
    features = np.zeros((len(residual), min(rank, len(residual))))
    for column in range(features.shape[1]):
        pivot = int(np.argmax(residual))
        left = float(residual[pivot])
        if left <= tolerance * start:
            return np.ascontiguousarray(features[:, :column]), residual
        at = np.array([pivot])
        new = -(features[:, :column] @ features[pivot, :column])
        for part, weight in zip(parts, weights, strict=True):
            new += weight * part.block(everyone, at)[:, 0]
        new /= np.sqrt(left)
        features[:, column] = new
        residual = np.maximum(residual - new**2, 0.0)
        residual[pivot] = 0.0
    return features, residual


def fourier(arms: Arms, generator: Generator, *, rank: int, lengthscale: float = 1.0) -> Floats:
    """Return (n, D) random Fourier features of ``rbf-label``, D at most ``rank``.

    Each class gets rank / classes frequencies, so the expected inner products are the kernel.
    """
    kernel = _radial(arms, lengthscale)
    labels = np.ones((arms.count, 1)) if kernel.labels is None else kernel.labels
    half = max(1, rank // (2 * labels.shape[1]))
    draws = generator.standard_normal((kernel.points.shape[1], half))
    phase = kernel.points @ (draws * np.sqrt(2.0 / kernel.scale))
    waves = np.hstack([np.cos(phase), np.sin(phase)]) / np.sqrt(half)
    blocks = [waves * labels[:, [label]] for label in range(labels.shape[1])]
    return np.ascontiguousarray(np.hstack(blocks))


def _radial(arms: Arms, lengthscale: float) -> Radial:
    points = np.hstack([arms.features, arms.labels]) if arms.targets else arms.features
    scale = lengthscale**2 * _median_distance(points)
    return Radial(points, scale, None if arms.targets else arms.labels)


def _linear(arms: Arms) -> Linear:
    points = np.hstack([arms.features, np.ones((arms.count, 1))])
    points = points / np.sqrt(np.einsum("ij,ij->i", points, points).mean())
    if arms.targets:
        return Linear(points, np.hstack([arms.labels, np.ones((arms.count, 1))]) / np.sqrt(2.0))
    classes = max(arms.labels.shape[1], 2)
    codes = (arms.labels - 1.0 / classes) * np.sqrt(classes / (classes - 1))
    return Linear(points, codes)


def _agreement(arms: Arms) -> Radial:
    """Return an RBF, at the median distance, of how far neighbours share an arm's label."""
    share = np.empty((arms.count, 1))
    near = min(_NEIGHBOURS, arms.count - 1)
    for rows in _chunks(np.arange(arms.count)):
        distance = _distances(arms.features[rows], arms.features)
        distance[np.arange(len(rows)), rows] = np.inf
        closest = np.argpartition(distance, near - 1, axis=1)[:, :near]
        if arms.targets:
            gap = np.abs(arms.labels[closest, 0] - arms.labels[rows])
            share[rows, 0] = gap.mean(axis=1)
        else:
            same = np.einsum("rkc,rc->rk", arms.labels[closest], arms.labels[rows])
            share[rows, 0] = same.mean(axis=1)
    spread = float(share.std())
    return Radial(share, 2.0 * spread**2 if spread > 0 else 1.0)


def _distances(left: Floats, right: Floats) -> Floats:
    """Return (k, l) float64 squared distances, at least 0."""
    value: Floats = -2.0 * (left @ right.T)
    value += np.einsum("ij,ij->i", left, left)[:, None]
    value += np.einsum("ij,ij->i", right, right)
    return np.maximum(value, 0.0, out=value)


def _median_distance(points: Floats) -> float:
    """Return the median squared distance over an even spread of pairs; 1 if all points agree."""
    step = max(1, len(points) ** 2 // _PAIRS_FOR_MEDIAN)
    chosen = points[:: max(1, int(np.sqrt(step)))]
    above = np.triu_indices(len(chosen), 1)
    distance = _distances(chosen, chosen)[above]
    median = float(np.median(distance)) if len(distance) else 0.0
    return median if median > 0 else 1.0


def _chunks(arms: Ints) -> list[Ints]:
    return [arms[start : start + _CHUNK] for start in range(0, len(arms), _CHUNK)]
