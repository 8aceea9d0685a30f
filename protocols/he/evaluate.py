"""How a polynomial network is evaluated, in terms of what any levelled scheme can do.

The same steps run on ciphertexts (:mod:`privml.protocols.he.tenseal_backend`), on numbers with the
scheme's noise, and on plain numbers (:mod:`privml.protocols.he.twin`). Per map: shared rotations,
products with diagonals, rotations of partial sums, one rescaling, then the bias, added as slots at
the scale and level that the sum has.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property, reduce
from typing import Generic, TypeVar

import numpy as np
from numpy.typing import NDArray

from privml.protocols.he.network import PolynomialNetwork
from privml.protocols.he.packing import Diagonals, Packing

Floats = NDArray[np.float64]
C = TypeVar("C")
"""A ciphertext, or what stands for one."""
P = TypeVar("P")
"""Clear slots, prepared for a product at one level."""


class Evaluator(ABC, Generic[C, P]):
    """A levelled scheme; levels count the rescalings that are left."""

    @abstractmethod
    def prepare(self, slots: Floats, *, level: int) -> P:
        """Return clear slots, ready to be multiplied with ciphertexts of ``level``."""

    @abstractmethod
    def rotate(self, x: C, steps: int) -> C:
        """Return x with slot i + steps in slot i, cyclically."""

    @abstractmethod
    def multiply(self, x: C, clear: P) -> C:
        """Return the product with clear slots, not yet rescaled."""

    @abstractmethod
    def add(self, x: C, y: C) -> C:
        """Return the sum of two of equal scale and level."""

    @abstractmethod
    def add_clear(self, x: C, slots: Floats) -> C:
        """Return the sum with clear slots, encoded at the scale and level of x."""

    @abstractmethod
    def rescale(self, x: C) -> C:
        """Drop one prime; the level sinks by one."""

    @abstractmethod
    def square(self, x: C) -> C:
        """Return the square, relinearised and not yet rescaled."""


@dataclass(frozen=True, eq=False)
class Circuit:
    """A network on packed images: its matrices as diagonals. Clear weights, no keys."""

    network: PolynomialNetwork
    packing: Packing

    @cached_property
    def maps(self) -> tuple[Diagonals, ...]:
        """One for each layer."""
        return tuple(Diagonals(self.packing, layer.weight) for layer in self.network.layers)

    @property
    def steps(self) -> frozenset[int]:
        """Slot rotations that need a key."""
        return frozenset().union(*(one.steps for one in self.maps))

    def prepare(self, evaluator: Evaluator[C, P]) -> list[dict[int, dict[int, P]]]:
        """Return all clear slots, prepared once for many queries."""
        return [
            {
                giant: {
                    small: evaluator.prepare(slots, level=self.network.depth - 2 * number)
                    for small, slots in terms.items()
                }
                for giant, terms in one.terms.items()
            }
            for number, one in enumerate(self.maps)
        ]

    def run(
        self, evaluator: Evaluator[C, P], x: C, prepared: Sequence[dict[int, dict[int, P]]]
    ) -> C:
        """Return encrypted scores of packed, encrypted images."""
        layers = zip(self.network.marked(), self.maps, prepared, strict=True)
        for (layer, last), one, terms in layers:
            x = self._product(evaluator, x, one, terms)
            x = evaluator.add_clear(x, self.packing.spread(layer.bias))
            if not last:
                x = evaluator.rescale(evaluator.square(x))
        return x

    def _product(
        self, evaluator: Evaluator[C, P], x: C, one: Diagonals, terms: dict[int, dict[int, P]]
    ) -> C:
        images = self.packing.images
        turned = {0: x} | {k: evaluator.rotate(x, k * images) for k in one.baby_steps}
        total = reduce(
            evaluator.add,
            (
                self._turned(evaluator, giant, [(turned[k], p) for k, p in factors.items()])
                for giant, factors in terms.items()
            ),
        )
        total = evaluator.rescale(total)
        for step in one.folds:
            total = evaluator.add(total, evaluator.rotate(total, step * images))
        return total

    def _turned(self, evaluator: Evaluator[C, P], giant: int, pairs: list[tuple[C, P]]) -> C:
        """Return the sum of products of one giant step, turned by it."""
        part = reduce(evaluator.add, (evaluator.multiply(x, clear) for x, clear in pairs))
        return evaluator.rotate(part, giant * self.packing.images) if giant else part
