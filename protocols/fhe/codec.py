"""Integer graphs as bytes: one safetensors blob with canonical JSON inside.

The only metadata entry ``privml`` holds the canonical JSON (RFC 8785) of the nodes. Arrays of the
node at position i are the tensors ``i/field``: integers in the narrowest signed type that holds
them (I8, I16, I32, I64), coefficients as F64. The reader treats the bytes as hostile: it checks
the framing itself, allocates nothing before the declared sizes add up to the blob, and raises only
:class:`~privml.errors.MalformedMessage`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, fields
from typing import Final

import msgspec
import numpy as np
from numpy.typing import NDArray
from safetensors.numpy import save

from privml.backbones.digests import Json, canonical_json, sha256, tensor_digest
from privml.errors import MalformedMessage, ParameterError
from privml.protocols.fhe.nodes import (
    AddScaled,
    Conv,
    Input,
    Linear,
    Node,
    Output,
    SumPool,
    Table,
    arrays,
)

FORMAT: Final = 1
MAX_NODES: Final = 4096
MAX_HEADER_BYTES: Final = 1 << 22
MAX_GRAPH_BYTES: Final = 1 << 27
_KEY: Final = "privml"
_KINDS: Final[dict[str, type[Node]]] = {
    "input": Input,
    "conv": Conv,
    "linear": Linear,
    "add_scaled": AddScaled,
    "sum_pool": SumPool,
    "table": Table,
    "output": Output,
}
_NAMES: Final = {kind: name for name, kind in _KINDS.items()}
_ARRAYS: Final = {
    Conv: ("weight",),
    Linear: ("weight",),
    AddScaled: ("factor",),
    Table: ("gain", "offset"),
    Output: ("scale", "offset"),
}
_DTYPES: Final = {"I8": "<i1", "I16": "<i2", "I32": "<i4", "I64": "<i8", "F64": "<f8"}

Scalar = int | str | bool | None | tuple[int, ...]


class _Entry(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    dtype: str
    shape: tuple[int, ...]
    data_offsets: tuple[int, int]


class _Document(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    format: int
    nodes: list[dict[str, Scalar]]


def digest_nodes(nodes: Sequence[Node]) -> str:
    """Return the digest of the content: names, structure, constants and arrays, in hexadecimal."""
    described: list[Json] = []
    for node in nodes:
        tensors = [asdict(tensor_digest(name, value)) for name, value in arrays(node).items()]
        described.append({"node": _scalars(node), "tensors": tensors})
    return sha256(canonical_json({"format": FORMAT, "graph": described}))


def encode_nodes(nodes: Sequence[Node]) -> bytes:
    """Return the blob of a graph's nodes; equal graphs give equal bytes."""
    tensors = {
        f"{position}/{name}": _narrow(value)
        for position, node in enumerate(nodes)
        for name, value in arrays(node).items()
    }
    text = canonical_json({"format": FORMAT, "nodes": [_scalars(node) for node in nodes]})
    return save(tensors, metadata={_KEY: text.decode()})


def decode_nodes(data: bytes) -> tuple[Node, ...]:
    """Read a blob that came from outside.

    Raises
    ------
    MalformedMessage
        Anything differs from what :func:`encode_nodes` writes.
    """
    entries, text, body = _split(data)
    document = _document(text)
    tensors = _tensors(entries, body)
    nodes = tuple(_node(position, raw, tensors) for position, raw in enumerate(document.nodes))
    if tensors:
        raise MalformedMessage("the graph holds arrays that no node uses")
    return nodes


def _scalars(node: Node) -> dict[str, Json]:
    held = arrays(node)
    values: dict[str, Json] = {
        name: value for name, value in vars(node).items() if name not in held
    }
    if isinstance(node, Input):
        values["shape"] = list(node.shape)
    return {"kind": _NAMES[type(node)], **values}


def _narrow(array: NDArray[np.generic]) -> NDArray[np.generic]:
    if array.dtype.kind == "f":
        return np.ascontiguousarray(array, "<f8")
    return np.ascontiguousarray(array, _DTYPES[_width(array)])


def _width(array: NDArray[np.generic]) -> str:
    low, high = int(array.min()), int(array.max())
    fits = (n for n in (8, 16, 32) if -(1 << (n - 1)) <= low and high < 1 << (n - 1))
    return f"I{next(fits, 64)}"


def _split(data: bytes) -> tuple[dict[str, _Entry], str, memoryview]:
    """Take the framing apart: tensor entries, text of the nodes, tensor bytes."""
    if len(data) > MAX_GRAPH_BYTES:
        raise MalformedMessage(f"the graph has {len(data)} bytes, the limit is {MAX_GRAPH_BYTES}")
    size = int.from_bytes(data[:8], "little")
    if len(data) < 8 or not 2 <= size <= min(MAX_HEADER_BYTES, len(data) - 8):
        raise MalformedMessage("the graph has no header of valid length")
    try:
        raw = msgspec.json.decode(data[8 : 8 + size], type=dict[str, msgspec.Raw])
        metadata = msgspec.json.decode(raw.pop("__metadata__"), type=dict[str, str])
        entries = {
            name: msgspec.json.decode(value, type=_Entry, strict=True)
            for name, value in raw.items()
        }
    except (msgspec.DecodeError, KeyError, UnicodeDecodeError, RecursionError) as error:
        raise MalformedMessage("the header of the graph is not valid") from error
    if set(metadata) != {_KEY}:
        raise MalformedMessage("the graph must have exactly one metadata entry")
    return entries, metadata[_KEY], memoryview(data)[8 + size :]


def _document(text: str) -> _Document:
    try:
        document = msgspec.json.decode(text, type=_Document, strict=True)
        same = canonical_json(msgspec.to_builtins(document)) == text.encode()
    except (msgspec.DecodeError, UnicodeError, RecursionError, ValueError) as error:
        raise MalformedMessage("the nodes of the graph are not valid") from error
    if not same:
        raise MalformedMessage("the nodes of the graph are not in canonical form")
    if document.format != FORMAT:
        raise MalformedMessage(
            f"the graph has format {document.format}, this library reads {FORMAT}"
        )
    if not 0 < len(document.nodes) <= MAX_NODES:
        raise MalformedMessage(f"a graph has 1 to {MAX_NODES} nodes")
    return document


def _tensors(entries: Mapping[str, _Entry], body: memoryview) -> dict[str, NDArray[np.generic]]:
    """Return views of the arrays after checking that they cover the body exactly."""
    result: dict[str, NDArray[np.generic]] = {}
    position = 0
    for name, entry in sorted(entries.items(), key=lambda item: item[1].data_offsets):
        start, stop = entry.data_offsets
        if entry.dtype not in _DTYPES or len(entry.shape) > 4 or min(entry.shape, default=0) < 1:
            raise MalformedMessage("an array of the graph has a wrong type or shape")
        dtype = np.dtype(_DTYPES[entry.dtype])
        if start != position or stop != start + math.prod(entry.shape) * dtype.itemsize:
            raise MalformedMessage("an array of the graph has a wrong place")
        position = stop
        if position > len(body):
            break
        array = np.frombuffer(body[start:stop], dtype).reshape(entry.shape)
        if dtype.kind == "i" and _width(array) != entry.dtype:
            raise MalformedMessage("an array of the graph is not in its narrowest type")
        result[name] = array
    if position != len(body):
        raise MalformedMessage("the graph and its header differ in size")
    return result


def _node(
    position: int, raw: Mapping[str, Scalar], tensors: dict[str, NDArray[np.generic]]
) -> Node:
    values: dict[str, Scalar | NDArray[np.generic]] = dict(raw)
    kind = values.pop("kind", None)
    if not isinstance(kind, str) or kind not in _KINDS:
        raise MalformedMessage(f"node {position} of the graph is of no known kind")
    cls = _KINDS[kind]
    held = _ARRAYS.get(cls, ())
    if set(values) != {field.name for field in fields(cls)} - set(held):
        raise MalformedMessage(f"node {position} of the graph has the wrong fields")
    if not isinstance(values.get("shape", ()), tuple):
        raise MalformedMessage(f"node {position} of the graph has no valid shape")
    for name in held:
        array = tensors.pop(f"{position}/{name}", None)
        if array is None or (array.dtype.kind == "f") != (name in ("gain", "offset", "scale")):
            raise MalformedMessage(f"node {position} of the graph lacks an array")
        values[name] = array
    try:
        return cls(**values)  # type: ignore[arg-type]  # the constructor checks every field
    except ParameterError as error:
        raise MalformedMessage(f"node {position} of the graph is not valid: {error}") from error
