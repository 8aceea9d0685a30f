"""Cost of a compiled circuit from its keys: what each bootstrap and its key switch multiply.

A bootstrap of input dimension n, level l, GLWE dimension k and polynomial size N is n external
products, each of l(k+1) forward and k+1 backward transforms of N points and l(k+1)^2 N products;
its key switch is one product with a matrix of ``input x levels`` rows and n columns. The constants
are a fit to circuits of 3 to 7 bits on the reference machine (one core with AVX2; within 7 %,
15 % at 4 bits); a calibration scales them to this one.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

_FORWARD: Final = 0.0459e-6  # ms per n l (k+1) N log2 N
_BACKWARD: Final = 0.0759e-6  # ms per n (k+1) N log2 N
_PRODUCT: Final = 0.7227e-6  # ms per n l (k+1)^2 N
_SWITCH: Final = 0.2084e-6  # ms per entry of the key switch
_STEP: Final = 1.6108e-3  # ms per external product


@dataclass(frozen=True)
class Bootstrap:
    """Bootstraps of one kind in one circuit.

    Attributes
    ----------
    count
        How many an image takes.
    lwe, level, glwe, polynomial
        n, l, k and N of the text above.
    switch
        Entries of the key switch before it.
    """

    count: int
    lwe: int
    level: int
    glwe: int
    polynomial: int
    switch: int

    @property
    def reference_ms(self) -> float:
        """CPU milliseconds of one on the reference machine."""
        side = self.glwe + 1
        transform = self.lwe * side * self.polynomial * math.log2(self.polynomial)
        product = self.lwe * self.level * side**2 * self.polynomial
        return (
            _FORWARD * transform * self.level
            + _BACKWARD * transform
            + _PRODUCT * product
            + _SWITCH * self.switch
            + _STEP * self.lwe
        )


def reference_ms(work: Iterable[Bootstrap]) -> float:
    """Return CPU milliseconds of one image on the reference machine."""
    return sum(one.count * one.reference_ms for one in work)
