"""How much two results agree: rank correlation, common top and bottom, differences in errors."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from scipy.stats import rankdata

from privml.valuation.errors import RunMismatch, SettingError
from privml.valuation.problem import Floats, Ints
from privml.valuation.result import ValuationResult


@dataclass(frozen=True)
class Comparison:
    """Agreement of two results over the same players.

    Attributes
    ----------
    players
        Players with a known value in both.
    spearman, pearson
        Correlation of ranks (ties share a rank) and of values; NaN if one of them is constant.
    m, top, bottom
        Size of the ends compared, and share of the m largest and smallest that both name.
    chance
        Share expected of unrelated results, ``m / players``.
    same_target
        Whether both estimate the same quantity on the same data with the same utility.
    largest_z
        With the same target: largest difference in units of its standard error, NaN otherwise.
    outside
        With the same target: share of the players whose difference exceeds 1.96 standard errors;
        0.05 is expected of two honest independent estimates.
    """

    players: int
    spearman: float
    pearson: float
    m: int
    top: float
    bottom: float
    chance: float
    same_target: bool
    largest_z: float
    outside: float


def compare(a: ValuationResult, b: ValuationResult, *, m: int | None = None) -> Comparison:
    """Compare two results.

    Parameters
    ----------
    a, b
        Results over the same players in the same order.
    m
        Size of top and bottom; a fifth of the players if not given.

    Raises
    ------
    RunMismatch
        The players differ.
    """
    if a.ids != b.ids:
        raise RunMismatch("the results are about different players; compare runs on one table")
    known = np.flatnonzero(np.isfinite(a.values) & np.isfinite(b.values)).astype(np.int64)
    n = len(known)
    if not n:
        raise SettingError("no player has a known value in both results")
    size = max(1, n // 5) if m is None else m
    if not 1 <= size <= n:
        raise SettingError(f"m={size} must lie between 1 and the {n} players")
    x, y = a.values[known], b.values[known]
    same = a.data_digest == b.data_digest and a.target == b.target
    same = same and a.spec_digest == b.spec_digest
    z = _scaled(a, b, known) if same else np.full(1, np.nan)
    return Comparison(
        players=n,
        spearman=_correlation(rankdata(x), rankdata(y)),
        pearson=_correlation(x, y),
        m=size,
        top=_common(-x, -y, size),
        bottom=_common(x, y, size),
        chance=size / n,
        same_target=same,
        largest_z=float(np.nanmax(z)) if np.isfinite(z).any() else math.nan,
        outside=float((z > 1.96).mean()) if np.isfinite(z).any() else math.nan,
    )


def _scaled(a: ValuationResult, b: ValuationResult, known: Ints) -> Floats:
    gap = np.abs(a.values - b.values)[known]
    error = np.sqrt(a.stderr**2 + b.stderr**2)[known]
    return np.where(gap == 0, 0.0, gap / np.where(error > 0, error, np.nan))


def _common(x: Floats, y: Floats, m: int) -> float:
    first = set(np.argsort(x, kind="stable")[:m].tolist())
    return len(first & set(np.argsort(y, kind="stable")[:m].tolist())) / m


def _correlation(x: Floats, y: Floats) -> float:
    x, y = x - x.mean(), y - y.mean()
    scale = math.sqrt(float(x @ x) * float(y @ y))
    return float(x @ y) / scale if scale > 0 else math.nan
