r"""Fixed-point numbers in a ring: encoding, range rule, and the budget of truncation failures.

A real x is the ring word round(x * 2^f) mod 2^l. The *range rule* |word| < 2^(l-2) makes masked
truncation and comparison exact. Other ways to truncate fail with the probabilities below; a plan
sums them over one inference and refuses above :data:`BUDGET`.

Sources: local share truncation, SecureML (IEEE S&P 2017), failure |x| / 2^l for a ring value x
with two parties; slack-based probabilistic truncation, failure 2^(bits(x) + 1 - l).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from privml.errors import InsecureParameters, ParameterError

#: Largest accepted probability that any truncation of one inference is wrong.
BUDGET = 2.0**-20
_WIDTHS = {32: "u4", 64: "u8"}


@dataclass(frozen=True)
class FixedPoint:
    """Numbers with ``f`` fractional bits in the ring of integers modulo 2^bits.

    Raises
    ------
    ParameterError
        ``bits`` is not 32 or 64, or ``f`` leaves no integer bit under the range rule.
    """

    bits: int
    f: int

    def __post_init__(self) -> None:
        if self.bits not in _WIDTHS or not 0 <= self.f <= self.bits - 3:
            raise ParameterError(
                f"fixed point with bits = {self.bits}, f = {self.f}: bits must be 32 or 64 and f "
                "must lie in [0, bits - 3]"
            )

    @property
    def dtype(self) -> str:
        """Unsigned numpy type of a word."""
        return _WIDTHS[self.bits]

    @property
    def limit(self) -> float:
        """Smallest magnitude that breaks the range rule."""
        return 2.0 ** (self.bits - 2 - self.f)

    def encode(self, x: ArrayLike) -> NDArray[Any]:
        """Round real values to ring words.

        Parameters
        ----------
        x
            Any shape, float.

        Returns
        -------
        ndarray
            Same shape, unsigned words.

        Raises
        ------
        ParameterError
            A value is not finite or breaks the range rule.
        """
        real = np.asarray(x, np.float64)
        if not np.isfinite(real).all() or (real.size and np.abs(real).max() >= self.limit):
            raise ParameterError(
                f"a value is not finite or reaches {self.limit:g}, the limit of {self.bits}-bit "
                f"words with {self.f} fractional bits; use fewer fractional bits"
            )
        signed = np.dtype(self.dtype.replace("u", "i"))
        return np.rint(real * 2.0**self.f).astype(signed).view(self.dtype)

    def decode(self, words: NDArray[Any]) -> NDArray[np.float64]:
        """Read ring words as signed values."""
        signed = np.dtype(self.dtype.replace("u", "i"))
        real: NDArray[np.float64] = words.view(signed) / 2.0**self.f
        return real

    def local_failure(self, magnitude: float) -> float:
        """Failure probability of truncating each share by itself, for one value."""
        return min(1.0, magnitude * 2.0 ** (self.f - self.bits))

    def slack_failure(self, magnitude: float) -> float:
        """Failure probability of slack-based probabilistic truncation, for one value."""
        return min(1.0, magnitude * 2.0 ** (self.f + 1 - self.bits))


@dataclass(frozen=True)
class FailureBudget:
    """Sum of failure probabilities of one inference (union bound)."""

    total: float = 0.0

    def spend(self, probability: float, *, times: int = 1) -> FailureBudget:
        """Return the budget after ``times`` events of the given probability."""
        return FailureBudget(min(1.0, self.total + probability * times))

    def require(self, limit: float = BUDGET) -> None:
        """Refuse a plan whose failures are too likely.

        Raises
        ------
        InsecureParameters
            The sum exceeds ``limit``.
        """
        if self.total > limit:
            raise InsecureParameters(
                f"truncations of one inference fail with probability {self.total:.3g}, above "
                f"{limit:.3g}; use masked truncation or a wider ring"
            )
