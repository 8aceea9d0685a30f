"""The any-time answer of a top-m run: members, certificate, probabilities, cost."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np

from privml.rng import ScienceSeed
from privml.valuation.topm.beliefs import Beliefs, Ties
from privml.valuation.topm.posterior import Posterior
from privml.valuation.topm.rules import Chooser
from privml.valuation.topm.sums import Floats, Ints

_SURE = 6.0
_MOST_JOINT = 1_500


class _Run(Protocol):
    """What a state says about the run itself."""

    @property
    def evaluations(self) -> int: ...

    @property
    def applied(self) -> int: ...

    @property
    def counts(self) -> tuple[int, int]: ...


@dataclass(frozen=True, eq=False)
class State:
    """The answer so far, for the sign of the run (values are to be maximised here).

    Attributes
    ----------
    members
        (m,) int64 arms of the answer, best first.
    eps
        The answer is within this much of the best one, as far as the widths hold; at least 0.
    certificate_kind
        ``theory`` or ``nominal``.
    membership_prob
        (n,) float64 probability under the posterior that an arm is among the m largest.
    mean, stderr
        (n,) float64 posterior mean and standard deviation.
    multiplier
        Width multiplier in use.
    evaluations, units, pulls, pairs
        Cost and observations so far.
    """

    members: Ints
    eps: float
    certificate_kind: str
    membership_prob: Floats
    mean: Floats
    stderr: Floats
    multiplier: float
    evaluations: int
    units: int
    pulls: int
    pairs: int


def state_of(
    posterior: Posterior,
    chooser: Chooser,
    *,
    multiplier: float,
    ties: Ties,
    seed: ScienceSeed,
    draws: int,
    kind: str,
    engine: _Run,
) -> State:
    """Return the state of a settled posterior."""
    beliefs = Beliefs(posterior)
    choice = chooser.choose(beliefs, multiplier, ties)
    gap = chooser.certify(beliefs, multiplier, choice)
    order = np.argsort(-posterior.mean[choice.members], kind="stable")
    pulls, pairs = engine.counts
    return State(
        members=choice.members[order],
        eps=max(0.0, gap),
        certificate_kind=kind,
        membership_prob=membership(posterior, chooser.m, seed=seed, draws=draws),
        mean=posterior.mean.copy(),
        stderr=np.sqrt(posterior.variance),
        multiplier=multiplier,
        evaluations=engine.evaluations,
        units=engine.applied,
        pulls=pulls,
        pairs=pairs,
    )


def membership(posterior: Posterior, m: int, *, seed: ScienceSeed, draws: int) -> Floats:
    """Return (n,) float64: share of joint posterior samples in which each arm is in the top m.

    Arms whose 6-sd interval lies wholly on one side of the border are not sampled. NaN if
    ``draws`` is 0. Cost O(k^3) for k arms near the border; the nearest 1 500 are sampled jointly,
    further ones keep their side.
    """
    if draws == 0:
        return np.full(posterior.arms, np.nan)
    mean, sd = posterior.mean, np.sqrt(posterior.variance)
    high, low = mean + _SURE * sd, mean - _SURE * sd
    n = len(mean)
    floor = np.partition(low, n - m)[n - m]  # m arms lie above it
    ceiling = np.partition(high, n - m - 1)[n - m - 1]  # n - m arms lie below it
    probability = np.where(low > ceiling, 1.0, 0.0)
    near = np.flatnonzero((low <= ceiling) & (high >= floor))
    if len(near) > _MOST_JOINT:
        border = np.partition(mean, n - m)[n - m]
        distance = np.abs(mean[near] - border) / np.maximum(sd[near], 1e-300)
        keep = np.sort(np.argpartition(distance, _MOST_JOINT)[:_MOST_JOINT])
        probability[near] = mean[near] >= border
        near = near[keep]
        probability[near] = 0.0
    room = m - int(probability.sum())
    if not 0 < room < len(near):
        probability[near] = float(room >= len(near))
        return probability
    drawn = posterior.sample(seed.generator(), draws, near)
    border = np.partition(drawn, len(near) - room, axis=1)[:, len(near) - room]
    probability[near] = (drawn >= border[:, None]).mean(axis=0)
    return probability
