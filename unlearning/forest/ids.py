"""Row ids: 64-bit integers or texts, turned into the three-word records of the forest.

An integer id gives ``(0, two's complement, 0)``, a text ``(1, low, high)`` with the keyed 16-byte
BLAKE2b of its UTF-8; a UUID is its text. So ``7`` and ``"7"`` are different ids, and no textual id
is ever stored.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final, TypeAlias
from uuid import UUID

import numpy as np
from numpy.typing import NDArray

from privml.errors import DuplicateIdError, SchemaError
from privml.unlearning.forest.keys import ForestKey
from privml.unlearning.forest.scrub import wipe

INTEGER: Final = 0
TEXT: Final = 1
_MASK: Final = (1 << 64) - 1
_INTEGERS: Final = (int, np.integer)
_NO_INTEGERS: Final = (bool, np.timedelta64)
_LOW, _HIGH = -(1 << 63), (1 << 63) - 1
_KINDS: Final = "an id is a signed integer of 64 bits, a text or a UUID"
_SHOWN: Final = 5

Records: TypeAlias = NDArray[np.uint64]
"""(n, 3) uint64: type, low word, high word."""


def encode_ids(ids: Iterable[Any], key: ForestKey) -> Records:
    """Return the records of ``ids``, in the order given.

    Parameters
    ----------
    ids
        A list, array, set or index of integers (-2^63 .. 2^63 - 1), texts and UUIDs (each the
        same id as its ``str``), mixed if need be.
    key
        Key of the forest.

    Returns
    -------
    ndarray
        (n, 3) uint64.

    Raises
    ------
    SchemaError
        A single id instead of a collection, an id of another type or out of range.
    """
    if isinstance(ids, np.ndarray) and ids.dtype.kind in "iu":
        if isinstance(ids, np.ma.MaskedArray) and np.ma.is_masked(ids):
            raise SchemaError("ids has masked values; take ids.compressed()")
        return _integer_records(ids)
    values = ids if isinstance(ids, list) else _listed(ids)
    records = np.empty((len(values), 3), dtype=np.uint64)
    for i, value in enumerate(values):
        records[i, 0], records[i, 1], records[i, 2] = _record(value, key)
    return records


def default_ids(n: int) -> Records:
    """Return the records of the ids 0..n-1."""
    return _integer_records(np.arange(n))


def require_distinct(records: Records) -> None:
    """Raise :class:`DuplicateIdError` if a record occurs twice."""
    repeated = repeats(records)
    if len(repeated):
        raise DuplicateIdError(repeated_message(repeated, len(records)))


def repeats(records: Records) -> NDArray[np.intp]:
    """Return the positions of records that stand earlier in the request as well, sorted."""
    if len(records) < 2:
        return np.zeros(0, dtype=np.intp)
    place = order(records)  # stable, so of equal records the first one comes first
    ordered = records[place]
    again = np.flatnonzero((ordered[1:] == ordered[:-1]).all(axis=1)) + 1
    wipe(ordered)
    return np.sort(place[again])


def repeated_message(repeated: NDArray[np.intp], n: int) -> str:
    """Return the message about a request of ``n`` ids that names some twice."""
    return (
        f"the id at {positions(repeated)} of {n} was named before in the same request; give each "
        "once. Nothing was changed"
    )


def positions(where: NDArray[np.intp]) -> str:
    """Return positions, counted from 0, as messages show them; never the ids themselves."""
    shown = ", ".join(map(str, where[:_SHOWN].tolist()))
    more = f" and {len(where) - _SHOWN} more" if len(where) > _SHOWN else ""
    return f"position{'s' if len(where) > 1 else ''} {shown}{more}"


def order(records: Records) -> NDArray[np.intp]:
    """Return the positions that sort records by (type, high word, low word)."""
    return np.lexsort((records[:, 1], records[:, 2], records[:, 0]))


def decode_ids(records: Records) -> NDArray[Any]:
    """Return readable ids: integers as int64; a text, which is not kept, as ``"#"`` and its hash.

    Returns
    -------
    ndarray
        (n,) int64, or object if a textual id occurs.
    """
    integers = records[:, 1].astype(np.int64)
    if not len(records) or not records[:, 0].any():
        return integers
    mixed = [
        int(number) if kind == INTEGER else f"#{high:016x}{low:016x}"
        for number, (kind, low, high) in zip(integers.tolist(), records.tolist(), strict=True)
    ]
    return np.array(mixed, dtype=object)


def _integer_records(values: NDArray[Any]) -> Records:
    if values.ndim != 1:
        raise SchemaError(f"ids is one-dimensional, got shape {values.shape}")
    if values.dtype.kind == "u" and len(values) and int(values.max()) > _HIGH:
        raise SchemaError(f"{_KINDS}; an unsigned one exceeds 2^63 - 1, give ids as texts")
    records = np.zeros((len(values), 3), dtype=np.uint64)
    records[:, 1].view(np.int64)[:] = values
    return records


def _listed(ids: Iterable[Any]) -> list[Any]:
    single = isinstance(ids, str | bytes | bytearray | memoryview) or not isinstance(ids, Iterable)
    if single or (isinstance(ids, np.ndarray) and ids.ndim == 0):
        raise SchemaError(f"ids is a list of ids, not one {type(ids).__name__}; write [id]")
    if isinstance(ids, Mapping) or hasattr(ids, "columns"):
        raise SchemaError(f"ids is a list of ids, not a {type(ids).__name__}; name the ids alone")
    return list(ids)


def _record(value: object, key: ForestKey) -> tuple[int, int, int]:
    if isinstance(value, _INTEGERS) and not isinstance(value, _NO_INTEGERS):
        if not _LOW <= value <= _HIGH:
            raise SchemaError(f"{_KINDS}; one is below -2^63 or above 2^63 - 1, give it as a text")
        return INTEGER, int(value) & _MASK, 0
    if isinstance(value, UUID):
        value = str(value)
    if isinstance(value, str):
        if not value:
            raise SchemaError(f"{_KINDS}; one is the empty text")
        try:
            digest = key.text_digest(value)
        except UnicodeEncodeError:
            raise SchemaError(f"{_KINDS}; one is no valid Unicode text") from None
        return TEXT, int.from_bytes(digest[:8], "little"), int.from_bytes(digest[8:], "little")
    raise SchemaError(f"{_KINDS}, not {type(value).__name__}")
