"""A CKKS program for client and server: manifest, the parts of both sides, and the sizes.

The manifest names everything else by digest and its own digest is the id of the program. Clients
get the specification of the scheme and the front end, never weights; servers get the network as
plain arrays. No part is native code, so a bundle runs on any machine with the same library.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Annotated, Final, Literal, Self

import msgspec
import numpy as np
from msgspec import Meta
from numpy.typing import NDArray

from privml.backbones.digests import Json, canonical_json, sha256
from privml.errors import MalformedMessage, ParameterError, UntrustedArtifact
from privml.protocols.fhe import pipe
from privml.protocols.fhe.frequency import Frequency, Photo
from privml.protocols.fhe.launcher import ChildLauncher, Duty, Limits
from privml.protocols.fhe.manifest import FUNCTION_PRIVACY, Hex, Name
from privml.protocols.fhe.parts import joined, split
from privml.protocols.fhe.planned import SHARE_RESULTS
from privml.protocols.fhe.programs import Bounds, Traffic
from privml.protocols.he import tenseal_backend as backend
from privml.protocols.he.contexts import ClientSpec
from privml.protocols.he.evaluate import Circuit
from privml.protocols.he.network import PolynomialNetwork
from privml.protocols.he.network_file import DESCRIPTION, WEIGHTS, network_of
from privml.protocols.he.plan import NOTICE, CkksPlan

Floats = NDArray[np.float64]

FORMAT: Final = "privml.ckks.program.1"
MAX_MANIFEST_BYTES: Final = 1 << 18
_MODULE: Final = "privml.protocols.he.child"
_GIB: Final = 1 << 30
_CPU_S: Final = 600
_MAX_KEYS: Final = 4 * _GIB  # no program of strangers makes a client draw more

_Side = Annotated[int, Meta(ge=1, le=1 << 13)]
_Positive = Annotated[float, Meta(gt=0, le=1e300)]


class CkksManifest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """All that is public about a CKKS program.

    Attributes
    ----------
    library
        Whose ciphertexts these are.
    spec, front, network
        Digests: specification of the scheme, front end (None: clients bring real numbers), network.
    shape, images
        Of one image; most images in one query.
    labels
        Names of the classes, or empty.
    error_bound, failure_probability
        A score is off by more than the bound with this probability per image.
    keys, query, answer
        Predicted bytes of the messages; they are compressed, so sizes vary a little.
    share_results
        Decrypted results go to nobody, not even back to the server.
    """

    format: Literal["privml.ckks.program.1"]
    scheme: Literal["ckks"]
    library: Name
    spec: Hex
    front: Hex | None
    network: Hex
    shape: Annotated[tuple[_Side, ...], Meta(min_length=1, max_length=4)]
    images: Annotated[int, Meta(ge=1, le=1 << 14)]
    labels: Annotated[tuple[Name, ...], Meta(max_length=1 << 13)]
    error_bound: _Positive
    failure_probability: Annotated[float, Meta(ge=0, le=1)]
    keys: Annotated[int, Meta(ge=0, le=1 << 40)]
    query: Annotated[int, Meta(ge=0, le=1 << 40)]
    answer: Annotated[int, Meta(ge=0, le=1 << 40)]
    head: Literal["server"]
    share_results: Literal["forbidden"]
    function_privacy: Literal["heuristic"]
    licence: Annotated[str, Meta(max_length=2000)]

    @property
    def id(self) -> str:
        """Digest of the manifest in hexadecimal: the id of the program."""
        return sha256(self.to_json())

    def to_json(self) -> bytes:
        """Return the canonical JSON (RFC 8785)."""
        tree: Json = msgspec.to_builtins(self)
        return canonical_json(tree)

    @classmethod
    def of(
        cls, network: PolynomialNetwork, plan: CkksPlan, *, front: Frequency | None,
        labels: Sequence[str] = (),
    ) -> Self:  # fmt: skip
        """Return the manifest of a network as planned."""
        spec = ClientSpec.of(network, plan.parameters)
        digest = None if front is None else sha256(front.to_json())
        made = cls(
            format=FORMAT, scheme="ckks", library=f"TenSEAL {backend.VERSION}",
            spec=sha256(spec.to_json()), front=digest, network=network.digest(),
            shape=network.shape, images=spec.packing.images, labels=tuple(labels),
            error_bound=plan.error_bound, failure_probability=plan.failure_probability,
            keys=int(1e6 * plan.keys_mb), query=plan.query_bytes, answer=plan.answer_bytes,
            head="server", share_results=SHARE_RESULTS, function_privacy=FUNCTION_PRIVACY,
            licence=NOTICE,
        )  # fmt: skip
        return cls.from_json(made.to_json())  # all that a reader checks

    @classmethod
    def from_json(cls, data: bytes) -> Self:
        """Read a manifest that came from outside.

        Raises
        ------
        MalformedMessage
            The bytes are not exactly what :meth:`to_json` of a valid manifest returns.
        UntrustedArtifact
            It is for another release of the library.
        """
        if len(data) > MAX_MANIFEST_BYTES:
            raise MalformedMessage(f"the manifest is longer than {MAX_MANIFEST_BYTES} bytes")
        try:
            manifest = msgspec.json.decode(data, type=cls, strict=True)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            raise MalformedMessage(f"the manifest is not valid: {error}") from error
        if manifest.to_json() != data:
            raise MalformedMessage("the manifest is not in canonical form")
        if manifest.library != f"TenSEAL {backend.VERSION}":
            raise UntrustedArtifact(
                f"the program is for {manifest.library}, here is TenSEAL {backend.VERSION}; make "
                "the bundles again with this version"
            )
        return manifest


@dataclass(frozen=True, eq=False)
class CkksPart:
    """What a client needs of a program: no weights.

    Attributes
    ----------
    manifest
        Says what the other two are, by digest.
    specification
        JSON of :class:`ClientSpec`.
    front
        Front-end specification, JSON; None if the client brings real numbers.

    Raises
    ------
    MalformedMessage
        The parts do not belong together.
    InsecureParameters
        The parameters are too weak.
    """

    manifest: CkksManifest
    specification: bytes
    front: bytes | None

    def __post_init__(self) -> None:
        front = None if self.front is None else sha256(self.front)
        if sha256(self.specification) != self.manifest.spec or front != self.manifest.front:
            raise MalformedMessage("specification or front end are not those of the manifest")
        spec, labels, own = self.spec, self.manifest.labels, self.frontend
        fits = (
            math.prod(self.manifest.shape) == spec.features
            and self.manifest.images == spec.packing.images
            and self.manifest.network == spec.network
            and len(labels) in (0, spec.classes)
            and ("" if own is None else own.digest()) == spec.front
            and (own is None or own.shape == self.manifest.shape)
        )
        if not fits:
            raise MalformedMessage("manifest, specification and front end contradict each other")
        if self.traffic.keys.most > _MAX_KEYS:
            raise MalformedMessage(
                f"the keys of this program could have {self.traffic.keys.most:,} bytes, the limit "
                f"is {_MAX_KEYS:,}; use fewer features or hidden units"
            )

    @property
    def id(self) -> str:
        """Id of the program."""
        return self.manifest.id

    @cached_property
    def spec(self) -> ClientSpec:
        """What a client's context takes."""
        return ClientSpec.from_json(self.specification)

    @cached_property
    def frontend(self) -> Frequency | None:
        """The front end, or None."""
        return None if self.front is None else Frequency.from_json(self.front)

    @property
    def traffic(self) -> Traffic:
        """Sizes of the program's messages."""
        parameters, steps = self.spec.parameters, len(self.spec.steps)
        keys = backend.keys_limit(parameters, steps) + backend.keys_limit(parameters, 1)
        one = Bounds(0, backend.ciphertext_limit(parameters))
        return Traffic(Bounds(0, keys), one, one)

    def prepare(self, images: Sequence[Photo] | NDArray[np.floating]) -> Floats:
        """Return real numbers (n, features) of images, cut to the limit of the network.

        Raises
        ------
        ParameterError
            No image, another shape, or values that are not finite.
        MalformedMessage, UnsupportedError
            A file cannot be read.
        """
        if not len(images):
            raise ParameterError("give at least one image")
        shape, limit = self.manifest.shape, self.spec.limit
        if self.frontend is not None:
            array: NDArray[np.floating] = self.frontend.batch(list(images))
        else:
            array = _numbers(images, shape)
        if not np.isfinite(array).all():
            raise ParameterError("images must be finite")
        flat = np.ascontiguousarray(array, np.float64).reshape(len(array), -1)
        return np.clip(flat, -limit, limit)

    def batches(self, x: Floats) -> list[Floats]:
        """Return images in batches, one for each query."""
        images = self.manifest.images
        return [x[first : first + images] for first in range(0, len(x), images)]

    def check(self, units: Sequence[Floats]) -> list[Floats]:
        """Return batches as they may be encrypted; the context checks the values once more."""
        for batch in units:
            if batch.ndim != 2 or not 1 <= len(batch) <= self.manifest.images:
                raise ParameterError(f"a batch has 1 to {self.manifest.images} images")
        return list(units)

    def to_bytes(self) -> bytes:
        """Return the part for the wire."""
        return joined(self.manifest.to_json(), self.specification, self.front or b"")

    @classmethod
    def from_bytes(cls, data: bytes) -> Self:
        """Read what a server sent.

        Raises
        ------
        MalformedMessage
            It is no such part.
        """
        manifest, specification, front = split(data)
        return cls(CkksManifest.from_json(manifest), specification, front or None)


def is_ckks(data: bytes) -> bool:
    """Return whether the client's part that a server sent is of a CKKS program."""
    try:
        tree = msgspec.json.decode(split(data)[0])
    except (MalformedMessage, msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return False
    return isinstance(tree, dict) and tree.get("scheme") == "ckks"


@dataclass(frozen=True, eq=False)
class CkksServer:
    """What a server needs of a program: weights as plain arrays, and no key.

    Raises
    ------
    MalformedMessage, Corrupt
        The parts do not belong together.
    """

    client: CkksPart
    description: bytes
    weights: bytes

    def __post_init__(self) -> None:
        if self.network.digest() != self.client.manifest.network:
            raise MalformedMessage("the network is not the one that the manifest names")

    @cached_property
    def network(self) -> PolynomialNetwork:
        """The network."""
        return network_of(self.description, self.weights, where=f"{DESCRIPTION} and {WEIGHTS}")

    @property
    def id(self) -> str:
        """Id of the program."""
        return self.client.id

    @property
    def traffic(self) -> Traffic:
        """Sizes of the program's messages."""
        return self.client.traffic

    def public(self) -> bytes:
        """Return the client's part for the wire."""
        return self.client.to_bytes()

    def computer(self, limits: Limits | None) -> ChildLauncher:
        """Return the process that computes, not yet started."""
        data = joined(self.client.specification, self.description, self.weights)
        duty = Duty(
            module=_MODULE, order=pipe.Load(0, sha256(data)), data=data, traffic=self.traffic
        )
        return ChildLauncher(duty, limits=self.limits() if limits is None else limits)

    def limits(self, *, threads: int = 1) -> Limits:
        """Return generous limits: room for three clients' keys and encoded weights."""
        spec, keys = self.client.spec, self.traffic.keys.most
        plaintext = 8 * spec.parameters.degree * (spec.parameters.depth + 1)
        products = sum(one.products for one in Circuit(self.network, spec.packing).maps)
        encoded = 2 * products * plaintext
        return Limits(
            memory_bytes=4 * _GIB + 8 * len(self.weights) + 12 * keys + encoded, cpu_s=_CPU_S,
            wall_s=4.0 * _CPU_S, threads=threads,
        )  # fmt: skip


def _numbers(
    images: Sequence[Photo] | NDArray[np.floating], shape: tuple[int, ...]
) -> NDArray[np.floating]:
    arrays = [one for one in images if isinstance(one, np.ndarray)]
    wrong = [a for a in arrays if a.shape != shape or a.dtype.kind not in "iuf"]
    if len(arrays) != len(images) or wrong:
        found = f", not {wrong[0].dtype} of shape {wrong[0].shape}" if wrong else ""
        raise ParameterError(
            "this program has no front end: give real numbers as .npy files of shape "
            f"{shape}{found}"
        )
    return np.stack(arrays)
