"""Gap-index rules: which m arms lead, which two decide, and how far the answer can be off.

The gap index B_ij = mean_i - mean_j + W_ij is an upper bound of f_i - f_j where the widths hold,
W_ij being the multiplier times the standard deviation of f_i - f_j (paired) or the sum of both
standard deviations (individual; never narrower). Every rule answers with members J, a leader b in
J, a challenger c outside, and the gap that must fall to eps:

================  ====================  ==========================  ===========  ==============
rule              J                     b                           widths       gap
================  ====================  ==========================  ===========  ==============
gpgape            m largest means       widest pair (b, c)          paired       B_cb
m-lingape         as gpgape             as gpgape                   paired       B_cb
lucb              m largest means       smallest lower bound        individual   B_cb
ugape             m smallest indices    smallest lower bound        individual   largest index
lingifa           m smallest indices    largest index               paired       largest index
================  ====================  ==========================  ===========  ==============

The index of arm j is the m-th largest B_ij over i != j. In all rules c maximises B_cb outside J.

References: Gabillon, Ghavamzadeh, Lazaric 2012 (UGapE); Kalyanakrishnan et al. 2012 (LUCB); Réda,
Kaufmann, Delahaye-Duriez, AISTATS 2021 (m-LinGapE, LinGIFA). The GPGapE row is a reconstruction.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal

import numpy as np

from privml.errors import UnsupportedError
from privml.valuation.errors import SettingError
from privml.valuation.topm.beliefs import Beliefs, Ties
from privml.valuation.topm.sums import Floats, Ints

_BLOCK: Final = 4_000_000
_ALL_PAIRS: Final = 6_000


@dataclass(frozen=True)
class Rule:
    """How members, leader and challenger are found; see the table of this module."""

    name: str
    members: Literal["means", "index"]
    leader: Literal["gap", "index", "lower"]
    paired: bool


RULES: Final = {
    rule.name: rule
    for rule in (
        Rule("gpgape", "means", "gap", paired=True),
        Rule("m-lingape", "means", "gap", paired=True),
        Rule("lucb", "means", "lower", paired=False),
        Rule("ugape", "index", "lower", paired=False),
        Rule("lingifa", "index", "index", paired=True),
    )
}


def rule_named(name: str, *, paired: bool | None = None) -> Rule:
    """Return a rule, with its own kind of widths unless ``paired`` says otherwise.

    Raises
    ------
    SettingError
        The name is unknown.
    """
    if name not in RULES:
        raise SettingError(f"rule={name!r} is unknown; choose one of {', '.join(RULES)}")
    rule = RULES[name]
    return rule if paired is None else Rule(name, rule.members, rule.leader, paired)


@dataclass(frozen=True, eq=False)
class Choice:
    """What a rule found.

    Attributes
    ----------
    members
        (m,) int64 arms of J, ascending.
    leader, challenger
        b in J and c outside.
    gap
        Upper bound of the regret of J; eps is reached when it is at most eps.
    exact
        False if ``gap`` is only a lower bound of the rule's gap (anchored scan of many arms).
    """

    members: Ints
    leader: int
    challenger: int
    gap: float
    exact: bool = True


@dataclass(frozen=True)
class Chooser:
    """Applies a rule to beliefs.

    Attributes
    ----------
    rule
        The rule.
    m
        Number of members, 1 <= m < n.
    scan
        ``"exact"``: the widest pair is found exactly; ``"anchor"``: b is the member with the
        smallest lower bound, and c its widest challenger; ``"auto"``: exact up to 4e6 pairs.
    """

    rule: Rule
    m: int
    scan: str = "auto"

    def choose(self, beliefs: Beliefs, multiplier: float, ties: Ties) -> Choice:
        """Return members, leader, challenger and gap."""
        if self.rule.members == "index":
            return self._by_index(beliefs, multiplier, ties)
        members = ties.largest(beliefs.mean, self.m)
        outside = _outside(members, len(beliefs.mean))
        lower = multiplier * np.sqrt(beliefs.variance[members]) - beliefs.mean[members]
        small = self.scan == "exact" or len(members) * len(outside) <= _BLOCK
        if self.rule.leader == "gap" and self.rule.paired and small and self.scan != "anchor":
            return self._widest(beliefs, multiplier, members, outside)
        leader = int(members[ties.best(lower)])
        bounds = self._against(beliefs, multiplier, leader)[outside]
        at = ties.best(bounds)
        exact = not self.rule.paired
        return Choice(members, leader, int(outside[at]), float(bounds[at]), exact)

    def certify(self, beliefs: Beliefs, multiplier: float, choice: Choice) -> float:
        """Return the exact gap of a choice: the largest B over all pairs across the border."""
        if choice.exact:
            return choice.gap
        outside = _outside(choice.members, len(beliefs.mean))
        return self._widest(beliefs, multiplier, choice.members, outside).gap

    def _against(self, beliefs: Beliefs, multiplier: float, arm: int) -> Floats:
        """Return (n,) float64: B of every arm against ``arm``."""
        if self.rule.paired:
            variance = beliefs.variance + beliefs.variance[arm] - 2 * beliefs.covariance_with(arm)
            width = np.sqrt(np.maximum(variance, 0.0))
        else:
            width = np.sqrt(beliefs.variance) + np.sqrt(beliefs.variance[arm])
        bounds: Floats = beliefs.mean - beliefs.mean[arm] + multiplier * width
        return bounds

    def _widest(self, beliefs: Beliefs, multiplier: float, members: Ints, outside: Ints) -> Choice:
        """Return the widest pair exactly.

        Individual widths bound paired ones from above, so only arms whose individual bound beats
        the best pair found so far need their covariances.
        """
        sd = multiplier * np.sqrt(beliefs.variance)
        upper = beliefs.mean[outside] + sd[outside]
        lower = sd[members] - beliefs.mean[members]
        anchor = int(members[np.argmax(lower)])
        first = self._against(beliefs, multiplier, anchor)[outside]
        at = int(np.argmax(first))
        best = Choice(members, anchor, int(outside[at]), float(first[at]))
        rivals = outside[upper + lower.max() > best.gap]
        holders = members[lower + upper.max() > best.gap]
        step = max(1, _BLOCK // max(len(holders), 1))
        for start in range(0, len(rivals) if len(holders) else 0, step):
            rows = rivals[start : start + step]
            block = beliefs.covariance_block(rows, holders)
            block = beliefs.variance[rows][:, None] + beliefs.variance[holders] - 2 * block
            np.sqrt(np.maximum(block, 0.0, out=block), out=block)
            block *= multiplier
            block += beliefs.mean[rows][:, None] - beliefs.mean[holders]
            row, column = divmod(int(np.argmax(block)), len(holders))
            if block[row, column] > best.gap:
                gap = float(block[row, column])
                best = Choice(members, int(holders[column]), int(rows[row]), gap)
        return best

    def _by_index(self, beliefs: Beliefs, multiplier: float, ties: Ties) -> Choice:
        index = self._indices(beliefs, multiplier)
        members = ties.largest(-index, self.m)
        outside = _outside(members, len(index))
        if self.rule.leader == "index":
            leader = int(members[ties.best(index[members])])
        else:
            lower = multiplier * np.sqrt(beliefs.variance[members]) - beliefs.mean[members]
            leader = int(members[ties.best(lower)])
        bounds = self._against(beliefs, multiplier, leader)[outside]
        challenger = int(outside[ties.best(bounds)])
        return Choice(members, leader, challenger, float(index[members].max()))

    def _indices(self, beliefs: Beliefs, multiplier: float) -> Floats:
        """Return (n,) float64: for each arm j the m-th largest B_ij over i != j."""
        count = len(beliefs.mean)
        sd = multiplier * np.sqrt(beliefs.variance)
        if not self.rule.paired:
            upper = beliefs.mean + sd
            high = np.partition(upper, (count - self.m - 1, count - self.m))
            rival = np.where(
                upper >= high[count - self.m], high[count - self.m - 1], high[count - self.m]
            )
            index: Floats = rival - beliefs.mean + sd
            return index
        if count > _ALL_PAIRS:
            raise UnsupportedError(
                f"paired indices need all {count}² pairs; use rule='gpgape', or paired=False"
            )
        arms = np.arange(count)
        bounds = beliefs.variance[:, None] + beliefs.variance
        bounds = bounds - 2 * beliefs.covariance_block(arms, arms)
        bounds = multiplier * np.sqrt(np.maximum(bounds, 0.0))
        bounds += beliefs.mean[:, None] - beliefs.mean
        np.fill_diagonal(bounds, -np.inf)
        nth: Floats = np.partition(bounds, count - self.m, axis=0)[count - self.m]
        return nth


def _outside(members: Ints, arms: int) -> Ints:
    """Return the arms that are not members, ascending."""
    free = np.ones(arms, dtype=bool)
    free[members] = False
    return np.flatnonzero(free)
