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

from privml.errors import ParameterError

KEY_BYTES: Final = 32
SUBKEY_BYTES: Final = 16


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
    def category(self) -> bytes:
        """Sub-key that turns category names into codes, 16 bytes."""
        return self._derive(b"privml.cat")

    def commitment(self) -> bytes:
        """Return 32 bytes that bind to the key and do not show it."""
        return hashlib.sha256(b"privml.forest.commitment" + self.master).digest()

    def text_digest(self, text: str) -> bytes:
        """Return the keyed 16-byte BLAKE2b of a text."""
        return hashlib.blake2b(text.encode(), key=self.identity, digest_size=16).digest()

    def category_hash(self, text: str) -> int:
        """Return 64 keyed bits of a category name."""
        return int.from_bytes(
            hashlib.blake2b(text.encode(), key=self.category, digest_size=8).digest(), "little"
        )

    def _derive(self, person: bytes) -> bytes:
        return hashlib.blake2b(key=self.master, digest_size=SUBKEY_BYTES, person=person).digest()

    def __repr__(self) -> str:
        return "ForestKey(<secret>)"
