"""Digests of configurations, programs and parameters.

A tensor is digested as SHA-256 over (name, dtype, shape, little-endian bytes), each field preceded
by its length, so two different tensors never feed the hash the same bytes. Structured records are
digested over their canonical JSON (RFC 8785).
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Mapping, Sequence
from dataclasses import asdict

import numpy as np
import rfc8785
from numpy.typing import NDArray

from privml.backbones.base import HexDigest, Manifest, OpNode, TensorDigest

Json = None | bool | int | float | str | Sequence["Json"] | Mapping[str, "Json"]


def canonical_json(value: Json) -> bytes:
    """Return the one canonical JSON encoding of ``value`` (RFC 8785), UTF-8."""
    return rfc8785.dumps(value)


def sha256(data: bytes) -> HexDigest:
    """Return the SHA-256 digest of ``data`` in hexadecimal."""
    return HexDigest(hashlib.sha256(data).hexdigest())


def tensor_digest(name: str, array: NDArray[np.generic]) -> TensorDigest:
    """Digest one named array.

    Parameters
    ----------
    name
        Name of the parameter, hashed with the content.
    array
        Any shape; a numeric dtype of fixed size. Cost: one pass over the bytes.
    """
    little = np.ascontiguousarray(array, dtype=array.dtype.newbyteorder("<"))
    state = hashlib.sha256()
    for field in (name.encode(), array.dtype.name.encode()):
        state.update(struct.pack("<Q", len(field)))
        state.update(field)
    state.update(struct.pack(f"<Q{array.ndim}Q", array.ndim, *array.shape))
    state.update(struct.pack("<Q", little.nbytes))
    state.update(little.reshape(-1).view(np.uint8).data)
    return TensorDigest(
        name=name,
        dtype=array.dtype.name,
        shape=tuple(array.shape),
        sha256=HexDigest(state.hexdigest()),
    )


def build_manifest(params: Mapping[str, NDArray[np.float32]], *, config: HexDigest) -> Manifest:
    """Digest all parameters of a model together with its configuration digest.

    Cost: one pass over the parameters, about 0.1 s for 90 MB on a core with SHA instructions.
    """
    tensors = tuple(tensor_digest(name, params[name]) for name in sorted(params))
    root = sha256(canonical_json({"config": config, "tensors": [asdict(t) for t in tensors]}))
    return Manifest(tensors=tensors, config_digest=config, root=root)


def program_json(ops: Sequence[OpNode]) -> bytes:
    """Return the canonical JSON of a program."""
    return canonical_json([asdict(node) for node in ops])


def program_digest(ops: Sequence[OpNode]) -> HexDigest:
    """Return the digest of a program: kinds, values, shapes, parameter names and attributes."""
    return sha256(program_json(ops))
