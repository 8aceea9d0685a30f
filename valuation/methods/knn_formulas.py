"""Shapley values of the nearest-neighbour games in closed form, for many validation rows at once.

Arrays are (b, s): validation rows by training rows, nearest first. Values come back in the same
order. For k neighbours they follow from the farthest row and from differences of adjacent rows
(Jia et al., PVLDB 2019, and derivations along the same lines for the other games).
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from privml.valuation.methods.knn_rules import harmonic
from privml.valuation.problem import Floats


def shares(own: Floats, k: int, n: int, tail: Floats) -> Floats:
    """Return the values of ``sum of the min(k, |S|) nearest / k``.

    ``phi_i - phi_(i+1) = (u_i - u_(i+1)) min(k, i) / (i k)`` and, for the last row seen,
    ``phi_s = u_s min(k, s) / (s k) - sum over farther l of u_l / (l (l - 1))``.

    Parameters
    ----------
    own
        (b, s) contributions u, weights included.
    k, n
        Neighbours, and training rows; s = n, or s >= k.
    tail
        (b,) mean contribution of the rows beyond s, used as that of each of them.
    """
    seen = own.shape[1]
    coefficient = coefficients(seen, k)
    beyond = tail * (1.0 / seen - 1.0 / n)
    return _summed(
        (own[:, :-1] - own[:, 1:]) * coefficient[:-1], own[:, -1] * coefficient[-1] - beyond
    )


def normalised_shares(own: Floats, k: int, nothing: Floats) -> Floats:
    """Return the values of ``sum of the min(k, |S|) nearest / min(k, |S|)``.

    Against :func:`shares`, coalitions of fewer than k rows add
    ``(H_c - c / k) / (n - 1)``, c = min(k, n - 1), to the coefficient of every difference.

    Parameters
    ----------
    own
        (b, n) matches.
    k
        Neighbours.
    nothing
        (b,) U(empty).
    """
    n = own.shape[1]
    full = own[:, : min(k, n)].mean(axis=1) - nothing
    if n == 1:
        return np.asarray(full[:, None])
    small = min(k, n - 1)
    extra = (harmonic(small)[-1] - small / k) / (n - 1)
    steps = (own[:, :-1] - own[:, 1:]) * (coefficients(n, k)[:-1] + extra)
    return _summed(steps, (full - (steps * np.arange(1.0, n)).sum(axis=1)) / n)


def errors(own: Floats, truth: Floats, k: int) -> Floats:
    """Return the values of ``-(sum of the min(k, |S|) nearest / k - t)^2``.

    Parameters
    ----------
    own
        (b, n) targets, weights included.
    truth
        (b,) t.
    k
        Neighbours.
    """
    n = own.shape[1]
    full = truth**2 - (own[:, : min(k, n)].sum(axis=1) / k - truth) ** 2
    if n == 1:
        return np.asarray(full[:, None])
    single, pair = coefficients(n, k) * k, _pair_coefficients(n, k)
    before = np.zeros_like(own)
    np.cumsum(own[:, :-1], axis=1, out=before[:, 1:])
    weighted = own[:, 1:] * pair[:-1]  # rows from the second on, by the place before theirs
    after = np.zeros_like(own)
    after[:, :-2] = np.cumsum(weighted[:, :0:-1], axis=1)[:, ::-1]
    adjacent = own[:, :-1] + own[:, 1:]
    inner = single[:-1] * (adjacent / k - 2.0 * truth[:, None])
    inner += (pair[:-1] * before[:, :-1] + after[:, :-1]) / k
    steps = (own[:, 1:] - own[:, :-1]) / k * inner
    return _summed(steps, (full - (steps * np.arange(1.0, n)).sum(axis=1)) / n)


def threshold(own: Floats, inside: NDArray[np.bool_], nothing: Floats) -> Floats:
    """Return the values of the share of matching rows inside a radius.

    With c rows inside, m_i the match of a row and r the matching share of the c - 1 others:
    ``phi_i = (m_i - v0 + (m_i - r) (H_c - 1)) / c``; 0 outside.

    Parameters
    ----------
    own
        (b, s) matches, 0 or 1.
    inside
        (b, s) which rows are inside.
    nothing
        (b,) v0.
    """
    own = np.where(inside, own, 0.0)
    count = inside.sum(axis=1)
    matching = own.sum(axis=1)[:, None]
    others = np.where(count > 1, count - 1, 1)[:, None]
    grown = np.where(count > 0, harmonic(own.shape[1])[count] - 1.0, 0.0)[:, None]
    found = own - nothing[:, None] + (own - (matching - own) / others) * grown
    return np.where(inside, found / np.where(count > 0, count, 1)[:, None], 0.0)


def coefficients(n: int, k: int) -> Floats:
    """Return (n,) ``min(k, i) / (i k)`` for i = 1..n."""
    return np.asarray(1.0 / np.maximum(np.arange(1.0, n + 1), k))


def _pair_coefficients(n: int, k: int) -> Floats:
    """Return (n,) ``min(k, i) min(k - 1, i - 1) / (i (i - 1))`` for i = 1..n, 0 for i = 1."""
    place = np.arange(1.0, n + 1)
    both = np.minimum(k, place) * np.minimum(k - 1, place - 1)
    return np.asarray(both / np.maximum(place * (place - 1), 1.0))


def _summed(steps: Floats, last: Floats) -> Floats:
    """Return (b, s) values from their (b, s-1) steps and the (b,) last one."""
    out = np.empty((len(last), steps.shape[1] + 1))
    out[:, -1] = last
    out[:, :-1] = last[:, None] + np.cumsum(steps[:, ::-1], axis=1)[:, ::-1]
    return out
