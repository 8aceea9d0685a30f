"""Frames between privml and its worker: strict JSON and raw arrays, bounded before they are read.

A frame is ``<4sBBHIQ`` (magic, version, zero, number of arrays, bytes of JSON, bytes of arrays), a
JSON object, then the arrays one after the other, little-endian and row by row. The key ``arrays``
of the object lists name, type and shape of each. Types are float64, int64 and bytes. Nothing in a
frame names code or classes. This file is loaded by both sides and needs only numpy.
"""

from __future__ import annotations

import json
import math
import struct
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, NoReturn, TypeAlias

import numpy as np
from numpy.typing import NDArray

Array: TypeAlias = NDArray[Any]
Read: TypeAlias = Callable[[int], bytes]

MAGIC: Final = b"PVCM"
VERSION: Final = 1
HEAD: Final = struct.Struct("<4sBBHIQ")
MAX_JSON_BYTES: Final = 1 << 20
MAX_ARRAYS: Final = 4096
MAX_AXES: Final = 4
MAX_PAYLOAD_BYTES: Final = 1 << 32
_TYPES: Final[dict[str, np.dtype[Any]]] = {
    "f8": np.dtype("<f8"),
    "i8": np.dtype("<i8"),
    "u1": np.dtype("u1"),
}
_ENTRY: Final = 3


class FrameError(ValueError):
    """Bytes are no frame, or a frame is larger than allowed."""


@dataclass(frozen=True)
class Frame:
    """One message: JSON fields and named arrays."""

    fields: Mapping[str, Any]
    arrays: Mapping[str, Array] = field(default_factory=dict)


def encode(frame: Frame) -> list[bytes | memoryview]:
    """Return the buffers of a frame, to be written in order.

    Raises
    ------
    FrameError
        An array has another type than float64, int64 or uint8, or something is too large.
    """
    listed, buffers = [], []
    for name, array in frame.arrays.items():
        code = next((c for c, dtype in _TYPES.items() if array.dtype == dtype), None)
        if code is None or array.ndim > MAX_AXES:
            raise FrameError(f"{name}: an array of {array.dtype} and {array.ndim} axes is not sent")
        listed.append([name, code, list(array.shape)])
        whole = np.ascontiguousarray(array, _TYPES[code])
        buffers.append(whole.reshape(-1).view(np.uint8).data)
    try:
        text = json.dumps({**frame.fields, "arrays": listed}, allow_nan=False).encode("ascii")
    except (TypeError, ValueError) as error:
        raise FrameError(f"the fields are no JSON: {error}") from error
    size = sum(buffer.nbytes for buffer in buffers)
    if len(text) > MAX_JSON_BYTES or len(listed) > MAX_ARRAYS or size > MAX_PAYLOAD_BYTES:
        raise FrameError(f"a frame of {len(text)} + {size} bytes is larger than allowed")
    return [HEAD.pack(MAGIC, VERSION, 0, len(listed), len(text), size), text, *buffers]


def decode(read: Read, *, limit: int) -> Frame:
    """Read one frame.

    Parameters
    ----------
    read
        Returns exactly the number of bytes asked for, or raises.
    limit
        Most bytes of arrays to accept; checked before they are read.

    Raises
    ------
    FrameError
        The bytes are no frame.
    """
    magic, version, zero, count, json_bytes, payload = HEAD.unpack(read(HEAD.size))
    if magic != MAGIC or version != VERSION or zero:
        raise FrameError("these bytes are no frame of this version")
    if json_bytes > MAX_JSON_BYTES or count > MAX_ARRAYS or payload > min(limit, MAX_PAYLOAD_BYTES):
        raise FrameError(f"a frame of {json_bytes} + {payload} bytes is larger than allowed")
    fields = _parse(read(json_bytes))
    shapes = _listed(fields.pop("arrays", None), count)
    if sum(math.prod(shape) * dtype.itemsize for _, dtype, shape in shapes) != payload:
        raise FrameError("the arrays do not fill the frame")
    arrays: dict[str, Array] = {}
    for name, dtype, shape in shapes:
        raw = read(math.prod(shape) * dtype.itemsize)
        arrays[name] = np.frombuffer(raw, dtype).reshape(shape)
    return Frame(fields, arrays)


def blob(data: bytes) -> Array:
    """Return bytes as an array that a frame carries."""
    return np.frombuffer(data, np.uint8)


def _parse(text: bytes) -> dict[str, Any]:
    try:
        value = json.loads(text.decode("utf-8"), parse_constant=_refuse, object_pairs_hook=_unique)
    except (ValueError, RecursionError) as error:
        raise FrameError("the fields of the frame are no JSON") from error
    if not isinstance(value, dict):
        raise FrameError("the fields of the frame are no object")
    return value


def _refuse(text: str) -> NoReturn:
    raise ValueError(text)


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise ValueError("a name occurs twice")
    return found


def _listed(value: object, count: int) -> list[tuple[str, np.dtype[Any], tuple[int, ...]]]:
    if not isinstance(value, list) or len(value) != count:
        raise FrameError("the list of arrays has another length than the frame says")
    found, names = [], set()
    for entry in value:
        if not isinstance(entry, list) or len(entry) != _ENTRY:
            raise FrameError("an array is listed without name, type and shape")
        name, code, shape = entry
        if not isinstance(name, str) or name in names or not isinstance(code, str):
            raise FrameError("an array has no name or one that is taken")
        if code not in _TYPES or not isinstance(shape, list) or len(shape) > MAX_AXES:
            raise FrameError(f"an array has a type or shape that is not sent: {code[:8]!r}")
        if not all(type(n) is int and 0 <= n <= MAX_PAYLOAD_BYTES for n in shape):
            raise FrameError("an array has an impossible shape")
        names.add(name)
        found.append((name, _TYPES[code], tuple(shape)))
    return found
