"""Size laws: how a semivalue weighs coalitions by their size.

A semivalue with law p is ``f(i) = sum_k p_k · mean over S without i, |S| = k, of U(S+i) - U(S)``,
``p_k >= 0``, ``sum_{k=0}^{n-1} p_k = 1``. In the weights of the literature
``p_{j-1} = C(n-1, j-1) w_j / n``. Everything is computed in logarithms, so no n overflows.

References: Shapley 1953; Kwon and Zou, Beta Shapley, AISTATS 2022; Wang and Jia, Data Banzhaf,
AISTATS 2023.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Self

import numpy as np
from numpy.typing import NDArray

from privml.rng import Generator
from privml.valuation.checks import is_finite, is_whole
from privml.valuation.errors import SettingError

_SMALLEST_PAIR = 2


@dataclass(frozen=True, eq=False)
class SizeLaw:
    """Probability of each coalition size; made by the class methods.

    Attributes
    ----------
    name
        What results call it, for example ``"shapley"`` or ``"beta(16,1)"``.
    log_p
        (sizes,) float64 log p_k for k = 0..sizes-1; -inf where p_k = 0. Read-only.
    efficient
        Whether values sum to U(N) - U(empty) in every game: Shapley alone.
    """

    name: str
    log_p: NDArray[np.float64] = field(repr=False)
    efficient: bool = False

    def __post_init__(self) -> None:
        self.log_p.flags.writeable = False

    @classmethod
    def shapley(cls, n: int) -> Self:
        """Return the law of the Shapley value of n players: every size alike."""
        return cls("shapley", np.full(_players(n), -math.log(n)), efficient=True)

    @classmethod
    def beta(cls, n: int, a: float, b: float) -> Self:
        """Return the beta-binomial law of Beta(a, b) Shapley; large a favours small coalitions.

        ``p_k = C(n-1, k) B(k + b, n - 1 - k + a) / B(a, b)``; Beta(1, 1) is Shapley.
        """
        if not (is_finite(a) and is_finite(b) and a > 0 and b > 0):
            raise SettingError(f"Beta({a}, {b}): both parameters must be positive numbers")
        top = _players(n) - 1
        log_p = [
            _log_choose(top, k) + _log_beta(k + b, top - k + a) - _log_beta(a, b) for k in range(n)
        ]
        return cls(f"beta({_named(a)},{_named(b)})", _normalised(log_p), efficient=a == b == 1)

    @classmethod
    def banzhaf(cls, n: int) -> Self:
        """Return the law of the Banzhaf value: ``p_k = C(n-1, k) / 2^(n-1)``."""
        top = _players(n) - 1
        return cls("banzhaf", _normalised([_log_choose(top, k) for k in range(n)]))

    @classmethod
    def capped(cls, n: int, s: int) -> Self:
        """Return the law that knows only sizes below s, each alike: ``p_k = 1/s`` for k < s."""
        if not is_whole(s) or not 1 <= s <= _players(n):
            raise SettingError(f"cap {s} is not in 1..{n}, the number of players")
        log_p = np.full(n, -np.inf)
        log_p[:s] = -math.log(s)
        return cls("shapley" if s == n else f"shapley[s={s}]", log_p, efficient=s == n)

    @classmethod
    def loo(cls, n: int) -> Self:
        """Return the law of leave-one-out: only the largest coalitions count."""
        log_p = np.full(_players(n), -np.inf)
        log_p[n - 1] = 0.0
        return cls("loo", log_p)

    @property
    def n(self) -> int:
        """Number of sizes, for a law of single players the number of players."""
        return len(self.log_p)

    @property
    def p(self) -> NDArray[np.float64]:
        """(n,) float64 probabilities, they sum to 1."""
        probabilities: NDArray[np.float64] = np.exp(self.log_p)
        return probabilities

    @property
    def largest(self) -> int:
        """Largest size with positive probability."""
        return int(np.flatnonzero(np.isfinite(self.log_p))[-1])

    def pair_law(self) -> SizeLaw:
        """Return the law q of same-coalition pairs.

        ``f(b) - f(c) = sum_k q_k · mean over S without b, c, |S| = k, of U(S+b) - U(S+c)`` with
        ``q_k = p_k (n-1-k)/(n-1) + p_{k+1} (k+1)/(n-1)``, k = 0..n-2; it sums to 1.

        Raises
        ------
        SettingError
            There are fewer than two players.
        """
        if self.n < _SMALLEST_PAIR:
            raise SettingError("a pair needs two players")
        k, top = np.arange(self.n - 1), self.n - 1
        with np.errstate(divide="ignore"):
            left = self.log_p[:-1] + np.log((top - k) / top)
            right = self.log_p[1:] + np.log((k + 1) / top)
        return SizeLaw(f"pairs of {self.name}", np.logaddexp(left, right))

    def walk_weights(self) -> NDArray[np.float64]:
        """Return (n,) float64 ``n p_k``: factor of the marginal of a walk at position k.

        A uniformly random walk puts a player after k predecessors with probability 1/n each, so
        the weighted marginal is unbiased for f.
        """
        weights: NDArray[np.float64] = self.n * self.p
        return weights

    def log_weights(self) -> NDArray[np.float64]:
        """Return (n,) float64 ``log(p_k / C(n-1, k))``: the weight of one coalition of size k."""
        top = self.n - 1
        return np.asarray(self.log_p - np.array([_log_choose(top, k) for k in range(self.n)]))

    def draw(self, generator: Generator, count: int) -> NDArray[np.int64]:
        """Return (count,) int64 sizes drawn independently from the law."""
        steps = np.cumsum(self.p)
        found: NDArray[np.int64] = np.searchsorted(
            steps, generator.random(count) * steps[-1], side="right"
        )
        return np.asarray(np.minimum(found, self.largest), dtype=np.int64)


def _players(n: int) -> int:
    if n < 1:
        raise SettingError(f"a size law needs at least one player, not {n}")
    return n


def _named(number: float) -> str:
    """Return a number as text that gives the same number again; names of laws are digested."""
    short = f"{number:g}"
    return short if float(short) == number else repr(float(number))


def _log_choose(n: int, k: int) -> float:
    return math.lgamma(n + 1) - math.lgamma(k + 1) - math.lgamma(n - k + 1)


def _log_beta(a: float, b: float) -> float:
    return math.lgamma(a) + math.lgamma(b) - math.lgamma(a + b)


def _normalised(log_p: list[float]) -> NDArray[np.float64]:
    """Return the law with the rounding of the gamma function taken out of its sum."""
    given = np.array(log_p)
    out: NDArray[np.float64] = given - np.logaddexp.reduce(given)
    return out
