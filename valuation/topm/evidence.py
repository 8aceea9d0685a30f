"""Hyperparameters from the data: marginal likelihood of pooled pulls, maximised by L-BFGS.

For arms with n_i > 0 pulls, mean ybar_i and squared deviations SS_i the evidence is

    log N(ybar; m0, S) - sum_i [(n_i - 1)/2 ln(2 pi lambda) + ln(n_i)/2 + SS_i / (2 lambda)],
    S = sum_c a_c K_c + rho I + diag(lambda / n_i),

with m0 at its best value for the rest (generalised least squares) unless it is given. Weak normal
penalties on the logarithms keep what the data cannot tell apart (rho and lambda after a single
sweep) near the stated prior: the own share rho / (sum a + rho) and the ratio of signal to noise.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import Final

import numpy as np
from scipy.linalg import cho_factor, cho_solve
from scipy.optimize import minimize

from privml.backbones.digests import Json
from privml.rng import ScienceSeed
from privml.valuation.errors import SettingError
from privml.valuation.topm.kernels import Component
from privml.valuation.topm.posterior import Posterior
from privml.valuation.topm.sums import Floats, Ints, PooledSums

_BOUND: Final = 16.0
_STEPS: Final = 60
_LEAST: Final = 1e-12


@dataclass(frozen=True)
class Hyperparameters:
    """Numbers of the prior and of the noise, in squared units of the utility.

    Attributes
    ----------
    weights
        Variance a_c of each kernel component.
    own
        Variance rho of the arms' own terms.
    noise, pair_noise
        Variance of one pull and of one pair observation. Where arms have noise of their own, a
        pair's is in the same ratio to the mean of its two arms'.
    mean
        Prior mean of every value.
    """

    weights: tuple[float, ...]
    own: float
    noise: float
    pair_noise: float
    mean: float = 0.0

    def __post_init__(self) -> None:
        variances = (*self.weights, self.own)
        if not self.weights or any(not v >= 0 for v in variances) or sum(variances) <= 0:
            raise SettingError("prior variances must be at least 0, and one of them positive")
        if not self.noise > 0 or not self.pair_noise > 0:
            raise SettingError("noise variances must be positive")

    @property
    def pair_ratio(self) -> float:
        """Pair noise over single noise."""
        return self.pair_noise / self.noise

    def as_json(self) -> dict[str, Json]:
        """Return the numbers as JSON."""
        return {**asdict(self), "weights": list(self.weights)}


@dataclass(frozen=True)
class FitSettings:
    """How hyperparameters are fitted.

    Attributes
    ----------
    own_share
        Share of the prior variance that the arms' own terms have before data speak.
    own_spread, signal_spread
        Standard deviations of ln of the own share (as odds) and of signal over noise; 0 holds the
        own share at its value.
    signal
        Signal-to-noise variance ratio of one pull before data speak.
    most_arms
        Arms used for a fit, drawn at random beyond that.
    pair_ratio
        Pair noise over single noise before pairs were seen, worth ``pair_weight`` observations.
    pair_weight
        See ``pair_ratio``.
    """

    own_share: float = 0.1
    own_spread: float = 1.0
    signal: float = 0.1
    signal_spread: float = 2.0
    most_arms: int = 500
    pair_ratio: float = 1.4
    pair_weight: float = 10.0


def fit(
    parts: Sequence[Component],
    sums: PooledSums,
    *,
    settings: FitSettings,
    seed: ScienceSeed,
    start: Hyperparameters | None = None,
    mean: float | None = None,
) -> tuple[Hyperparameters, float]:
    """Return the best hyperparameters and their penalised log evidence.

    Parameters
    ----------
    parts
        Kernel components.
    sums
        Pooled pulls; pairs are not used here.
    settings
        Penalties and limits.
    seed
        Draws the arms of a fit on many arms.
    start
        Where to start; from the data's variance if not given.
    mean
        Prior mean to hold; fitted if not given.
    """
    arms = np.flatnonzero(sums.count)
    if len(arms) > settings.most_arms:
        chosen = seed.generator().choice(len(arms), settings.most_arms, replace=False)
        arms = arms[np.sort(chosen)]
    if not len(arms):
        raise SettingError("no arm has been pulled yet, so there is nothing to fit")
    problem = _Problem(parts, sums, arms, settings, mean)
    first = problem.start(start)
    found = minimize(
        problem, first, jac=True, method="L-BFGS-B", options={"maxiter": _STEPS, "ftol": 1e-7},
        bounds=[(value - _BOUND, value + _BOUND) for value in problem.start(None)],
    )  # fmt: skip
    best = found.x if np.isfinite(found.fun) else first
    return problem.result(best, start), -float(problem(best)[0])


def pair_noise(
    posterior: Posterior, sums: PooledSums, hyper: Hyperparameters, settings: FitSettings
) -> float:
    """Return the pair noise by one step of expectation maximisation, shrunk to its prior.

    Its ratio to the noise is the mean over pair observations of E[(y - (f_b - f_c))^2] under the
    posterior, over the mean noise of the two arms.
    """
    first, second = sums.pair_arms.T
    off = sums.pair_mean - (posterior.mean[first] - posterior.mean[second])
    spread = posterior.difference_variances(first, second)
    level = posterior.noises[sums.pair_arms].mean(axis=1)
    seen = float(((sums.pair_squares + sums.pair_count * (off**2 + spread)) / level).sum())
    count = float(sums.pair_count.sum()) + settings.pair_weight
    return hyper.noise * (settings.pair_weight * settings.pair_ratio + seen) / count


def with_pair_noise(hyper: Hyperparameters, value: float) -> Hyperparameters:
    """Return the hyperparameters with another pair noise."""
    return replace(hyper, pair_noise=value)


class _Problem:
    """Negative penalised log evidence and its gradient in log variances (a_1.., rho, lambda)."""

    def __init__(
        self,
        parts: Sequence[Component],
        sums: PooledSums,
        arms: Ints,
        settings: FitSettings,
        mean: float | None,
    ) -> None:
        self._kernels = [part.block(arms, arms) for part in parts]
        self._count = sums.count[arms].astype(np.float64)
        self._ybar, self._squares = sums.mean[arms], float(sums.squares[arms].sum())
        self._settings, self._mean = settings, mean
        freedom = float((self._count - 1).sum())
        least = _LEAST * max(float(np.square(self._ybar).max()), _LEAST**0.5)
        spread = max(float(self._ybar.var()), least)  # equal numbers would have no scale
        within = self._squares / freedom if freedom > 0 else spread * float(self._count.mean())
        self._noise0 = max(within, 1e-12 * spread, least)
        self._freedom = freedom
        self.mean_found = 0.0

    def start(self, given: Hyperparameters | None) -> Floats:
        """Return the logarithms to start from."""
        if given is not None:
            variances = np.array([*given.weights, given.own, given.noise])
            given_logs: Floats = np.log(np.maximum(variances, 1e-6 * self._noise0))
            return given_logs
        signal = self._settings.signal * self._noise0
        share = self._settings.own_share
        parts = len(self._kernels)
        weights = [signal * (1 - share) / parts] * parts
        logs: Floats = np.log(np.array([*weights, signal * max(share, 1e-9), self._noise0]))
        return logs

    def result(self, x: Floats, start: Hyperparameters | None) -> Hyperparameters:
        """Return hyperparameters from logarithms."""
        self(x)
        *weights, own, noise = np.exp(self._tied(x)[0]).tolist()
        ratio = start.pair_ratio if start else self._settings.pair_ratio
        return Hyperparameters(tuple(weights), own, noise, ratio * noise, self.mean_found)

    def _tied(self, x: Floats) -> tuple[Floats, bool]:
        """Return x with the own variance tied to the weights if the own share is held."""
        if self._settings.own_spread > 0:
            return x, False
        x = x.copy()
        share = self._settings.own_share
        x[-2] = math.log(max(share, 1e-12) / (1 - share)) + np.logaddexp.reduce(x[:-2])
        return x, True

    def __call__(self, x: Floats) -> tuple[float, Floats]:
        """Return the objective and its gradient."""
        x, tied = self._tied(x)
        *weights, own, noise = np.exp(x)
        kernel = np.zeros_like(self._kernels[0])
        for weight, part in zip(weights, self._kernels, strict=True):
            kernel += weight * part
        total = kernel.copy()
        np.einsum("ii->i", total)[:] += own + noise / self._count
        try:
            factor = cho_factor(total, lower=True, check_finite=False)
        except np.linalg.LinAlgError:
            return 1e300, np.zeros_like(x)
        inverse = cho_solve(factor, np.eye(len(total)), check_finite=False)
        if self._mean is None:
            ones = inverse.sum(axis=1)
            self.mean_found = float(ones @ self._ybar / ones.sum())
        else:
            self.mean_found = self._mean
        residual = self._ybar - self.mean_found
        alpha = inverse @ residual
        value = 0.5 * float(residual @ alpha) + float(np.log(np.diag(factor[0])).sum())
        value += 0.5 * self._freedom * float(x[-1]) + 0.5 * self._squares / noise
        slope = np.outer(alpha, alpha) - inverse
        gradient = np.empty_like(x)
        for at, (weight, part) in enumerate(zip(weights, self._kernels, strict=True)):
            gradient[at] = -0.5 * weight * float(np.vdot(slope, part))
        diagonal = np.diag(slope)
        gradient[-2] = -0.5 * own * float(diagonal.sum())
        gradient[-1] = -0.5 * noise * float((diagonal / self._count).sum())
        gradient[-1] += 0.5 * self._freedom - 0.5 * self._squares / noise
        penalty, slopes = self._penalty(x, np.array(weights))
        gradient += slopes
        if tied:
            gradient[:-2] += gradient[-2] * np.array(weights) / sum(weights)
            gradient[-2] = 0.0
        return value + penalty, gradient

    def _penalty(self, x: Floats, weights: Floats) -> tuple[float, Floats]:
        """Return the penalties on the own share and on signal over noise, with gradient."""
        settings = self._settings
        slopes = np.zeros_like(x)
        shares = weights / weights.sum()
        shared = float(np.logaddexp.reduce(x[:-2]))
        value = 0.0
        if settings.own_spread > 0:
            odds = max(settings.own_share, 1e-9) / (1 - settings.own_share)
            off = (float(x[-2]) - shared - math.log(odds)) / settings.own_spread
            value += 0.5 * off * off
            slopes[-2] += off / settings.own_spread
            slopes[:-2] -= off / settings.own_spread * shares
        signal = float(np.logaddexp(shared, x[-2]))
        off = (signal - float(x[-1]) - math.log(settings.signal)) / settings.signal_spread
        value += 0.5 * off * off
        part = math.exp(shared - signal)
        slopes[:-2] += off / settings.signal_spread * part * shares
        slopes[-2] += off / settings.signal_spread * (1 - part)
        slopes[-1] -= off / settings.signal_spread
        return value, slopes
