"""The key of a forest: all its randomness, and the only secret it has.

From 32 bytes K come four sub-keys by BLAKE2b: one assigns rows to trees, one keys the nodes of the
trees, one hashes textual ids and the ids in certificates, one turns category names into codes.
"""

from __future__ import annotations

import hashlib
import os
from dataclasses import dataclass
from functools import cached_property
from typing import Final

import numpy as np

from privml.errors import ParameterError, SchemaError

KEY_BYTES: Final = 32
SUBKEY_BYTES: Final = 16


@dataclass(frozen=True, repr=False)
class CategoryKey:
    """The part of a forest's key that answering needs: it hashes category names.

    Attributes
    ----------
    secret
        16 bytes.
    """

    secret: bytes

    def hash(self, text: str) -> int:
        """Return 64 keyed bits of a category name."""
        digest = hashlib.blake2b(text.encode(), key=self.secret, digest_size=8).digest()
        return int.from_bytes(digest, "little")

    def __repr__(self) -> str:
        return "CategoryKey(<secret>)"


@dataclass(frozen=True, repr=False)
class ForestKey:
    """The 32-byte master key K; shown redacted and compared by value.

    Attributes
    ----------
    master
        32 bytes, uniform and secret unless the model is a reproducible experiment.

    Raises
    ------
    ParameterError
        ``master`` is not 32 bytes.
    """

    master: bytes

    def __post_init__(self) -> None:
        if len(self.master) != KEY_BYTES:
            raise ParameterError(
                f"a forest key is {KEY_BYTES} bytes; use ForestKey.fresh() or leave key=None"
            )

    @classmethod
    def fresh(cls) -> ForestKey:
        """Return a secret key from the operating system's entropy."""
        return cls(os.urandom(KEY_BYTES))

    @classmethod
    def from_seed(cls, seed: int) -> ForestKey:
        """Return the key that belongs to a public integer: reproducible and **not secret**."""
        return cls(hashlib.sha256(b"privml.forest.seed" + str(int(seed)).encode()).digest())

    @cached_property
    def occurrence(self) -> bytes:
        """Sub-key that assigns rows to trees, 16 bytes."""
        return self._derive(b"privml.occ")

    @cached_property
    def tree(self) -> bytes:
        """Sub-key of the nodes, 16 bytes."""
        return self._derive(b"privml.tree")

    @cached_property
    def identity(self) -> bytes:
        """Sub-key that hashes textual ids and the ids in certificates, 16 bytes."""
        return self._derive(b"privml.id")

    @cached_property
    def category(self) -> CategoryKey:
        """Sub-key that turns category names into codes."""
        return CategoryKey(self._derive(b"privml.cat"))

    def commitment(self) -> bytes:
        """Return 32 bytes that bind to the key and do not show it."""
        return hashlib.sha256(b"privml.forest.commitment" + self.master).digest()

    def text_digest(self, text: str) -> bytes:
        """Return the keyed 16-byte BLAKE2b of a text."""
        return hashlib.blake2b(text.encode(), key=self.identity, digest_size=16).digest()

    def _derive(self, person: bytes) -> bytes:
        return hashlib.blake2b(key=self.master, digest_size=SUBKEY_BYTES, person=person).digest()

    def __repr__(self) -> str:
        return "ForestKey(<secret>)"


def resolve_key(key: object, random_state: object) -> ForestKey:
    """Return the key that the constructor arguments of an estimator stand for.

    Raises
    ------
    SchemaError
        ``key`` is no key, or ``random_state`` is neither None nor an integer.
    """
    if isinstance(key, ForestKey):
        return key
    if isinstance(key, bytes) and len(key) == KEY_BYTES:
        return ForestKey(key)
    if key is not None:
        raise SchemaError(f"key must be None, {KEY_BYTES} bytes or the key_ of another forest")
    if random_state is None:
        return ForestKey.fresh()
    if isinstance(random_state, int | np.integer):
        return ForestKey.from_seed(int(random_state))
    raise SchemaError("random_state must be None or an integer; generators have no fixed key")
