"""Collection plans: sites, objects and samples for a budget, or for a target score.

A new site with a new object teaches more than another object at a known site, and that more than
another sample of a known object. So a plan opens as many sites as it can, with one object each, and
stops sampling where a pilot saturates.
"""

from __future__ import annotations

import math
import warnings
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Final, Self

import numpy as np

from privml.backbones.digests import Json
from privml.valuation.errors import SettingError
from privml.valuation.scaling.checks import positive, whole
from privml.valuation.scaling.pilot import Saturation

if TYPE_CHECKING:
    from privml.valuation.scaling.law import ScalingLaw

_ROUNDING: Final = 1e-9
_BAND_POINTS: Final = 4
_MANY: Final = 1 << 53


@dataclass(frozen=True)
class Costs:
    """Prices, and the samples that each object gets."""

    site: float
    object: float
    sample: float
    samples: int
    doubt: str = ""

    @classmethod
    def of(
        cls, site: float, per_object: float, sample: float, *, samples: int | Saturation
    ) -> Self:
        """Check prices; raises ``SettingError``."""
        prices = {"cost_site": site, "cost_object": per_object, "cost_sample": sample}
        for name, price in prices.items():
            if not (math.isfinite(price) and price >= 0):
                raise SettingError(f"{name}={price!r}: a cost is a number of at least 0")
        doubt = ""
        count = samples
        if isinstance(samples, Saturation):
            count = samples.count
            if not samples.reached:
                doubt = f"the pilot still gains at {count} samples, its largest count; extend it"
        found = cls(float(site), float(per_object), float(sample), whole("samples", count), doubt)
        if found.per_site <= 0:
            raise SettingError("every cost is 0; a plan needs what a site, object or sample costs")
        return found

    @property
    def per_object(self) -> float:
        """Cost of one object with its samples."""
        return self.object + self.samples * self.sample

    @property
    def per_site(self) -> float:
        """Cost of one site with one object."""
        return self.site + self.per_object


@dataclass(frozen=True)
class Plan:
    """What to collect.

    Attributes
    ----------
    sites, objects
        Numbers of sites and, over all sites, of objects; each site has equally many.
    samples_per_site, samples
        Samples at each site, and in all.
    cost, left_over
        What that costs and what remains of the budget.
    gap, score
        What the law expects at that number of sites; further objects at a site are not counted on.
    gap_low, gap_high
        95 % bootstrap limits of the gap; NaN if the law has fewer than 4 points.
    warnings
        What to know before trusting it.
    """

    sites: int
    objects: int
    samples_per_site: int
    samples: int
    cost: float
    left_over: float
    gap: float
    score: float
    gap_low: float
    gap_high: float
    warnings: tuple[str, ...]

    def as_json(self) -> dict[str, Json]:
        """Return the plan as JSON; NaN becomes null."""
        found: dict[str, Json] = {}
        for name, value in asdict(self).items():
            unknown = isinstance(value, float) and math.isnan(value)
            found[name] = None if unknown else list(value) if isinstance(value, tuple) else value
        return found


def for_budget(law: ScalingLaw, budget: float, costs: Costs, *, max_sites: int | None) -> Plan:
    """Return the plan for a budget; see :meth:`ScalingLaw.plan`."""
    money = positive("budget", budget)
    affordable = money / costs.per_site * (1 + _ROUNDING)
    if affordable < 1:
        raise SettingError(
            f"budget={budget:g} pays for no site; one with {costs.samples} samples of one object "
            f"costs {costs.per_site:g}"
        )
    if affordable >= _MANY:
        raise SettingError(f"budget={budget:g} pays for more sites than can be counted")
    sites = math.floor(affordable)
    objects_per_site = 1
    if max_sites is not None and sites > whole("max_sites", max_sites):
        sites = max_sites
        if costs.per_object > 0:
            spare = (money - sites * costs.per_site) * (1 + _ROUNDING)
            objects_per_site += math.floor(spare / (sites * costs.per_object))
    elif max_sites is not None:
        whole("max_sites", max_sites)
    plan = _built(law, sites, objects_per_site, costs)
    return replace(plan, left_over=max(0.0, money - plan.cost))


def for_target(law: ScalingLaw, target: float, costs: Costs, *, max_sites: int | None) -> Plan:
    """Return the cheapest plan for a score; see :meth:`ScalingLaw.plan_for`."""
    if not math.isfinite(target) or target >= law.max_score:
        raise SettingError(f"target={target!r} must lie below the largest score, {law.max_score:g}")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        sites = law.needed(1 - target / law.max_score)
    if max_sites is not None and sites > whole("max_sites", max_sites):
        raise SettingError(
            f"a score of {target:g} needs {sites} sites, max_sites={max_sites}; lower the target"
        )
    return _built(law, sites, 1, costs)


def _built(law: ScalingLaw, sites: int, objects_per_site: int, costs: Costs) -> Plan:
    notes = [costs.doubt] if costs.doubt else []
    if law.beyond(sites):
        notes.append(f"sites: {law.beyond(sites)}")
    if objects_per_site > 1:
        notes.append("no more sites: the rest buys objects there, which the law does not count on")
    if law.b >= 0:
        notes.append("the measured gap does not fall with the number of sites")
    gap = float(law.predict([sites])[0])
    low, high = math.nan, math.nan
    if len(law.x) >= _BAND_POINTS:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # said once, by predict
            low, high = (float(limit[0]) for limit in law.bands(np.array([sites]), draws=400))
    objects = sites * objects_per_site
    return Plan(
        sites=sites,
        objects=objects,
        samples_per_site=objects_per_site * costs.samples,
        samples=objects * costs.samples,
        cost=sites * costs.site + objects * costs.per_object,
        left_over=0.0,
        gap=gap,
        score=law.max_score * (1 - gap),
        gap_low=low,
        gap_high=high,
        warnings=tuple(notes),
    )
