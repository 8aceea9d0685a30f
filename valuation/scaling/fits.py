"""Three ways to fit ``gap = a x^b``; all take and return (ln a, b).

* :func:`ols`: least squares of ln gap on ln x. Relative errors weigh alike, so the last, tiny gap
  weighs as much as the first. A gap of 0 has no logarithm.
* :func:`nls`: least squares of the gap itself. Absolute errors weigh alike.
* :func:`binomial`: most likely law when ``trials · gap`` of ``trials`` attempts fail. Knows that a
  gap of 0 in 20 trials is little evidence.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np
from scipy.optimize import least_squares, minimize

from privml.valuation.errors import ProblemError
from privml.valuation.problem import Floats

_EDGE: Final = 1e-12
_TOLERANCE: Final = 1e-13
_STEPS: Final = 500


def design(x: Floats) -> Floats:
    """Return the (n, 2) float64 matrix with columns 1 and ln x."""
    return np.column_stack([np.ones(len(x)), np.log(x)])


def ols(x: Floats, gap: Floats) -> Floats:
    """Return (ln a, b) by least squares of ln gap on ln x; every gap positive."""
    log_x, log_gap = np.log(x), np.log(gap)
    centred = log_x - log_x.mean()
    slope = float(centred @ log_gap / (centred @ centred))
    return np.array([log_gap.mean() - slope * log_x.mean(), slope])


def nls(x: Floats, gap: Floats, start: Floats) -> Floats:
    """Return (ln a, b) by least squares of the gap."""
    matrix = design(x)

    def residuals(law: Floats) -> Floats:
        return np.asarray(np.exp(matrix @ law) - gap)

    def slopes(law: Floats) -> Floats:
        return np.asarray(np.exp(matrix @ law)[:, None] * matrix)

    found: Any = least_squares(
        residuals, start, jac=slopes, xtol=_TOLERANCE, ftol=_TOLERANCE, gtol=_TOLERANCE
    )
    return _converged("nls", np.asarray(found.x, dtype=np.float64))


def binomial(x: Floats, gap: Floats, trials: Floats, start: Floats) -> Floats:
    """Return the most likely (ln a, b) under which no gap at ``x`` exceeds 1.

    The log-likelihood is concave in (ln a, b), so what is found is the maximum.
    """
    matrix = design(x)
    failed, passed = trials * gap, trials * (1 - gap)
    scale = float(trials.sum())

    def loss(law: Floats) -> float:
        level = np.minimum(matrix @ law, -_EDGE)
        return float(-(failed @ level + passed @ np.log(-np.expm1(level))) / scale)

    def slope(law: Floats) -> Floats:
        level = np.minimum(matrix @ law, -_EDGE)
        return np.asarray(-matrix.T @ (failed - passed / np.expm1(-level)) / scale)

    ends = matrix[[int(np.argmin(x)), int(np.argmax(x))]]
    found: Any = minimize(
        loss,
        _below_one(start, ends),
        jac=slope,
        method="SLSQP",
        constraints={
            "type": "ineq",
            "fun": lambda law: -_EDGE - ends @ law,
            "jac": lambda _: -ends,
        },
        options={"ftol": 1e-15, "maxiter": _STEPS},
    )
    return _converged("binomial", np.asarray(found.x, dtype=np.float64))


def fitted(method: str, x: Floats, gap: Floats, trials: Floats | None) -> Floats:
    """Return (ln a, b) by a method of this module."""
    if method == "ols":
        return ols(x, gap)
    if trials is None:
        seen = gap[gap > 0]
        start = ols(x, np.where(gap > 0, gap, seen.min() / 2))
        return nls(x, gap, start)
    return binomial(x, gap, trials, ols(x, (trials * gap + 0.5) / (trials + 1)))


def _below_one(start: Floats, ends: Floats) -> Floats:
    """Return the start, lowered until no gap exceeds 1."""
    excess = float((ends @ start).max())
    return np.asarray(start - np.array([max(0.0, excess + 1e-3), 0.0]), dtype=np.float64)


def _converged(method: str, law: Floats) -> Floats:
    if not np.isfinite(law).all():
        raise ProblemError(f"the {method} fit found no finite law; use method='ols'")
    return law
