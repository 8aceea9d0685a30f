"""Randomness: keyed AES-CTR streams for secrets, reproducible seeds for experiments.

Two types that do not mix. :class:`Csprng` gives secret ring words: AES-128 in counter mode under
keys that HKDF-SHA256 derives from 32 bytes, the whole ring, no modulo and no upper bound.
:class:`ScienceSeed` seeds numpy generators for training and sampling; it is refused where a
:class:`Csprng` key is asked for. This is the only module that makes randomness for shares.
"""

from __future__ import annotations

import hashlib
import os
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final, NoReturn, TypeAlias

import numpy as np
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDFExpand
from numpy.typing import DTypeLike, NDArray

from privml import _native
from privml.errors import InsecureRandomness, ParameterError, SecurityError

Generator: TypeAlias = np.random.Generator
"""Type of what :meth:`ScienceSeed.generator` returns, for annotations."""

KEY_BYTES: Final = 32
_BLOCK: Final = 16
_RANGE: Final = 1 << 64
_SEED_BITS: Final = 128


def aes_ctr(key: bytes, nonce: int, nbytes: int, *, block0: int = 0) -> NDArray[np.uint8]:
    """Return AES-128-CTR keystream.

    Counter block ``i`` is ``nonce`` (64 bit, big-endian) followed by ``block0 + i`` (64 bit,
    big-endian). The native kernel (AES-NI, VAES) and the ``cryptography`` twin agree bit for bit.

    Parameters
    ----------
    key
        16 bytes.
    nonce
        Stream number, 0 <= nonce < 2^64; never used twice for different purposes under one key.
    nbytes
        Length of the result.
    block0
        Number of the first 16-byte block, for random access.

    Returns
    -------
    ndarray
        (nbytes,) uint8, a new writable array.

    Raises
    ------
    ParameterError
        Key length, nonce, length or block range do not fit.
    """
    if len(key) != _BLOCK:
        raise ParameterError(f"an AES-128 key has {_BLOCK} bytes, got {len(key)}")
    if not 0 <= nonce < _RANGE:
        raise ParameterError("the stream nonce must lie in [0, 2^64)")
    if nbytes < 0 or block0 < 0 or block0 + -(-nbytes // _BLOCK) > _RANGE:
        raise ParameterError("keystream length and first block must stay within 2^64 blocks")
    library = _native.load()
    if library is None or not _native.features() & _native.AESNI:
        return ref_aes_ctr(key, nonce, nbytes, block0=block0)
    out = np.empty(nbytes, dtype=np.uint8)
    code = library.privml_aes128_ctr(
        _native.isa_level(), key, nonce, block0, _native.address(out), nbytes
    )
    _native.check(code, "aes_ctr")
    return out


def ref_aes_ctr(key: bytes, nonce: int, nbytes: int, *, block0: int = 0) -> NDArray[np.uint8]:
    """Return the keystream of :func:`aes_ctr` through the ``cryptography`` package."""
    start = nonce.to_bytes(8, "big") + block0.to_bytes(8, "big")
    out = np.zeros(nbytes, dtype=np.uint8)
    encryptor = Cipher(algorithms.AES(key), modes.CTR(start)).encryptor()
    if nbytes:
        encryptor.update_into(np.zeros(nbytes, dtype=np.uint8).data, out.data)
    return out


class Csprng:
    """Deterministic random bit generator for secrets, keyed with 32 bytes.

    Parameters
    ----------
    key
        32 secret uniform bytes.

    Raises
    ------
    ParameterError
        The key is not 32 bytes long.
    InsecureRandomness
        A :class:`ScienceSeed` or another non-bytes value is offered as key, or the object is
        used in a forked child process.

    Notes
    -----
    ``words`` and ``child`` are pure functions of the key and their arguments. ``token`` advances
    a counter. The object cannot be pickled or copied into another process.
    """

    __slots__ = ("_key", "_lock", "_pid", "_stream", "_token_count", "_token_key")

    def __init__(self, key: bytes) -> None:
        if not isinstance(key, bytes):
            raise InsecureRandomness(
                f"a Csprng is keyed with {KEY_BYTES} secret bytes, not {type(key).__name__}; "
                "use Csprng.fresh() or Csprng.child()"
            )
        if len(key) != KEY_BYTES:
            raise ParameterError(f"a Csprng key has {KEY_BYTES} bytes, got {len(key)}")
        self._key = key
        self._pid = os.getpid()
        self._stream = _expand(key, b"stream", _BLOCK)
        self._token_key = _expand(key, b"token", _BLOCK)
        self._token_count = 0
        self._lock = threading.Lock()

    @classmethod
    def fresh(cls) -> Csprng:
        """Return a generator keyed from the operating system's entropy."""
        return cls(os.urandom(KEY_BYTES))

    def child(self, *labels: str | int) -> Csprng:
        """Return the generator that belongs to ``labels``, independent of all others.

        Parameters
        ----------
        labels
            At least one text or integer; their sequence is encoded without ambiguity.
        """
        self._check_process()
        return Csprng(_expand(self._key, b"child" + _encode(labels), KEY_BYTES))

    def words(
        self, shape: int | tuple[int, ...], nonce: int, dtype: DTypeLike = np.uint64
    ) -> NDArray[Any]:
        """Return uniform ring words: the head of keystream ``nonce``, little-endian.

        Parameters
        ----------
        shape
            Shape of the result.
        nonce
            Stream number, 0 <= nonce < 2^64. The same (key, nonce) gives the same words.
        dtype
            An unsigned integer type.

        Returns
        -------
        ndarray
            ``shape``, ``dtype``, uniform over the whole range, writable.

        Raises
        ------
        ParameterError
            ``dtype`` is not an unsigned integer type or ``nonce`` is out of range.
        """
        self._check_process()
        kind = np.dtype(dtype).newbyteorder("<")
        if kind.kind != "u":
            raise ParameterError(f"ring words are unsigned integers, not {kind}")
        dims = (shape,) if isinstance(shape, int) else tuple(shape)
        if any(d < 0 for d in dims):
            raise ParameterError(f"shape {dims} has a negative axis")
        count = 1
        for d in dims:
            count *= d
        return aes_ctr(self._stream, nonce, count * kind.itemsize).view(kind).reshape(dims)

    def token(self, n: int) -> bytes:
        """Return the next ``n`` bytes of the token stream; every call gives new ones."""
        self._check_process()
        with self._lock:
            nonce, self._token_count = self._token_count, self._token_count + 1
        return aes_ctr(self._token_key, nonce, n).tobytes()

    def _check_process(self) -> None:
        if os.getpid() != self._pid:
            raise InsecureRandomness(
                "a Csprng crossed a fork and would repeat its stream; key a new one in the child"
            )

    def __repr__(self) -> str:
        return "Csprng(<secret>)"

    def __reduce__(self) -> NoReturn:
        raise SecurityError("a Csprng holds a key and is never serialised or copied")


@dataclass(frozen=True)
class ScienceSeed:
    """Seed for reproducible experiments; never a source of secrets.

    Attributes
    ----------
    value
        0 <= value < 2^128.

    Raises
    ------
    ParameterError
        ``value`` is out of range.
    """

    value: int

    def __post_init__(self) -> None:
        if not 0 <= self.value < 1 << _SEED_BITS:
            raise ParameterError(f"a science seed lies in [0, 2^{_SEED_BITS})")

    def child(self, *labels: str | int) -> ScienceSeed:
        """Return the seed that belongs to ``labels`` (text or integers, at least one)."""
        data = b"privml science" + self.value.to_bytes(_SEED_BITS // 8, "big") + _encode(labels)
        return ScienceSeed(int.from_bytes(hashlib.sha256(data).digest()[: _SEED_BITS // 8], "big"))

    def generator(self) -> np.random.Generator:
        """Return a new numpy generator (PCG64) started at this seed."""
        return np.random.Generator(np.random.PCG64(self.value))


def _expand(key: bytes, info: bytes, length: int) -> bytes:
    return HKDFExpand(algorithm=SHA256(), length=length, info=b"privml " + info).derive(key)


def _encode(labels: Sequence[str | int]) -> bytes:
    """Encode labels so that no two different sequences give the same bytes."""
    if not labels:
        raise ParameterError("give at least one label")
    parts = [len(labels).to_bytes(4, "big")]
    for label in labels:
        tag, text = (b"s", label) if isinstance(label, str) else (b"i", str(int(label)))
        data = text.encode()
        parts += [tag, len(data).to_bytes(4, "big"), data]
    return b"".join(parts)
