"""CKKS by SEAL, through the bindings that TenSEAL ships; the one module that imports tenseal.

TenSEAL's own vectors and tensors are not used: adding a plain bias to an encrypted vector and then
multiplying by a matrix gives wrong numbers there without an error (upstream issue 462), they
replicate data by themselves, and their contexts put the secret key into serialised bytes unless
told otherwise. Here every plaintext has the full number of slots, and its scale and level are those
of the ciphertext it meets; SEAL raises where they differ. A secret key is written by
:meth:`Secret.to_bytes` alone, for the client's own disk; nothing on the server's side can read one.

SEAL is licensed MIT, TenSEAL Apache-2.0. SEAL draws its randomness from the operating system.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from functools import cache
from importlib import import_module, metadata
from types import ModuleType
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from privml.errors import InsecureParameters, MalformedMessage, UnsupportedError, internal
from privml.protocols.he.evaluate import Evaluator
from privml.protocols.he.parameters import CkksParameters

VERSION: Final = "0.3.18"
"""The release of tenseal whose behaviour the tests of this package cover."""

ENVELOPE_BYTES: Final = 4096
_HEADER: Final = b"\x5e\xa1\x10"  # magic and size of the header; bytes 8 to 15 are the length
_INSTALL: Final = "install it with `pip install 'privml[he]'`, or use mode='clear'"

Floats = NDArray[np.float64]
Handle = Any
"""An object of SEAL; its bindings have no types."""


def missing() -> str | None:
    """Return why CKKS cannot be used in this environment, or None. Imports nothing."""
    try:
        found = metadata.version("tenseal")
    except metadata.PackageNotFoundError:
        return f"tenseal is not installed; {_INSTALL}"
    if found != VERSION:
        return f"tenseal {found} is installed, but {VERSION} is needed; {_INSTALL}"
    return None


@cache
def _seal() -> ModuleType:
    reason = missing()
    if reason is not None:
        raise UnsupportedError(reason)
    return import_module("tenseal.sealapi")


class Scheme:
    """Public part: context and encoder of one parameter set.

    Raises
    ------
    InsecureParameters
        SEAL refuses the parameters.
    UnsupportedError
        tenseal is missing.
    """

    def __init__(self, parameters: CkksParameters) -> None:
        seal = _seal()
        self.parameters = parameters
        made = seal.EncryptionParameters(seal.SCHEME_TYPE.CKKS)
        made.set_poly_modulus_degree(parameters.degree)
        primes = seal.CoeffModulus.Create(parameters.degree, list(parameters.prime_bits))
        made.set_coeff_modulus(primes)
        self.primes: tuple[int, ...] = tuple(int(prime.value()) for prime in primes)
        self.context: Handle = seal.SEALContext(made, True, seal.SEC_LEVEL_TYPE.TC128)
        if not self.context.parameters_set():
            raise InsecureParameters(
                f"SEAL refuses the parameters: {self.context.parameters_error_message()}"
            )
        self.encoder: Handle = seal.CKKSEncoder(self.context)
        self.scale = 2.0**parameters.scale_bits
        self.levels: list[Handle] = _chain(self.context, parameters.depth)

    def encode(self, slots: Floats, *, level: int, scale: float) -> Handle:
        """Return a plaintext of all slots at a level and scale."""
        internal(slots.shape == (self.parameters.slots,), "a plaintext has all slots")
        plain = _seal().Plaintext()
        # A list of Python numbers: the memory layout of an array never reaches the library.
        values = np.asarray(slots, np.float64).tolist()
        self.encoder.encode(values, self.levels[level], scale, plain)
        return plain

    def decode(self, plain: Handle) -> Floats:
        """Return all slots of a plaintext."""
        return np.asarray(self.encoder.decode_double(plain), np.float64)

    def level_of(self, x: Handle) -> int:
        """Return the rescalings left to a ciphertext."""
        return int(self.levels.index(list(x.parms_id())))

    def read_ciphertext(self, data: bytes, *, limit: int) -> Handle:
        """Return a ciphertext of bytes from outside, checked against the parameters.

        Raises
        ------
        MalformedMessage
            They are none of these parameters: wrong length, form, size, level or scale.
        """
        found = _read(_seal().Ciphertext, self.context, data, limit=limit, what="a ciphertext")
        if (
            found.size() != 2
            or not found.is_ntt_form()
            or list(found.parms_id()) not in self.levels
        ):
            raise MalformedMessage("the ciphertext is not one of this program's")
        return found


class Secret:
    """A secret key; it ends with this object, unless its owner keeps :meth:`to_bytes`.

    Parameters
    ----------
    scheme
        Its parameters.
    data
        A key that :meth:`to_bytes` returned, from the owner's own disk; drawn if None.

    Raises
    ------
    MalformedMessage
        ``data`` is no secret key of these parameters.
    """

    def __init__(self, scheme: Scheme, data: bytes | None = None) -> None:
        seal = _seal()
        self._scheme = scheme
        if data is None:
            self._keygen: Handle = seal.KeyGenerator(scheme.context)
        else:
            limit = scheme.parameters.degree * 8 * (scheme.parameters.depth + 2) + ENVELOPE_BYTES
            own = _read(seal.SecretKey, scheme.context, data, limit=limit, what="the secret key")
            self._keygen = seal.KeyGenerator(scheme.context, own)
        key = self._keygen.secret_key()
        self._encryptor: Handle = seal.Encryptor(scheme.context, key)
        self._decryptor: Handle = seal.Decryptor(scheme.context, key)

    def __repr__(self) -> str:
        return "Secret(hidden)"

    def to_bytes(self) -> bytes:
        """Return the key for its owner's own disk. Never send it."""
        return _bytes(self._keygen.secret_key())

    def evaluation_keys(self, steps: Iterable[int]) -> tuple[bytes, bytes]:
        """Return keys for squares and for rotations by ``steps``; they cannot decrypt."""
        degree = self._scheme.parameters.degree
        elements = [pow(3, step, 2 * degree) for step in sorted(steps)]
        relin = self._keygen.create_relin_keys()
        galois = self._keygen.create_galois_keys(elements)
        return _bytes(relin), _bytes(galois) if elements else b""

    def encrypt(self, slots: Floats) -> bytes:
        """Return a fresh ciphertext of all slots, one half of it as a seed."""
        scheme = self._scheme
        plain = scheme.encode(slots, level=scheme.parameters.depth, scale=scheme.scale)
        return _bytes(self._encryptor.encrypt_symmetric(plain))

    def decrypt(self, data: bytes, *, limit: int) -> Floats:
        """Return the slots of an answer."""
        answer = self._scheme.read_ciphertext(data, limit=limit)
        plain = _seal().Plaintext()
        self._decryptor.decrypt(answer, plain)
        return self._scheme.decode(plain)


class SealEvaluator(Evaluator[Handle, Handle]):
    """Evaluation on ciphertexts with one client's keys.

    Raises
    ------
    MalformedMessage
        The keys are damaged, too long, or of other parameters.
    """

    def __init__(self, scheme: Scheme, relin: bytes, galois: bytes, *, limit: int) -> None:
        seal = _seal()
        self.scheme = scheme
        self._evaluator: Handle = seal.Evaluator(scheme.context)
        self._relin: Handle = _read(
            seal.RelinKeys, scheme.context, relin, limit=limit, what="relinearisation keys"
        )
        self._galois: Handle = seal.GaloisKeys()
        if galois:
            self._galois = _read(
                seal.GaloisKeys, scheme.context, galois, limit=limit, what="rotation keys"
            )

    def lacks(self, steps: Iterable[int]) -> list[int]:
        """Return the rotations without a key."""
        twice = 2 * self.scheme.parameters.degree
        return [step for step in sorted(steps) if not self._galois.has_key(pow(3, step, twice))]

    def prepare(self, slots: Floats, *, level: int) -> Handle:
        """Return a plaintext whose scale is the prime that the rescaling after it drops."""
        return self.scheme.encode(slots, level=level, scale=float(self.scheme.primes[level]))

    def rotate(self, x: Handle, steps: int) -> Handle:
        """Return the rotated ciphertext."""
        result = _seal().Ciphertext()
        self._evaluator.rotate_vector(x, steps, self._galois, result)
        return result

    def multiply(self, x: Handle, clear: Handle) -> Handle:
        """Return the product; SEAL raises if it would carry nothing (all slots zero)."""
        result = _seal().Ciphertext()
        self._evaluator.multiply_plain(x, clear, result)
        return result

    def add(self, x: Handle, y: Handle) -> Handle:
        """Return the sum."""
        result = _seal().Ciphertext()
        self._evaluator.add(x, y, result)
        return result

    def add_clear(self, x: Handle, slots: Floats) -> Handle:
        """Return the sum with slots encoded at the very scale and level of x."""
        plain = self.scheme.encode(slots, level=self.scheme.level_of(x), scale=x.scale)
        result = _seal().Ciphertext()
        self._evaluator.add_plain(x, plain, result)
        return result

    def rescale(self, x: Handle) -> Handle:
        """Drop a prime."""
        result = _seal().Ciphertext()
        self._evaluator.rescale_to_next(x, result)
        return result

    def square(self, x: Handle) -> Handle:
        """Return the relinearised square."""
        result = _seal().Ciphertext()
        self._evaluator.square(x, result)
        self._evaluator.relinearize_inplace(result, self._relin)
        return result

    def write(self, x: Handle) -> bytes:
        """Return a ciphertext as bytes."""
        return _bytes(x)


def ciphertext_limit(parameters: CkksParameters) -> int:
    """Return the most bytes of one ciphertext of these parameters."""
    return 2 * parameters.degree * 8 * (parameters.depth + 1) + ENVELOPE_BYTES


def keys_limit(parameters: CkksParameters, steps: int) -> int:
    """Return the most bytes of one key object with ``steps`` keys."""
    primes = parameters.depth + 2
    one = (primes - 1) * 2 * parameters.degree * 8 * primes + ENVELOPE_BYTES
    return (steps + 1) * one + 16 * parameters.degree


def _chain(context: Handle, depth: int) -> list[Handle]:
    """Return identifiers of the levels, from no rescaling left to ``depth``."""
    found = []
    data = context.first_context_data()
    for _ in range(depth + 1):
        found.append(list(data.parms_id()))
        data = data.next_context_data()
    return found[::-1]


def _bytes(thing: Handle) -> bytes:
    """Return what SEAL writes of an object; it knows only files, so it gets one in memory."""
    memory = os.memfd_create("privml-he")
    try:
        thing.save(f"/proc/self/fd/{memory}")
        size = os.fstat(memory).st_size
        parts, at = [], 0
        while at < size:
            parts.append(os.pread(memory, size - at, at))
            at += len(parts[-1])
        return b"".join(parts)
    finally:
        os.close(memory)


def _read(kind: Any, context: Handle, data: bytes, *, limit: int, what: str) -> Handle:  # noqa: ANN401
    """Return an object read from bytes of outside; SEAL checks it against the parameters."""
    if not 0 < len(data) <= limit:
        raise MalformedMessage(f"{what}: {len(data)} bytes where up to {limit} are expected")
    if data[:3] != _HEADER or int.from_bytes(data[8:16], "little") != len(data):
        raise MalformedMessage(f"{what}: the bytes do not begin and end as SEAL writes them")
    found = kind()
    memory = os.memfd_create("privml-he")
    try:
        view = memoryview(data)
        while view:
            view = view[os.write(memory, view) :]
        found.load(context, f"/proc/self/fd/{memory}")
    except (RuntimeError, ValueError) as error:
        raise MalformedMessage(f"{what}: the bytes are damaged or of other parameters") from error
    finally:
        os.close(memory)
    return found
