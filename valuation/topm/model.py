"""From settings, arms and pooled sums to a posterior: kernels, features, hyperparameters."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from privml.rng import ScienceSeed
from privml.valuation.errors import SettingError
from privml.valuation.topm.arms import Arms
from privml.valuation.topm.evidence import Hyperparameters, fit, pair_noise, with_pair_noise
from privml.valuation.topm.kernels import Component, components, fourier, nystrom
from privml.valuation.topm.posterior import Posterior
from privml.valuation.topm.posterior_features import FeaturePosterior
from privml.valuation.topm.posterior_independent import IndependentPosterior
from privml.valuation.topm.posterior_joint import JointPosterior
from privml.valuation.topm.settings import Settings
from privml.valuation.topm.sums import Floats, Ints, PooledSums


@dataclass(frozen=True, eq=False)
class _Apart:
    """The component of arms without features: every arm for itself."""

    arms: int

    def block(self, rows: Ints, columns: Ints) -> Floats:
        """Return 1 where row and column are the same arm, else 0."""
        same: Floats = (rows[:, None] == columns[None, :]).astype(np.float64)
        return same

    def diagonal(self) -> Floats:
        """Return ones."""
        return np.ones(self.arms)


class Model:
    """Makes posteriors of n arms.

    Parameters
    ----------
    count
        Number of arms.
    arms
        Features and labels; None only for independent arms.
    settings
        Settings of the run.
    seed
        Seed of fits and random features.
    """

    def __init__(
        self, count: int, arms: Arms | None, settings: Settings, *, seed: ScienceSeed
    ) -> None:
        self.back_end = settings.back_end(count)
        if arms is None and self.back_end != "independent":
            raise SettingError("this posterior needs features; use posterior='independent'")
        if arms is not None and arms.count != count:
            raise SettingError(f"features are given for {arms.count} arms, the target has {count}")
        self._count, self._arms, self._settings, self._seed = count, arms, settings, seed
        self.kernels = settings.select_kernel or (settings.kernel,)
        self.chosen = 0
        self._parts: dict[int, tuple[Component, ...]] = {}
        self._features: tuple[object, Floats, Floats] | None = None

    def parts(self, kernel: int) -> tuple[Component, ...]:
        """Return the components of one of the kernels, made on first use."""
        if self.back_end == "independent" or self._arms is None:
            return (_Apart(self._count),)
        if kernel not in self._parts:
            self._parts[kernel] = components(
                self.kernels[kernel], self._arms, lengthscale=self._settings.lengthscale
            )
        return self._parts[kernel]

    def fitted(
        self, sums: PooledSums, before: Hyperparameters | None, posterior: Posterior | None
    ) -> Hyperparameters:
        """Return hyperparameters for the data so far, and choose the kernel if there are several.

        ``posterior`` is that of the old hyperparameters; it serves the pair noise.
        """
        settings = self._settings
        if settings.hyperparameters is not None:
            return settings.hyperparameters
        mean = None if isinstance(settings.prior_mean, str) else float(settings.prior_mean)
        best: tuple[float, int, Hyperparameters] | None = None
        for kernel in range(len(self.kernels)):
            start = before if kernel == self.chosen else None
            hyper, evidence = fit(
                self.parts(kernel),
                sums,
                settings=settings.fit,
                seed=self._seed.child("fit", sums.pulls),
                start=start,
                mean=mean if mean is None else settings.sign * mean,
            )
            if best is None or evidence > best[0]:
                best = evidence, kernel, hyper
        if best is None:
            raise SettingError("there is no kernel to fit")
        _, self.chosen, hyper = best
        if posterior is not None and len(sums.pair_arms):
            hyper = with_pair_noise(hyper, pair_noise(posterior, sums, hyper, settings.fit))
        return hyper

    def noises(self, sums: PooledSums, hyper: Hyperparameters, *, live: bool) -> Floats:
        """Return (n,) float64 noise variances of single pulls; ``live`` after the switch."""
        if self._settings.noise == "pooled" or (live and self._settings.noise == "auto"):
            return np.full(self._count, hyper.noise)
        weight = self._settings.noise_weight
        freedom = np.maximum(sums.count - 1, 0)
        return (weight * hyper.noise + sums.squares) / (weight + freedom)

    def posterior(self, sums: PooledSums, hyper: Hyperparameters, *, live: bool) -> Posterior:
        """Return the posterior of the data so far, computed from scratch."""
        noise = self.noises(sums, hyper, live=live)
        made = self._prior(hyper, noise)
        made.rebuild(sums)
        return made

    def _prior(self, hyper: Hyperparameters, noise: Floats) -> Posterior:
        if self.back_end == "independent":
            prior = np.full(self._count, hyper.own + sum(hyper.weights))
            return IndependentPosterior(prior, prior_mean=hyper.mean, noise=noise)
        if self.back_end == "joint":
            everyone = np.arange(self._count)
            kernel = hyper.own * np.eye(self._count)
            for weight, part in zip(hyper.weights, self.parts(self.chosen), strict=True):
                kernel += weight * part.block(everyone, everyone)
            return JointPosterior(
                kernel,
                prior_mean=hyper.mean,
                noise=noise,
                pair_ratio=hyper.pair_ratio,
            )
        features, missing = self._feature_map(hyper)
        settings = self._settings
        own = hyper.own + (missing if settings.residual else np.zeros(self._count))
        return FeaturePosterior(
            features.astype(settings.storage),
            own=own,
            prior_mean=hyper.mean,
            noise=noise,
            pair_ratio=hyper.pair_ratio,
            max_promoted=settings.max_promoted,
            refresh_every=settings.refresh_every,
            band=settings.band,
        )

    def _feature_map(self, hyper: Hyperparameters) -> tuple[Floats, Floats]:
        """Return features and missing diagonal; kept while the hyperparameters stay."""
        key = (self.chosen, hyper.weights)
        if self._features is None or self._features[0] != key:
            features, missing = self._new_features(hyper)
            self._features = key, features, missing
        return self._features[1], self._features[2]

    def _new_features(self, hyper: Hyperparameters) -> tuple[Floats, Floats]:
        settings = self._settings
        if settings.feature_map == "nystrom":
            return nystrom(self.parts(self.chosen), hyper.weights, rank=settings.rank)
        if self.kernels[self.chosen] != "rbf-label" or self._arms is None:
            raise SettingError("feature_map='fourier' is for kernel='rbf-label'; use nystrom")
        waves = fourier(
            self._arms,
            self._seed.child("fourier").generator(),
            rank=settings.rank,
            lengthscale=settings.lengthscale,
        )
        return waves * np.sqrt(hyper.weights[0]), np.zeros(self._count)
