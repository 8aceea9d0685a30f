"""What one step of CKKS costs, by degree and level: reference figures, or measured here.

A rotation or square at a level with ``l`` rescalings left handles ``l + 1`` primes, each against
``l + 2``: its cost falls with ``(l + 1)(l + 2)``. Other steps are linear in the primes.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

import numpy as np

from privml.errors import ParameterError
from privml.protocols.he.parameters import CkksParameters

_REPEATS: Final = 12
_DEGREE, _LEVEL = 8192, 3


@dataclass(frozen=True)
class StepCosts:
    """CPU milliseconds at the top level of one parameter set.

    Attributes
    ----------
    rotate, square, multiply, rescale, encrypt, decrypt
        One step each; a square with relinearisation, ``encrypt`` and ``decrypt`` with encoding and
        serialisation.
    measured
        Whether they come from this machine.
    """

    rotate: float
    square: float
    multiply: float
    rescale: float
    encrypt: float
    decrypt: float
    measured: bool = False

    def __post_init__(self) -> None:
        for value in (self.rotate, self.square, self.multiply, self.rescale):
            if not 0 < value < 1e6:
                raise ParameterError(f"a step of {value!r} ms is no measurement")

    def core_s(self, *, top: int, level: int, rotations: int, products: int, squares: int) -> float:
        """Return core-seconds of steps at ``level``, one rescaling included."""
        switched = (level + 1) * (level + 2) / ((top + 1) * (top + 2))
        linear = (level + 1) / (top + 1)
        switching = rotations * self.rotate + squares * self.square
        return 1e-3 * (switching * switched + (products * self.multiply + self.rescale) * linear)


def reference(parameters: CkksParameters) -> StepCosts:
    """Return costs of the reference machine: one core of an x86-64 server with AVX2."""
    level = parameters.depth
    size = parameters.degree / _DEGREE
    switched = size * (level + 1) * (level + 2) / ((_LEVEL + 1) * (_LEVEL + 2))
    linear = size * (level + 1) / (_LEVEL + 1)
    return StepCosts(
        rotate=2.5 * switched, square=2.5 * switched, multiply=0.25 * linear,
        rescale=0.5 * linear, encrypt=4.0 * linear, decrypt=2.0 * size,
    )  # fmt: skip


def measure(parameters: CkksParameters, *, repeats: int = _REPEATS) -> StepCosts:
    """Measure the steps of one parameter set on this machine: about 0.3 s at degree 8192.

    Raises
    ------
    UnsupportedError
        tenseal is missing.
    """
    from privml.protocols.he import tenseal_backend as backend  # it may be missing

    scheme = backend.Scheme(parameters)
    secret = backend.Secret(scheme)
    relin, galois = secret.evaluation_keys([1])
    keys = backend.SealEvaluator(scheme, relin, galois, limit=backend.keys_limit(parameters, 1))
    slots = np.linspace(-1.0, 1.0, parameters.slots)
    data = secret.encrypt(slots)
    limit = backend.ciphertext_limit(parameters)
    x = scheme.read_ciphertext(data, limit=limit)
    clear = keys.prepare(slots, level=parameters.depth)
    product = keys.multiply(x, clear)
    answer = keys.write(x)

    def cost(step: Callable[[], object]) -> float:
        step()
        start = time.process_time()
        for _ in range(repeats):
            step()
        return max(1e3 * (time.process_time() - start) / repeats, 1e-3)

    return StepCosts(
        rotate=cost(lambda: keys.rotate(x, 1)),
        square=cost(lambda: keys.square(x)),
        multiply=cost(lambda: keys.add(keys.multiply(x, clear), product)),
        rescale=cost(lambda: keys.rescale(product)),
        encrypt=cost(lambda: secret.encrypt(slots)),
        decrypt=cost(lambda: secret.decrypt(answer, limit=limit)),
        measured=True,
    )
