"""Evidence of one deletion."""

from __future__ import annotations

import hashlib
from typing import Final, Protocol, Self

import msgspec
import numpy as np
import rfc8785

from privml.errors import Corrupt
from privml.unlearning.forest.ids import Records
from privml.unlearning.forest.keys import ForestKey

FORMAT: Final = "privml-forest-certificate/1"
ALGORITHM: Final = "dynforest/1"
GUARANTEE: Final = (
    "every tree is bit-identical to a fresh fit on the remaining rows with the same key and "
    "hyper-parameters"
)
CONDITION: Final = (
    "requests do not depend on what the model answered; transforms and choices made outside the "
    "model did not use the deleted rows; earlier copies and files are destroyed by their holders"
)


class Evidence(Protocol):
    """A model that can be compared with a certificate."""

    def verify(self, certificate: Certificate) -> tuple[str, ...]:
        """Return what contradicts the certificate."""


class Certificate(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What one call of ``unlearn`` did.

    Attributes
    ----------
    version_before, version_after
        Versions of the model; equal if no id was named, for then nothing was changed.
    id_hashes
        Keyed hashes of the forgotten ids, hex, in the order of the request.
    rows_before, rows_after
        Living rows.
    classes_before, classes_after
        Size of the class list; 0 for regression.
    trees_visited, nodes_changed, tags_set
        Work done: trees counted once per row, nodes with a new decision, decisions put off.
    bytes_scrubbed, bytes_pending
        Memory overwritten so far, and freed memory that ``purge()`` will overwrite.
    key_commitment
        Hash that binds to the key, hex.
    parameters_digest
        Hash of the hyper-parameters and declared columns, hex.
    state_digest
        Digest of the model after the deletion, hex, if it was asked for.
    persisted
        Whether a file without the rows was saved durably afterwards; set by the service.
    """

    version_before: int
    version_after: int
    id_hashes: tuple[str, ...]
    rows_before: int
    rows_after: int
    classes_before: int
    classes_after: int
    trees_visited: int
    nodes_changed: int
    tags_set: int
    bytes_scrubbed: int
    bytes_pending: int
    key_commitment: str
    parameters_digest: str
    state_digest: str | None = None
    persisted: bool = False
    format: str = FORMAT
    algorithm: str = ALGORITHM
    guarantee: str = GUARANTEE
    condition: str = CONDITION

    def to_json(self) -> bytes:
        """Return canonical JSON (RFC 8785): no raw id, no duration."""
        return rfc8785.dumps(msgspec.to_builtins(self))

    @classmethod
    def from_json(cls, data: bytes | str) -> Self:
        """Return the certificate that :meth:`to_json` wrote.

        Raises
        ------
        Corrupt
            The text is no certificate of this format. A certificate carries no signature: that it
            is well formed does not say who wrote it.
        """
        try:
            read = msgspec.json.decode(data, type=cls)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            raise Corrupt(f"this is no certificate of a deletion: {error}") from error
        if read.format != FORMAT:
            raise Corrupt(f"the certificate is not of the format {FORMAT}; update privml")
        return read

    def verify(self, model: Evidence) -> tuple[str, ...]:
        """Compare with a model, loaded or live.

        Returns
        -------
        tuple of str
            What contradicts the certificate, one line each; empty if nothing does. See
            ``DynForestClassifier.verify`` for what is compared.
        """
        return model.verify(self)

    def as_persisted(self) -> Self:
        """Return the same certificate, marked as durably saved."""
        return msgspec.structs.replace(self, persisted=True)


def id_hashes(records: Records, key: ForestKey) -> tuple[str, ...]:
    """Return the keyed hash of each id record, 32 hex digits each."""
    if not len(records):
        return ()
    secret, size = key.identity, 8 * records.shape[1]
    raw = np.ascontiguousarray(records, dtype="<u8").data.cast("B")  # slices do not copy
    return tuple([_hash(raw[at : at + size], secret) for at in range(0, len(raw), size)])


def _hash(record: memoryview, secret: bytes) -> str:
    maker = hashlib.blake2b(record, key=secret, digest_size=16, person=b"privml.receipt")
    return maker.hexdigest()
