"""Posterior in feature space: f_i = m0 + phi_i'w + xi_i with w ~ N(0, I) and xi_i ~ N(0, rho_i).

The arms' own terms xi_i are kept exactly. While an arm has single pulls only, its xi is integrated
out: with row precision p_i = 1 / (rho_i + lambda_i / n_i) a pull that changes p_i by dp and
p_i ybar_i by ds changes the weights' covariance C by a rank-1 term, and with
kappa_i = rho_i / (rho_i + lambda_i / n_i)

    mean_i = phi_i'w + kappa_i (ybar_i - phi_i'w),
    Cov_ij = (1 - kappa_i)(1 - kappa_j) phi_i'C phi_j + [i = j] rho_i (1 - kappa_i).

A pair couples xi_b and xi_c. Both are then *promoted*: appended to w as explicit coordinates,
exactly, from their conditional law given w. One update reads the n x D features once (memory-bound)
and writes D^2 numbers; see :class:`~privml.valuation.topm.projections.Projections` for the lazy
form, in which variances outside a band are upper bounds (they only shrink).
"""

from __future__ import annotations

import math
from copy import copy
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import blas, cholesky, solve_triangular

from privml.errors import ParameterError
from privml.rng import Generator
from privml.valuation.topm.posterior import (
    Observation,
    Posterior,
    gaussian_samples,
    relative_change,
)
from privml.valuation.topm.projections import Projections
from privml.valuation.topm.sums import Floats, Ints, PooledSums


class FeaturePosterior(Posterior):
    """Posterior of n values through D shared weights and one own term per arm.

    Parameters
    ----------
    features
        (n, D) float64 or float32; features features' plus the own terms is the prior covariance.
    own
        (n,) float64 prior variance rho_i of the own terms, at least 0.
    prior_mean, noise, pair_ratio
        As for the joint posterior.
    max_promoted
        Most arms whose own term may become an explicit coordinate.
    refresh_every, band
        Updates between two passes over all arms, and how many arms (those with the largest
        mean + 2 sd) follow at once in between.
    """

    def __init__(
        self,
        features: NDArray[Any],
        *,
        own: Floats,
        prior_mean: float,
        noise: Floats,
        pair_ratio: float,
        max_promoted: int = 256,
        refresh_every: int = 1,
        band: int = 4096,
    ) -> None:
        if not (noise > 0).all() or not pair_ratio > 0 or (own < 0).any():
            raise ParameterError("noise variances must be positive and own variances at least 0")
        phi = np.ascontiguousarray(features)
        width = phi.shape[1]
        self._lines = Projections(phi, refresh_every=refresh_every, band=band)
        self._prior_own, self._own = own, own.copy()  # the second is 0 for promoted arms
        self._prior_mean, self._noise, self._pair_ratio = prior_mean, noise, pair_ratio
        self._max_promoted = max_promoted
        self._scale = float((self._lines.norms + own).max())
        self._cov: Floats = np.asfortranarray(np.eye(width))
        self._weights: Floats = np.zeros(width)
        self._kappa: Floats = np.zeros(len(own))
        self._level: Floats = np.zeros(len(own))  # ybar_i - m0
        self.mean: Floats = np.full(len(own), float(prior_mean))
        self.variance: Floats = self._lines.norms + own
        self.information = 0.0

    def observe(self, seen: Observation, sums: PooledSums) -> None:
        """Add one observation. Cost 2 n D + 4 (D + P)^2 flop for P promoted arms."""
        arm = seen.first
        if seen.second >= 0:
            self._promote(arm)
            self._promote(seen.second)
            row = self._lines.row(arm) - self._lines.row(seen.second)
            self._explicit(row, seen.value, self.noise_of(arm, seen.second))
        elif self._lines.place[arm] >= 0:
            value = seen.value - self._prior_mean
            self._explicit(self._lines.row(arm), value, float(self._noise[arm]))
        else:
            self._implicit(arm, seen.value - self._prior_mean, int(sums.count[arm]))

    def _explicit(self, row: Floats, value: float, noise: float) -> None:
        """Condition the weights on row'w = value up to ``noise``."""
        gain = self._cov @ row
        spread = max(float(row @ gain), 0.0)
        step = (value - float(row @ self._weights)) / (spread + noise)
        self.information += 0.5 * math.log1p(spread / noise)
        self._move(gain, step=step, shrink=1.0 / (spread + noise))

    def _implicit(self, arm: int, value: float, pulls: int) -> None:
        """Add a pull of an arm whose own term is integrated out."""
        own, noise = float(self._own[arm]), float(self._noise[arm])
        before = 1.0 / (own + noise / pulls) if pulls else 0.0
        after = 1.0 / (own + noise / (pulls + 1))
        old = float(self._level[arm])
        level = old + (value - old) / (pulls + 1)
        row = self._lines.row(arm)
        gain = self._cov @ row
        spread = max(float(row @ gain), 0.0)
        kappa = float(self._kappa[arm])
        total = (1 - kappa) ** 2 * spread + own * (1 - kappa)
        self.information += 0.5 * math.log1p(total / noise)
        shrink = (after - before) / (1 + (after - before) * spread)
        moved = after * level - before * old
        step = moved * (1 - shrink * spread) - shrink * float(row @ self._weights)
        self._kappa[arm], self._level[arm] = own * after, level
        self._move(gain, step=step, shrink=shrink)

    def _move(self, gain: Floats, *, step: float, shrink: float) -> None:
        """Apply w += step gain, C -= shrink gain gain' to the weights and to the arms."""
        self._weights += step * gain
        self._cov = blas.dger(-shrink, gain, gain, a=self._cov, overwrite_a=1)
        if self._lines.move(gain, step=step, shrink=shrink):
            self._publish()
            self._lines.follow(self.mean + 2.0 * np.sqrt(self.variance))
        else:
            self._publish(self._lines.band)

    def _publish(self, arms: Ints | None = None) -> None:
        """Write mean and variance of ``arms`` (all by default) from their parts."""
        at: Ints | slice = slice(None) if arms is None else arms
        kappa = self._kappa[at]
        keep = 1.0 - kappa
        line = self._lines.line[at]
        self.mean[at] = self._prior_mean + keep * line + kappa * self._level[at]
        self.variance[at] = keep * (keep * self._lines.spread[at] + self._own[at])

    def settled(self) -> Posterior:
        """Return this posterior, or a copy in which every arm has followed all updates."""
        if not self._lines.behind:
            return self
        twin = copy(self)
        twin._lines = copy(self._lines)
        twin._lines.catch_up()  # makes new arrays, the old ones stay
        twin.mean, twin.variance = self.mean.copy(), self.variance.copy()
        twin._publish()
        return twin

    def can_pair(self, first: int, second: int) -> bool:
        """Return whether both own terms are explicit or there is room for them."""
        missing = sum(
            1 for arm in (first, second) if self._lines.place[arm] < 0 and self._own[arm] > 0
        )
        return len(self._lines.promoted) + missing <= self._max_promoted

    def _promote(self, arm: int) -> None:
        """Make the own term of ``arm`` an explicit coordinate, from its law given the weights."""
        own, kappa = float(self._own[arm]), float(self._kappa[arm])
        if self._lines.place[arm] >= 0 or own == 0:
            return
        self._lines.catch_up()
        row = self._lines.row(arm)
        gain = self._cov @ row
        width = len(gain)
        cov = np.empty((width + 1, width + 1), order="F")
        cov[:width, :width] = self._cov
        cov[:width, width] = cov[width, :width] = -kappa * gain
        cov[width, width] = kappa**2 * float(row @ gain) + own * (1 - kappa)
        line = float(row @ self._weights)
        self._cov = cov
        self._weights = np.append(self._weights, kappa * (float(self._level[arm]) - line))
        self._lines.promote(arm)
        self._kappa[arm] = self._own[arm] = 0.0
        new = self._lines.row(arm)
        self._lines.line[arm] = float(new @ self._weights)
        self._lines.spread[arm] = max(float(new @ cov @ new), 0.0)

    def rebuild(self, sums: PooledSums) -> float:
        """Compute weights and arms from the pooled sums. Cost n (D + P)^2 flop."""
        for arm in np.unique(sums.pair_arms):
            self._promote(int(arm))
        self._lines.catch_up()
        old_mean, old_variance = self.mean.copy(), self.variance.copy()
        precision, pull = self._data(sums)
        factor = cholesky(precision, lower=True, check_finite=False)
        eye = np.eye(len(pull))
        half = solve_triangular(factor, eye, lower=True, check_finite=False)
        self._cov = np.asfortranarray(half.T @ half)
        self._weights = self._cov @ pull
        self._lines.line = self._lines.along(self._weights)
        self._lines.spread = self._spread_of_all(half)
        logs = float(np.log(np.einsum("ii->i", factor)).sum())
        logs += 0.5 * float(np.log(self._prior_own[self._lines.promoted]).sum())
        self.information = logs + 0.5 * float(np.log1p(sums.count * self._own / self._noise).sum())
        self._publish()
        return max(
            relative_change(self.mean, old_mean, math.sqrt(self._scale)),
            relative_change(self.variance, old_variance, self._scale),
        )

    def _data(self, sums: PooledSums) -> tuple[Floats, Floats]:
        """Return the (D + P)^2 precision of the weights and their (D + P,) linear term."""
        lines = self._lines
        width = lines.phi.shape[1]
        seen = np.flatnonzero(sums.count)
        rows = lines.rows(seen)
        weight = 1.0 / (self._own[seen] + self._noise[seen] / sums.count[seen])
        level = sums.mean[seen] - self._prior_mean
        precision = (rows.T * weight) @ rows
        pull = rows.T @ (weight * level)
        self._kappa[seen] = self._own[seen] * weight
        self._level[seen] = level
        if len(sums.pair_arms):
            pairs = lines.rows(sums.pair_arms[:, 0]) - lines.rows(sums.pair_arms[:, 1])
            level = self._noise[sums.pair_arms].mean(axis=1)
            weight = sums.pair_count / (self._pair_ratio * level)
            precision += (pairs.T * weight) @ pairs
            pull += pairs.T @ (weight * sums.pair_mean)
        diagonal = np.einsum("ii->i", precision)
        diagonal[:width] += 1.0
        diagonal[width:] += 1.0 / self._prior_own[lines.promoted]
        return precision, pull

    def _spread_of_all(self, half: Floats, chunk: int = 8192) -> Floats:
        """Return (n,) float64: row_i'C row_i with C = half'half, in chunks."""
        spread = np.empty(self.arms)
        for start in range(0, self.arms, chunk):
            arms = np.arange(start, min(start + chunk, self.arms))
            root = self._lines.rows(arms) @ half.T
            spread[arms] = np.einsum("ij,ij->i", root, root)
        return spread

    def covariance_with(self, arm: int) -> Floats:
        """Return Cov(f, f_arm). Cost 2 n D flop."""
        keep = 1.0 - self._kappa
        column: Floats = self._lines.along(self._cov @ self._lines.row(arm))
        column *= keep * keep[arm]
        column[arm] += self._own[arm] * keep[arm]
        return column

    def covariance_block(self, rows: Ints, columns: Ints) -> Floats:
        """Return a block of the covariance. Cost 2 (rows + columns) D^2 flop."""
        keep = 1.0 - self._kappa
        right = self._cov @ self._lines.rows(columns).T
        block: Floats = self._lines.rows(rows) @ right
        block *= keep[rows][:, None] * keep[columns]
        same = rows[:, None] == columns[None, :]
        block += np.where(same, (self._own * keep)[rows][:, None], 0.0)
        return block

    def difference_variances(self, first: Ints, second: Ints) -> Floats:
        """Return Var(f_first - f_second), at least 0. Cost 2 k (D + P)^2 flop."""
        keep = 1.0 - self._kappa
        rows = self._lines.rows(first) * keep[first][:, None]
        rows -= self._lines.rows(second) * keep[second][:, None]
        spread: Floats = np.einsum("ij,ij->i", rows @ self._cov, rows)
        spread += np.where(first == second, 0.0, (self._own * keep)[first])
        spread += np.where(first == second, 0.0, (self._own * keep)[second])
        return np.maximum(spread, 0.0)

    @property
    def noises(self) -> Floats:
        """(n,) float64 noise variance of one pull of each arm."""
        return self._noise

    def noise_of(self, first: int, second: int = -1) -> float:
        """Return the noise variance of a pull or of a pair."""
        own = float(self._noise[first])
        return self._pair_ratio * 0.5 * (own + float(self._noise[second])) if second >= 0 else own

    def sample(self, generator: Generator, draws: int, arms: Ints) -> Floats:
        """Return joint samples of ``arms``. Cost (D + P)^3 + draws k (D + P)."""
        weights = gaussian_samples(generator, draws, self._weights, self._cov)
        kappa = self._kappa[arms]
        lines = weights @ self._lines.rows(arms).T
        noise = generator.standard_normal((draws, len(arms)))
        own = np.sqrt(self._own[arms] * (1 - kappa)) * noise
        drawn: Floats = self._prior_mean + (1 - kappa) * lines + kappa * self._level[arms] + own
        return drawn
