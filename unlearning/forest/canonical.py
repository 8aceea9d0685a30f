"""Canonical form of a forest: one byte string per model, and its SHA-256.

Layout, all little-endian: ``PVMLFRST``, u32 version; ten u64 parameters (task, T, k, max_depth, s,
P, m, p, C, target_bits); p bytes of categorical flags; 32 bytes of key; u64 n; n rows sorted by
(type, high, low): type, low, high u64, p float32, y int64. Then every tree in order: u32
:data:`TREE_MARKER` and its nodes in pre-order. A node is a kind byte (0 empty tree, 1 leaf,
2 split), and unless empty u64 n and u64 counts per class (regression: one int64 sum). A leaf adds
its n sorted row positions as u64, a split its u32 attribute, u32 candidate and u32 threshold bits.

The bytes hold the living rows and the key: treat them as the training data.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Iterator
from typing import Final

import numpy as np

from privml._typing import Bytes, Digest
from privml.unlearning.forest.keys import ForestKey
from privml.unlearning.forest.params import REGRESSION, ForestParams
from privml.unlearning.forest.reference import Forest, Leaf, Node, Rows

MAGIC: Final = b"PVMLFRST"
VERSION: Final = 1
TREE_MARKER: Final = int.from_bytes(b"TREE", "little")
EMPTY, LEAF, SPLIT = 0, 1, 2


def canonical_bytes(forest: Forest) -> bytes:
    """Return the canonical form of a forest built by the twin."""
    parts = [head_bytes(forest.params, forest.key), row_bytes(forest.rows)]
    for tree in forest.trees:
        parts.append(struct.pack("<I", TREE_MARKER))
        parts += [bytes([EMPTY])] if tree is None else _nodes(forest.params, tree)
    return b"".join(parts)


def digest(data: Bytes) -> Digest:
    """Return the SHA-256 of a canonical form."""
    return Digest(hashlib.sha256(data).digest())


def head_bytes(params: ForestParams, key: ForestKey) -> bytes:
    """Return magic, version, parameters, categorical flags and key."""
    header = struct.pack("<8sI10Q", MAGIC, VERSION, *params.header())
    return header + bytes(params.categorical) + key.master


def row_bytes(rows: Rows) -> bytes:
    """Return the row count and the rows, which are in canonical order already."""
    return struct.pack("<Q", len(rows.y)) + pack_rows(rows).tobytes()


def pack_rows(rows: Rows) -> np.ndarray[tuple[int], np.dtype[np.void]]:
    """Return the rows as an array of fixed-width records."""
    packed = np.zeros(len(rows.y), dtype=row_type(rows.X.shape[1]))
    packed["id"], packed["x"], packed["y"] = rows.ids, rows.X, rows.y
    return packed


def row_type(p: int) -> np.dtype[np.void]:
    """Return the record of one row: id (3 u64), x (p float32), y (int64), without padding."""
    return np.dtype([("id", "<u8", (3,)), ("x", "<f4", (p,)), ("y", "<i8")])


def _nodes(params: ForestParams, node: Node) -> Iterator[bytes]:
    form = "<BQ" + ("q" if params.task == REGRESSION else f"{params.n_classes}Q")
    kind = LEAF if isinstance(node, Leaf) else SPLIT
    yield struct.pack(form, kind, node.n, *node.counts)
    if isinstance(node, Leaf):
        yield node.rows.astype("<u8").tobytes()
        return
    bits = int(node.threshold.view(np.uint32))
    yield struct.pack("<III", node.attribute, node.j, bits)
    yield from _nodes(params, node.left)
    yield from _nodes(params, node.right)
