"""Trees of two canonical forms compared one by one, by a walk that shares no code with the forest.

The layout is the one documented in ``docs/unlearning-forest.md``.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator

HEAD = struct.Struct("<8sI10Q")
KEY_BYTES = 32


def trees(body: bytes | bytearray) -> Iterator[memoryview]:
    """Yield the bytes of each tree of a canonical form.

    Raises
    ------
    ValueError
        The bytes do not end where the last tree does, or a node is of no known kind.
    """
    _, _, task, count, *_, p, classes, _ = HEAD.unpack_from(body)
    at = HEAD.size + p + KEY_BYTES
    (rows,) = struct.unpack_from("<Q", body, at)
    at += 8 + rows * (24 + 4 * p + 8)
    node = 1 + 8 + 8 * (1 if task else classes)
    view = memoryview(body)
    for _ in range(count):
        end = _end(body, at + 4, node)
        yield view[at:end]
        at = end
    if at != len(body):
        raise ValueError(f"{len(body) - at} bytes follow the last tree")


def _end(body: bytes | bytearray, at: int, node: int) -> int:
    if body[at] == 0:
        return at + 1
    waiting, size = 1, struct.Struct("<BQ")
    while waiting:
        kind, n = size.unpack_from(body, at)
        if kind == 1:
            at += node + 8 * n
            waiting -= 1
        elif kind == 2:
            at += node + 12
            waiting += 1
        else:
            raise ValueError(f"a node of kind {kind}")
    return at


def equal_trees(one: bytes | bytearray, other: bytes | bytearray) -> tuple[int, int]:
    """Return how many trees are equal byte for byte, and how many there are."""
    pairs = [a == b for a, b in zip(trees(one), trees(other), strict=True)]
    return sum(pairs), len(pairs)
