"""What a compiled program says about itself: sizes, compression, and whether it is secure.

The compiler writes its parameters as JSON. Clients receive that JSON from the server's operator,
so they check the noise of every key before they generate one: weak parameters would let anybody
decrypt.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Final

from privml.errors import InsecureParameters, MalformedMessage

MAX_BYTES: Final = 1 << 20
"""Longest description that is read."""

ENVELOPE_BYTES: Final = 1024
"""Most bytes that a serialised object has besides its words; a secret key needs more."""

# Least noise of binary secrets at 128 bits: log2(std) = slope * dimension + offset, dimension at
# least 450; the compiler's own curve from the lattice estimator, which tests compare with it.
_SLOPE: Final = -0.025696778711484593
_OFFSET: Final = 2.675931372549016
_LEAST_DIMENSION: Final = 450
_TOLERANCE: Final = 1e-3  # in log2(std)


@dataclass(frozen=True)
class ProgramInfo:
    """The parameters of one compiled circuit with one input and one output.

    Raises
    ------
    MalformedMessage
        ``data`` is not such a description.
    """

    data: bytes

    def __post_init__(self) -> None:
        try:
            _ = self.function, self.query_bytes, self.answer_bytes, self.key_bytes
            _ = self.compressed, self.input_shape, list(self._noise())
        except (KeyError, TypeError, ValueError, IndexError, RecursionError) as error:
            raise MalformedMessage(f"the program description is not valid: {error!r}") from error

    @cached_property
    def _tree(self) -> Any:  # noqa: ANN401 (JSON; every access is checked in __post_init__)
        if len(self.data) > MAX_BYTES:
            raise ValueError(f"more than {MAX_BYTES} bytes")
        tree = json.loads(self.data)
        if len(tree["circuits"]) != 1 or tree["keyset"]["packingKeyswitchKeys"]:
            raise ValueError("not one circuit with ordinary keys")
        circuit = tree["circuits"][0]
        if len(circuit["inputs"]) != 1 or len(circuit["outputs"]) != 1:
            raise ValueError("not one input and one output")
        return tree

    @property
    def function(self) -> str:
        """Name of the circuit."""
        return str(self._tree["circuits"][0]["name"])

    @property
    def query_bytes(self) -> int:
        """Words of one encrypted image, in bytes."""
        return _words(self._tree["circuits"][0]["inputs"][0]["rawInfo"])

    @property
    def answer_bytes(self) -> int:
        """Words of one encrypted answer, in bytes."""
        return _words(self._tree["circuits"][0]["outputs"][0]["rawInfo"])

    @property
    def input_shape(self) -> tuple[int, ...]:
        """Shape of the image that the circuit takes."""
        return _shape(self._ciphertext["abstractShape"])

    @property
    def output_shape(self) -> tuple[int, ...]:
        """Shape of the decrypted answer."""
        output = self._tree["circuits"][0]["outputs"][0]["typeInfo"]["lweCiphertext"]
        return _shape(output["abstractShape"])

    @property
    def key_bytes(self) -> int:
        """Words of the evaluation keys as they are sent, in bytes."""
        keyset, total = self._tree["keyset"], 0
        for key in keyset["lweBootstrapKeys"]:
            p = key["params"]
            rows = _size(p["inputLweDimension"]) * _size(p["levelCount"])
            rows *= _size(p["glweDimension"]) + 1
            words = 1 if _seeded(key) else _size(p["glweDimension"]) + 1
            total += rows * words * _size(p["polynomialSize"])
        for key in keyset["lweKeyswitchKeys"]:
            p = key["params"]
            rows = _size(p["inputLweDimension"]) * _size(p["levelCount"])
            total += rows * (1 if _seeded(key) else _size(p["outputLweDimension"]) + 1)
        return 8 * total

    def switch_entries(self, lwe: int) -> int:
        """Return the largest key switch into keys of dimension ``lwe``, in entries."""
        keys = (key["params"] for key in self._tree["keyset"]["lweKeyswitchKeys"])
        return max(
            (
                _size(p["inputLweDimension"]) * _size(p["levelCount"]) * lwe
                for p in keys
                if p["outputLweDimension"] == lwe
            ),
            default=0,
        )

    @property
    def compressed(self) -> bool:
        """Whether encrypted images and all evaluation keys are sent as seed and bodies."""
        keyset = self._tree["keyset"]
        keys = [*keyset["lweBootstrapKeys"], *keyset["lweKeyswitchKeys"]]
        return all(map(_seeded, keys)) and _seeded(self._ciphertext)

    def require_secure(self) -> None:
        """Check that no key or ciphertext has less noise than 128-bit security asks for.

        Raises
        ------
        InsecureParameters
            One has; do not generate keys for this program.
        """
        for dimension, variance in self._noise():
            least = _SLOPE * dimension + _OFFSET - _TOLERANCE
            noise = math.log2(variance) / 2 if variance > 0 else -math.inf
            if dimension < _LEAST_DIMENSION or not noise >= least:
                raise InsecureParameters(
                    f"the program asks for keys of dimension {dimension} with noise 2^{noise:.1f}; "
                    f"128-bit security needs dimension {_LEAST_DIMENSION} or more and noise of at "
                    f"least 2^{least:.1f}; do not use this program"
                )

    @property
    def _ciphertext(self) -> Any:  # noqa: ANN401
        return self._tree["circuits"][0]["inputs"][0]["typeInfo"]["lweCiphertext"]

    def _noise(self) -> Iterator[tuple[int, float]]:
        """Yield dimension and noise variance of every secret key in use."""
        keyset = self._tree["keyset"]
        dimensions = [_size(key["params"]["lweDimension"]) for key in keyset["lweSecretKeys"]]
        encryption = self._ciphertext["encryption"]
        if dimensions[encryption["keyId"]] != encryption["lweDimension"]:
            raise ValueError("the input is encrypted under a key of another dimension")
        yield _size(encryption["lweDimension"]), float(encryption["variance"])
        for key in keyset["lweBootstrapKeys"]:
            p = key["params"]
            dimension = _size(p["glweDimension"]) * _size(p["polynomialSize"])
            if dimension != dimensions[key["outputId"]]:
                raise ValueError("a bootstrap key has another dimension than its secret key")
            yield dimension, float(p["variance"])
        for key in keyset["lweKeyswitchKeys"]:
            p = key["params"]
            if _size(p["outputLweDimension"]) != dimensions[key["outputId"]]:
                raise ValueError("a keyswitch key has another dimension than its secret key")
            yield _size(p["outputLweDimension"]), float(p["variance"])


def _size(value: object) -> int:
    if type(value) is not int or not 0 < value < 1 << 32:
        raise ValueError(f"{value!r} is no size")
    return value


def _shape(node: dict[str, Any]) -> tuple[int, ...]:
    return tuple(_size(value) for value in node["dimensions"])


def _words(raw: dict[str, Any]) -> int:
    return 8 * math.prod(_shape(raw["shape"]))


def _seeded(node: dict[str, Any]) -> bool:
    return bool(node["compression"] == "seed")
