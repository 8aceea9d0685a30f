"""Shapley values of groups of rows that enter a coalition as a whole, exactly.

A Shapley value is the integral over q in [0, 1] of the expected marginal when every other player
joins with probability q. The expectation is a polynomial in q of degree below the number of
players, so Gauss-Legendre nodes of half that number integrate it exactly. For each node:

* k neighbours: a row counts if fewer than k rows nearer than it have joined. The distribution of
  that number, and of the sum of targets with it, follows by adding one group after the other;
  groups left out by joining the sums from the left and from the right.
* radius: ``1 / c = integral of x^(c-1)`` turns the share of matches into products over groups.

Cost per validation row: O(k^2 G^3) for G groups and k neighbours; O(G^2 rows) for a radius.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Final

import numpy as np
from numpy.typing import NDArray
from scipy.special import roots_legendre

from privml.valuation.errors import SettingError
from privml.valuation.problem import Floats, Ints

MOST_GROUPS: Final = 200
_CELLS: Final = 1 << 21


@dataclass(frozen=True, eq=False)
class Rows:
    """Rows that can be among the k nearest, of one validation row, nearest first.

    Attributes
    ----------
    group
        (s,) int64 owner.
    left
        (s,) int64 how many nearer rows of other groups it stands beside.
    count, total
        (s, G) nearer rows of each other group, and the sum of their contributions.
    alone, along
        (s,) what the row adds to U, and per unit of the sum of the others' nearer contributions.
    """

    group: Ints
    left: Ints
    count: Ints
    total: Floats
    alone: Floats
    along: Floats


def neighbour_groups(
    owner: Ints, own: Floats, *, groups: int, k: int, truth: float | None
) -> Floats:
    """Return (groups,) values for k neighbours, divided by k, and one validation row.

    Parameters
    ----------
    owner
        (n,) int64 group of each row, nearest first.
    own
        (n,) contributions: weight times match or target.
    groups, k
        Numbers of groups and neighbours.
    truth
        Target of the validation row in a regression, else None.

    Raises
    ------
    SettingError
        There are more than 200 groups.
    """
    if groups > MOST_GROUPS:
        raise SettingError(
            f"exact values of {groups} groups that enter as a whole cost too much; use "
            "group_mode='sum', or Shapley().fit_game(method.game(problem))"
        )
    rows = _rows(owner, own, groups, k, truth)
    each = max(1, _CELLS // (groups * _nodes(groups)[0].size * k))
    out = np.zeros(groups)
    for start in range(0, len(rows.group), each):
        out += _part(rows, slice(start, start + each), k, linear=truth is None)
    return out


def threshold_groups(owner: Ints, own: Floats, *, groups: int, nothing: float) -> Floats:
    """Return (groups,) values for the rows inside a radius and one validation row.

    Parameters
    ----------
    owner, own
        (c,) int64 group and match of the rows inside.
    groups
        Number of groups; those without a row inside get 0.
    nothing
        U where no row is inside.
    """
    out = np.zeros(groups)
    present, place = np.unique(owner, return_inverse=True)
    if not len(present):
        return out
    count = np.bincount(place).astype(np.float64)
    match = np.bincount(place, weights=own)
    q, weight_q = _nodes(len(present))
    x, weight_x = _nodes(len(owner))
    found = np.full(len(present), -nothing / len(present))
    for start in range(0, len(x), max(1, _CELLS // (len(q) * len(count)))):
        part = slice(start, start + max(1, _CELLS // (len(q) * len(count))))
        power = x[part, None] ** count  # (x, g)
        joined = 1.0 - q[:, None, None] * (1.0 - power)  # (q, x, g)
        others = joined.prod(axis=2, keepdims=True) / joined
        gain = match * x[part, None] ** (count - 1.0)
        each = gain / joined
        rest = each.sum(axis=2, keepdims=True) - each
        marginal = others * (gain - q[:, None, None] * (1.0 - power) * rest)
        found += np.einsum("q,x,qxg->g", weight_q, weight_x[part], marginal)
    out[present] = found
    return out


def _rows(owner: Ints, own: Floats, groups: int, k: int, truth: float | None) -> Rows:
    joined = np.zeros((len(owner), groups))
    joined[np.arange(len(owner)), owner] = 1.0
    nearer = np.cumsum(joined, axis=0) - joined
    keep = nearer[np.arange(len(owner)), owner] < k
    owner, own, joined, nearer = owner[keep], own[keep], joined[keep], nearer[keep]
    at = np.arange(len(owner))
    sums = np.cumsum(joined * own[:, None], axis=0) - joined * own[:, None]
    beside, mine = nearer[at, owner], sums[at, owner]
    count = nearer.astype(np.int64)
    count[at, owner], sums[at, owner] = 0, 0.0
    if truth is None:
        alone, along = own / k, np.zeros(len(own))
    else:
        alone = own * (2.0 * truth / k - (own + 2.0 * mine) / k**2)
        along = -2.0 * own / k**2
    return Rows(owner, k - beside.astype(np.int64), np.minimum(count, k), sums, alone, along)


def _part(rows: Rows, part: slice, k: int, *, linear: bool) -> Floats:
    """Return (groups,) integrals of the marginals of some rows."""
    count, total = rows.count[part], rows.total[part]
    groups = count.shape[1]
    q, weight = _nodes(groups)
    before = _sums(count, total, q, k, linear=linear)
    after = _sums(count[:, ::-1], total[:, ::-1], q, k, linear=linear)
    alone, along = rows.alone[part, None], rows.along[part, None]
    left, group, out = rows.left[part], rows.group[part], np.empty(groups)
    for h in range(groups):
        pair = before[h], after[groups - 1 - h]
        chance, moment = _joined(*pair, left)
        mine = group == h
        own = alone * chance + along * moment
        closer, closer_moment = _joined(*pair, left - count[:, h])
        shifted = (alone + along * total[:, h, None]) * closer + along * closer_moment
        marginal = np.where(mine[:, None], own, q * (shifted - own))
        marginal[(count[:, h] == 0) & ~mine] = 0.0
        out[h] = marginal.sum(axis=0) @ weight
    return out


State = tuple[Floats, Floats]


def _sums(count: Ints, total: Floats, q: Floats, k: int, *, linear: bool) -> list[State]:
    """Return, before each group, (s, q, k) chances of t joined rows and moments of their sum."""
    chance = np.zeros((len(count), len(q), k))
    chance[:, :, 0] = 1.0
    moment = np.zeros_like(chance) if not linear else chance[:, :, :0]
    out = [(chance, moment)]
    stays = 1.0 - q[:, None]
    for h in range(count.shape[1] - 1):
        source = np.arange(k) - count[:, h, None]  # (s, k)
        fits = np.where(source >= 0, 1.0, 0.0)[:, None]
        index = np.broadcast_to(np.maximum(source, 0)[:, None], chance.shape)
        moved = np.take_along_axis(chance, index, axis=2) * fits
        if not linear:
            carried = np.take_along_axis(moment, index, axis=2) * fits
            moment = stays * moment + q[:, None] * (carried + total[:, h, None, None] * moved)
        chance = stays * chance + q[:, None] * moved
        out.append((chance, moment))
    return out


def _joined(one: State, other: State, limit: Ints) -> tuple[Floats, Floats]:
    """Return (s, q) chance that both numbers together are below (s,) limit, and the moment."""
    chance, moment = np.zeros(one[0].shape[:2]), np.zeros(one[0].shape[:2])
    below = _running(other[0])
    below_moment = _running(other[1]) if other[1].size else None
    for t in range(one[0].shape[2]):
        index = np.clip(limit - t, 0, one[0].shape[2])  # numbers 0..index-1 of the other
        row = np.arange(len(limit))
        chance += one[0][:, :, t] * below[row, :, index]
        if below_moment is not None:
            moment += one[0][:, :, t] * below_moment[row, :, index]
            moment += one[1][:, :, t] * below[row, :, index]
    return chance, moment


def _running(values: Floats) -> Floats:
    out = np.zeros((*values.shape[:2], values.shape[2] + 1))
    np.cumsum(values, axis=2, out=out[:, :, 1:])
    return out


@lru_cache(maxsize=64)
def _nodes(degree_bound: int) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return nodes and weights on [0, 1], exact for polynomials of degree below the bound."""
    found, weight = roots_legendre(-(-degree_bound // 2))
    return (found + 1.0) / 2.0, weight / 2.0
