"""Width multipliers: how many posterior standard deviations a bound is away from the mean.

* a number: the multiplier itself; certificates are *nominal*;
* ``"heuristic"``: sqrt(2 ln((1 + ln t) / delta)), as in the public code of the linear top-m family;
* ``"theory"``: B + max(R / sqrt(lambda)) sqrt(2 (gamma + 1 + ln(1/delta))), valid uniformly over
  time for values with RKHS norm at most B under the prior's kernel, noise that is R-sub-Gaussian,
  posterior variances computed with noise variance lambda, and gamma the realised information.
  The factor 1 / sqrt(lambda) belongs to every lambda; the form without it is for lambda = 1 only.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from privml.valuation.errors import SettingError


@dataclass(frozen=True)
class Width:
    """Settings of the multiplier.

    Attributes
    ----------
    kind
        ``"theory"``, ``"heuristic"`` or a positive number.
    delta
        Error probability of the bound, 0 < delta < 1.
    norm
        B, for the theory form.
    sub_gaussian
        R: noise of one pull or pair; 1 is always valid for utilities in [0, 1].
    """

    kind: float | str
    delta: float
    norm: float = 1.0
    sub_gaussian: float = 1.0

    def __post_init__(self) -> None:
        named = self.kind in {"theory", "heuristic"}
        if not named and (isinstance(self.kind, str) or not 0 < self.kind < math.inf):
            raise SettingError(f"width={self.kind!r}: give theory, heuristic or a positive number")
        if not 0 < self.delta < 1:
            raise SettingError(f"delta={self.delta} must lie strictly between 0 and 1")
        if not 0 <= self.norm < math.inf or not 0 < self.sub_gaussian < math.inf:
            raise SettingError("norm must be at least 0, sub_gaussian positive, both finite")

    def multiplier(self, *, pulls: int, information: float, least_noise: float) -> float:
        """Return the multiplier after ``pulls`` observations.

        Parameters
        ----------
        pulls
            Observations so far.
        information
            Realised information gain in nats.
        least_noise
            Smallest noise variance lambda of any observation.
        """
        if self.kind == "theory":
            ratio = self.sub_gaussian / math.sqrt(least_noise)
            growth = information + 1.0 + math.log(1.0 / self.delta)
            return self.norm + ratio * math.sqrt(2.0 * growth)
        if self.kind == "heuristic":
            return math.sqrt(2.0 * math.log((1.0 + math.log(max(pulls, 1))) / self.delta))
        return float(self.kind)
