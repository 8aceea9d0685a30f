"""Twins of the encrypted evaluation on numbers: exact, or with the scheme's noise.

Noise is Gaussian and independent in every slot, with the variance that an average-case analysis
gives for a ternary secret and errors of standard deviation 3.2: fresh encryption, key switching of
a rotation or a relinearisation, rounding by a rescaling and by encoding. Key switching multiplies
the key's error by digits in [0, q), whose mean q/2 is the same in all coefficients: in slots with a
root z near one that mean counts ``|sum z^i| = |2 / (1 - z)|`` times, so some slots are far noisier
than others. It is a model: tests compare its size with that of real ciphertexts.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from privml.protocols.he.evaluate import Evaluator
from privml.protocols.he.parameters import CkksParameters
from privml.rng import Generator

Floats = NDArray[np.float64]

_ERROR = 3.2
_TERNARY = 2.0 / 3.0


@dataclass(frozen=True, eq=False)
class Noise:
    """Standard deviation of each kind of noise; of key switching for every slot."""

    fresh: float
    switch: Floats
    rescale: float
    encode: float

    @classmethod
    def of(cls, parameters: CkksParameters) -> Noise:
        """Return the noise of a parameter set."""
        n, scale = parameters.degree, 2.0**parameters.scale_bits
        slot = math.sqrt(n / 2) / scale  # of coefficients with variance 1
        rounding = (1.0 + _TERNARY * n) / 12.0
        primes = parameters.prime_bits
        gadget = sum(2.0 ** (2 * (q - primes[-1])) for q in primes[:-1])
        digits = _ERROR**2 * gadget * (n / 12.0 + np.square(_sums(n)) / 4.0)
        return cls(
            fresh=slot * _ERROR,
            switch=slot * np.sqrt(digits + rounding),
            rescale=slot * math.sqrt(rounding),
            encode=slot * math.sqrt(1.0 / 12.0),
        )


class Twin(Evaluator[Floats, Floats]):
    """Evaluation on slots of numbers.

    Parameters
    ----------
    parameters
        Their noise is added; none if not given.
    generator
        Where the noise comes from.
    """

    def __init__(
        self, parameters: CkksParameters | None = None, generator: Generator | None = None
    ) -> None:
        self._noise = None if parameters is None else Noise.of(parameters)
        self._scale = 0 if parameters is None else parameters.scale_bits
        self._generator = generator

    def encrypt(self, slots: Floats) -> Floats:
        """Return the slots with the noise of an encryption."""
        return slots if self._noise is None else self._noisy(slots, self._noise.fresh)

    def prepare(self, slots: Floats, *, level: int) -> Floats:
        """Return clear slots with the rounding of encoding."""
        return slots if self._noise is None else self._noisy(slots, self._noise.encode)

    def rotate(self, x: Floats, steps: int) -> Floats:
        """Return x turned by steps."""
        turned = np.roll(x, -steps)
        return turned if self._noise is None else self._noisy(turned, self._noise.switch)

    def multiply(self, x: Floats, clear: Floats) -> Floats:
        """Return the product."""
        return x * clear

    def add(self, x: Floats, y: Floats) -> Floats:
        """Return the sum."""
        return x + y

    def add_clear(self, x: Floats, slots: Floats) -> Floats:
        """Return the sum with clear slots."""
        return x + slots

    def rescale(self, x: Floats) -> Floats:
        """Return x with the rounding of a rescaling."""
        return x if self._noise is None else self._noisy(x, self._noise.rescale)

    def square(self, x: Floats) -> Floats:
        """Return the square; its key switching acts at the square of the scale."""
        squared = np.square(x)
        if self._noise is None:
            return squared
        return self._noisy(squared, self._noise.switch * 2.0**-self._scale)

    def _noisy(self, x: Floats, deviation: float | Floats) -> Floats:
        if self._generator is None:
            return x
        return x + deviation * self._generator.standard_normal(x.shape)


def _sums(degree: int) -> Floats:
    """Return ``|sum of z^i, i < degree|`` for the root z that belongs to each slot."""
    powers = np.empty(degree // 2)
    power = 1
    for slot in range(degree // 2):
        powers[slot] = power
        power = 3 * power % (2 * degree)
    result: Floats = 1.0 / np.abs(np.sin(np.pi * powers / (2 * degree)))
    return result
