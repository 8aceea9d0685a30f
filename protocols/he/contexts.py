"""Client and server of a CKKS evaluation, apart: bytes go between them, nothing else.

The client's context holds the secret key; the server's has no field and no decoder for one. The
server holds clear weights, which the client never gets. Semi-honest parties: a malicious server can
return wrong ciphertexts. Decrypted scores carry noise that depends on the secret key; they go to
nobody else, not even back to the server (CKKS is not secure against an adversary who sees them).
Function privacy is heuristic: the noise also depends on the weights.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Self

import msgspec
import numpy as np
from numpy.typing import NDArray

from privml.backbones.digests import canonical_json, sha256
from privml.errors import MalformedMessage, ParameterError, ProtocolError
from privml.protocols.he import tenseal_backend as backend
from privml.protocols.he.evaluate import Circuit
from privml.protocols.he.network import PolynomialNetwork
from privml.protocols.he.packing import Packing
from privml.protocols.he.parameters import HEADROOM_BITS, CkksParameters

Floats = NDArray[np.float64]

FORMAT: Final = "privml.ckks.1"
MAX_SPEC_BYTES: Final = 1 << 16
_LENGTH: Final = struct.Struct("<Q")


class _Spec(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    format: str
    degree: int
    scale_bits: int
    depth: int
    dimension: int
    features: int
    classes: int
    limit: float
    divisor: float
    steps: tuple[int, ...]
    network: str
    front: str


@dataclass(frozen=True)
class ClientSpec:
    """All that a client needs to know of a program; no weights.

    Attributes
    ----------
    parameters, packing
        Scheme and slot layout.
    features, classes
        Of one image.
    limit
        Inputs are cut to [-limit, limit].
    divisor
        Scores leave the server divided by this power of two, so that none can wrap.
    steps
        Rotations, in slots, that the server needs keys for.
    network, front
        Digests of the network and of the front end (or an empty string).
    """

    parameters: CkksParameters
    packing: Packing
    features: int
    classes: int
    limit: float
    divisor: float
    steps: tuple[int, ...]
    network: str
    front: str

    def __post_init__(self) -> None:
        slots = self.parameters.slots
        sizes = 1 <= self.features <= self.packing.dimension
        sizes = sizes and 1 <= self.classes <= self.packing.dimension
        turns = all(0 < step < slots for step in self.steps) and len(self.steps) <= 1024
        sound = all(np.isfinite(v) and v > 0 for v in (self.limit, self.divisor))
        if self.packing.slots != slots or not (sizes and turns and sound):
            raise ParameterError("the specification of the CKKS program contradicts itself")

    @classmethod
    def of(cls, network: PolynomialNetwork, parameters: CkksParameters) -> ClientSpec:
        """Return the specification of a network under parameters."""
        packing = Packing(network.dimension, parameters.slots)
        steps = tuple(sorted(Circuit(network, packing).steps))
        return cls(
            parameters, packing, network.features, network.classes, float(network.limit),
            divisor_of(network), steps, network.digest(), network.front,
        )  # fmt: skip

    def to_json(self) -> bytes:
        """Return the canonical JSON; its digest is the id of the program."""
        scheme = self.parameters
        return canonical_json(
            {
                "format": FORMAT, "degree": scheme.degree, "scale_bits": scheme.scale_bits,
                "depth": scheme.depth, "dimension": self.packing.dimension,
                "features": self.features, "classes": self.classes, "limit": float(self.limit),
                "divisor": float(self.divisor), "steps": list(self.steps),
                "network": self.network, "front": self.front,
            }
        )  # fmt: skip

    @property
    def id(self) -> str:
        """Digest of :meth:`to_json` in hexadecimal."""
        return sha256(self.to_json())

    @classmethod
    def from_json(cls, data: bytes) -> ClientSpec:
        """Read a specification that came from outside.

        Raises
        ------
        MalformedMessage
            The bytes are not exactly what :meth:`to_json` of a valid one returns.
        InsecureParameters
            Its parameters are too weak.
        """
        if len(data) > MAX_SPEC_BYTES:
            raise MalformedMessage(f"the specification is longer than {MAX_SPEC_BYTES} bytes")
        try:
            read = msgspec.json.decode(data, type=_Spec, strict=True)
            parameters = CkksParameters(read.degree, read.scale_bits, read.depth)
            found = cls(
                parameters, Packing(read.dimension, parameters.slots), read.features,
                read.classes, read.limit, read.divisor, read.steps, read.network, read.front,
            )  # fmt: skip
        except (msgspec.DecodeError, ParameterError, UnicodeDecodeError, RecursionError) as error:
            raise MalformedMessage(f"the specification is not valid: {error}") from error
        if read.format != FORMAT or found.to_json() != data:
            raise MalformedMessage("the specification is of another version or not canonical")
        return found


def divisor_of(network: PolynomialNetwork) -> float:
    """Return the least power of two that brings every possible score into the headroom."""
    most = 2.0 ** (HEADROOM_BITS - 1)
    return 2.0 ** max(math.ceil(math.log2(max(network.bounds[-1], 1e-9) / most)), 0)


@dataclass(frozen=True, repr=False)
class EvaluationKeys:
    """What a client sends once: keys for squares and rotations; they compute, never decrypt."""

    relin: bytes
    galois: bytes

    @property
    def size(self) -> int:
        """Bytes of both."""
        return len(self.relin) + len(self.galois)

    def to_bytes(self) -> bytes:
        """Return both for the wire."""
        return _LENGTH.pack(len(self.relin)) + self.relin + self.galois

    @classmethod
    def from_bytes(cls, data: bytes) -> Self:
        """Take apart what :meth:`to_bytes` returned; the keys themselves are checked when loaded.

        Raises
        ------
        MalformedMessage
            It is cut.
        """
        body = data[_LENGTH.size :]
        if len(data) < _LENGTH.size or _LENGTH.unpack_from(data)[0] > len(body):
            raise MalformedMessage("the evaluation keys are cut or of another scheme")
        (first,) = _LENGTH.unpack_from(data)
        return cls(body[:first], body[first:])


class ClientContext:
    """The side that holds the secret key.

    Parameters
    ----------
    spec
        The program.
    secret
        A key that :meth:`secret_key` returned; drawn if None.

    Raises
    ------
    UnsupportedError
        tenseal is missing.
    InsecureParameters
        SEAL refuses the parameters.
    MalformedMessage
        ``secret`` is no key of this program.
    """

    def __init__(self, spec: ClientSpec, secret: bytes | None = None) -> None:
        self.spec = spec
        self._scheme = backend.Scheme(spec.parameters)
        self._secret = backend.Secret(self._scheme, secret)

    def __repr__(self) -> str:
        return f"ClientContext({self.spec.id[:12]}, secret key hidden)"

    def secret_key(self) -> bytes:
        """Return the secret key for the client's own disk. Never send it."""
        return self._secret.to_bytes()

    def evaluation_keys(self) -> EvaluationKeys:
        """Return the keys for the server."""
        return EvaluationKeys(*self._secret.evaluation_keys(self.spec.steps))

    def encrypt(self, x: Floats) -> list[bytes]:
        """Return queries of images (n, features); each holds up to ``spec.packing.images``.

        Raises
        ------
        ParameterError
            Wrong shape, no image, or a value outside the limit.
        """
        array = np.ascontiguousarray(x, np.float64)
        if array.ndim != 2 or array.shape[1] != self.spec.features or not len(array):
            raise ParameterError(
                f"images have shape {array.shape}, (n, {self.spec.features}) is needed, n >= 1"
            )
        if not np.isfinite(array).all() or np.abs(array).max() > self.spec.limit:
            raise ParameterError(f"images must lie in [-{self.spec.limit:g}, {self.spec.limit:g}]")
        images = self.spec.packing.images
        parts = [array[first : first + images] for first in range(0, len(array), images)]
        return [self._secret.encrypt(self.spec.packing.pack(part)) for part in parts]

    def decrypt(self, answers: Sequence[bytes], *, images: int) -> Floats:
        """Return scores (images, classes) of the answers to one call of :meth:`encrypt`.

        Raises
        ------
        MalformedMessage
            An answer has another form than this program's.
        ProtocolError
            Fewer or more answers than queries.
        """
        per = self.spec.packing.images
        counts = [min(per, images - first) for first in range(0, images, per)]
        if len(counts) != len(answers):
            raise ProtocolError(f"{len(answers)} answers to {len(counts)} queries; ask again")
        limit = backend.ciphertext_limit(self.spec.parameters)
        rows = [
            self.spec.packing.unpack(
                self._secret.decrypt(answer, limit=limit), images=count, features=self.spec.classes
            )
            for answer, count in zip(answers, counts, strict=True)
        ]
        return np.concatenate(rows) * self.spec.divisor


class ServerContext:
    """The side that computes: clear weights and public parameters, never a secret key."""

    def __init__(self, network: PolynomialNetwork, parameters: CkksParameters) -> None:
        if parameters.depth < network.depth:
            raise ParameterError(
                f"the network has depth {network.depth}, the parameters {parameters.depth}"
            )
        self.spec = ClientSpec.of(network, parameters)
        self.circuit = Circuit(network.shrunk(self.spec.divisor), self.spec.packing)
        self._scheme = backend.Scheme(parameters)
        self._prepared: list[dict[int, dict[int, backend.Handle]]] | None = None

    def load_keys(self, keys: EvaluationKeys) -> backend.SealEvaluator:
        """Return one client's keys, ready to compute with.

        Raises
        ------
        MalformedMessage
            They are damaged, too long, of other parameters, or lack a rotation.
        """
        limit = backend.keys_limit(self.spec.parameters, len(self.spec.steps))
        found = backend.SealEvaluator(self._scheme, keys.relin, keys.galois, limit=limit)
        if found.lacks(self.spec.steps):
            raise MalformedMessage("the keys lack rotations that this program needs")
        return found

    def run(self, query: bytes, keys: backend.SealEvaluator) -> bytes:
        """Return the encrypted answer to one query.

        Raises
        ------
        MalformedMessage
            The query has another form than this program's.
        """
        limit = backend.ciphertext_limit(self.spec.parameters)
        x = self._scheme.read_ciphertext(query, limit=limit)
        if self._scheme.level_of(x) != self.spec.parameters.depth or x.scale != self._scheme.scale:
            raise MalformedMessage("the query has another level or scale than this program's")
        if self._prepared is None:
            self._prepared = self.circuit.prepare(keys)
        return keys.write(self.circuit.run(keys, x, self._prepared))

    def prepare(self, keys: backend.SealEvaluator) -> Self:
        """Encode the weights now and not at the first query."""
        if self._prepared is None:
            self._prepared = self.circuit.prepare(keys)
        return self
