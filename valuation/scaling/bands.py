"""Bootstrap limits of a fitted scaling law."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np

from privml.rng import Generator, ScienceSeed
from privml.valuation.errors import ProblemError, SettingError
from privml.valuation.methods.base import seed_of
from privml.valuation.problem import Floats
from privml.valuation.scaling import fits
from privml.valuation.scaling.checks import whole

if TYPE_CHECKING:
    from privml.valuation.scaling.law import ScalingLaw

_POINTS: Final = 4
_MOST_LEVERAGE: Final = 1 - 1e-9


def limits(
    law: ScalingLaw,
    x: Floats,
    *,
    level: float,
    draws: int,
    random_state: int | ScienceSeed,
) -> tuple[Floats, Floats]:
    """Return the lower and upper (k,) limits of the gap at sizes ``x``."""
    if len(law.x) < _POINTS:
        raise ProblemError(f"bands need {_POINTS} points; this law has {len(law.x)}: measure more")
    if not 0 < level < 1:
        raise SettingError(f"level={level!r} must lie between 0 and 1")
    whole("draws", draws)
    generator = seed_of(random_state).child("scaling bands").generator()
    tails = [(1 - level) / 2, (1 + level) / 2]
    if law.method == "ols":
        return _studentised(law, x, tails, generator.integers(len(law.x), size=(draws, len(law.x))))
    redrawn = _gaps(law, draws, generator)
    curves = np.exp(np.array([_again(law, gap) for gap in redrawn]) @ fits.design(x).T)
    low, high = np.quantile(curves, tails, axis=0)
    return low, high


def _studentised(
    law: ScalingLaw,
    x: Floats,
    tails: list[float],
    chosen: np.ndarray[tuple[int, ...], np.dtype[np.int64]],
) -> tuple[Floats, Floats]:
    """Resample residuals; judge each curve by its own standard error, as few points need."""
    design, at = fits.design(law.x), fits.design(x)
    inverse = np.linalg.inv(design.T @ design)
    solve = inverse @ design.T
    curve = design @ np.array([np.log(law.a), law.b])
    residual = np.log(law.gap) - curve
    leverage = np.minimum((design * solve.T).sum(axis=1), _MOST_LEVERAGE)
    fair = residual / np.sqrt(1 - leverage)
    noise = (fair - fair.mean())[chosen]  # (draws, n)
    change = noise @ solve.T  # (draws, 2): ln a and b
    left = noise - change @ design.T
    freedom = len(law.x) - design.shape[1]
    reach = np.sqrt(np.einsum("ki,ij,kj->k", at, inverse, at))  # (k,)
    spread = np.sqrt((left**2).sum(axis=1) / freedom)[:, None] * reach
    own = np.sqrt((residual**2).sum() / freedom) * reach
    moved = change @ at.T
    ratio = np.divide(moved, spread, out=np.zeros_like(moved), where=spread > 0)
    low, high = np.quantile(ratio, tails, axis=0)
    middle = at @ np.array([np.log(law.a), law.b])
    return np.exp(middle - high * own), np.exp(middle - low * own)


def _gaps(law: ScalingLaw, draws: int, generator: Generator) -> Floats:
    """Return (draws, n) gaps as another measurement might have given them."""
    curve = law.a * law.x**law.b
    if law.trials is not None:
        attempts = np.maximum(1, np.round(law.trials)).astype(np.int64)
        share = np.minimum(curve, 1.0)
        return np.asarray(generator.binomial(attempts, share, (draws, len(curve))) / attempts)
    residual = law.gap - curve
    wide = (residual - residual.mean()) * np.sqrt(len(curve) / (len(curve) - 2))
    again = wide[generator.integers(len(curve), size=(draws, len(curve)))]
    return np.asarray(np.maximum(0.0, curve + again))


def _again(law: ScalingLaw, gap: Floats) -> Floats:
    if gap.max() <= 0:  # nothing failed: the smallest gap that these trials could have shown
        gap = np.full(len(gap), 0.5 / law.trials.max()) if law.trials is not None else law.gap
    return fits.fitted(law.method, law.x, gap, law.trials)
