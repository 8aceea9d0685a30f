"""Integer convolutions and matrix products through floating-point BLAS, exact by bounds.

A product whose sum of magnitudes ``sum |w| * max |x|`` is at most 2^24 runs in float32, up to 2^53
in float64: then every product and every partial sum, in any order, is an integer that the type
holds exactly. A graph bounds this sum by 2^40, so nothing wider is ever needed.
"""

from __future__ import annotations

from typing import Any, Final, TypeAlias

import numpy as np
from numpy.typing import NDArray

from privml.protocols.fhe.bounds import Edge
from privml.protocols.fhe.nodes import Conv, Ints

Real: TypeAlias = NDArray[np.floating[Any]]  # float32 or float64
_FLOAT32_EXACT: Final = float(1 << 24)


def exact_type(weight: Ints, edge: Edge) -> np.dtype[np.floating[Any]]:
    """Return the narrower float type that holds every partial sum of ``weight`` times a value.

    Parameters
    ----------
    weight
        Shape (O, ...), int64.
    edge
        Bounds of the other factor.
    """
    largest = float(max(abs(edge.low), abs(edge.high)))
    rows = np.abs(weight.astype(np.float64)).reshape(len(weight), -1).sum(axis=1)
    narrow = float(rows.max()) * largest <= _FLOAT32_EXACT
    return np.dtype(np.float32) if narrow else np.dtype(np.float64)


def conv(x: Ints, node: Conv, edge: Edge) -> Ints:
    """Return the convolution of ``x``, shape (n, C, H, W), within ``edge``; int64 (n, O, H', W').

    Cost: an im2col copy of ``kh * kw`` times the input, then one BLAS product per image and group.
    """
    kind = exact_type(node.weight, edge)
    out, per_group, kh, kw = node.weight.shape
    columns, sides = _columns(x.astype(kind), node)
    columns = columns.reshape(len(x), node.groups, per_group * kh * kw, -1)  # (n, g, K, P)
    weight = node.weight.astype(kind).reshape(1, node.groups, out // node.groups, -1)
    product = np.matmul(weight, columns)  # (n, g, O / g, P)
    result: Ints = product.astype(np.int64).reshape(len(x), out, *sides)
    return result


def linear(x: Ints, weight: Ints, edge: Edge) -> Ints:
    """Return ``x`` of any shape (n, ...), flattened, times ``weight`` (O, I); int64 (n, O)."""
    kind = exact_type(weight, edge)
    product = x.reshape(len(x), -1).astype(kind) @ weight.astype(kind).T
    result: Ints = product.astype(np.int64)
    return result


def _columns(x: Real, node: Conv) -> tuple[Real, tuple[int, int]]:
    """Return the patches of ``x``, shape (n, C, kh, kw, H', W'), and the sides of the output."""
    _, _, kh, kw = node.weight.shape
    if node.pad:
        x = np.pad(x, ((0, 0), (0, 0), (node.pad, node.pad), (node.pad, node.pad)))
    n, channels, height, width = x.shape
    s = node.stride
    sides = (height - kh) // s + 1, (width - kw) // s + 1
    if (kh, kw, s) == (1, 1, 1):
        return x, sides
    patches: Real = np.empty((n, channels, kh, kw, *sides), x.dtype)
    for i in range(kh):
        for j in range(kw):
            rows, cols = slice(i, i + s * sides[0], s), slice(j, j + s * sides[1], s)
            patches[:, :, i, j] = x[:, :, rows, cols]
    return patches, sides
