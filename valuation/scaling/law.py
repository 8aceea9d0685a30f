"""The law ``gap = a x^b`` of a score that grows with the number of sites, objects or samples.

The gap is ``1 - score / max_score``. Fit it to scores that give partial credit: raw success rates
are too coarse. A floor under the gap cannot be told from a smaller exponent at a handful of sizes,
so there is no floor term.

Reference: Hu, Lin, Sheng, Wen, You, Gao, Data Scaling Laws in Imitation Learning for Robotic
Manipulation, ICLR 2025, arXiv 2410.18647.
"""

from __future__ import annotations

import math
import warnings
from dataclasses import dataclass, field
from typing import Any, Final, Literal, Self, TypeAlias

import numpy as np
from numpy.typing import ArrayLike

from privml.rng import ScienceSeed
from privml.valuation.errors import ProblemError, SettingError
from privml.valuation.problem import Floats
from privml.valuation.scaling.bands import limits
from privml.valuation.scaling.checks import numbers, pairs, positive
from privml.valuation.scaling.fits import fitted
from privml.valuation.scaling.pilot import Saturation
from privml.valuation.scaling.plan import Costs, Plan, for_budget, for_target

Method: TypeAlias = Literal["ols", "nls", "binomial"]

METHODS: Final = ("ols", "nls", "binomial")
REACH: Final = 2.0
_ROUNDING: Final = 1e-9
_MANY: Final = 1 << 53


class ExtrapolationWarning(UserWarning):
    """A prediction lies beyond twice the largest, or under half the smallest, measured size."""


@dataclass(frozen=True, eq=False)
class ScalingLaw:
    """A fitted law; made by :meth:`fit`.

    Attributes
    ----------
    a, b
        ``gap = a x^b``; b is negative where more helps.
    r
        Correlation of ln gap and ln x over points with a positive gap; NaN where one of them does
        not vary.
    x, gap
        (n,) float64 measured sizes and gaps, read-only.
    max_score
        Score without a gap.
    method
        How it was fitted.
    trials
        (n,) float64 trials behind each score, for ``method="binomial"``.
    """

    a: float
    b: float
    r: float
    x: Floats = field(repr=False)
    gap: Floats = field(repr=False)
    max_score: float
    method: Method
    trials: Floats | None = field(default=None, repr=False)

    @classmethod
    def fit(
        cls,
        x: ArrayLike,
        score: ArrayLike,
        *,
        max_score: float,
        method: Method = "ols",
        trials: ArrayLike | None = None,
    ) -> Self:
        """Fit the law to measured scores.

        Parameters
        ----------
        x
            (n,) positive sizes: sites, objects, pairs of both, groups or samples; at least two
            distinct.
        score
            (n,) scores, at most ``max_score``.
        max_score
            The score of a perfect model.
        method
            ``"ols"``: least squares of ln gap on ln x, as the paper does. ``"nls"``: least squares
            of the gap. ``"binomial"``: most likely law for ``trials`` attempts a size.
        trials
            Number, or (n,) numbers, of attempts behind each score; for ``"binomial"`` only.

        Raises
        ------
        ProblemError
            Fewer than two sizes, a gap of 0 where logarithms are taken, or scores out of range.
        SettingError
            An argument is unknown or out of range.
        """
        if method not in METHODS:
            raise SettingError(f"method={method!r} is unknown; use one of {METHODS}")
        top = positive("max_score", max_score)
        sizes, scores = pairs("x", x, "score", score)
        gap = 1 - scores / top
        attempts = _trials(trials, len(sizes)) if method == "binomial" else None
        if method != "binomial" and trials is not None:
            raise SettingError(f"trials belong to method='binomial', not to {method!r}")
        _check_gap(gap, method)
        log_a, slope = fitted(method, sizes, gap, attempts).tolist()
        for array in (sizes, gap):
            array.flags.writeable = False
        return cls(
            math.exp(log_a), slope, _correlation(sizes, gap), sizes, gap, top, method, attempts
        )

    def predict(self, x: ArrayLike) -> Floats:
        """Return the (k,) float64 gaps expected at sizes ``x``.

        Warns
        -----
        ExtrapolationWarning
            A size lies beyond twice the largest or under half the smallest measured one.
        """
        sizes = numbers("x", x, lowest=0.0)
        self._warn(sizes)
        return np.asarray(self.a * sizes**self.b)

    def predict_score(self, x: ArrayLike) -> Floats:
        """Return the (k,) float64 scores expected at sizes ``x``; warns as :meth:`predict`."""
        return np.asarray(self.max_score * (1 - self.predict(x)))

    def needed(self, gap: float) -> int:
        """Return the smallest whole size whose expected gap is at most ``gap``.

        Raises
        ------
        SettingError
            ``gap`` is not positive.
        ProblemError
            The gap does not fall with size.
        """
        target = positive("gap", gap)
        if self.a <= target * (1 + _ROUNDING):
            return 1
        if self.b >= 0:
            raise ProblemError("the measured gap does not fall with size; no size reaches a target")
        exact = math.pow(target / self.a, 1 / self.b)
        if not exact < _MANY:
            raise ProblemError(f"a gap of {gap} needs {exact:.1e}; the law says nothing there")
        size = max(1, math.ceil(exact * (1 - _ROUNDING)))
        self._warn(np.array([float(size)]))
        return size

    def bands(
        self,
        x: ArrayLike,
        *,
        level: float = 0.95,
        draws: int = 2_000,
        random_state: int | ScienceSeed = 0,
    ) -> tuple[Floats, Floats]:
        """Return the lower and upper (k,) float64 bootstrap limits of the gap at sizes ``x``.

        ``"ols"``: studentised resampling of residuals. ``"nls"``: resampled residuals.
        ``"binomial"``: successes redrawn from the fitted law. They hold the law, not a single new
        measurement, at each size with probability ``level``.

        Raises
        ------
        ProblemError
            Fewer than 4 points: their scatter says too little.

        Warns
        -----
        ExtrapolationWarning
            As :meth:`predict`.
        """
        sizes = numbers("x", x, lowest=0.0)
        self._warn(sizes)
        return limits(self, sizes, level=level, draws=draws, random_state=random_state)

    def plan(
        self,
        budget: float,
        *,
        cost_site: float,
        cost_object: float = 0.0,
        cost_sample: float = 0.0,
        samples: int | Saturation,
        max_sites: int | None = None,
    ) -> Plan:
        """Return what to collect for a budget, where this law counts sites.

        As many sites as can be paid, one new object at each, and samples of it up to the pilot's
        saturation. Money that no further site can use goes to further objects at the sites.

        Parameters
        ----------
        budget
            What may be spent.
        cost_site, cost_object, cost_sample
            Price of opening a site, of an object there, of one sample; same unit as ``budget``.
        samples
            Samples of each object, at least 1; or what :func:`saturation` found in a pilot.
        max_sites
            Number of sites there are.

        Raises
        ------
        SettingError
            The budget pays for no site, or an argument is out of range.

        Warns
        -----
        ExtrapolationWarning
            The plan leaves the range that was measured.
        """
        costs = Costs.of(cost_site, cost_object, cost_sample, samples=samples)
        return for_budget(self, budget, costs, max_sites=max_sites)

    def plan_for(
        self,
        target: float,
        *,
        cost_site: float,
        cost_object: float = 0.0,
        cost_sample: float = 0.0,
        samples: int | Saturation,
        max_sites: int | None = None,
    ) -> Plan:
        """Return the cheapest plan whose expected score is at least ``target``.

        Parameters, errors and warnings as :meth:`plan`.
        """
        costs = Costs.of(cost_site, cost_object, cost_sample, samples=samples)
        return for_target(self, target, costs, max_sites=max_sites)

    def beyond(self, x: ArrayLike) -> str:
        """Return what is wrong with predicting at sizes ``x``; empty if nothing is."""
        sizes = np.asarray(x, dtype=np.float64)
        low, high = float(self.x.min()), float(self.x.max())
        if sizes.max(initial=0) > REACH * high:
            return f"{sizes.max():g} is beyond twice the largest measured size, {high:g}"
        if sizes.min(initial=math.inf) < low / REACH:
            return f"{sizes.min():g} is under half the smallest measured size, {low:g}"
        return ""

    def _warn(self, sizes: Floats) -> None:
        text = self.beyond(sizes)
        if text:
            warnings.warn(f"{text}; measure there first", ExtrapolationWarning, stacklevel=3)


def _trials(trials: Any, count: int) -> Floats:  # noqa: ANN401 - number or array
    if trials is None:
        raise SettingError("method='binomial' needs trials: the number of attempts at each size")
    found = np.array(np.broadcast_to(np.asarray(trials, dtype=np.float64), (count,)))
    if not (np.isfinite(found).all() and (found > 0).all()):
        raise SettingError("trials must be positive numbers, one for all sizes or one a size")
    found.flags.writeable = False
    return found


def _check_gap(gap: Floats, method: str) -> None:
    if gap.min() < -_ROUNDING:
        raise ProblemError(f"a score exceeds max_score by {-gap.min():.3g} of it; correct either")
    if gap.max() <= _ROUNDING:
        raise ProblemError("every score is perfect: there is no gap; measure smaller sizes")
    if method == "ols" and gap.min() <= _ROUNDING:
        raise ProblemError(
            "a gap of 0 has no logarithm; use method='binomial' with trials, or leave the size out"
        )
    if method == "binomial" and gap.max() > 1 + _ROUNDING:
        raise ProblemError("a score below 0 is no share of successes; use method='ols'")
    np.clip(gap, 0, 1 if method == "binomial" else None, out=gap)


def _correlation(x: Floats, gap: Floats) -> float:
    seen = gap > 0
    log_x, log_gap = np.log(x[seen]), np.log(gap[seen])
    if np.ptp(log_x) == 0 or np.ptp(log_gap) == 0:
        return math.nan
    return float(np.corrcoef(log_x, log_gap)[0, 1])
